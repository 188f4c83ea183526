"""The search against brute force: every fitting layout of a small space on the exact timeline."""

from dataclasses import replace

import numpy as np
import pytest

import planner
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision
from planner.models import load_model
from planner.report.tables import layout_text
from planner.schedules import get_schedule
from planner.search import Fixed, recommend
from planner.search.beyond_grids import WORTH_IT, try_others
from planner.search.compare import compare
from planner.search.finalists import refine
from planner.search.pick import kinds
from planner.search.space import default_schedules
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.timeline.many import simulate_each
from planner.step.timeline.step import simulate
from tests.search.every_layout import enumerate_layouts

ASKED = {"gpus": 4, "global_batch": 8, "precision": Precision.BF16, "attention": Attention.FLASH2}


@pytest.mark.parametrize("name", ["gpt2-xl", "llama2-7b"])
def test_the_best_is_what_brute_force_with_the_simulator_finds(name):
    model, cluster = load_model(name), load_cluster("dgx-a100-80gb")
    framework = load_framework(cluster.framework)
    fixed = Fixed(pp=(2, 4), recompute=(0,), zero=(0, 1), schedule=default_schedules())
    found = recommend(Setup(model, cluster, framework), fixed=fixed, top=1, **ASKED)
    layouts = enumerate_layouts(model, cluster, fixed=fixed, **ASKED)
    # As `simulate` has them one by one, to the bit (tests/step/timeline/test_many.py).
    steps = [step for _, step in simulate_each(Setup(model, cluster, framework), layouts)]
    assert len(steps) == len(layouts)
    best = min(s.step_time_s for s in steps if s.peak_bytes.max() <= cluster.accelerator.memory_bytes)
    assert found.estimate.step_time_s[found.best[0]] == pytest.approx(best, rel=1e-6)


def test_finalists_under_inexact_schedules_are_simulated_and_their_parts_add_up():
    model, cluster = load_model("llama-13b"), load_cluster("dgx-a100-80gb")
    framework = load_framework(cluster.framework)
    fixed = Fixed(schedule=("zb-h1", "zb-v"), pp=(4,))
    found = recommend(Setup(model, cluster, framework), fixed=fixed, top=3, **ASKED | {"gpus": 16, "global_batch": 64})
    assert found.estimate.simulated[found.best].all()
    for i in found.best:
        exact = simulate(Setup(model, cluster, framework), found.estimate.layouts.take([i]))
        assert found.estimate.step_time_s[i] == pytest.approx(exact.step_time_s, rel=1e-12)
        assert found.estimate.time.total_s[i] == pytest.approx(exact.step_time_s, rel=1e-9)


def test_asynchronous_schedules_only_where_allowed():
    assert not any(not get_schedule(n).synchronous for n in default_schedules())
    assert "2bw" in default_schedules(allow_async=True)
    model, cluster = load_model("llama-13b"), load_cluster("dgx-a100-80gb")
    framework = load_framework(cluster.framework)
    for allowed in (False, True):
        found = recommend(
            Setup(model, cluster, framework),
            fixed=Fixed(pp=(4,), allow_async=allowed),
            **ASKED | {"gpus": 16, "global_batch": 64},
        )
        layouts = found.estimate.layouts
        names = {layouts.schedule_names[i] for i in np.unique(layouts.schedule)}
        assert ("2bw" in names) == allowed
        marked = [layout_text(layouts.row(int(i))).endswith("(asynchronous)") for i in found.best]
        assert any(marked) == allowed


def test_schedules_without_a_quick_closed_form_are_tried_on_the_best_pipelines():
    model, cluster = load_model("llama-65b"), load_cluster("dgx-a100-80gb")
    framework = load_framework(cluster.framework)
    asked = ASKED | {"gpus": 64, "global_batch": 64}
    found = recommend(Setup(model, cluster, framework), fixed=Fixed(tp=(4,), pp=(8,)), **asked)
    best = float(found.estimate.step_time_s[found.best[0]])
    chosen = found.estimate.layouts.take([int(found.best[0])])
    rows, _ = compare(Setup(model, cluster, framework), chosen)
    for row in rows:
        if row.step.schedule.synchronous and row.step.peak_bytes.max() <= cluster.accelerator.memory_bytes:
            assert best <= row.step.step_time_s * (1.0 + 2 * WORTH_IT), row.step.schedule.name
    assert found.estimate.time.total_s[found.best[0]] == pytest.approx(best, rel=1e-9)
    searched = enumerate_layouts(model, cluster, fixed=Fixed(tp=(4,), pp=(8,)), **asked)
    assert found.legal == len(searched) + (not get_schedule(chosen.row(0)["schedule"]).quick)


@pytest.mark.parametrize(("schedule", "given", "compared"), [("1f1b", 1, 2), ("seq1f1b-interleaved", 4, 4)])
def test_virtual_stages_and_slices_are_compared_as_given_or_else_two(schedule, given, compared):
    setup = Setup(load_model("llama2-7b"), load_cluster("dgx-a100-80gb"), load_framework("megatron-lm"))
    chosen = Layouts.of(pp=4, global_batch=8, schedule=schedule, virtual_stages=given, sequence_slices=given)
    rows = [row.layouts.row(0) for row in compare(setup, chosen)[0]]
    found = {row["schedule"]: (row["virtual_stages"], row["sequence_slices"]) for row in rows}
    assert (found["interleaved"], found["seq1f1b"]) == ((compared, 1), (1, compared))


def test_what_the_timeline_finds_too_large_says_by_how_much(monkeypatch):
    from planner.search import finalists as refine

    exact = refine._simulated
    over = 81 * 2.0**30

    def fuller(*asked):
        return {i: (step, over) for i, (step, _) in exact(*asked).items()}

    monkeypatch.setattr(refine, "_simulated", fuller)
    model, cluster = load_model("llama-13b"), load_cluster("dgx-a100-80gb")
    framework = load_framework(cluster.framework)
    fixed = Fixed(schedule=("zb-h1",), pp=(4,), tp=(2,))
    found = recommend(Setup(model, cluster, framework), fixed=fixed, top=3, **ASKED | {"gpus": 16, "global_batch": 64})
    x = found.estimate
    assert not x.fits[x.simulated].any()
    assert x.memory_bytes[x.simulated] == pytest.approx(over, rel=1e-12)
    assert x.memory.total_bytes == pytest.approx(x.memory_bytes)
    assert x.memory_bytes[found.nearest_miss] > cluster.accelerator.memory_bytes


def test_another_schedule_is_taken_where_it_just_fits():
    """With room for its peak to the byte it is the same layout; with a byte less it is another, or none."""
    model, cluster = load_model("llama-65b"), load_cluster("dgx-a100-80gb")
    setup = Setup(model, cluster, load_framework(cluster.framework))
    layouts = Layouts.of(tp=4, pp=8, dp=2, global_batch=64, sequence_parallel=True)
    found = try_others(setup, estimate(setup, layouts), [0], False)
    assert found is not None
    peak = float(simulate(setup, found.layouts).peak_bytes.max())
    assert found.step_time_s[0] < (1.0 - WORTH_IT) * estimate(setup, layouts).step_time_s[0]

    def within(size_bytes: float):
        small = replace(cluster, accelerator=replace(cluster.accelerator, memory_bytes=size_bytes))
        one = Setup(model, small, setup.framework)
        return try_others(one, estimate(one, layouts), [0], False)

    again, less = within(peak), within(peak - 1.0)
    assert again.layouts.row(0) == found.layouts.row(0)
    assert less is None or less.layouts.row(0) != found.layouts.row(0)


def test_other_schedules_are_tried_with_the_pipelines_among_the_fastest_twenty():
    model, cluster = load_model("llama-65b"), load_cluster("dgx-a100-80gb")
    setup = Setup(model, cluster, load_framework(cluster.framework))
    layouts = Layouts.of(
        tp=[8, 4], pp=[1, 8], dp=[8, 2], recompute=[2, 0], global_batch=64, sequence_parallel=True
    )  # fmt: skip
    result = estimate(setup, layouts)
    assert try_others(setup, result, [0] * 19 + [1], False) is not None
    assert try_others(setup, result, [0] * 20 + [1], False) is None


@pytest.mark.parametrize("plainest", [True, False])
def test_layouts_that_are_listed_once_count_once_among_those_that_are_run(plainest, monkeypatch):
    """A plain answer lists the best of each kind: so many kinds are run, not so many layouts of one."""
    seen = []

    def looked_at(setup, result, order, tops, kind=None, costs=None):
        seen.append(None if kind is None else kind.tolist() == kinds(result.layouts).tolist())
        return refine(setup, result, order, tops, kind, costs)

    monkeypatch.setattr("planner.search.ranking.refine", looked_at)
    cluster = load_cluster("dgx-a100-80gb")
    setup = Setup(load_model("gpt2"), cluster, load_framework(cluster.framework))
    recommend(setup, fixed=Fixed(pp=(2,), schedule=("1f1b",)), plainest=plainest, **ASKED)
    assert seen == [True if plainest else None]


@pytest.mark.parametrize(
    ("name", "gpus", "batch", "gain"), [("gpt-oss-120b", 128, 1024, 0.05), ("llama3-70b", 1024, 256, 0.02)]
)
def test_virtual_stages_filled_by_cost_are_found_where_ranks_can_have_even_ones(name, gpus, batch, gain):
    """GPT-OSS's head is of four layers, so grids list them; of the 70B they are tried on the best even ones."""
    best = planner.recommend(name, "dgx-h100", gpus=gpus, batch=batch).best
    layout = best.layout
    assert layout["layer_split"] == "balanced"
    assert layout["virtual_stages"] > 1
    assert load_model(name).num_layers % layout["pp"] == 0
    even = planner.recommend(name, "dgx-h100", gpus=gpus, batch=batch, pp=layout["pp"], layer_split="even").best
    assert best.step_time_s < (1.0 - gain) * even.step_time_s


@pytest.mark.parametrize("settled", [{"layer_split": "even"}, {"exclude": ["layer_split=balanced"]}])
def test_virtual_stages_are_not_filled_where_the_user_has_ruled_it_out(settled):
    plan = planner.recommend("llama3-70b", "dgx-h100", gpus=1024, batch=256, **settled)
    assert {plan.best.layout["layer_split"], plan.to_dict()["fastest"]["layout"]["layer_split"]} == {"even"}
