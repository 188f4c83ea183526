"""The HTML report as a file: one piece, the same each time, small, and nothing of the data is ever markup."""

import gzip
import json
import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from planner.api.recommended import recommend, search_plan
from planner.api.reports import gather_report
from planner.question import load_setup
from planner.report.html.page import html_page, script_json
from planner.report.html.record import report_record
from planner.report.html.timelines import timeline_record
from planner.report.plan_report import shown_layouts
from planner.training_time.goal import goal


class Elements(HTMLParser):
    """Every element with its attributes, as a browser without scripts sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_is_one_file_that_names_nothing_outside(report):
    text = html_page(report)
    elements = Elements(text).found
    for _, attributes in elements:
        assert not {"src", "srcset", "data", "action", "onclick", "onload", "style"} & set(attributes)
        assert str(attributes.get("href", "#")).startswith("#")
    assert "url(" not in text
    assert "@import" not in text
    policy = next(a["content"] for t, a in elements if t == "meta" and a.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(text) < 250_000


def test_same_report_same_text(report):
    assert html_page(report) == html_page(report)


def test_names_from_files_are_never_markup(report, hostile):
    plain, attacked = (Elements(html_page(r)).found for r in (report, hostile))
    hashes = [{"content", "http-equiv"}]
    assert [(t, sorted(a)) for t, a in attacked] == [(t, sorted(a)) for t, a in plain]
    assert [t for t, a in attacked if set(a) in hashes] == ["meta"]
    data = re.search(r'id="report-data">(.*?)</script>', html_page(hostile), re.DOTALL).group(1)
    assert not set("<>&") & set(data)
    assert json.loads(data)["title"] == hostile.title


def test_json_round_trips_through_a_script_element():
    record = {"a": "</script><!-- \u2028 &lt; \u00e9"}
    assert json.loads(script_json(record)) == record


def test_parts_add_up_and_layouts_are_those_of_the_search(report):
    record = report_record(report)
    x = report.found.estimate
    assert [layout["step_time_s"] for layout in record["layouts"]] == pytest.approx(
        [float(x.step_time_s[i]) for i in shown_layouts(report.found)], rel=1e-5
    )
    for layout in record["layouts"]:
        assert sum(layout["time_s"].values()) == pytest.approx(layout["step_time_s"], rel=1e-4)
        assert sum(layout["memory_parts_gib"].values()) == pytest.approx(layout["memory_gib"], rel=1e-4)
        low, high = layout["interval_s"]
        assert low < layout["step_time_s"] < high
    assert sum("best" in layout["roles"] for layout in record["layouts"]) == 1


def test_timelines_unpack_to_the_simulation(report):
    record = report_record(report)
    assert len(json.loads(gzip.decompress(b64decode(record["timelines"])))) == len(record["layouts"])
    for i in shown_layouts(report.found)[:3]:
        timeline = report.steps[i].timeline
        shown = timeline_record(report.steps[i], 10**6)
        assert shown["operations"] == shown["shown"] == len(timeline.order)
        assert shown["cut"] is None
        at = 0
        for row in shown["rows"]:
            clock = 0
            for t, gap, m in zip(row["t"], row["g"], row["m"], strict=True):
                kind, stage, ticks = shown["types"][t]
                operation = timeline.order.operation(at)
                assert (kind, stage, m) == (operation.kind, operation.stage, operation.micro_batch)
                clock += gap + ticks
                seconds = clock * shown["end_s"] / shown["ticks"]
                assert seconds == pytest.approx(timeline.end_s[at], abs=shown["end_s"] / shown["ticks"])
                at += 1
        assert at == len(timeline.order)


@pytest.mark.parametrize("most", [8, 60, 200])
def test_a_long_timeline_keeps_its_ends(report, most):
    step = report.steps[shown_layouts(report.found)[0]]
    shown = timeline_record(step, most)
    cut = np.array(shown["cut"]) * shown["end_s"] / shown["ticks"]
    assert 0 < shown["shown"] <= 1.5 * most
    assert cut[0] <= cut[1]
    left_out = (step.timeline.end_s > cut[0] + 1e-6) & (step.timeline.start_s < cut[1] - 1e-6)
    assert shown["shown"] == pytest.approx(len(step.timeline.order) - int(left_out.sum()), abs=2 * len(shown["rows"]))
    for row in shown["rows"]:
        assert len(row["t"]) == len(row["m"]) == len(row["g"])
        assert row.get("tail", len(row["t"])) <= len(row["t"])


def test_many_ranks_are_cut_in_the_middle(report):
    step = report.steps[shown_layouts(report.found)[0]]
    assert [row["r"] for row in timeline_record(step, 10_000)["rows"]] == [0, 1, 2, 3]


def test_without_a_fitting_layout_it_says_so(nothing_fits):
    assert not len(nothing_fits.found.best)
    text = html_page(nothing_fits)
    assert "Nothing fits in memory" in text
    assert [x["roles"] for x in report_record(nothing_fits)["layouts"]] == [["miss"]]


def test_unverified_hardware_has_a_wide_interval_and_says_so():
    asked = load_setup("llama-13b", "dgx-a100-80gb")
    gpu = asked.cluster.accelerator
    unknown = replace(gpu, efficiency=replace(gpu.efficiency, name="geforce"))
    plan = search_plan(
        replace(asked, cluster=replace(asked.cluster, accelerator=unknown)), gpus=16, global_batch=128, tp=[2], pp=[4]
    )
    record = report_record(gather_report(plan, command="planner", aim=None))
    assert record["layouts"]
    assert all(x["interval_s"][1] > 1.25 * x["interval_s"][0] for x in record["layouts"])
    assert "unverified" in record["accuracy"]["sentence"]


def test_grey_dots_are_layouts_of_the_space_in_the_picture(report):
    record = report_record(report)
    dots = np.array(record["cloud"]).reshape(-1, 2)
    assert 20 < len(dots) <= 400
    assert dots[:, 0].max() <= 1.3 * record["capacity_gib"]
    assert dots[:, 1].max() <= 1.0005 * max(x["step_time_s"] for x in record["layouts"])  # dots have four digits
    legal = report.found.legal
    assert abs(len(report.others.layouts) - legal / -(-legal // 4096)) <= 1


def test_the_readers_own_training_is_there(report):
    own = report_record(report)["curve"]["own"]
    best = report.found.estimate.step_time_s[report.found.best[0]]
    assert own["gpus"] == 16
    assert own["gpu_hours"] == pytest.approx(16 * 24 * own["days"], rel=1e-5)
    steps = -(-1e11 // (128 * report.setup.model.seq_len))  # of the tokens as given, as planner time's
    assert own["days"] * 86400 * own["goodput"] == pytest.approx(best * steps, rel=1e-5)
    assert own["tokens"] == 1e11


def test_reasons_name_layouts_that_were_estimated_and_statistics_stand_apart(asked_why):
    record = report_record(asked_why)
    assert 1 <= len([line for line in record["why"] if " instead of " in line]) <= 5
    assert not any("legal layouts" in line for line in record["why"])
    assert "legal layouts" in record["counted"][0]
    slower, illegal = record["answers"]
    assert slower["layout"]["text"].startswith("dp")
    assert slower["difference"]["step_time_s"] > 0
    assert (illegal["reason"], illegal["layout"]) == ("illegal", None)


def test_the_first_card_says_what_it_runs_on_and_its_chance(report):
    record = report_record(report)
    assert record["runs_on"][0] == "16 GPUs"
    assert "2 nodes of 8" in record["runs_on"][1]
    assert all(layout["fits_in"].endswith("%") for layout in record["layouts"])


def test_the_curve_of_shortest_times_keeps_to_the_framework_and_to_what_is_settled():
    """torchtitan has neither sequence slices nor one stage layer by layer; cp and two tensor ranks are ruled out."""
    plan = recommend("llama3-8b", "dgx-h100", gpus=16, batch=64, framework="torchtitan", dp=8, exclude=["cp", "tp=2"])
    points = report_record(gather_report(plan, command="x", aim=goal(plan.setup.model)))["curve"]["by_gpus"]
    assert len({p["gpus"] for p in points}) > 5
    assert not [p["text"] for p in points if re.search(r" k \d| layered|zb-| cp \d| tp 2 ", p["text"])]
