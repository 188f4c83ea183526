"""The command line as a user meets it: exit codes, one-line faults, JSON and nothing else, a fast start."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import pytest

from tests.commands import planner
from tests.hang import HANG_S
from tests.predictions import of_shipped

ROOT = Path(__file__).parents[2]
ASK = ["recommend", "llama-13b", "--cluster", "dgx-a100-80gb", "--gpus", "64", "--global-batch", "2048"]


def test_recommend_prints_the_answer():
    done = planner(*ASK)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for text in ("Run this: dp ", "Why the rest lost", "How accurate", "GiB"):
        assert text in done.stdout


def test_recommend_json_has_the_documented_keys():
    done = planner(*ASK, "--json", "--top", "3")
    record = json.loads(done.stdout)
    documented = (ROOT / "docs" / "json.md").read_text()
    best = record["best"][0]
    assert len(record["best"]) == 3
    for key in [*record, *best, *best["layout"], *best["time_s"], *best["memory_parts_gib"]]:
        assert f"`{key}`" in documented, key
    assert sum(best["time_s"].values()) == pytest.approx(best["step_time_s"])
    assert sum(best["memory_parts_gib"].values()) == pytest.approx(best["memory_gib"])


def test_recommend_saves_what_json_prints(tmp_path):
    done = planner(*ASK, "--json", "--save", str(tmp_path / "plan.json"))
    assert (tmp_path / "plan.json").read_text() == done.stdout
    fails = planner(*ASK, "--save", str(tmp_path / "no" / "plan.json"))
    assert (fails.returncode, fails.stdout) == (2, "")
    assert "no folder" in fails.stderr


def validated(*options: str) -> str:
    """What `planner validate` prints of the shipped runs, which are predicted once."""
    with mock.patch("planner.api.validated.validate", return_value=of_shipped()) as asked:
        done = planner("validate", *options)
    asked.assert_called_once_with((), profiles=None, anchor=None)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_estimate_validate_models_clusters_json():
    layout = ["--tp", "8", "--pp", "8", "--dp", "2", "--global-batch", "64", "--recompute", "full"]
    one = json.loads(planner("estimate", "gpt3-175b", "--cluster", "selene", *layout, "--json").stdout)
    assert one["fits"] is True
    assert one["gpus"] == 128
    assert "x-160" not in planner("models", "--json").stdout
    assert json.loads(planner("models", "x-160", "--json").stdout)["num_layers"] == 160
    cluster = json.loads(planner("clusters", "selene", "--json").stdout)
    assert cluster["accelerator"]["sources"]
    scores = json.loads(validated("--json"))
    assert set(scores) == {"sources", "overall", "publications", "filled_cells", "unpredicted"}
    keys = {"rows", "timed_rows", "mape", "bias", "max_error", "rank_correlation", "regret", "oom_accuracy",
            "oom_missed", "oom_false", "memory_rows", "memory_mape"}  # fmt: skip
    assert keys <= set(scores["overall"])
    assert all(s["held_out_mape"] > 0 for s in [*scores["sources"].values(), scores["overall"]])
    assert all(p["licence"] and p["at"] for p in scores["publications"])


def test_runs_of_ones_own_have_no_held_out_errors_and_no_citation(tmp_path, reference_runs):
    shipped = str(reference_runs("korthikanti_2022_a100.csv"))
    assert "arXiv 2205.05198" in planner("validate", shipped).stdout
    text = reference_runs("korthikanti_2022_a100.csv").read_text()
    (tmp_path / "mine.csv").write_text(text.replace("korthikanti-table5", "korthikantis-neighbour"))
    mine = planner("validate", str(tmp_path / "mine.csv")).stdout
    assert "korthikantis-neighbour" in mine
    for said in ("held", "licence", "arXiv"):
        assert said not in mine


def test_runs_that_can_t_be_predicted_are_told_once_a_reason(tmp_path, reference_runs):
    header, *rows = reference_runs("korthikanti_2022_a100.csv").read_text().splitlines(keepends=True)
    cluster = rows[0].split(",")[13]
    some, all_ = tmp_path / "some.csv", tmp_path / "all.csv"
    some.write_text("".join([header, *rows[:2], *(row.replace(cluster, "abacus") for row in rows[2:])]))
    all_.write_text("".join([header, *(row.replace(cluster, "abacus") for row in rows)]))
    done = planner("validate", str(some))
    assert done.returncode == 0
    told = " ".join(done.stdout.split())
    assert told.count("abacus") == 1
    assert f"korthikanti-0003 and {len(rows) - 3} more: unknown cluster 'abacus'" in told
    failed = planner("validate", str(all_))
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "all.csv:2: no run can be predicted: unknown cluster 'abacus'" in failed.stderr


def test_a_profile_of_ones_own_that_does_not_load_is_said_before_any_run(tmp_path, reference_runs):
    (tmp_path / "frameworks").mkdir()
    (tmp_path / "frameworks" / "mine.toml").write_text('name = "mine"\nbase = "nemo"\nsends = 1\n')
    done = planner("validate", str(reference_runs("korthikanti_2022_a100.csv")), "--profiles", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1
    assert "mine.toml" in done.stderr
    assert "sends" in done.stderr


def test_predictions_file_has_a_row_a_run(tmp_path, reference_runs):
    out = tmp_path / "out.csv"
    done = planner("validate", str(reference_runs("korthikanti_2022_a100.csv")), "--predictions", str(out))
    assert done.returncode == 0, done.stderr
    lines = out.read_text().splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("source,run,predicted_step_time_s")


BAD = [
    (["recommend", "gpt2", "h100", "8", "--global-bach", "4"], "--global-bach (perhaps: --global-batch) (planner"),
    (["recommend", "gpt2", "h100", "8", "--batch-size", "4"], "--batch-size (perhaps: --global-batch) (planner"),
    (["recommend", "gpt2", "h100", "8", "--dollars", "4"], "No such option: --dollars (planner"),
    (["largest", "--days", "4"], "No such option: --days (perhaps: --months) (planner"),
    (["recommend", "gpt2", "h100", "8", "--max-memory", "-1GiB"], "allowed: a number from 0.001 to 79.19 GiB"),
    (["recommend", "lama-13b", *ASK[2:]], "llama-13b"),
    ([*ASK[:3], "dgx-a100", *ASK[4:]], "dgx-a100-80gb"),
    ([*ASK[:5], "0", *ASK[6:]], "gpus is 0"),
    ([*ASK[:5], "-8", *ASK[6:]], "gpus is -8"),
    ([*ASK[:5], "6.5", *ASK[6:]], "--gpus"),
    ([*ASK[:5], "many", *ASK[6:]], "--gpus"),
    ([*ASK[:5], "10007", *ASK[6:]], "near by"),
    ([*ASK[:7], "0"], "--global-batch is 0"),
    (["estimate", "llama-13b", "--cluster", "selene", "--dp", "2", "--global-batch", "7"], "divisible"),
    ([*ASK, "--network", "infinibad-hdr"], "infiniband-hdr"),
    ([*ASK, "--framework", "megatrom"], "megatron-lm"),
    ([*ASK, "--precision", "fp8"], "fp8"),
    ([*ASK, "--recompute", "some"], "selective"),
    ([*ASK, "--schedule", "1f2b"], "1f1b"),
    ([*ASK, "--objective", "beauty"], "time"),
    (["estimate", "--megatron-args", "@", "h100", "8"], "--megatron-args is '@'; allowed: arguments, or @FILE"),
    (["check", "launch.sh", "h100", "8", "--fit-chance", "1"], "--fit-chance is '1'"),
    (["time", *ASK[1:6], "--tokens", "1B", "--loss", "2"], "--tokens and --loss are both given; allowed: one of them"),
    (["recommend", "tests", *ASK[2:]], "'tests': a folder without config.json"),
    (["validate", "nothing.csv"], "nothing.csv"),
    (["validate", "--predictions", "/nonexistent/x.csv"], "/nonexistent"),
    (["models", "nothing.json"], "nothing.json"),
    (["recommend"], "model"),
    (["dance"], "dance"),
]


@pytest.mark.parametrize(("args", "named"), BAD, ids=[" ".join(a)[-40:] for a, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(args, named):
    done = planner(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_in_place_of_a_model_is_named_as_one(tmp_path):
    plan = tmp_path / "plan.json"
    assert planner("estimate", "gpt2", "h100", "8", "--global-batch", "64", "--save", str(plan)).returncode == 0
    for words in (("h100", "8"), ()):
        done = planner("recommend", str(plan), *words)
        assert done.returncode == 2
        assert "plan.json: is a plan; allowed: a model (planner estimate, simulate," in done.stderr
    done = planner("compare", str(plan), "--cluster", "h100", "--tp", "8")
    assert "plan.json: is a plan, beside --cluster h100; allowed: two plans, or a model on" in done.stderr


def test_commands_of_one_layout_take_a_plan(tmp_path):
    plan, ask = str(tmp_path / "plan.json"), ("gpt2", "h100", "--tp", "2", "--pp", "2", "--mb", "4")
    size = ("--gpus", "8", "--global-batch", "64")
    assert planner("estimate", *ask, *size, "--save", plan).returncode == 0
    for command in ("estimate", "simulate", "partition"):
        mine = planner(command, plan, "--json")
        assert mine.returncode == 0, mine.stderr
        assert mine.stdout == planner(command, *ask, *size, "--json").stdout
    twice = planner("simulate", plan, "--gpus", "16", "--schedule", "zb-h1", "--global-batch", "128", "--json").stdout
    other = ("--gpus", "16", "--schedule", "zb-h1", "--global-batch", "128")
    assert twice == planner("simulate", *ask, *other, "--json").stdout
    wider = planner("estimate", plan, "--tp", "4", "--json")
    assert (wider.returncode, json.loads(wider.stdout)["layout"]["etp"]) == (0, 4), wider.stderr
    refused = planner("simulate", plan, "--seq-len", "2048")
    assert refused.stderr == "planner: --seq-len stands beside a plan; allowed: beside a model alone\n"


def test_nothing_fits_is_exit_code_1_with_the_nearest_miss():
    done = planner("recommend", "megatron-1t", "--cluster", "dgx-a100-80gb", "--gpus", "8", "--global-batch", "8")
    assert done.returncode == 1
    assert "Nearest miss" in done.stdout


def test_the_version_is_the_package_s():
    done = planner("--version")
    assert (done.returncode, done.stdout) == (0, f"planner {version('planner')}\n")


def test_help_imports_nothing_heavy():
    probe = (
        "import sys; sys.argv = ['planner', '--help']\n"
        "from planner.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('numpy', 'scipy', 'pandas', 'matplotlib', 'pydantic', 'pyarrow', 'distributed')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_what_a_file_says_is_named_as_it_stands_there(tmp_path):
    (path := tmp_path / "own.toml").write_text('base = "dgx-h100"\nnics_per_node = 0\n')
    done = planner("time", "llama3-8b", str(path), "64")
    assert (done.returncode, "own.toml: field nics_per_node is 0; allowed: " in done.stderr) == (2, True), done.stderr


def test_help_of_mixed_names_the_table_as_a_file_has_it():
    assert "with [[groups]], each a cluster" in " ".join(planner("mixed", "--help").stdout.split())


def test_readme_shows_what_validate_prints():
    """The README's table is today's output, to a rounding."""
    text = (ROOT / "README.md").read_text()
    shown = text.split("<!-- planner validate -->")[1].split("```")[1].strip().splitlines()
    printed = validated().splitlines()[1 : len(shown) + 1]
    for was, now in zip(shown, printed, strict=True):
        name, *old = was.split()
        assert name == now.split()[0]
        if name != "source":
            assert [float(x) for x in old] == pytest.approx([float(x) for x in now.split()[1:]], abs=0.11)


def test_mfu_of_a_long_sequence_is_said_with_causal_attention_too():
    long = ["estimate", "llama3-8b", "--cluster", "dgx-h100", "--tp", "8", "--cp", "8", "--global-batch", "1"]
    done = planner(*long, "--sequence-parallel", "--recompute", "full", "--seq-len", "1048576")
    found = re.search(r"causal MFU ([\d.]+)% \(([\d.]+)% with whole attention\)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) == pytest.approx(0.514 * float(found[2]), rel=0.01)
    short = planner(*long, "--seq-len", "2048").stdout
    assert re.search(r"causal MFU [\d.]+% \([\d.]+% with whole attention\)", short), "at any length, to compare"
