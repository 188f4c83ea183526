"""A training run's last step as it was measured, in the trace format of the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.trainer.loop import Measured
    from planner.trainer.worker import Task


def write_measured_trace(path: Path, task: Task, measured: Measured) -> None:
    """Operations of the first replica's ranks, by this machine's clock; the serial engine's come one after the other.

    Raises:
        OutputError: the path can't be written.
    """
    import numpy as np

    from planner.exporters.perfetto import write_trace
    from planner.schedules import Operation, Order
    from planner.schedules.dependencies import dependencies
    from planner.step.timeline.timeline import Timeline

    order = Order.of_rows([[Operation(*op) for op in row] for row in task.rows])  # type: ignore[misc]
    waits = dependencies(order)
    events = [event for row in measured.events for event in row]
    timeline = Timeline(
        order=order,
        waits=waits,
        lag_s=np.zeros(waits.shape),
        start_s=np.array([event.start_s for event in events]),
        end_s=np.array([event.end_s for event in events]),
    )
    write_trace(path, timeline)
