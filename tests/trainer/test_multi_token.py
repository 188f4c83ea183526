"""Multi-token prediction beside the head: gradients of plain training's however it is split, bytes by the formulas."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.errors import InputError, LayoutError
from planner.layouts import Recompute
from planner.models import load_model
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.step.timeline.timeline import durations
from planner.step.timeline.timeline import run as simulated
from planner.trainer.asynchronous import STALENESS, run_asynchronously
from planner.trainer.optimizers import SGD
from planner.trainer.scaled import scaled_model
from planner.trainer.serial import run_serial
from planner.trainer.task import Task, check_model, check_task
from planner.trainer.worker import Worker
from tests.trainer.helpers import SEQUENCES, assert_same, batch_of, data, gpt, llama, plain_rows, run
from tests.trainer.test_cost_model_bytes import charged, fp32, sent
from tests.trainer.test_parallel import PIPELINES

LATENT = replace(llama(8, kv_heads=4), q_lora_rank=6, kv_lora_rank=5, qk_rope_head_dim=2, v_head_dim=3)
ROUTED = {"num_experts": 8, "top_k": 2, "expert_groups": 4, "top_k_groups": 2, "moe_ffn": 12, "num_shared_experts": 1}
MODELS = {
    "llama": replace(llama(8), num_mtp_layers=1),
    "gpt, tied": replace(gpt(8), num_mtp_layers=2),
    "deepseek": replace(LATENT, num_mtp_layers=1, num_dense_layers=1, router="sigmoid 2.5", **ROUTED),
}
FEW = [
    ("1f1b", Pipeline(p=2, m=4)), ("zb-h1", Pipeline(p=2, m=4)), ("zb-v", Pipeline(p=2, m=4, v=2)),
    ("breadth-first", Pipeline(p=1, m=2, v=2)), ("dualpipe", Pipeline(p=2, m=4)), ("gpipe", Pipeline(p=2, m=2)),
]  # fmt: skip
WAYS = [
    {"tp": 2}, {"tp": 2, "sequence_parallel": True}, {"cp": 2}, {"cp": 2, "ulysses": 2},
    *({"dp": 2, "zero": z} for z in range(4)), {"dp": 4, "zero": 3, "dp_replicate": 2},
    {"offload_layers": 2}, {"dp": 2, "zero": 3, "offload_fraction": 1.0, "offload_parameters": True},
    {"recompute": Recompute.SELECTIVE}, {"recompute": Recompute.FULL},
    {"recompute": Recompute.FULL, "recompute_layers": 1},
]  # fmt: skip
MIXED = [
    {"dp": 2, "ep": 2}, {"cp": 2, "ep": 2, "zero": 1}, {"dp": 2, "ep": 2, "zero": 3},
    {"tp": 2, "ep": 2, "picks": True}, {"tp": 2, "sequence_parallel": True, "ep": 2},
    {"tp": 2, "sequence_parallel": True},
    {"tp": 2, "dp": 2, "sequence_parallel": True, "ep": 4, "zero": 2},
]  # fmt: skip


@cache
def plain(name: str):
    return run(Task(model=MODELS[name], rows=plain_rows(), micro_batches=1, dtype=np.float64), data(MODELS[name]))


def task_of(name: str, schedule: str, pipe: Pipeline, **choices) -> Task:
    return Task(
        model=MODELS[name], rows=SCHEDULES[schedule].order(pipe).rows(), micro_batches=pipe.m, dtype=np.float64,
        bounds=tuple(range(0, 8 + 1, 8 // pipe.k)), layer_at_a_time=SCHEDULES[schedule].layer_at_a_time, **choices,
    )  # fmt: skip


def found(name: str, schedule: str, pipe: Pipeline, **choices):
    return run(task_of(name, schedule, pipe, **choices), data(MODELS[name]))


@pytest.mark.parametrize(("name", "pipe"), PIPELINES, ids=lambda x: x if isinstance(x, str) else f"p{x.p}m{x.m}")
def test_every_synchronous_schedule_that_has_one_head(name, pipe):
    """With as many passes held as the simulator says."""
    if SCHEDULES[name].barriers:
        with pytest.raises(LayoutError, match="num_mtp_layers is 2; allowed with vocabulary parallelism: 0"):
            check_task(task_of("gpt, tied", name, pipe))
        return
    outcome = found("gpt, tied", name, pipe)
    assert_same(outcome, plain("gpt, tied"))
    order = SCHEDULES[name].order(pipe)
    timeline = simulated(order, durations(order, 1.0, 1.0, 1.0))
    assert [rank.peak_forward for rank in outcome.live] == list(timeline.peak())
    assert [rank.peak_both for rank in outcome.live] == list(timeline.peak(kept=1.0))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_plain_training(name, way):
    if name == "deepseek" and way.get("tp", 1) > 1 and not way.get("sequence_parallel"):
        way = way | {"picks": True, "ep": 2}
    assert_same(found(name, "1f1b", Pipeline(p=2, m=4), **way), plain(name))


@pytest.mark.parametrize("way", MIXED, ids=str)
def test_beside_experts_shared_ones_and_groups(way):
    assert_same(found("deepseek", "1f1b", Pipeline(p=1, m=2), **way), plain("deepseek"))


@settings(max_examples=40, deadline=None)
@given(drawn=st.data())
def test_with_three_choices_at_once(drawn):
    name = drawn.draw(st.sampled_from(sorted(MODELS)))
    schedule, pipe = drawn.draw(st.sampled_from(FEW))
    way = drawn.draw(st.sampled_from(MIXED if name == "deepseek" else WAYS[:9]))
    split = any(op.kind == "I" for row in SCHEDULES[schedule].order(pipe).rows() for op in row)
    kept = [{}, {"recompute": Recompute.SELECTIVE}, {"offload_fraction": 0.5}]
    kept += [] if split else [{"recompute": Recompute.FULL}, {"offload_layers": 1}]
    assert_same(found(name, schedule, pipe, **way, **drawn.draw(st.sampled_from(kept))), plain(name))


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_ranks_send_what_the_cost_model_charges(tp):
    """A module is a layer, an embedding and a head more; its projection is each tensor rank's own."""
    model, m = replace(MODELS["llama"], num_kv_heads=4, num_mtp_layers=2), 4
    task = replace(fp32(task_of("llama", "1f1b", Pipeline(p=1, m=m), tp=tp)), model=model)
    t = charged(model, tp=tp, micro_batch=SEQUENCES // m, zero=0).traffic
    layers = model.num_layers + model.num_mtp_layers
    expected = m * (layers * float(t.layer_forward_s[0] + t.layer_backward_s[0]) + float(t.ends_s[0]))
    for rank in sent(task):
        assert rank.of("tp") == pytest.approx(expected)


def test_shared_experts_send_what_the_cost_model_charges():
    """Where tensor ranks pick tokens: two sums a layer for attention and shared experts each; routed ones sum apart."""
    few = {"num_experts": 4, "top_k": 2, "moe_ffn": 12, "num_dense_layers": 0}
    model, m = replace(MODELS["llama"], num_kv_heads=4, num_mtp_layers=0, num_shared_experts=2, **few), 4
    task = replace(fp32(task_of("llama", "1f1b", Pipeline(p=1, m=m), tp=2, ep=2, picks=True)), model=model)
    t = charged(model, tp=2, ep=2, etp=1, micro_batch=SEQUENCES // m, zero=0).traffic
    expected = m * (8 * float(t.layer_forward_s[0] + t.layer_backward_s[0]) + float(t.ends_s[0]))
    for rank in sent(task):
        assert rank.of("tp") == pytest.approx(expected)


def test_the_last_rank_has_the_embedding_again_and_gathers_its_head_twice():
    """Its gradient is summed over both ranks; ZeRO-3 moves a unit three times a micro-batch for each layer of it."""
    task = task_of("llama", "1f1b", Pipeline(p=2, m=4), dp=2, zero=3)

    def program(communicator):
        worker = Worker(communicator, task, SGD())
        worker.gradients(batch_of(task, worker.mesh.replica, data(task.model)))
        return worker

    for worker in run_serial(np, task.num_ranks, program):
        traffic = worker.communicator.traffic
        table = task.model.vocab * task.model.hidden * 8 / 2  # this rank's shard
        assert traffic.of("replica") == table
        used = Counter(unit.name for layer in worker.executor.stages[worker.mesh.p].layers for unit in layer.units)
        assert (used["tokens"], used["head"]) == ((1, 0), (1, 2))[worker.mesh.p]
        elements = sum(n * worker.store.num_elements(name) for name, n in used.items())
        assert traffic.of("dp") == 3 * 4 * elements * 8 / 2


def test_what_has_no_layers_is_refused_and_deepseek_v3_keeps_its_kind():
    with pytest.raises(InputError, match="multi-token prediction by one module used again"):
        check_model(replace(MODELS["gpt, tied"], mtp_shared=True))
    wide = replace(llama(2), num_heads=8, num_kv_heads=8, num_dense_layers=1, **ROUTED)
    with pytest.raises(LayoutError, match="tp is 8; the trainer needs one that divides shared_ffn 12"):
        check_task(Task(model=wide, rows=plain_rows(), micro_batches=1, tp=8))
    small = scaled_model(load_model("deepseek-v3-mtp"), "small", 2, 2, 1, ep=3)
    assert (small.num_mtp_layers, small.num_shared_experts, small.expert_groups) == (1, 1, 8)
    assert small.num_experts == 24
    assert small.moe_ffn % 2 == 0


def test_ranks_that_update_apart_are_refused():
    task = task_of("llama", "1f1b", Pipeline(p=2, m=4))

    def program(communicator):
        worker = Worker(communicator, task, SGD())
        with pytest.raises(LayoutError, match="no multi-token prediction"):
            run_asynchronously(worker, batch_of(task, 0, data(task.model)), STALENESS["2bw"], lambda r, i: 0)

    run_serial(np, 2, program)
