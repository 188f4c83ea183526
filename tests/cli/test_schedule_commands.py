"""`planner schedule`, `simulate` and `compare` as a user meets them."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from planner.report.tables import chance_text
from tests.commands import planner

LAYOUT = ["llama-13b", "--cluster", "dgx-a100-80gb", "--tp", "2", "--pp", "4", "--global-batch", "16"]


def test_a_drawing_is_plain_text_in_a_pipe():
    done = planner("schedule", "1f1b", "--pp", "2", "--micro-batches", "2")
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[2:5] == ["time   0", "rank 0 F0 F1 ......B0    ...B1", "rank 1 ...F0 B0    F1 B1    ......"]
    assert "\x1b" not in done.stdout
    for fact in ("bubble", "peak activations by rank  2, 1", "weight versions by rank   1, 1", "critical path"):
        assert fact in done.stdout


def test_long_drawings_keep_to_the_screen():
    done = planner("schedule", "interleaved", "--pp", "16", "--micro-batches", "64", "--virtual-stages", "4")
    rows = [line for line in done.stdout.splitlines() if line.startswith(("rank ", "time "))]
    assert max(map(len, rows[:-1])) <= 80


def test_list_facts_and_pictures(tmp_path):
    listed = json.loads(planner("schedule", "--json").stdout)
    assert {"1f1b", "zb-v", "2bw", "seq1f1b"} <= {s["name"] for s in listed["schedules"]}
    assert "seq1f1b" in planner("schedule").stdout
    svg, png, csv = (tmp_path / f"a.{kind}" for kind in ("svg", "png", "csv"))
    asked = ["schedule", "zb-h1", "--pp", "4", "--micro-batches", "8", "--csv", str(csv), "--json"]
    facts = json.loads(planner(*asked, "--svg", str(svg), "--png", str(png)).stdout)
    assert facts["bubble"] == pytest.approx(3 / 27)
    assert facts["bubble_closed_form"] == pytest.approx(3 / 27)
    assert facts["rows"][3][:3] == ["3F0", "3I0", "3F1"]
    root = ElementTree.parse(svg).getroot()
    assert root.tag.endswith("svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    again = json.loads(planner("schedule", str(csv), "--json").stdout)
    assert again["rows"] == facts["rows"]
    simulated = planner("simulate", *LAYOUT, "--schedule-file", str(tmp_path / "none.csv"))
    assert simulated.returncode == 2


def test_simulate_and_compare(tmp_path):
    trace = tmp_path / "step.json"
    one = json.loads(planner("simulate", *LAYOUT, "--trace", str(trace), "--json").stdout)
    assert one["closed_form_s"] == pytest.approx(one["step_time_s"], rel=0.02)
    assert len(one["ranks"]["busy_s"]) == 4
    assert sum(part["seconds"] for part in one["critical_path"]) <= one["step_time_s"]
    assert len(json.loads(trace.read_text())["traceEvents"]) > one["operations"]
    text = planner("simulate", *LAYOUT).stdout
    assert "critical path: " in text
    rows = json.loads(planner("compare", *LAYOUT, "--json").stdout)
    names = [row["layout"]["schedule"] for row in rows["schedules"]]
    assert {"1f1b", "zb-h1", "seq1f1b", "breadth-first", "2bw"} <= set(names)
    plain = next(row for row in rows["schedules"] if row["layout"]["schedule"] == "1f1b")
    assert plain["step_time_s"] == pytest.approx(one["step_time_s"], rel=1e-12)
    assert "layered" in rows["not_legal"]
    view = planner("compare", *LAYOUT).stdout
    assert "2bw *" in view
    assert max(map(len, view.splitlines()[:24])) <= 80


PODS = ("--figure", "pod_nodes=1", "--figure", "oversubscription=4")


def test_links_are_shared_with_other_jobs(tmp_path):
    """As many flows, stated either way, in text and JSON; faults name what was typed."""
    asked = ("simulate", "llama-13b", "--cluster", "dgx-a100-80gb", "--tp", "8", "--dp", "4", "--global-batch", "16")
    trace = tmp_path / "step.json"
    alone = json.loads(planner(*asked, "--links", "--json", "--trace", str(trace)).stdout)
    assert alone["with_links"]["step_time_s"] == pytest.approx(alone["step_time_s"], rel=1e-9)
    assert '"name":"data"' in trace.read_text()
    beside = json.loads(planner(*asked, *PODS, "--background", "16", "--json").stdout)
    links = beside["with_links"]
    assert links["step_time_s"] == pytest.approx(beside["closed_form_s"], rel=1e-9)
    assert links["step_time_s"] > links["alone_s"] == pytest.approx(alone["step_time_s"])
    assert links["links"][0]["link"].endswith("of pod 0")
    assert links["links"][0]["full_s"] == pytest.approx(links["step_time_s"], rel=0.1)
    (traffic,) = links["traffic"]
    # Two NICs' worth for eight flows of ours and sixteen others, of 400 Gb/s each unless told.
    assert traffic["shared_s"] == pytest.approx(traffic["alone_s"] * 24 / 2)
    said = planner(*asked, *PODS, "--links", "--background", "flows=16,gbit_per_s=400").stdout
    assert "links shared: " in said
    assert "out of pod 0" in said
    for background, fault in [
        ("many", "--background is 'many'; allowed: a number of flows, such as 16, or flows=16,gbit_per_s=200"),
        ("16,17", "--background is '16,17'; allowed: a number of flows, such as 16, or flows=16,gbit_per_s=200"),
        ("gbit_per_s=4", "--background is 'gbit_per_s=4'; allowed: a number of flows, such as 16, or flows=16,"),
        ("1.5", "--background flows is 1.5; allowed: a whole number from 0 to 10,000,000"),
        ("flows=1,gbit_per_s=-3", "--background gbit_per_s is -3; allowed: a number from 0 to 1,000,000"),
    ]:
        done = planner(*asked, *PODS, "--background", background)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith(f"planner: {fault}")
    both = planner(*asked, *PODS, "--figure", "neighbour_flows=8", "--background", "16")
    assert (both.returncode, both.stderr.count("\n")) == (2, 1)
    told = "planner: --background is '16' beside --figure neighbour_flows=8; allowed: one of them"
    assert both.stderr.startswith(told)
    done = planner(*asked, "--background", "16")
    assert done.stderr.startswith("planner: --background is '16' where oversubscription is 1, which holds nothing up")


def test_a_schedule_of_ones_own_runs_and_a_circle_is_named(tmp_path):
    own = tmp_path / "own.csv"
    assert planner("schedule", "1f1b", "--pp", "4", "--micro-batches", "16", "--csv", str(own)).returncode == 0
    mine = json.loads(planner("simulate", *LAYOUT, "--schedule-file", str(own), "--json").stdout)
    theirs = json.loads(planner("simulate", *LAYOUT, "--json").stdout)
    assert mine["step_time_s"] == pytest.approx(theirs["step_time_s"], rel=1e-12)
    other = planner("simulate", *LAYOUT, "--pp", "2", "--schedule-file", str(own))
    assert other.returncode == 2
    assert other.stderr == "planner: the schedule has 4 ranks; the layout has 2\n"
    own.write_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
    done = planner("schedule", str(own))
    assert done.returncode == 2
    circle = "deadlocks: rank 0 at 0B0 waits for 1B0 of rank 1; rank 1 at 1F1 waits for 0F1 of rank 0 (rank 0 is row 1)"
    assert done.stderr == f"planner: {own}: the schedule {circle}\n"


def test_a_schedule_of_ones_own_is_named_and_says_its_virtual_stages(tmp_path):
    """Six micro-batches are legal of a file with two virtual stages, and not of interleaved on four ranks."""
    own, ask = tmp_path / "own.csv", ["simulate", "llama3-8b", "h100", "--tp", "2", "--pp", "4"]
    assert planner("schedule", "zb-v", "--micro-batches", "8", "--csv", str(own)).returncode == 0
    done = planner(*ask, "--global-batch", "8", "--schedule-file", str(own))
    assert f"dp 1 tp 2 pp 4 v 2 mb 1 zero 1 schedule {own}" in " ".join(done.stdout.split())
    layout = json.loads(planner(*ask, "--global-batch", "8", "--schedule-file", str(own), "--json").stdout)["layout"]
    assert (layout["schedule"], layout["virtual_stages"]) == (str(own), 2)
    other = planner(*ask, "--global-batch", "8", "--virtual-stages", "4", "--schedule-file", str(own))
    assert other.stderr == "planner: the schedule has 2 virtual stages; the layout has 4\n"
    six = ["schedule", "hanayo", "--virtual-stages", "2", "--micro-batches", "6", "--csv", str(own)]
    assert planner(*six).returncode == 0
    six = planner(*ask, "--global-batch", "6", "--schedule-file", str(own))
    assert (six.returncode, six.stderr) == (0, "")


def test_a_file_of_a_schedule_says_its_size(tmp_path):
    own = str(tmp_path / "own.csv")
    assert planner("schedule", "gpipe", "--csv", own).returncode == 0
    assert "a file can't ask for the slowest rank's" in " ".join(planner("schedule", own).stdout.split())
    assert planner("schedule", own, "--pp", "4", "--micro-batches", "8", "--virtual-stages", "1").returncode == 0
    for option in ("--pp", "--micro-batches", "--virtual-stages", "--slices", "--steps"):
        done = planner("schedule", own, option, "3")
        assert done.returncode == 2
        assert done.stderr.startswith(f"planner: {option} is 3; {own} has ")


def test_schedules_are_compared_by_words_and_with_the_usual_batch():
    done = planner("compare", "llama3-8b", "h100", "8", "--tp", "2", "--pp", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("llama3-8b on 8 GPUs of dgx-h100, batch 512 x 8192 tokens\n")
    assert done.stderr.startswith("planner: no batch is given, so it is 512 sequences per step")


BAD = [
    (["schedule", "zb-h1", "--steps", "5"], "steps is 5, and zb-h1 is drained after each; allowed: without it"),
    (["schedule", "1f1"], "unknown schedule '1f1'; nearest: 1f1b, "),
    (["schedule", "mine.json"], "mine.json: is no schedule's file; allowed: a path that ends in .csv, or "),
    (["schedule", "1f1"], "; allowed: 1f1b, 1f1b-v, 2bp, "),
    (["schedule", "--pp", "4"], "--pp is 4, but no schedule is named; allowed: planner schedule NAME, or without"),
    (["schedule", "interleaved", "--micro-batches", "7"], "divisible by pp; got pp 4, micro-batches 7"),
    (["schedule", "zb-v", "--virtual-stages", "3"], "zb-v has exactly 2 virtual stages per rank"),
    (["schedule", "interleaved", "--virtual-stages", "0"], "--virtual-stages is 0; allowed: a whole number from 1"),
    (["schedule", "seq1f1b", "--slices", "0"], "slices is 0; allowed: a whole number from 1"),
    (["schedule", "1f1b", "--pp", "5.5"], "--pp is '5.5'; allowed: a whole number"),
    (["simulate", *LAYOUT, "--trace", "/nowhere/t.json"], "/nowhere/t.json: can't be written: no folder /nowhere"),
    (
        ["simulate", *LAYOUT, "--schedule-file", "s.csv", "--schedule", "gpipe"],
        "--schedule is 'gpipe' beside --schedule-f",
    ),
    (["schedule", "1f1b", "--pp", "0"], "pp is 0; allowed"),
    (
        ["schedule", "1f1b", "--pp", "9000", "--micro-batches", "9000"],
        "162,000,000 operations; allowed: up to",
    ),
    (["schedule", "1f1b", "--forward", "nan"], "forward is nan; allowed: a number from 1e-30 to 1e+30"),
    (["schedule", "1f1b", "--weight-grad", "1e308", "--json"], "--weight-grad is 1e+308; allowed: a number from 1e-30"),
    (["schedule", "1f1b", "--transfer", "-1"], "transfer is -1.0; allowed: a number from 0 to 1e+30"),
    (["schedule", "1f1b", "--svg", "a.png"], "--svg is a.png; allowed: a path that ends in .svg"),
    (["schedule", "1f1b", "--png", "/nowhere/a.png"], "/nowhere"),
    (["schedule", "1f1b", "--csv", "a.json"], "--csv is a.json; allowed: a path that ends in .csv"),
    (["estimate", *LAYOUT, "--save", "a.csv"], "--save is a.csv; allowed: a path that ends in .json"),
    (["recommend", "gpt2", "h100", "8", "--save", "a.csv"], "--save is a.csv; allowed: a path that ends in .json"),
    (["train", "--trace", "a.csv"], "--trace is a.csv; allowed: a path that ends in .json"),
    (["validate", "--predictions", "a.json"], "--predictions is a.json; allowed: a path that ends in .csv"),
    (["probe", "--write", "probe.json"], "--write is probe.json; allowed: a path that ends in .py"),
    (["observe", "a.log", "--row", "a.json"], "--row is a.json; allowed: a path that ends in .csv"),
    (["schedule", "seq1f1b", "--csv", "/tmp/never.csv"], "slices"),
    (["schedule", "no-such-file.csv"], "no-such-file.csv"),
    (["simulate", *LAYOUT, "--schedule", "zb-v"], "exactly 2 virtual stages"),
    (
        ["simulate", *LAYOUT, "--sequence-slices", "3"],
        "sequence-slices 3, sequence-parallel off, seq-len 2048",
    ),
    (["simulate", *LAYOUT, "--trace", "step.txt"], "--trace is step.txt; allowed: a path that ends in .json"),
    (
        ["partition", "gpt3-175b", "--cluster", "dgx-a100-80gb", "--pp", "4", "--global-batch", "8"],
        "no split of 96 layers",
    ),
    (["compare", *LAYOUT, "--dp", "3"], "global-batch must be divisible by dp * micro-batch"),
]


@pytest.mark.parametrize(("args", "named"), BAD, ids=[" ".join(a)[-40:] for a, _ in BAD])
def test_a_fault_is_one_line_and_exit_code_2(args, named):
    done = planner(*args)
    assert done.returncode == 2, done.stdout
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_a_layout_that_may_not_fit_is_not_said_to_fit():
    ask = ["llama3-8b", "h100", "--tp", "2", "--gpus", "8", "--mb", "1", "--global-batch", "64", "--seq-len"]
    for seq_len, verdict in (("4096", "  fits: "), ("13824", "  MAY NOT FIT: "), ("16384", "  DOES NOT FIT: ")):
        assert verdict in planner("estimate", *ask, seq_len).stdout, seq_len


def test_compare_and_simulate_give_a_chance_of_fitting():
    ask = ["llama-65b", "--cluster", "dgx-a100-80gb", "--tp", "4", "--pp", "8", "--dp", "2", "--global-batch", "128"]
    one = json.loads(planner("estimate", *ask, "--schedule", "zb-h1", "--json").stdout)["fit_chance"]
    other = json.loads(planner("compare", *ask, "--json").stdout)["schedules"]
    simulated = planner("simulate", *ask, "--schedule", "zb-h1")
    assert f" (fits in {chance_text(one)} of such cases)" in simulated.stdout
    assert json.loads(planner("simulate", *ask, "--schedule", "zb-h1", "--json").stdout)["fit_chance"] == one
    assert 0.0 < one < 1.0
    assert next(x["fit_chance"] for x in other if x["layout"]["schedule"] == "zb-h1") == pytest.approx(one)


def test_compare_takes_the_cluster_as_a_word():
    asked = ["compare", "llama-13b", "--tp", "2", "--pp", "4", "--dp", "2", "--global-batch", "32", "--json"]
    one, other = (planner(*asked[:2], *more, *asked[2:]) for more in (["a100-roce"], ["--cluster", "a100-roce"]))
    assert json.loads(one.stdout) == json.loads(other.stdout)


def test_an_option_of_megatrons_says_whose_it_is():
    done = planner("recommend", "llama-13b", "h100", "64", "--tensor-model-parallel-size", "8")
    assert done.returncode == 2
    assert "--tensor-model-parallel-size is Megatron-LM's; allowed: planner estimate --megatron-args" in done.stderr
