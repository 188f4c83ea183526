"""Attention over several ranks' tokens gives plain training's gradients and sends the papers' bytes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.errors import LayoutError
from planner.costs.case import Case
from planner.costs.network.groups import RINGS, groups
from planner.costs.network.traffic import context_s
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts, Precision, Recompute
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.setup import Setup
from planner.trainer.mesh import Mesh
from planner.trainer.optimizers import SGD
from planner.trainer.serial import run_serial
from planner.trainer.task import Task, check_task
from planner.trainer.worker import Worker
from tests.trainer.helpers import SEQUENCES, assert_same, batch_of, data, gpt, llama, plain_rows, run

TOKENS = 32
MODELS = {
    "llama": replace(llama(2, kv_heads=4), seq_len=TOKENS),
    "gpt": replace(gpt(2), seq_len=TOKENS, max_positions=TOKENS),
}
WAYS = [
    {"cp": 2},
    {"cp": 4},
    {"cp": 4, "zigzag": False},
    {"cp": 3, "zigzag": False, "model": "odd"},
    {"cp": 2, "ulysses": 2},
    {"cp": 4, "ulysses": 2},
    {"cp": 4, "ulysses": 4},
    {"cp": 4, "ulysses": 2, "zigzag": False},
    {"cp": 4, "inner_ring": 2},
    {"cp": 4, "inner_ring": 2, "zigzag": False},
    {"cp": 8, "inner_ring": 4},
    {"cp": 8, "inner_ring": 2},
    {"cp": 8, "ulysses": 2, "inner_ring": 2},
    {"cp": 6, "inner_ring": 3, "model": "odd"},
    {"cp": 4, "gathered_keys": True},
    {"cp": 4, "ulysses": 2, "gathered_keys": True},
]


def model_of(name: str):
    return replace(MODELS["llama"], seq_len=24) if name == "odd" else MODELS[name]


@cache
def plain(name: str):
    model = model_of(name)
    return run(Task(model=model, rows=plain_rows(), micro_batches=1, dtype=np.float64), data(model))


def task_of(name: str, schedule: str, pipe: Pipeline, **choices) -> Task:
    rows = SCHEDULES[schedule].order(pipe).rows()
    return Task(model=model_of(name), rows=rows, micro_batches=pipe.m, dtype=np.float64, **choices)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_plain_training(name, way):
    name = way.get("model", name)
    choices = {k: v for k, v in way.items() if k != "model"}
    assert_same(run(task_of(name, "1f1b", Pipeline(p=1, m=2), **choices), data(model_of(name))), plain(name))


@settings(max_examples=30, deadline=None)
@given(drawn=st.data())
def test_with_every_other_choice(drawn):
    way = drawn.draw(st.sampled_from([w for w in WAYS if "model" not in w]))
    tp = 2 if way.get("ulysses", 1) < 4 and drawn.draw(st.booleans()) else 1
    schedule, p, v = drawn.draw(st.sampled_from([("1f1b", 1, 1), ("1f1b", 2, 1), ("zb-h1", 2, 1), ("layered", 1, 2)]))
    allowed = list(Recompute)[:3] if schedule != "zb-h1" else [Recompute.NONE, Recompute.SELECTIVE]
    zero = drawn.draw(st.sampled_from([0, 1, 2, 3]))
    choices = {
        "dp": drawn.draw(st.sampled_from([1, 2])),
        "tp": tp,
        "zero": zero,
        "sequence_parallel": tp > 1 and drawn.draw(st.booleans()),
        "recompute": drawn.draw(st.sampled_from(allowed)),
        "layer_at_a_time": SCHEDULES[schedule].layer_at_a_time,
    }
    name = drawn.draw(st.sampled_from(sorted(MODELS)))
    task = task_of(name, schedule, Pipeline(p=p, m=4, v=v), **way, **choices)
    assert_same(run(task, data(MODELS[name])), plain(name))


def sent(way: dict, recompute: Recompute = Recompute.NONE) -> list[int]:
    task = task_of("llama", "1f1b", Pipeline(p=1, m=2), recompute=recompute, **way)
    outcome = run(task, data(MODELS["llama"]))
    return [sum(size for (group, _), size in traffic.items() if group == "cp") for traffic in outcome.traffic]


TENSOR = SEQUENCES * TOKENS * 16 * 8  # all sequences' keys, or values, or queries, of a layer: 16 channels of 8 bytes
LAYERS = 2


@pytest.mark.parametrize("c", [2, 4])
def test_a_ring_passes_keys_and_values_once_forward_and_twice_backward(c):
    # c - 1 hops of a c-th of keys and values; backward of them again and of their gradients (Liu et al. 2023).
    one_pass = LAYERS * 2 * TENSOR * (c - 1) // c
    for gathered in (False, True):
        assert set(sent({"cp": c, "gathered_keys": gathered})) == {3 * one_pass}
    assert set(sent({"cp": c}, Recompute.SELECTIVE)) == {4 * one_pass}
    assert set(sent({"cp": c}, Recompute.FULL)) == {4 * one_pass}


@pytest.mark.parametrize(("c", "w"), [(4, 2), (8, 4), (8, 2), (6, 3)])
def test_rings_in_a_ring_send_as_much_but_to_other_inner_rings_once_a_turn_from_every_rank(c, w):
    """Of c ranks in inner rings of w (Gu et al. 2024) c / w - 1 parts go on to the next inner ring, the rest stay."""
    name = "odd" if c == 6 else "llama"
    task = task_of(name, "1f1b", Pipeline(p=1, m=2), cp=c, inner_ring=w)
    crossed, within = np.zeros((2, c), dtype=np.int64)

    def program(communicator):
        send = communicator._send

        def noted(x, to, tag):
            (within if to // w == communicator.rank // w else crossed)[communicator.rank] += x.nbytes
            send(x, to, tag)

        communicator._send = noted
        worker = Worker(communicator, task, SGD())
        worker.gradients(batch_of(task, 0, data(task.model)))

    run_serial(np, c, program)
    part = 3 * LAYERS * 2 * TENSOR * task.model.seq_len // TOKENS // c  # keys and values, and gradients backward
    assert set(crossed) == {(c // w - 1) * part}
    assert set(within) == {(c - c // w) * part}
    cluster, case = links(w), Setup(task.model, load_cluster("workstation-cpu"), load_framework("megatron-lm"))
    layouts = Layouts.of(cp=c, inner_ring=w, global_batch=SEQUENCES, micro_batch=SEQUENCES, precision=Precision.FP32)
    # A second a byte on one kind of link, none on the other: fp32 is half of what was sent.
    for fast, bytes_sent in (("network", within), ("node_link", crossed)):
        quick = replace(cluster, **{fast: replace(getattr(cluster, fast), bandwidth_bytes_per_s=1e30)})
        of = Case.of(replace(case, cluster=quick), layouts)
        ring = sum(float(s[0]) for s in context_s(of, groups(quick, layouts, ("context", *RINGS))))
        assert LAYERS * ring == pytest.approx(bytes_sent[0] / 2)


def links(w: int):
    """A cluster of nodes of so many ranks, a byte a second on every link."""
    cluster = load_cluster("workstation-cpu")
    link = replace(cluster.node_link, bandwidth_bytes_per_s=1.0, latency_s=0.0, fraction=1.0, send_fraction=1.0)
    return replace(cluster, node_link=link, network=link, gpus_per_node=w, nics_per_node=w, max_gpus=None)


@pytest.mark.parametrize("c", [2, 4])
def test_ulysses_exchanges_queries_keys_values_and_output_both_ways(c):
    # Four all-to-alls each way of a c-th of a tensor, of which (c - 1)/c leaves the rank (Jacobs et al. 2023).
    one_way = LAYERS * 4 * (TENSOR // c) * (c - 1) // c
    assert set(sent({"cp": c, "ulysses": c})) == {2 * one_way}


def test_usp_adds_both():
    exchange = LAYERS * 8 * (TENSOR // 4) // 2
    ring = LAYERS * 3 * 2 * (TENSOR // 2) // 2  # half of the heads, across two places
    assert set(sent({"cp": 4, "ulysses": 2})) == {exchange + ring}


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"cp": 3}, "cp is 3"),
        ({"cp": 4, "bounds": (0, 16, 32)}, "cp is 4 with 2 sequence slices"),
        ({"cp": 4, "inner_ring": 3}, "inner_ring is 3; allowed: 1, or a divisor of cp / ulysses 4 below it"),
        ({"cp": 4, "inner_ring": 4}, "inner_ring is 4"),
        ({"cp": 4, "ulysses": 2, "inner_ring": 2}, "inner_ring is 2"),
        ({"cp": 4, "inner_ring": 2, "gathered_keys": True}, "where keys are not gathered"),
        ({"cp": 4, "ulysses": 3}, "ulysses is 3; allowed: a divisor of cp 4"),
        ({"cp": 4, "ulysses": 4, "tp": 2}, "ulysses is 4; allowed: a divisor of cp 4 and of the 2 key-value heads"),
    ],
    ids=str,
)
def test_what_does_not_divide_is_refused(choices, message):
    with pytest.raises(LayoutError, match=message):
        check_task(task_of("llama", "1f1b", Pipeline(p=1, m=2), **choices))


@pytest.mark.parametrize("way", [{"ulysses": 2}, {}, {"ulysses": 2, "tp": 2, "sequence_parallel": True}], ids=str)
def test_parameters_sharded_over_the_ranks_of_a_sequence(way):
    """InternEvo's ISP (Chen et al. 2024, arXiv 2401.09149): as many copies as replicas, so that a copy is a sequence's.

    Each rank gathers every unit's other half from its neighbour, forward and backward, scatters its gradient there, and
    sums its half over the two replicas.
    """
    task = task_of("llama", "1f1b", Pipeline(p=1, m=2), cp=2, dp=2, zero=3, dp_replicate=2, **way)
    found = run(task, data(model_of("llama")))
    assert_same(found, plain("llama"))
    mesh = Mesh(dp=4, tp=task.tp, pp=1, rank=0, cp=2, ulysses=task.ulysses, dp_replicate=2)
    assert mesh.shard.ranks == (mesh.neighbours if task.ulysses == 2 else mesh.ring).ranks
    gathered, scattered, summed = (
        {t["dp", kind] for t in found.traffic} for kind in ("all_gather", "reduce_scatter", "all_reduce")
    )
    # Of two ranks a gather and a scatter send half of a unit each, an all-reduce of the half as much once.
    assert gathered == {2 * x for x in scattered}
    assert summed == scattered
