"""The step of a training run before it runs: its schedule's exact timeline with this machine's prices.

`trainer_passes.py` writes the prices; `trainer_prediction.py` sets what this says beside runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from trainer_prices import PriceSizes, features, price_s

from planner.base.errors import LayoutError
from planner.choices.enumerations import Recompute
from planner.schedules import Order
from planner.step.timeline.timeline import run
from planner.trainer.block import block_unit
from planner.trainer.executor import shares_ends
from planner.trainer.loop import Training
from planner.trainer.stage import split_evenly
from planner.trainer.task import Task

Prices = dict[str, list[float]]


def predicted_step_s(training: Training, prices: Prices, engine: str) -> float:
    """All ranks' work one after the other in the serial engine, else the end of the schedule's exact timeline.

    Raises LayoutError for context parallelism, experts or shared ends, of which the prices have no passes.
    """
    task = training.task
    if shares_ends(task.rows) or task.cp > 1 or task.model.num_experts:
        raise LayoutError("prices are of dense layers, whole sequences, and ends that one rank has")
    if engine == "serial":  # messages stay in one process
        prices = prices | {name: [0.0, 0.0] for name in ("all_reduce", "all_gather", "reduce_scatter", "send")}
    order = Order.of_rows(task.rows)
    lasting = np.array([_pass_s(task, training, prices, op) for row in order.rows() for op in row])
    updates = [_update_s(task, prices, p) for p in range(task.pp)]
    if engine == "serial":
        return float((lasting.sum() + sum(updates)) * task.dp * task.tp)
    m, b = task.model, training.samples.micro_batch
    message = b * (task.bounds[1] - task.bounds[0]) * m.hidden * np.dtype(task.dtype).itemsize
    split = task.tp if task.sequence_parallel else 1
    transfer = _message_s(prices, "send", message / split) if task.pp > 1 else 0.0
    return float(run(order, lasting, transfer).makespan_s + max(updates))


def _message_s(prices: Prices, name: str, size_bytes: float) -> float:
    return price_s(prices, name, [1.0, size_bytes / 1e6])


def _pass_s(task: Task, training: Training, prices: Prices, op: Any) -> float:
    """One operation's seconds: layers, ends, collectives within."""
    m, family = task.model, "swiglu" if task.model.gated else "gelu"
    start, stop = task.bounds[op.slice], task.bounds[op.slice + 1]
    b = training.samples.micro_batch
    x = PriceSizes(model=m, b=b, tokens=stop - start, start=start, tp=task.tp, sequence_parallel=task.sequence_parallel)
    layers = (task.layers_per_stage or split_evenly(m.num_layers, task.num_stages))[op.stage]
    row = features("layer", x)
    each = price_s(prices, f"{family} layer {op.kind}", row)
    repeated, again_s = min(task.recompute_layers or layers, layers), 0.0
    if op.kind in "BI" and task.recompute == Recompute.FULL:
        # The second time without the last product and what it multiplies.
        down_gflop = 2.0 * b * (stop - start) * m.hidden * m.ffn / task.tp / 1e9
        again = [1.0, row[1] - down_gflop, row[2], 0.0, *row[4:]]
        again_s = price_s(prices, f"{family} layer F", again)
    if op.kind in "BI" and task.recompute == Recompute.SELECTIVE:
        again_s = prices[f"{family} layer F"][-1] * row[-1]
    out = layers * each + repeated * again_s
    for part, here in (("embedding", op.stage == 0), ("head", op.stage == task.num_stages - 1)):
        if here:
            out += price_s(prices, f"{family} {part} {op.kind}", features(part, x))
    if task.tp > 1 and op.kind != "W":
        size = b * (stop - start) * m.hidden * np.dtype(task.dtype).itemsize
        if task.sequence_parallel:
            one = (_message_s(prices, "all_gather", size) + _message_s(prices, "reduce_scatter", size)) / 2
            count, more = (4, 0) if op.kind == "F" else (6, 3)
        else:
            one = _message_s(prices, "all_reduce", size)
            count, more = (2, 0) if op.kind == "F" else (2, 1)
        ends = (op.stage == 0) + (op.stage == task.num_stages - 1)
        more = more * repeated if task.recompute == Recompute.FULL else 0
        out += (layers * count + more + ends) * one
    return out


def _update_s(task: Task, prices: Prices, p: int) -> float:
    """From the last operation to the end of the step: reductions, the norm, the optimizer, publishing."""
    m = task.model
    split = task.layers_per_stage or split_evenly(m.num_layers, task.num_stages)
    stages = {op.stage for op in task.rows[p]}
    blocks = sum(split[s] for s in stages)
    ends = (0 in stages) + (task.num_stages - 1 in stages)
    count = blocks * block_unit(m, 0).num_elements(task.tp) + ends * m.vocab * m.hidden / task.tp
    shards = task.dp // task.dp_replicate if task.zero else 1
    owned = count / shards
    seconds = price_s(prices, "update", features("update", PriceSizes(model=m, b=1, tokens=1), owned))
    if task.dp > 1:
        size, units = count * np.dtype(task.dtype).itemsize, blocks + 2 * ends
        for name in ("all_reduce",) if not task.zero else ("reduce_scatter", "all_gather"):
            seconds += units * _message_s(prices, name, size / units)
        if task.dp_replicate > 1:
            seconds += units * _message_s(prices, "all_reduce", size / units / shards)
    if task.num_ranks > 1:
        seconds += 2 * _message_s(prices, "all_reduce", 8)
    return seconds
