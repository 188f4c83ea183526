"""Activations in host memory: the passes that wait for them, layer by layer on lanes; memory; legality; search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import Cluster, Model, recommend
from planner import estimate as estimate_one
from planner.base.errors import LayoutError
from planner.costs.memory.chosen_layers import offloaded_layers
from planner.hardware import load_cluster, load_framework
from planner.imports.megatron import megatron_run
from planner.layouts import Layouts, Recompute
from planner.models import load_model
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import check_legal
from planner.step.passes import passes
from planner.step.splits import Share
from planner.step.step_costs import step_costs
from planner.step.timeline.engine import run_lanes
from planner.step.timeline.step import simulate

H100 = Setup(load_model("llama3-8b"), load_cluster("dgx-h100"), load_framework("megatron-core"))


def layout(**choices) -> Layouts:
    return Layouts.of(**{"dp": 2, "tp": 2, "pp": 2, "global_batch": 16, "zero": 1, "sequence_parallel": True} | choices)


def linked(setup: Setup, times: float) -> Setup:
    """The setup with a host link so many times as fast."""
    link = setup.cluster.host_link
    faster = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * times, latency_s=0.0)
    return replace(setup, cluster=replace(setup.cluster, host_link=faster))


def test_the_layers_moved():
    # 5 layers on 2 stages are 3 and 2: one of each, or as many as leave each its last.
    x = Layouts.of(global_batch=1, offload_layers=[1, 2, 9, 0])
    assert offloaded_layers(x, 5.0, 2.0).tolist() == [2.0, 3.0, 3.0, 0.0]
    assert offloaded_layers(x, 1.0, 1.0).tolist() == [0.0, 0.0, 0.0, 0.0]


def on_lanes(n: int, k: int, layer_s: float, move_s: float, backward: bool) -> float:
    """When a pass of n layers, k of them moved, has ended: each layer on a lane, each transfer on another.

    The pass has room for n - k + 1 layers' activations. Forward a layer takes room when it starts and a transfer gives
    it back; backward a transfer takes it, and the layer that it is of gives it back.
    """
    layers, moves = np.arange(n), n + np.arange(k)
    waits = np.full((n + k, 2), -1)
    if backward:  # layers run from the last to the first; transfer r brings back the r-th of those moved
        waits[n - k :, 0][:k] = moves
        waits[moves, 0] = np.where(np.arange(k) >= 1, layers[np.arange(k) - 1], -1)
    else:
        waits[moves, 0] = layers[:k]
        later = layers[n - k + 1 :]
        waits[later, 0] = moves[later - (n - k + 1)]
    duration = np.r_[np.full(n, layer_s), np.full(k, move_s)]
    start = np.array([0, n, n + k])
    _, end, _ = run_lanes(start, waits, np.zeros(waits.shape), duration, np.zeros(n + k, dtype=bool))
    return float(end.max())


@pytest.mark.parametrize("times", [0.2, 0.5, 1.0, 2.0, 8.0, 1e6])
@pytest.mark.parametrize("moved", [1, 3, 9, 15])
def test_passes_last_what_lanes_of_layers_and_transfers_say(times, moved):
    """A stage in the middle of a pipeline, so that there is nothing but layers; transfers between stages are free."""
    setup = linked(H100, times)
    costs = replace(step_costs(setup, layout(offload_layers=moved)), send_s=np.zeros(1))
    forward, inputs, weights = passes(costs, Share(layers=16.0), 1.0)
    move_s = float(costs.activations.layer[0]) / setup.cluster.host_link.reached_bytes_per_s
    assert float(costs.offload_layer_s[0]) == pytest.approx(move_s)
    found = on_lanes(16, moved, float(costs.layer.forward_s[0]), move_s, backward=False)
    assert float(forward[0]) == pytest.approx(found, rel=1e-12)
    found = on_lanes(16, moved, float(costs.layer.backward_s[0]), move_s, backward=True)
    assert float((inputs + weights)[0]) == pytest.approx(found, rel=1e-12)


def test_transfers_wait_for_the_embedding():
    """Where they set the pace, a stage with the embedding lasts longer than one without by what that lasts."""
    x = layout(tp=1, dp=4, sequence_parallel=False, offload_layers=9)
    costs = replace(step_costs(linked(H100, 0.2), x), send_s=np.zeros(1))
    first, later = (passes(costs, Share(layers=16.0, first=share), 1.0) for share in (1.0, 0.0))
    assert float((first[0] - later[0])[0]) == pytest.approx(float(costs.ends.embedding_forward_s[0]), rel=1e-6)
    longer = float((first[1] + first[2] - later[1] - later[2])[0])
    assert longer == pytest.approx(float(costs.ends.embedding_backward_s[0]), rel=1e-6)


@pytest.mark.parametrize("times", [0.5, 2.0])
@pytest.mark.parametrize(
    "choices", [{}, {"virtual_stages": 2, "schedule": "interleaved"}, {"pp": 4, "dp": 1, "recompute": Recompute.FULL}]
)
def test_of_stages_with_ends_the_closed_form_differs_no_more_than_without(times, choices):
    """Equal stages: tests/step/timeline/test_every_choice.py."""
    setup = linked(H100, times)

    def apart(**more):
        said, step = estimate(setup, layout(**choices, **more)), simulate(setup, layout(**choices, **more))
        memory = step.peak_bytes.max() - float(said.memory_bytes[0])
        return step.step_time_s / float(said.step_time_s[0]) - 1.0, memory, said

    seconds, memory, plain = apart()
    moved_seconds, moved_memory, moved = apart(offload_layers=3)
    assert abs(moved_seconds) <= abs(seconds) + 1e-3
    assert moved_memory == pytest.approx(memory, abs=1.0)
    assert float(moved.memory_bytes[0]) < float(plain.memory_bytes[0])
    assert float(plain.time.host_comm_s[0]) == 0.0 <= float(moved.time.host_comm_s[0])


def test_each_layer_more_saves_what_it_keeps():
    result = estimate(H100, layout(pp=1, dp=4, offload_layers=np.arange(8)))
    saves = -np.diff(result.memory_bytes)
    kept = step_costs(H100, layout(pp=1, dp=4)).activations.layer[0] * (1 + H100.framework.fragmentation)
    assert saves[1:] == pytest.approx(np.full(6, kept))
    assert saves[0] == pytest.approx(0.0, abs=1.0)  # the first leaves, and there is room for one on its way


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"offload_layers": 16}, "offload_layers must be fewer than a virtual stage's layers"),
        ({"offload_layers": 1, "schedule": "zb-h1"}, "offload_layers excludes a split backward"),
        ({"offload_layers": 12, "recompute": Recompute.FULL, "recompute_layers": 4}, "offload_layers must be fewer"),
    ],
)
def test_what_is_illegal(choices, said):
    with pytest.raises(LayoutError, match=said):
        check_legal(H100.model, H100.cluster, layout(**choices))


def test_megatron_takes_it_and_gives_it_back_without_a_pipeline():
    question = {"batch": 16, "tp": 4, "dp": 2, "sequence_parallel": True}
    done = estimate_one(Model("llama3-8b"), Cluster("dgx-h100"), **question, offload_layers=5).export("megatron")
    run = megatron_run(done.text, H100.cluster, H100.framework, gpus=8, model="llama3-8b", vocab=None)
    assert run.layouts.row(0)["offload_layers"] == 5
    bridge = estimate_one(Model("llama3-8b"), Cluster("dgx-h100"), **question, offload_layers=5)
    assert "cpu_offloading_num_layers = 5" in bridge.export("megatron-bridge").text
    piped = {"batch": 16, "tp": 2, "pp": 2, "dp": 2}
    for target in ("megatron", "megatron-bridge", "torchtitan", "deepspeed"):
        text = estimate_one(Model("llama3-8b"), Cluster("dgx-h100"), **piped, offload_layers=5).export(target).text
        assert "exported as offload_layers 0" in " ".join(text.replace("#", "").replace("//", "").split())


def test_a_search_tries_it_where_it_may_and_memory_binds():
    question = {"gpus": 8, "batch": 64, "model": Model("llama3-8b", seq_len=32768), "cluster": Cluster("gb200-nvl72")}
    fixed = {"pp": 1, "cp": 1, "micro_batch": 2, "tp": 1}
    without = recommend(**question, **fixed)
    found = recommend(**question, **fixed, allow_offload=True)
    assert without.best.layout["offload_layers"] == 0
    assert found.best.layout["offload_layers"] > 0
    assert found.best.step_time_s < without.best.step_time_s
