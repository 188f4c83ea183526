"""The Python API as a user meets it: a few lines, the command line's numbers, objects that print, show and convert."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import planner
from planner import Cluster, LayoutError, Model, PlannerError, estimate, fastest, recommend, simulate, time
from planner.api.inputs import SearchChoices
from planner.base import errors
from tests.hang import HANG_S

ROOT = Path(__file__).parents[2]
SMALL = {"gpus": 16, "batch": 64}


@pytest.fixture(scope="module")
def plan():
    return recommend(Model("llama-13b"), Cluster("dgx-a100-80gb"), **SMALL)


def command_line(*args):
    done = subprocess.run(
        [sys.executable, "-m", "planner", *args, "--json"], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    return json.loads(done.stdout)


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_S)
    return done.stdout.strip()


def test_the_numbers_are_the_command_lines(plan):
    asked = ["llama-13b", "--cluster", "dgx-a100-80gb", "--global-batch", "64"]
    assert json.loads(plan.to_json()) == command_line("recommend", *asked, "--gpus", "16")
    layout = {"tp": 2, "pp": 4, "dp": 2, "recompute": "full"}
    options = [text for key, value in layout.items() for text in (f"--{key}", str(value))]
    one = estimate("llama-13b", "dgx-a100-80gb", batch=64, **layout)
    assert json.loads(one.to_json()) == command_line("estimate", *asked, *options)
    step = simulate("llama-13b", "dgx-a100-80gb", batch=64, **layout)
    assert json.loads(step.to_json()) == command_line("simulate", *asked, *options)


@pytest.mark.parametrize(
    ("framework", "split"), [("nanotron", "products"), ("aa-scaling", "parameters"), ("nemo", "even")]
)
def test_layers_are_split_as_the_framework_does(framework, split):
    asked = {"batch": 64, "framework": framework, "dp": 2, "tp": 2}
    one = estimate("llama-13b", "dgx-a100-80gb", pp=4, **asked)
    assert one.layout["layer_split"] == split
    assert simulate("llama-13b", "dgx-a100-80gb", pp=4, **asked).layout == one.layout
    for named in ("even", "balanced"):
        assert estimate("llama-13b", "dgx-a100-80gb", pp=4, layer_split=named, **asked).layout["layer_split"] == named
    assert estimate("llama-13b", "dgx-a100-80gb", **asked).layout["layer_split"] == "even"  # one stage has all
    chunks = estimate("llama-13b", "dgx-a100-80gb", pp=4, virtual_stages=2, **asked)
    assert chunks.layout["layer_split"] == "even"


@pytest.mark.parametrize("framework", ["nanotron", "aa-scaling"])
def test_what_is_recommended_for_a_framework_is_simulated_alike(framework):
    one_stage = {"pp": 4, "virtual_stages": 1}
    found = recommend("llama-13b", "dgx-a100-80gb", **SMALL, framework=framework, **one_stage).best
    same = {k: v for k, v in found.layout.items() if k not in ("layer_split", "global_batch")}
    again = simulate("llama-13b", "dgx-a100-80gb", batch=64, framework=framework, **same)
    assert again.layout == found.layout
    assert again.step_time_s == pytest.approx(found.step_time_s)


def test_a_plan_is_a_sequence_of_layouts_best_first(plan):
    assert len(plan) == 5
    assert plan.best.step_time_s == plan[0].step_time_s <= 1.0225 * min(x.step_time_s for x in plan)
    assert [x.step_time_s for x in plan[1:]] == sorted(x.step_time_s for x in plan[1:])
    assert [x.layout for x in plan[1:3]] == [plan[1].layout, plan[2].layout]
    assert plan.searched >= plan.fitting >= len(plan)
    best = plan.best
    assert best.fits
    assert best.gpus == 16
    assert sum(best.time_parts_s.values()) == pytest.approx(best.step_time_s)
    assert sum(best.memory_parts_gib.values()) == pytest.approx(best.memory_gib)
    memory = [x.memory_gib for x in plan.front]
    assert memory == sorted(memory, reverse=True)
    step = best.simulate()
    assert step.layout == best.layout
    assert step.step_time_s == pytest.approx(best.step_time_s, rel=0.02)


def test_choices_restrict_the_search():
    one = recommend("llama-13b", "dgx-a100-80gb", **SMALL, tp=[2, 4], pp=2, schedule="1f1b", sequence_parallel=True)
    for x in one:
        assert x.layout["tp"] in (2, 4)
        assert x.layout["pp"] == 2
        assert x.layout["schedule"] == "1f1b"
        assert x.layout["sequence_parallel"]


def test_results_print_what_the_command_prints(plan):
    assert "Run this: dp " in repr(plan)
    assert "How accurate: " in repr(plan)
    assert "where the memory goes" in repr(plan.best)
    assert "critical path" in repr(plan.best.simulate())
    assert repr(Model("llama-13b")).startswith("Model llama-13b: 13B parameters")
    assert "25 Gb/s" in repr(Cluster("dgx-a100-80gb", network="ethernet-25g"))
    assert "\x1b" not in repr(plan)


class Tags(HTMLParser):
    """Every tag that opens, with a check that each is closed in turn."""

    VOID = frozenset({"br", "hr", "img", "path", "use", "rect"})

    def __init__(self):
        super().__init__()
        self.seen, self.open = set(), []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)


def tags_of(text):
    parser = Tags()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser.seen


HOSTILE = "<img src=x onerror=alert(1)>&\"'"


def test_a_notebook_shows_tables_and_no_markup_of_a_file(tmp_path):
    path = tmp_path / f"{HOSTILE}.toml"
    path.write_text(
        '[model]\nfamily = "llama"\nlayers = 8\nhidden = 1024\nffn = 2816\nheads = 8\nvocab = 32000\nseq_len = 1024\n'
    )
    hostile = Model(path)
    assert hostile.name == HOSTILE
    plan = recommend(hostile, "dgx-a100-80gb", gpus=4, batch=8)
    step = simulate(hostile, "dgx-a100-80gb", batch=8, pp=4)
    for shown in (hostile, Cluster("selene"), plan, plan.best, step):
        text = shown._repr_html_()
        assert not {"img", "script"} & tags_of(text.split("<svg")[0] + text.split("</svg>")[-1])
        assert HOSTILE not in text
    assert "svg" in tags_of(step._repr_html_())
    assert {"table", "th", "td"} <= tags_of(plan._repr_html_())


def test_pandas_has_a_row_a_layout_and_a_row_an_operation(plan):
    best = plan.to_pandas()
    assert best.step_time_s.tolist() == [x.step_time_s for x in plan]
    assert best.schedule.tolist() == [x.layout["schedule"] for x in plan]
    everything = plan.to_pandas(everything=True)
    assert len(everything) == plan.searched
    assert everything.fits.sum() == plan.fitting
    parts = everything.filter(regex="^time_.*_s$").sum(axis=1)
    assert parts.to_numpy() == pytest.approx(everything.step_time_s.to_numpy(), rel=1e-2)  # the best are simulated
    assert plan.best.to_pandas().shape[0] == 1
    step = simulate("llama-13b", "dgx-a100-80gb", batch=16, pp=4, recompute="full")
    operations = step.to_pandas()
    assert len(operations) == 4 * 16 * 2
    assert set(operations.kind) == {"F", "B"}
    assert (operations.end_s >= operations.start_s).all()


def test_a_step_is_drawn_and_traced(tmp_path):
    step = simulate("llama-13b", "dgx-a100-80gb", batch=16, pp=4, schedule="zb-h1")
    for name, start in (("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.json", b"{")):
        step.save(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(planner.InputError, match="pdf"):
        step.save(tmp_path / "a.pdf")
    with pytest.raises(planner.OutputError):
        step.save(tmp_path / "none" / "a.svg")


def test_a_plan_is_saved_and_exported_as_the_command_line_does(tmp_path):
    plan = recommend("llama3-8b", "dgx-h100", gpus=16, batch=64, framework="megatron", cp=1)
    plan.save(tmp_path / "plan.json")
    for to, name in (("megatron", "launch.sh"), ("deepspeed", "ds.json"), ("accelerate", "fsdp.yaml")):
        done = plan.best.export(to, tmp_path / name)
        assert (tmp_path / name).read_text() == done.text == plan.best.export(to).text
        command = [sys.executable, "-m", "planner", "export", str(tmp_path / "plan.json"), "--to", to]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S)
        assert said.stdout == done.text
        assert all(note in said.stderr for note in done.notes)
    with pytest.raises(planner.UnknownNameError, match="megatron"):
        plan.best.export("megatorn")
    with pytest.raises(planner.OutputError):
        plan.best.export("megatron", tmp_path / "none" / "launch.sh")


def test_a_report_is_written_of_a_plan(plan, tmp_path):
    plan.report(tmp_path / "a.html", curve=False)
    text = (tmp_path / "a.html").read_text()
    assert "llama-13b on 16 GPUs of dgx-a100-80gb" in text
    assert "pretrain_gpt.py" in text
    plan.save_picture(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(planner.InputError, match="svg"):
        plan.report(tmp_path / "a.svg")
    with pytest.raises(planner.OutputError):
        plan.report(tmp_path / "none" / "a.html")


def test_a_schedule_of_ones_own(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    step = simulate("llama-13b", "dgx-a100-80gb", batch=2, pp=2, schedule_file=path)
    assert step.to_dict()["closed_form_s"] is None
    assert len(step.to_pandas()) == 8


def test_nothing_fits_is_an_empty_plan_whose_best_says_why():
    plan = recommend("megatron-1t", "dgx-a100-80gb", gpus=8, batch=8)
    assert len(plan) == 0
    assert plan.nearest_miss is not None
    assert not plan.nearest_miss.fits
    assert "Nothing fits" in repr(plan)
    assert "Nothing fits" in plan._repr_html_()
    with pytest.raises(LayoutError, match="nearest miss"):
        _ = plan.best
    with pytest.raises(LayoutError, match="nearest miss"):
        plan.save("/nonexistent/plan.json")


BAD = [
    (lambda: recommend("llama-13b", "dgx-a100-80gb", gpus=0, batch=8), "gpus is 0"),
    (lambda: recommend("llama-13b", "dgx-a100-80gb", gpus=8.5, batch=8), "gpus is 8.5"),
    (lambda: recommend("llama-13b", "dgx-a100-80gb", gpus=8, batch=True), "batch is True"),
    (lambda: recommend("llama-13b", "dgx-a100-80gb", gpus=8, batch=8, tp="8"), "tp is '8'"),
    (lambda: recommend("llama-13b", "dgx-a100-80gb", gpus=8, batch=8, top=0), "top is 0"),
    (lambda: recommend("llama-13b", "dgx-a100-80gb", gpus=8, batch=8, objective=3), "objective is 3"),
    (lambda: recommend("llama-13b", "dgx-a100-80gb", gpus=8, batch=8, objective="beauty"), "allowed: cost"),
    (lambda: recommend("llama-13b", "dgx-a100-80gb", gpus=8, batch=8, allow_offload=1), "allow_offload is 1"),
    (lambda: recommend("llama-13b", "dgx-a100-80gb", gpus=8, max_memory=70), "max_memory_gib"),
    (lambda: estimate("llama-13b", "selene", batch=8, depth=2), "depth is no choice; there are schedule, dp"),
    (
        lambda: estimate("llama-13b", "selene", batch=8, seq_len=4096),
        "seq_len is no choice of a layout; allowed: planner.M",
    ),
    (lambda: recommend("llama-13b", "selene", gpus=8, network="x"), "allowed: planner.Cluster(name, network=...)"),
    (lambda: time("llama-13b", "selene", gpus=8, tokens="many"), "tokens is 'many'"),
    (lambda: Model("llama-13b", seq_len="long"), "seq_len is 'long'"),
    (lambda: recommend(3, "dgx-a100-80gb", gpus=8, batch=8), "model is 3"),
    (lambda: recommend("llama-13b", "dgx-a100", gpus=8, batch=8), "dgx-a100-80gb"),
    (lambda: Cluster("dgx-a100-80gb", network="infinibad-hdr"), "infiniband-hdr"),
    (lambda: Cluster("dgx-a100-80gb", network="nvlink-3"), "unknown network 'nvlink-3'; allowed: "),
    (lambda: recommend("gpt2", "dgx-h100", gpus=100000, batch=64), "give a batch with more divisors, such as 100000"),
    (lambda: Model("llama-13b", seq_len=0), "seq_len is 0"),
    (lambda: estimate("llama-13b", "selene", batch=7, dp=2), "divisible"),
    (lambda: estimate("llama-13b", "selene", batch=8, recompute=True), "recompute is True"),
    (lambda: estimate("llama-13b", "selene", batch=8, zero=4), "zero is 4"),
    (lambda: estimate("llama-13b", "selene", batch=8, precision="fp8"), "precision is fp8"),
    (lambda: estimate("llama-13b", "dgx-b200", batch=8, precision="mxfp8"), "precision is mxfp8; allowed: fp8, which"),
    (lambda: estimate("llama-13b", "selene", batch=8, sequence_parallel="yes"), "sequence_parallel is 'yes'"),
    (lambda: simulate("llama-13b", "selene", batch=8, schedule="1f2b"), "1f1b"),
    (lambda: simulate("llama-13b", "selene", batch=8, schedule_file="nothing.csv"), "nothing.csv"),
    (
        lambda: time("gpt2", "dgx-h100", gpus=8, given={"price_usd_per_hour": "2"}),
        "--price is '2'; allowed: 0 to 1e+06 USD per GPU-hour (price_usd_per_hour)",
    ),
    (lambda: time("gpt2", "dgx-h100", gpus=8, given=5), "given is 5; allowed: assumptions by name"),
    (
        lambda: planner.export("plan.json", to="megatron"),
        "plan is 'plan.json'; allowed: Plan or LayoutEstimate, not its",
    ),
    (lambda: planner.why("plan.json", "tp=8"), "plan is 'plan.json'; allowed: Plan, not its file"),
    (lambda: planner.recommend("gpt2", "dgx-h100", gpus=8, batch=64, pp=1, dp=8).why(5), "why is 5; allowed: choices"),
    (
        lambda: planner.compare(Model("gpt2").transformer, "b.json"),
        "first is of type Transformer; allowed: a plan's file",
    ),
    (lambda: Cluster("dgx-h100", figures=[1]), "figures is [1]; allowed: numbers by name"),
    (lambda: planner.validate(5), "files is 5; allowed: a CSV file"),
    (
        lambda: recommend("gpt2", "dgx-h100", gpus=8, batch_tokens="4M"),
        "batch_tokens is no choice of a layout; allowed: batch, in sequences",
    ),
    (
        lambda: planner.estimate("gpt2", "dgx-h100", global_batch=64),
        "global_batch is no choice of a layout; allowed: batch",
    ),
    (
        lambda: planner.simulate("gpt2", "dgx-h100", global_batch=64),
        "global_batch is no choice of a layout; allowed: batch",
    ),
    (lambda: recommend("gpt2", "dgx-h100", gpus=8, global_batch=64), "global_batch is no choice of a layout"),
    (lambda: Model.of_shape(), "Model.of_shape: missing a required"),
    (lambda: Cluster("dgx-h100", gpus=8), "Cluster: got an unexpected keyword argument 'gpus'; it takes name, network"),
    (lambda: planner.explain("gpt2", "dgx-h100"), "explain: missing a required"),
    (lambda: planner.export(to="megatron"), "export: missing a required"),
    (lambda: planner.sweep({}, "rows.parquet"), "definition is {}; allowed: the path of a file"),
    (lambda: recommend("gpt2", "dgx-h100", gpus=8, batch=64, anchor=3), "anchor is 3; allowed: the path of a file"),
    (lambda: recommend("gpt2", "dgx-h100", gpus=8, batch=64, exclude=3), "exclude is 3; allowed: several in a list"),
    (lambda: recommend("gpt2", "dgx-h100", gpus=8, batch=64, pp=1).save(None), "path is None; allowed: the path of"),
    (lambda: fastest("gpt2", "dgx-h100", max_gpus=8, strategies=3), "strategies is 3; allowed: several in a list"),
    (lambda: fastest("gpt2", 3, max_gpus=8), "clusters is 3; allowed: several in a list"),
    (lambda: time("gpt2", "dgx-h100", gpus=8, batch_law=3), "batch_law is 3; allowed: a name in quotes"),
    (lambda: simulate("gpt2", "dgx-h100", batch=8, slices=3), "slices is 3; allowed: a name in quotes"),
    (lambda: simulate("gpt2", "dgx-h100", batch=8, schedule_file=3), "schedule_file is 3; allowed: the path of a file"),
    (lambda: Cluster("dgx-h100", figures={3: 4}), "figures is {3: 4}; allowed: numbers by name"),
    (
        lambda: recommend("gpt2", "dgx-h100", gpus=8, batch=64, tp=[]),
        "tp is []; allowed: one value or several, or None",
    ),
    (
        lambda: recommend("gpt2", "dgx-h100", gpus=8, batch=64, exclude="tp=8"),
        "exclude is 'tp=8'; allowed: several in a",
    ),
    (lambda: Model.of_shape(family="gpt", layers=2, hidden=65, ffn=8, heads=2, vocab=9, seq_len=8), "own"),
    (lambda: Model.of_shape(family="llama", layers=2.5, hidden=8, ffn=8, heads=2, vocab=9, seq_len=8), "layers is 2.5"),
]


@pytest.mark.parametrize(("call", "named"), BAD, ids=[named for _, named in BAD])
def test_bad_input_is_a_typed_error_of_one_line(call, named):
    with pytest.raises(PlannerError) as caught:
        call()
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_slow_machine_s_rate_has_three_digits():
    one = str(estimate("gpt2", "workstation-cpu", batch=1, precision="fp32"))
    assert 0 < float(re.search(r" ([0-9.e-]+) TFLOP/s/GPU", one)[1]) < 10


def test_a_model_by_its_sizes_is_the_preset_of_these_sizes():
    preset = Model("llama-13b")
    sizes = {"layers": 40, "hidden": 5120, "ffn": 13824, "heads": 40, "vocab": 32000, "seq_len": preset.seq_len}
    assert Model.of_shape(family="llama", **sizes, name="llama-13b").parameters == preset.parameters
    assert Model("llama-13b") == preset
    assert preset.to_dict()["hidden"] == 5120


def test_every_stable_name_exists_is_an_error_or_documented():
    page = (ROOT / "docs" / "python-api.md").read_text()
    for name in planner.__all__:
        assert getattr(planner, name) is not None
        assert f"`{name}`" in page, name
    assert {name for name in vars(errors) if name.endswith("Error")} <= {*planner.__all__}
    assert {*planner.__all__} <= {*dir(planner)}
    with pytest.raises(AttributeError, match="nonsense"):
        _ = planner.nonsense


def test_estimate_is_the_function_whatever_was_imported_before():
    for first in (
        "pass",
        "from planner.step.estimate import Estimate",
        "import planner.cli",
    ):
        code = f"{first}; from planner import estimate; print(estimate.__name__)"
        assert python(code) == "estimate"


def test_importing_the_package_loads_nothing_heavy():
    code = "import planner, sys; print([m for m in ('numpy', 'rich', 'pydantic', 'pandas') if m in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.parametrize(
    ("framework", "choices", "on"),
    [
        ("torchtitan", {"tp": 8}, True), ("torchtitan-compiled", {"tp": 8}, True), ("torchtitan", {"tp": 1}, False),
        ("torchtitan", {"tp": 8, "sequence_parallel": False}, False), ("fsdp", {"tp": 8}, False),
        ("megatron-core", {"tp": 8}, False), ("megatron-core", {"tp": 8, "sequence_parallel": True}, True),
    ],
)  # fmt: skip
def test_sequence_parallelism_is_on_where_a_framework_turns_it_on_by_itself(framework, choices, on):
    """torchtitan 0.3.0, config/configs.py: `enable_sequence_parallel` is True; the others' is asked for."""
    asked = {"batch": 64, "framework": framework} | choices
    assert planner.estimate("llama3-8b", "dgx-h100", **asked).layout["sequence_parallel"] == on
    assert planner.simulate("llama3-8b", "dgx-h100", **asked).layouts.row(0)["sequence_parallel"] == on


def test_an_unknown_argument_is_pythons_error_too_and_names_all_that_are_allowed():
    with pytest.raises(TypeError) as caught:
        recommend("llama-13b", "dgx-a100-80gb", gpus=8, batch=8, max_memory=70)
    allowed = str(caught.value).partition("; there are ")[2].split(", ")
    assert set(SearchChoices.__annotations__) == set(allowed)


def test_a_batch_that_is_not_given_is_the_commands():
    few = {"tp": 4, "zero": 1, "micro_batch": 1, "recompute": "none"}
    assert recommend("llama3-8b", "dgx-h100", gpus=8, **few).batch == 512
    assert estimate("llama3-8b", "dgx-h100", tp=8).layout["global_batch"] == 512
    assert simulate("llama3-8b", "dgx-h100", tp=8).layout["global_batch"] == 512


def test_texts_stand_for_numbers_as_the_commands_take_them():
    assert Model("llama3-8b", seq_len="16k").seq_len == 16384
    ask = {"gpus": 8, "batch": 512, "tp": 4, "zero": 1, "micro_batch": 1, "recompute": "none"}
    assert time("llama3-8b", "dgx-h100", tokens="1T", **ask).to_dict() == (
        time("llama3-8b", "dgx-h100", tokens=1e12, **ask).to_dict()
    )


def test_one_clusters_fastest_is_a_row_a_number_of_gpus():
    answer = fastest("gpt2", "dgx-h100", max_gpus=8, tokens=1e9)
    (one,) = answer.to_dict()["results"]
    assert answer.to_pandas()["gpus"].tolist() == [row["gpus"] for row in one["time_against_gpus"]]
