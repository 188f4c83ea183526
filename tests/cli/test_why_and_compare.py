"""`planner recommend --why` and `planner compare` of two plans, as a user meets them."""

import json
from pathlib import Path

import pytest

from planner.models import load_model
from planner.models.flops import causal_share
from tests.commands import planner

ASK = ["recommend", "llama3-8b", "--cluster", "dgx-h100", "--gpus", "16", "--global-batch", "64"]
DOCUMENTED = (Path(__file__).parents[2] / "docs" / "json.md").read_text()


def test_why_is_answered_behind_the_recommendation():
    done = planner(*ASK, "--why", "tp=8,sp=off", "--why", "tp=3", "--why", "zero=0,dp=16,recompute=none")
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split("Why not ")[1:]
    assert answers[0].startswith("tp 8, sequence-parallel off?")
    assert "Slower by" in answers[0]
    assert "tensor-parallel collectives" in answers[0]
    assert "Not legal: tp 3 doesn't divide 16 GPUs." in answers[1]
    assert "GiB too much; most of it is" in " ".join(answers[2].split())
    assert "peak of the fullest rank" in answers[2]


def test_why_in_json_has_documented_keys():
    record = json.loads(planner(*ASK, "--why", "tp=8,sp=off", "--json").stdout)
    (answer,) = record["why"]
    assert answer["wanted"] == {"tp": 8, "sequence_parallel": False}
    for key in answer:
        assert f"`{key}`" in DOCUMENTED, key
    best, other, parts = record["best"][0], answer["layout"], answer["difference"]
    assert parts["step_time_s"] == pytest.approx(other["step_time_s"] - best["step_time_s"])
    assert sum(parts["time_s"].values()) == pytest.approx(parts["step_time_s"])
    assert sum(parts["memory_parts_gib"].values()) == pytest.approx(parts["memory_gib"])


@pytest.mark.parametrize("text", ["tpp=8", "tp=x", "tp", ""])
def test_faults_come_before_the_search(text):
    done = planner(*ASK, "--why", text)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def plans(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("plans")
    a, b = str(folder / "a.json"), str(folder / "b.json")
    assert planner(*ASK, "--save", a).returncode == 0
    assert planner(*ASK, "--tp", "4", "--save", b).returncode == 0
    return a, b


def test_two_plans_are_compared_part_by_part(plans):
    a, b = plans
    done = planner("compare", a, b)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if not line.startswith(("a:", "b:"))) <= 80
    for text in ("b against a", "choice", "tensor-parallel collectives", "peak of the fullest rank"):
        assert text in done.stdout
    tp = next(line.split() for line in lines if line.startswith("tp "))
    first, second = json.loads(Path(a).read_text()), json.loads(Path(b).read_text())
    assert tp == ["tp", *(str(record["best"][0]["layout"]["tp"]) for record in (first, second))]
    assert tp[1] != tp[2]
    mfu = next(line.split() for line in lines if line.startswith("causal MFU "))
    share = causal_share(load_model(first["model"]))
    assert mfu[2:4] == [f"{record['best'][0]['mfu'] * share:.1%}" for record in (first, second)]
    step = next(line.split() for line in lines if line.startswith("step "))
    shown = [float(x) for x in step[-3:]]
    steps = [record["best"][0]["step_time_s"] for record in (first, second)]
    # Milliseconds are shown: half of one is lost to rounding.
    assert shown == pytest.approx([*steps, steps[1] - steps[0]], abs=5e-4)


def test_a_plan_beside_itself_is_the_same(plans):
    done = planner("compare", plans[0], plans[0])
    assert "The layouts are the same." in done.stdout
    record = json.loads(planner("compare", plans[0], plans[0], "--json").stdout)
    assert set(record["difference"]["time_s"].values()) == {0.0}
    for key in record:
        assert f"`{key}`" in DOCUMENTED, key


def test_a_plan_without_figures_is_estimated(plans, tmp_path):
    record = json.loads(Path(plans[1]).read_text())
    bare = tmp_path / "bare.json"
    keys = ("model", "shape", "cluster", "framework")
    bare.write_text(json.dumps({k: record[k] for k in keys} | {"layout": record["best"][0]["layout"]}))
    both = json.loads(planner("compare", plans[1], str(bare), "--json").stdout)
    assert both["b"]["step_time_s"] == pytest.approx(both["a"]["step_time_s"], rel=0.05)


def test_faults_of_comparing(plans, tmp_path):
    broken, script = tmp_path / "broken.json", tmp_path / "env.sh"
    script.write_text("export X=1")
    record = json.loads(Path(plans[0]).read_text())
    record["best"][0]["time_s"]["bubble"] += 1.0
    broken.write_text(json.dumps(record))
    for arguments, said in (
        ([plans[0], str(broken)], "field time_s adds up to"),
        ([plans[0], "nowhere.json"], "nowhere.json: can't be read"),
        ([plans[0], str(script)], "env.sh: "),
        (["llama3-8b"], "--cluster is missing"),
        (["llama3-8b", "dgx-h10"], "unknown cluster 'dgx-h10'"),
    ):
        done = planner("compare", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
        assert said in done.stderr


@pytest.mark.parametrize(
    ("framework", "pp", "has"),
    [("megatron-core", "4", {"1f1b", "interleaved"}), ("accelerate", "4", set()),
     ("torchtitan", "4", {"1f1b", "gpipe", "interleaved", "breadth-first", "modular"})],
)  # fmt: skip
def test_schedules_that_the_framework_has_are_marked(framework, pp, has):
    ask = ["compare", "llama3-8b", "dgx-h100", "16", "--pp", pp, "--tp", "2", "--global-batch", "32"]
    record = json.loads(planner(*ask, "--framework", framework, "--json").stdout)
    assert {x["layout"]["schedule"] for x in record["schedules"] if x["framework_runs"]} == has
    text = planner(*ask, "--framework", framework).stdout
    assert sum(line.endswith("yes") for line in text.splitlines()) == len(has)
    assert f"has it: {framework} runs it" in text


@pytest.mark.parametrize("command", ["time gpt2 h100 8", "fewest gpt2 h100 --max-gpus 8", "explain gpt2 h100 8"])
def test_commands_of_one_searched_layout_say_why_not_and_save_its_plan(command, tmp_path):
    """The plan is of the layout that the answer is of, and other commands read it."""
    words, path = command.split(), tmp_path / "plan.json"
    batch = ["--global-batch", "64", "--why", "tp=2", "--save", str(path), "--json"]
    done = planner(*words, *batch)
    record = json.loads(done.stdout)
    assert record["why"][0]["wanted"] == {"tp": 2}
    best = json.loads(path.read_text())["best"][0]
    assert record["why"][0]["best"]["layout"] == best["layout"]
    assert planner("export", str(path), "--to", "megatron").returncode == 0
    wrong = planner(*words, "--why", "foo=2")
    assert "unknown choice of a layout 'foo'" in wrong.stderr
