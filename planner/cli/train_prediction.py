"""The step of a training run before it runs: its schedule's exact timeline with this machine's prices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.base.errors import FileFormatError, LayoutError, shown

if TYPE_CHECKING:
    from planner.trainer.loop import Training
    from planner.trainer.worker import Task

_MOST_SECONDS = 1e6  # of a price, for a unit of its size


def read_prices(path: Path) -> dict[str, list[float]]:
    """Seconds per size by pass and message. Raises FileFormatError if the file is none of `planner calibrate`."""
    from planner.base.files import read_toml
    from planner.trainer.prices import FEATURES

    prices = read_toml(path).get("seconds")
    if not isinstance(prices, dict) or "update" not in prices:
        raise FileFormatError(f"{path}: no prices; write them with planner calibrate {path}")
    for key, seconds in prices.items():
        part = next((word for word in key.split() if word in FEATURES), None)
        count = 2 if part is None else len(FEATURES[part])
        numbers = seconds if isinstance(seconds, list) and len(seconds) == count else []
        if not numbers or not all(type(x) in (int, float) and 0.0 <= x < _MOST_SECONDS for x in numbers):
            allowed = f"{count} numbers from 0 to {_MOST_SECONDS:g}"
            raise FileFormatError(f"{path}: field seconds.{key} is {shown(seconds)}; allowed: {allowed}")
    return prices


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A step before it runs.

    step_s: seconds of the step; pass_s: of the mean pass by kind; busy_s, waiting_s: by pipeline rank, in passes and
    before them for their input (zero in the serial engine, whose ranks run one after the other); update_s: from the
    last pass to the end of the step; passes: most forward passes that a rank holds, by pipeline rank, from the
    simulator, with those whose input gradient is taken and weight gradient is not.
    """

    step_s: float
    pass_s: dict[str, float]
    busy_s: list[float]
    waiting_s: list[float]
    update_s: float
    passes: list[int]


def predict(training: Training, prices: dict[str, list[float]], engine: str) -> Prediction:
    """One step: all ranks' work one after the other in the serial engine, else the schedule's exact timeline.

    Raises FileFormatError if the prices lack what the layout communicates; LayoutError for context parallelism or
    experts, of which the prices have no passes.
    """
    import numpy as np

    from planner.schedules import Order
    from planner.schedules.operations import KINDS
    from planner.step.timeline.timeline import run
    from planner.trainer.executor import shares_ends

    task = training.task
    if shares_ends(task.rows):
        raise LayoutError("ranks share embedding and head, and prices are of whole ones: train without --prices")
    if task.cp > 1 or task.model.num_experts:
        raise LayoutError(
            f"cp is {task.cp} and num_experts {task.model.num_experts}; prices are of dense layers and whole "
            "sequences: train without --prices"
        )
    if engine == "serial":  # messages stay in one process
        prices = prices | {name: [0.0, 0.0] for name in ("all_reduce", "all_gather", "reduce_scatter", "send")}
    order = Order.of_rows(task.rows)
    kinds = [op.kind for row in order.rows() for op in row]
    lasting = np.array([sum(_pass_s(task, training, prices, op).values()) for row in order.rows() for op in row])
    updates = [_update_s(task, prices, p) for p in range(task.pp)]
    m = task.model
    message = (
        training.samples.micro_batch * (task.bounds[1] - task.bounds[0]) * m.hidden * np.dtype(task.dtype).itemsize
    )
    split = task.tp if task.sequence_parallel else 1
    transfer = _message_s(prices, "send", message / split) if task.pp > 1 else 0.0
    line = run(order, lasting, transfer)
    ends = line.end_s[order.start[1:] - 1] - line.start_s.min()
    serial = engine == "serial"
    step_s = (lasting.sum() + sum(updates)) * task.dp * task.tp if serial else line.makespan_s + max(updates)
    return Prediction(
        step_s=float(step_s),
        pass_s={k: float(lasting[[x == k for x in kinds]].mean()) for k in KINDS if k in kinds},
        busy_s=line.busy_s.tolist(),
        waiting_s=(0.0 * ends if serial else ends - line.busy_s).tolist(),
        update_s=float(max(updates)),
        passes=[int(x) for x in line.peak(kept=1.0)],
    )


def _message_s(prices: dict[str, list[float]], name: str, size_bytes: float) -> float:
    if name not in prices:
        raise FileFormatError(f"prices have no {name}: run planner calibrate under mpirun with as many ranks")
    return prices[name][0] + prices[name][1] * size_bytes / 1e6


def _pass_s(task: Task, training: Training, prices: dict[str, list[float]], op: Any) -> dict[str, float]:
    """One operation's seconds: layers, ends, collectives within."""
    import numpy as np

    from planner.layouts import Recompute
    from planner.trainer.prices import PriceSizes, features, price_s
    from planner.trainer.stage import split_evenly

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
    out = {"layers": layers * each + repeated * again_s}
    for part, here in (("embedding", op.stage == 0), ("head", op.stage == task.num_stages - 1)):
        if here:
            out[part] = price_s(prices, f"{family} {part} {op.kind}", features(part, x))
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
        out["collectives"] = (layers * count + more + ends) * one
    return out


def _update_s(task: Task, prices: dict[str, list[float]], p: int) -> float:
    """From the last operation to the end of the step: reductions, the norm, the optimizer, publishing."""
    import numpy as np

    from planner.trainer.block import block_unit
    from planner.trainer.prices import PriceSizes, features, price_s
    from planner.trainer.stage import split_evenly

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
