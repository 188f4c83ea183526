"""The outcome of a training run: as a table, as JSON, as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.base.units import counted
from planner.cli import options as o

if TYPE_CHECKING:
    from planner.trainer.loop import Measured, Training
    from planner.trainer.task import Task


def finish(training: Training, measured: Measured, engine: str, trace: Path | None, json: bool) -> None:
    """Prints the run as a table or as JSON, and writes its trace where asked for."""
    task, times = training.task, measured.step_time_s
    if trace is not None and times:
        write_measured_trace(trace, task, measured)
    record = _record(training, measured, engine)
    if json:
        o.print_json(record)
        return
    from planner.report.plain_table import plain_table

    table = plain_table("", "")
    if times:
        table.add_row("loss", f"{measured.loss[0]:.4f} to {measured.loss[-1]:.4f} nats per byte")
        table.add_row("step time", f"{record['step_time_s'] * 1e3:,.1f} ms (median of {len(times)})")
    table.add_row("in passes, by rank", "  ".join(f"{x * 1e3:,.1f}" for x in measured.busy_s[:8]) + " ms")
    table.add_row("most activations, by rank", "  ".join(f"{x / 2**20:,.1f}" for x in measured.peak_bytes[:8]) + " MiB")
    for kind, size in measured.sent_bytes.items():
        table.add_row(f"sent per step for {kind}, rank 0", f"{size / 2**20:,.2f} MiB")
    o.print_view(f"{task.model.name}: {counted(task.num_ranks, 'rank')}, engine {engine}", table)


def _record(training: Training, measured: Measured, engine: str) -> dict[str, Any]:
    """The measurements, under the names of the JSON."""
    import statistics

    from planner.trainer.stopwatch import undisturbed, usual_s

    nothing = measured.noise.why_nothing
    task, times = training.task, measured.step_time_s
    return {
        "model": task.model.name, "engine": engine, "ranks": task.num_ranks, "micro_batches": task.micro_batches,
        "first_step": measured.first_step, "steps": len(times),
        "loss_first": measured.loss[0] if times else None, "loss_last": measured.loss[-1] if times else None,
        "losses": measured.loss,
        "step_time_s": statistics.median(times) if times else None,
        "undisturbed_step_time_s": usual_s(times, measured.processor_share) if times else None,
        "undisturbed_steps": int(undisturbed(measured.processor_share).sum()) if times else 0,
        "processor_share": statistics.median(measured.processor_share) if times else None,
        "busy_s": [float(x) for x in measured.busy_s], "waiting_s": [float(x) for x in measured.waiting_s],
        "pass_s": _mean_pass_s(measured), "passes_held": [int(x) for x in _of_pipeline(training, measured.peak_passes)],
        "peak_activation_bytes": [int(x) for x in measured.peak_bytes],
        "sent_bytes": measured.sent_bytes,
        "left_out": list(training.left_out),
        "noise_scale_sequences": None if nothing else measured.noise.sequences,
        "noise_scale_standard_error": None if nothing else measured.noise.standard_error,
        "noise_scale_unknown_because": nothing if training.noise_every and nothing else None,
    }  # fmt: skip


def _of_pipeline(training: Training, by_rank: Any) -> list[Any]:
    """The first replica's figures among figures by rank: those of its pipeline's first tensor-parallel ranks."""
    from planner.trainer.mesh import Mesh

    task = training.task
    mesh = Mesh(dp=task.dp * task.cp, tp=task.tp, pp=task.pp, rank=0)
    return [by_rank[mesh.at(t=0, d=0, p=p)] for p in range(task.pp)]


def _mean_pass_s(measured: Measured) -> dict[str, float]:
    """Seconds of the mean pass of the last step, by kind."""
    import numpy as np

    from planner.schedules.operations import KINDS

    events = [e for row in measured.events for e in row]
    return {
        kind: float(np.mean([e.end_s - e.start_s for e in events if e.kind == kind]))
        for kind in KINDS
        if any(e.kind == kind for e in events)
    }


def write_measured_trace(path: Path, task: Task, measured: Measured) -> None:
    """Operations of the first replica's ranks, by this machine's clock; the serial engine's come one after the other.

    Raises OutputError if the path can't be written.
    """
    import numpy as np

    from planner.base.files import write_text
    from planner.exporters.perfetto import trace_json
    from planner.schedules import Order
    from planner.schedules.dependencies import dependencies
    from planner.step.timeline.timeline import Timeline

    order = Order.of_rows(task.rows)
    waits = dependencies(order)
    events = [event for row in measured.events for event in row]
    timeline = Timeline(
        order=order,
        waits=waits,
        lag_s=np.zeros(waits.shape),
        start_s=np.array([event.start_s for event in events]),
        end_s=np.array([event.end_s for event in events]),
    )
    write_text(path, trace_json(timeline))
