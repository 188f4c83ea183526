"""What stays: the names of the package, and the keys of what its answers turn into. A new one is added to frozen.json.

A name or a key that goes first warns through a minor version (docs/python-api.md), and only then leaves the file.
"""

import json
from pathlib import Path

import matplotlib.figure
import pytest

import planner

FROZEN = json.loads((Path(__file__).parent / "frozen.json").read_text())
ASKED = ("llama-13b", "dgx-a100-80gb")
SMALL = {"gpus": 16, "batch": 64, "tp": 2, "pp": 2}


@pytest.fixture(scope="module")
def answers():
    plan = planner.recommend(*ASKED, **SMALL)
    layout = {"dp": 4, "tp": 2, "pp": 2}
    return {
        "recommend": plan,
        "estimate": planner.estimate(*ASKED, batch=64, **layout),
        "simulate": planner.simulate(*ASKED, batch=64, **layout),
        "time": planner.time(*ASKED, **SMALL, tokens=1e12, given={"price_usd_per_hour": 2.0}),
        "explain": planner.explain(*ASKED, **SMALL),
        "fastest": planner.fastest(*ASKED, max_gpus=64, tp=2, pp=2, schedule="1f1b"),
        "compare": planner.compare(*ASKED, batch=64, **layout),
        "why": planner.why(plan, "recompute=full"),
    }


def keys(value, most=2):
    """Keys of a record, inner ones to a depth; of a list its first entry's."""
    if isinstance(value, list):
        return keys(value[0], most) if value else []
    if not isinstance(value, dict) or not most:
        return []
    inner = {key: keys(v, most - 1) for key, v in value.items()}
    return sorted({*value, *(f"{key}.{name}" for key, names in inner.items() for name in names)})


def test_no_name_is_missing():
    assert {*FROZEN["names"]} == {*planner.__all__}


def test_a_package_does_not_take_a_functions_place():
    """A submodule becomes an attribute of `planner` when it is imported; none may have a public name."""
    from pkgutil import iter_modules

    assert not {module.name for module in iter_modules(planner.__path__)} & {*planner.__all__}


@pytest.mark.parametrize("question", list(FROZEN["keys"]))
def test_no_key_is_missing(answers, question):
    answer = answers[question]
    assert {*FROZEN["keys"][question]} <= {*keys(answer.to_dict())}
    assert json.loads(answer.to_json()).keys() == answer.to_dict().keys()


def test_answers_print_show_and_turn_into_tables(answers):
    for name, answer in answers.items():
        assert len(repr(answer).splitlines()) > 2, name
        assert answer._repr_html_().startswith("<"), name
        assert len(answer.to_pandas()) >= 1, name
    assert list(answers["compare"].to_pandas()["layout.schedule"]) == [
        row["layout"]["schedule"] for row in answers["compare"].to_dict()["schedules"]
    ]


@pytest.mark.parametrize("name", list(FROZEN["keys"]))
def test_each_answer_is_drawn_and_no_label_lies_on_another(answers, name):
    figure = answers[name].plot()
    assert isinstance(figure, matplotlib.figure.Figure)
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert axes.get_xlabel() or axes.get_title()
        for ticks in (axes.xaxis, axes.yaxis):
            shown = [t for t in ticks.get_ticklabels() if t.get_text() and t.get_window_extent().width]
            low, high = sorted(axes.get_xlim() if ticks is axes.xaxis else axes.get_ylim())
            at = [t.get_position()[ticks is axes.yaxis] for t in shown]
            boxes = [t.get_window_extent() for t, x in zip(shown, at, strict=True) if low <= x <= high]
            assert not [1 for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)], (name, ticks)
        boxes = [t.get_window_extent() for t in axes.texts]
        assert not [1 for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)], name


def test_a_picture_is_svg_png_or_a_page_and_nothing_else(answers, tmp_path):
    answer = answers["time"]
    for ending, begins in ((".svg", b"<?xml"), (".png", b"\x89PNG"), (".html", b"<!doctype html>")):
        answer.save_picture(tmp_path / f"a{ending}")
        assert (tmp_path / f"a{ending}").read_bytes().startswith(begins)
    page = (tmp_path / "a.html").read_text()
    assert "<title>llama-13b on 16 GPUs of dgx-a100-80gb</title>" in page
    assert "Where the days go" in page
    assert "How accurate: " in page
    with pytest.raises(planner.InputError, match=r"ends in \.svg, \.png, \.html"):
        answer.save_picture(tmp_path / "a.pdf")
    nothing = planner.why(answers["recommend"], "tp=7")
    with pytest.raises(planner.InputError, match="nothing to draw"):
        nothing.plot()


def test_time_is_the_commands(answers):
    from typer.testing import CliRunner

    from planner.cli import app

    words = "time llama-13b --cluster dgx-a100-80gb --gpus 16 --global-batch 64 --tp 2 --pp 2 --tokens 1e12 --price 2"
    done = CliRunner().invoke(app, [*words.split(), "--json"])
    assert json.loads(done.stdout) == json.loads(answers["time"].to_json())


def test_a_plan_is_exported_and_two_are_compared(answers, tmp_path):
    plan = answers["recommend"]
    done = planner.export(plan, "megatron", tmp_path / "launch.sh")
    assert done.text == (tmp_path / "launch.sh").read_text()
    plan.save(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(plan[1].to_json())
    two = planner.compare(tmp_path / "a.json", tmp_path / "b.json")
    assert two.to_dict()["difference"]["step_time_s"] == pytest.approx(plan[1].step_time_s - plan[0].step_time_s)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: planner.time(*ASKED, gpus=0), "gpus is 0"),
        (lambda: planner.time(*ASKED, gpus=16, batch=64, tokens=-1), "tokens is -1"),
        (lambda: planner.explain(*ASKED, gpus=16, batch="many"), "batch is 'many'"),
        (lambda: planner.fastest("llama-13b", []), "clusters is empty"),
        (lambda: planner.compare(*ASKED, dp=4), "batch is missing"),
        (lambda: planner.validate(["nothing.csv"]), "nothing.csv"),
        (lambda: planner.validate("nothing.csv"), "nothing.csv"),
        (lambda: planner.time("llama-13b", planner.Cluster("dgx-h100", figures={"nics_per_node": "x"}), gpus=8), "'x'"),
    ],
)
def test_bad_input_is_one_line(call, said):
    with pytest.raises(planner.PlannerError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)
