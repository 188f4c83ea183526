"""Full recomputation of some layers of each virtual stage: seconds and bytes by hand, timeline, legality, search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import Cluster, Model, recommend
from planner.base.errors import LayoutError
from planner.costs.memory.chosen_layers import layers_not_recomputed
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts, Recompute
from planner.models import load_model
from planner.schedules import SCHEDULES
from planner.search.beyond_grids import _fewer, that_fit
from planner.setup import Setup
from planner.step.estimate import estimate, totals
from planner.step.legality import check_legal, first_broken
from planner.step.step_costs import step_costs
from planner.step.timeline.step import simulate
from tests.step.timeline.test_step import FOLLOWS

H100 = Setup(load_model("llama3-70b"), load_cluster("dgx-h100"), load_framework("megatron-core"))
LAYERS = 80


def layout(**choices) -> Layouts:
    default = {"dp": 2, "tp": 8, "pp": 4, "micro_batch": 2, "global_batch": 128, "zero": 1, "sequence_parallel": True}
    return Layouts.of(**default | {"recompute": Recompute.FULL} | choices)


def test_the_layers_left_alone():
    # 5 layers on 2 stages are 3 and 2; two of each are repeated, and of 3 stages with 2 each one.
    x = Layouts.of(global_batch=1, recompute=Recompute.FULL, recompute_layers=[2, 1, 0, 9])
    left_out = layers_not_recomputed(x, np.array([5.0, 6.0, 6.0, 6.0]), np.array([2, 3, 3, 3]))
    assert left_out.tolist() == [1.0, 3.0, 0.0, 0.0]


def test_all_layers_are_as_without_the_choice_and_each_less_saves_the_same():
    layers = np.arange(21)
    result = estimate(H100, layout(recompute_layers=layers))
    step, memory = result.step_time_s, result.memory_bytes
    assert step[20] == step[0]
    assert memory[20] == memory[0]
    none = estimate(H100, layout(recompute=Recompute.NONE))
    # 32 micro-batches pass, and 3 more in the bubble; each saves what a layer's backward pass does.
    costs = step_costs(H100, layout(recompute_layers=1))
    saves = 35 * (costs.layer.backward_s - costs.layer_not_recomputed.backward_s)
    assert np.diff(step[1:]) == pytest.approx(np.full(19, saves[0]), rel=1e-9)
    assert step[1] - saves == pytest.approx(none.step_time_s, rel=1e-9)
    # Four micro-batches in flight: each layer left alone keeps all its tensors in place of its input. Where all are
    # recomputed, one layer is made again on top.
    kept = step_costs(H100, layout(recompute=Recompute.NONE)).activations.layer[0]
    bytes_each = 4 * 1.05 * (kept - costs.activations.layer[0])
    assert -np.diff(memory[1:20]) == pytest.approx(np.full(18, bytes_each), rel=1e-9)
    assert memory[1] + bytes_each == pytest.approx(none.memory_bytes[0], rel=1e-9)


def test_parts_add_up_and_recomputation_has_its_share():
    some, all_layers = (estimate(H100, layout(recompute_layers=n)) for n in (5, 0))
    assert some.time.recompute_s == pytest.approx(all_layers.time.recompute_s / 4)
    assert some.time.total_s < all_layers.time.total_s
    assert some.time.tensor_comm_s < all_layers.time.tensor_comm_s


@pytest.mark.parametrize("name", sorted(n for n, s in SCHEDULES.items() if not s.splits_backward))
def test_the_closed_form_is_the_timeline(name):
    schedule = SCHEDULES[name]
    v = schedule.chunks or 5
    if schedule.one_layer_chunks:
        v = LAYERS // 4
    k = 2 if schedule.sliced else 1
    for layers in (1, 3, 7):
        x = layout(schedule=name, virtual_stages=v, sequence_slices=k, recompute_layers=layers)
        if first_broken(H100.model, H100.cluster, x)[0]:
            continue
        closed, exact = estimate(H100, x), simulate(H100, x)
        if name in FOLLOWS:
            assert closed.step_time_s[0] == pytest.approx(exact.step_time_s, rel=0.02)
            assert closed.memory_bytes[0] == pytest.approx(exact.peak_bytes.max(), rel=0.04)
        whole = estimate(H100, layout(schedule=name, virtual_stages=v, sequence_slices=k))
        assert (closed.step_time_s < whole.step_time_s) == (layers < LAYERS / 4 / v)


@pytest.mark.parametrize(("schedule", "v"), [("1f1b", 1), ("interleaved", 5), ("gpipe", 1)])
@pytest.mark.parametrize("layers", [1, 3])
def test_what_it_adds_to_memory_is_the_timelines(schedule, v, layers):
    some = layout(schedule=schedule, virtual_stages=v, recompute_layers=layers)
    none = layout(schedule=schedule, virtual_stages=v, recompute=Recompute.NONE)
    closed = estimate(H100, none).memory_bytes[0] - estimate(H100, some).memory_bytes[0]
    exact = simulate(H100, none).peak_bytes.max() - simulate(H100, some).peak_bytes.max()
    assert closed == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({"recompute": Recompute.SELECTIVE, "recompute_layers": 1}, "recompute_layers needs recompute full"),
        ({"schedule": "zb-h1", "recompute_layers": 1}, "a split backward"),
    ],
)
def test_what_is_refused(choices, text):
    with pytest.raises(LayoutError, match=text):
        check_legal(H100.model, H100.cluster, layout(**choices))


BOUND_BY_MEMORY = {
    "model": Model("gpt3-175b"),
    "cluster": Cluster("dgx-a100-40gb"),
    "gpus": 128,
    "batch": 256,
    "max_memory_gib": 34.7,
    "fit_chance": 0.5,
}


def test_a_search_finds_it_where_memory_binds():
    found, other = recommend(**BOUND_BY_MEMORY), recommend(**BOUND_BY_MEMORY, recompute_layers=0)
    assert found.best.layout["recompute_layers"] > 0
    assert found.best.step_time_s < 0.95 * other.best.step_time_s
    assert found.best.fits
    assert np.all(other.found.estimate.layouts.recompute_layers == 0)


def test_held_to_a_number_a_search_uses_it():
    layouts = recommend(**BOUND_BY_MEMORY, recompute_layers=3).found.estimate.layouts
    assert np.all(layouts.recompute_layers == 3)
    assert np.all(layouts.recompute == Recompute.FULL)


def test_a_framework_without_it_is_not_told_to():
    layouts = recommend(**BOUND_BY_MEMORY, framework="megatron-deepspeed").found.estimate.layouts
    assert np.all(layouts.recompute_layers == 0)


def test_the_fewest_that_fit():
    found = recommend(**BOUND_BY_MEMORY)
    setup, best = found.setup, found.found.estimate.layouts.take(found.found.best[:1])
    [(few, seconds)] = that_fit(setup, _fewer(setup, replace(best, recompute_layers=np.zeros(1, dtype=np.int64)), 0.0))
    assert seconds == pytest.approx(totals(setup, best).step_time_s)
    every = replace(best.take(np.zeros(5, dtype=int)), recompute_layers=np.arange(1, 6))
    fits = totals(setup, every).memory_bytes <= setup.cluster.accelerator.usable_bytes
    assert few.recompute_layers.tolist() == [int(np.argmax(fits)) + 1] == best.recompute_layers.tolist()
    assert fits.tolist() == [False, False, True, True, True]


def test_given_stages_exclude_some_layers_only_with_virtual_stages():
    """With one stage per rank there is nothing to share alike."""
    one = layout(recompute_layers=2, pipeline_layout="Et*19|t*20|t*21|t*20L")
    several = layout(
        recompute_layers=2, pipeline_layout="Et*9|(t*10|)*6t*11L", virtual_stages=2, schedule="interleaved"
    )
    assert first_broken(H100.model, H100.cluster, one) == [""]
    assert "recompute_layers needs virtual stages that share" in first_broken(H100.model, H100.cluster, several)[0]
