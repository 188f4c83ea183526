"""A schedule as the CSV that PyTorch's pipeline runtime loads (`_PipelineScheduleRuntime._load_csv`, "compute_only").

One row a rank, one cell an operation: stage, F, I, W or B, micro-batch (``2F0``); operations that run as one are
``(0F3;1B0)OVERLAP_F_B``. PyTorch itself adds sends, receives and the gathers of sharded parameters, and reads from the
rows which rank holds which stage. Format read in torch 2.13.0, torch/distributed/pipelining/schedules.py.
"""

import numpy as np

from planner.base.errors import ScheduleError
from planner.schedules.base import Schedule
from planner.schedules.operations import Operation, Order
from planner.step.timeline.timeline import run


def schedule_csv(order: Order, schedule: Schedule | None = None) -> str:
    """The text of the CSV; `schedule` is what the order was made by, where it was.

    Raises ScheduleError if the order is incomplete or deadlocks, or the format can't say it: sequence slices, a stage
    on several ranks, weights of several versions.
    """
    if schedule is not None and not schedule.synchronous:
        raise ScheduleError(
            f"{schedule.name} can't be written for PyTorch: its runtime knows one version of the weights; choose a "
            "schedule that flushes, such as 1f1b"
        )
    _check(order)
    return "".join(",".join(_cells(row)) + "\n" for row in order.rows())


def _check(order: Order) -> None:
    """Refuses what PyTorch's runtime would refuse, misread (2F0.1 as 2F0) or wait for without end."""
    sliced = np.flatnonzero(order.slice)
    if len(sliced):
        raise ScheduleError(
            f"{order.operation(int(sliced[0]))} can't be written for PyTorch: its runtime does not slice the sequence; "
            "choose a schedule without slices, such as 1f1b"
        )
    idle = np.flatnonzero(np.diff(order.start) == 0)
    if len(idle):
        raise ScheduleError(f"rank {idle[0]} has no operation: PyTorch's runtime needs a stage on every rank")
    pairs = np.unique(np.stack([order.stage, order.rank]), axis=1)
    doubled = np.flatnonzero(np.diff(pairs[0]) == 0)
    if len(doubled):
        stage, ranks = pairs[0, doubled[0]], pairs[1, pairs[0] == pairs[0, doubled[0]]]
        raise ScheduleError(
            f"stage {stage} lies on ranks {', '.join(map(str, ranks))}, by micro-batch: it can't be written for "
            "PyTorch, whose runtime puts a stage on one rank; choose a schedule with one copy of the weights, "
            "such as zb-v"
        )
    run(order, np.ones(len(order)))


def _cells(row: list[Operation]) -> list[str]:
    """One rank's cells."""
    out: list[str] = []
    together: list[str] = []
    for operation in row:
        together.append(str(operation._replace(fused=False)))
        if not operation.fused:
            out.append(together[0] if len(together) == 1 else f"({';'.join(together)})OVERLAP_F_B")
            together = []
    return out
