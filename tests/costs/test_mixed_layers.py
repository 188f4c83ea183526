"""Layers that are recomputed before layers whose activations wait in host memory: by hand, on lanes, on the timeline.

The mix is KARMA's (Wahib et al. 2020, arXiv 2008.11421); which layers are of which kind is the user's choice here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import Cluster, Model, recommend
from planner import estimate as estimate_one
from planner.api.recommended import search_plan
from planner.base.errors import LayoutError
from planner.costs.memory.chosen_layers import layers_not_recomputed, offloaded_layers
from planner.layouts import Layouts, Recompute
from planner.question import load_setup
from planner.search.beyond_grids import _fewer, that_fit
from planner.search.neighbours import one_change
from planner.search.request import MIXED, Fixed
from planner.step.estimate import estimate
from planner.step.passes import passes
from planner.step.splits import Share
from planner.step.step_costs import step_costs
from planner.step.timeline.step import simulate
from tests.costs.test_offload_layers import H100, layout, linked, on_lanes

MIX = {"recompute": Recompute.FULL, "recompute_layers": 4, "offload_layers": 5}


def test_the_layers_of_each_kind():
    # 11 layers on 2 stages are 6 and 5. Two of each are recomputed; of the rest at least the last is kept.
    x = Layouts.of(global_batch=1, recompute=Recompute.FULL, recompute_layers=2, offload_layers=[1, 2, 3, 9])
    assert offloaded_layers(x, 11.0, 2.0).tolist() == [2.0, 4.0, 5.0, 5.0]
    assert layers_not_recomputed(x, 11.0, 2.0).tolist() == [7.0] * 4
    assert offloaded_layers(x, 2.0, 1.0).tolist() == [0.0] * 4


def test_memory_by_hand():
    """16 layers per stage, two micro-batches in flight on the first, which has the embedding.

    Of each micro-batch it holds 4 layers' inputs, 7 whole layers and the embedding's output; once, the room of a layer
    on its way. What the tensors of a layer take has tests of its own.
    """
    plain = step_costs(H100, layout(recompute=Recompute.NONE)).activations
    tokens, hidden = 8192 / 2, 4096  # two tensor ranks share a sequence's
    hidden_bytes = 2.0 * tokens * hidden
    slack = 1.0 + H100.framework.fragmentation
    said = 2 * (4 * hidden_bytes + 7 * float(plain.layer[0]) + hidden_bytes) * slack
    result = estimate(H100, layout(**MIX))
    assert float(result.memory.activations_bytes[0]) == pytest.approx(said, rel=1e-12)
    neither = estimate(H100, layout(recompute=Recompute.NONE))
    room = result.memory.buffers_bytes[0] - neither.memory.buffers_bytes[0]
    assert float(room) == pytest.approx(float(plain.layer[0]) * slack, rel=1e-9)


@pytest.mark.parametrize("times", [0.2, 0.5, 1.0, 2.0, 8.0, 1e6])
@pytest.mark.parametrize(("repeated", "moved"), [(1, 14), (4, 5), (9, 1), (12, 3)])
def test_passes_last_what_lanes_of_layers_and_transfers_say(times, repeated, moved):
    """Forward all layers last alike. Backward those behind the recomputed ones do, and these follow."""
    setup = linked(H100, times)
    x = layout(recompute=Recompute.FULL, recompute_layers=repeated, offload_layers=moved)
    costs = replace(step_costs(setup, x), send_s=np.zeros(1))
    plain = step_costs(setup, layout(recompute=Recompute.NONE))
    forward, inputs, weights = passes(costs, Share(layers=16.0), 1.0)
    move_s = float(plain.activations.layer[0]) / setup.cluster.host_link.reached_bytes_per_s
    assert float(costs.offload_layer_s[0]) == pytest.approx(move_s, rel=1e-12)
    forward_s, behind = float(costs.layer.forward_s[0]), 16 - repeated
    found = repeated * forward_s + on_lanes(behind, moved, forward_s, move_s, backward=False)
    assert float(forward[0]) == pytest.approx(found, rel=1e-12)
    once_s, again_s = float(plain.layer.backward_s[0]), float(costs.layer.backward_s[0])
    found = on_lanes(behind, moved, once_s, move_s, backward=True) + repeated * again_s
    assert float((inputs + weights)[0]) == pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize(
    ("choices", "times"),
    [
        *(({"pp": 4, "dp": 1, "tp": 2, "schedule": name}, t) for name in ("1f1b", "gpipe") for t in (0.2, 1.0, 1e6)),
        *(
            ({"virtual_stages": v, "schedule": name, "dp": 1, "tp": 4}, t)
            for name, v in (("interleaved", 4), ("breadth-first", 4), ("1f1b-v", 2))
            for t in (0.2, 1e6)
        ),
    ],
)
def test_of_stages_with_ends_the_closed_form_differs_no_more_than_without(choices, times):
    """Equal stages to 1e-9: tests/step/timeline/test_every_choice.py. Here embedding and head make them differ.

    Where a link lets some of a rank's virtual stages wait and others not, the closed form of offloaded layers, mixed or
    not, is up to 4 % off: it takes a rank's stages together. So virtual stages are asked about far from there.
    """
    setup = linked(H100, times)

    def both(**more):
        x = layout(**choices, **more)
        said, step = estimate(setup, x), simulate(setup, x)
        return float(said.memory_bytes[0]), step.peak_bytes.max(), step.step_time_s / float(said.step_time_s[0]) - 1.0

    said_bytes, peak_bytes, apart = both(recompute=Recompute.FULL, recompute_layers=1, offload_layers=2)
    some_bytes, some_peak_bytes, without = both(recompute=Recompute.FULL, recompute_layers=1)
    assert abs(apart) <= abs(without) + 1e-3
    assert abs(said_bytes - peak_bytes) <= abs(some_bytes - some_peak_bytes) + 1.0
    assert said_bytes < some_bytes


def test_a_layer_recomputed_in_place_of_moved_saves_its_transfers():
    """With a slow link a pass lasts as long as the layers before its first transfer, and its transfers."""
    setup = linked(H100, 0.1)
    x = {"pp": 1, "dp": 4, "recompute": Recompute.FULL}
    mixed = estimate(setup, layout(**x, recompute_layers=np.arange(1, 9), offload_layers=np.arange(20, 12, -1)))
    costs = step_costs(setup, layout(**x, recompute_layers=1, offload_layers=20))
    moved_s = float(costs.offload_layer_s[0])
    each = 2 * moved_s - float((costs.layer.forward_s + costs.layer.backward_s)[0])
    assert -np.diff(mixed.step_time_s) == pytest.approx(np.full(7, each * 4), rel=1e-9)  # 4 micro-batches


def test_where_the_link_is_too_slow_for_all_the_mix_is_faster_than_either_in_no_more_memory():
    """The figures of docs/search.md."""
    base = {"dp": 4, "tp": 2, "micro_batch": 4, "batch": 128, "zero": 1, "sequence_parallel": True}
    several = (
        {"recompute": "full", "recompute_layers": 19, "offload_layers": 4},
        {"recompute": "full", "recompute_layers": 22},
        {"offload_layers": 22},
    )
    found = [estimate_one(Model("llama3-8b"), Cluster("dgx-h100"), **base, **more) for more in several]
    said = [(round(x.step_time_s, 1), round(x.memory_gib, 1)) for x in found]
    assert said == [(15.6, 75.4), (15.9, 75.7), (20.1, 75.1)]


QUESTION = {"model": Model("llama3-8b"), "cluster": Cluster("dgx-h100"), "gpus": 8, "batch": 64, "pp": 2, "tp": 2}
ASKED = {"recompute": "full", "recompute_layers": 4, "offload_layers": 5}


def test_a_search_has_it_with_any_framework_alone():
    said = "no framework here offloads some layers and recomputes others .--any-framework searches it"
    with pytest.raises(LayoutError, match=said):
        recommend(**QUESTION, **ASKED)
    best = recommend(**QUESTION, **ASKED, any_framework=True).best.layout
    assert {name: best[name] for name in ASKED} == ASKED
    layouts = recommend(**QUESTION, recompute="full", offload_layers=5).found.estimate.layouts
    assert np.all(layouts.recompute_layers == 0)


def test_of_layouts_that_offload_the_fewest_recomputed_that_fit_are_found_where_that_is_allowed():
    one = layout(dp=4, pp=1, micro_batch=4, global_batch=128, recompute=Recompute.FULL, offload_layers=4)
    assert not _fewer(H100, one, 0.0, never=MIXED)
    [(few, seconds)] = that_fit(H100, _fewer(H100, one, 0.0))
    every = [estimate(H100, replace(one, recompute_layers=np.array([n]))) for n in range(1, 27)]
    fits = [bool(x.fits[0]) for x in every]
    n = fits.index(True)
    assert n > 0
    assert (few.recompute_layers.tolist(), few.offload_layers.tolist()) == ([n + 1], [4])
    assert seconds == pytest.approx(every[n].step_time_s)


def test_no_export_asks_for_it():
    x = {"batch": 16, "tp": 4, "dp": 2, "sequence_parallel": True}
    one = estimate_one(QUESTION["model"], QUESTION["cluster"], **x, **ASKED)
    for target in ("megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate"):
        text = " ".join(one.export(target).text.replace("#", "").replace("//", "").split())
        assert "exported as offload_layers 0" in text, target
    setup = replace(load_setup("llama3-8b", "dgx-h100"), export="megatron")
    asked = {"recompute": "full", "recompute_layers": 4, "offload_layers": 5, "any_framework": True}
    with pytest.raises(LayoutError, match="no framework here offloads some layers and recomputes others"):
        search_plan(setup, gpus=8, global_batch=64, **asked)


def test_no_advice_leads_to_it():
    x = layout(recompute=Recompute.FULL, offload_layers=3)
    changed = one_change(H100, x, Fixed(), "flash3")
    found = changed.estimate.layouts
    assert not np.any((found.offload_layers > 0) & (found.recompute_layers > 0))
