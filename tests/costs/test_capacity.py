"""A capacity of experts bounds what the busiest rank computes, receives and keeps; Megatron's flag both ways."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from planner import Cluster, Model
from planner import estimate as estimate_one
from planner.base.errors import LayoutError
from planner.costs.kernels.device import matmul_s
from planner.costs.layer.expert_routing import masks_s, routed_s
from planner.hardware import load_cluster, load_framework
from planner.imports.megatron import megatron_run
from planner.layouts import Dispatcher, Layouts
from planner.models import load_model
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import check_legal
from planner.step.step_costs import step_costs
from planner.step.timeline.step import simulate

SETUP = Setup(load_model("mixtral-8x7b"), load_cluster("dgx-h100"), load_framework("megatron-core"))
ALLTOALL = {"dispatcher": Dispatcher.ALLTOALL}


def layout(**choices) -> Layouts:
    return Layouts.of(**{"dp": 8, "ep": 8, "global_batch": 64, "zero": 1} | choices)


def test_the_busiest_rank_has_no_more_than_its_capacity():
    """On links without a start, where telling how many tokens come costs nothing."""
    cluster = replace(SETUP.cluster, node_link=replace(SETUP.cluster.node_link, latency_s=0.0))
    setup = replace(SETUP, cluster=cluster)
    capped = estimate(setup, layout(expert_imbalance=2.5, capacity_factor=[0.0, 3.0, 1.25, 0.5], **ALLTOALL))
    plain = estimate(setup, layout(expert_imbalance=[2.5, 2.5, 1.25, 1.0], **ALLTOALL))
    for part in fields(plain.time):
        here, there = (getattr(x.time, part.name) for x in (capped, plain))
        assert np.broadcast_to(here, 4)[:3] == pytest.approx(np.broadcast_to(there, 4)[:3], rel=1e-12)
    assert capped.memory_bytes[:3] == pytest.approx(plain.memory_bytes[:3], rel=1e-12)
    # Half a capacity drops half of the copies at balance too: half the all-to-alls.
    assert capped.time.expert_comm_s[3] == pytest.approx(plain.time.expert_comm_s[3] / 2, rel=1e-9)
    assert capped.time.matmul_s[3] < plain.time.matmul_s[3]


def test_masks_fill_every_place_of_an_expert():
    """By hand, of two sequences: products with a mask of tokens by places, two forward and three backward."""
    model, jax = load_model("mixtral-8x7b"), load_framework("maxtext")
    setup = Setup(model, SETUP.cluster, jax)
    x = layout(zero=3, capacity_factor=[0.0, 1.0, 2.0], micro_batch=2, global_batch=16)
    case = step_costs(setup, x).case
    assert case.busiest.tolist() == [1.0, 1.0, 2.0]
    assert case.masked.tolist() == [False, True, True]
    s, h = model.seq_len, model.hidden
    for i, places in ((1, 2 * s), (2, 4 * s)):
        shapes = ((places, h, s), (s, h, places), (s, places, h))
        fill, add, mask = (2 * matmul_s(case.device, *shape) for shape in shapes)
        there, back = (part[i] for part in masks_s(case))
        assert there == pytest.approx(fill + add, rel=1e-12)
        assert back == pytest.approx(fill + add + mask, rel=1e-12)
        assert [part[i] for part in routed_s(case)] == [there, back]
    sorted_by_hand = routed_s(step_costs(setup, layout(zero=3, micro_batch=2, global_batch=16)).case)
    assert [part[0] for part in routed_s(case)] == [float(part) for part in np.ravel(sorted_by_hand)]


@pytest.mark.parametrize("pp", [1, 4])
def test_the_timeline_is_the_closed_forms(pp):
    x = layout(pp=pp, dp=4, ep=4, expert_imbalance=2.0, capacity_factor=1.5)
    said, step = estimate(SETUP, x), simulate(SETUP, x)
    assert step.step_time_s == pytest.approx(float(said.step_time_s[0]), rel=1e-9 if pp == 1 else 1e-7)
    assert step.peak_bytes.max() == pytest.approx(float(said.memory_bytes[0]), rel=1e-9)


def test_megatron_takes_it_and_gives_it_back():
    question = {"batch": 64, "dp": 8, "ep": 8, "capacity_factor": 1.25}
    plan = estimate_one(Model("mixtral-8x7b"), Cluster("dgx-h100"), **question)
    text = plan.export("megatron").text
    assert "--moe-expert-capacity-factor 1.25" in text
    run = megatron_run(text, SETUP.cluster, SETUP.framework, gpus=8, model="mixtral-8x7b", vocab=None)
    assert run.layouts.row(0)["capacity_factor"] == 1.25
    assert "moe_expert_capacity_factor = 1.25" in plan.export("megatron-bridge").text
    assert "exported as capacity_factor 0.0" in " ".join(plan.export("deepspeed").text.split())


@pytest.mark.parametrize(
    ("model", "choices", "said"),
    [
        ("llama3-8b", {"ep": 1}, "capacity_factor need experts"),
        (
            "mixtral-8x7b",
            {"dispatcher": Dispatcher.PPMOE, "tp": 8, "dp": 1, "etp": 1},
            "capacity_factor needs another dispatcher than ppmoe",
        ),
    ],
)
def test_what_is_illegal(model, choices, said):
    with pytest.raises(LayoutError, match=said):
        check_legal(load_model(model), SETUP.cluster, layout(capacity_factor=1.0, **choices))


def test_deepep_drops_what_the_router_drops_and_pads_nothing():
    """Megatron-Core 0.16.1: router.py drops whatever the dispatcher, token_dispatcher.py masks what DeepEP skips."""
    text = (
        "--num-layers 32 --seq-length 4096 --expert-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 64 "
        "--bf16 --moe-token-dispatcher-type flex --moe-enable-deepep --moe-expert-capacity-factor 1.0"
    )
    known = {"gpus": 8, "model": "mixtral-8x7b", "vocab": None}
    row = megatron_run(text, SETUP.cluster, SETUP.framework, **known).layouts.row(0)
    assert (row["dispatcher"], row["capacity_factor"]) == ("deepep", 1.0)
    with pytest.raises(LayoutError, match="--moe-pad-expert-input-to-capacity and DeepEP are both there"):
        megatron_run(f"{text} --moe-pad-expert-input-to-capacity", SETUP.cluster, SETUP.framework, **known)


def test_deepep_sends_fewer_copies_below_a_capacity_of_one():
    deepep = {"dispatcher": Dispatcher.DEEPEP, "expert_imbalance": 2.0}
    whole, half = (estimate(SETUP, layout(capacity_factor=factor, **deepep)) for factor in (0.0, 0.5))
    assert half.time.expert_comm_s[0] < whole.time.expert_comm_s[0]
    assert half.time.matmul_s[0] < whole.time.matmul_s[0]
