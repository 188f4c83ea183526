"""All schedules that a layout allows, each simulated."""

from dataclasses import dataclass, replace

import numpy as np

from planner.base.errors import LayoutError
from planner.costs.case import Case
from planner.layouts import Layouts
from planner.models import Transformer
from planner.schedules import SCHEDULES, Schedule
from planner.setup import Setup
from planner.step.legality import first_broken
from planner.step.timeline.step import StepSimulation, simulate


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """One schedule's step for a layout, and what its pipeline sends.

    pipeline_bytes: sent by a middle rank to its neighbours in a step; needed_bandwidth_bytes_per_s: at which these
    transfers take no longer than the rank computes.
    """

    layouts: Layouts
    step: StepSimulation
    pipeline_bytes: float
    needed_bandwidth_bytes_per_s: float


def with_schedule(layouts: Layouts, model: Transformer, schedule: Schedule) -> Layouts:
    """The layout under another schedule, with the virtual stages and slices that it asks for, or the given ones."""
    given_v, given_k = int(layouts.virtual_stages[0]), int(layouts.sequence_slices[0])
    v = schedule.chunks if schedule.chunks is not None else max(given_v, 2)
    if schedule.one_layer_chunks:
        v = max(int(model.num_layers) // int(layouts.pp[0]), 1)
    return replace(
        layouts,
        schedule_names=(schedule.name,),
        schedule=np.zeros(1, dtype=np.int64),
        virtual_stages=np.array([v]),
        sequence_slices=np.array([max(given_k, 2) if schedule.sliced else 1]),
    )


def compare(setup: Setup, layouts: Layouts) -> tuple[list[Compared], dict[str, str]]:
    """Every legal schedule's step, fastest first, synchronous ones before asynchronous; and why others are not legal.

    Raises LayoutError for more than one layout, or one that no schedule can run.
    """
    model = setup.model
    rows, refused = [], {}
    for schedule in SCHEDULES.values():
        one = with_schedule(layouts, model, schedule)
        reason = first_broken(model, setup.cluster, one)[0]
        if reason:
            refused[schedule.name] = reason
            continue
        step = simulate(setup, one)
        boundary = float(Case.of(setup, one).boundary_bytes[0])
        per_rank = 2.0 * boundary / float(one.tp[0]) * step.pipe.m * float(schedule.messages(step.pipe))
        sent = per_rank if step.pipe.p > 1 else 0.0
        busy = float(step.timeline.busy_s.max()) / step.steps
        rows.append(Compared(layouts=one, step=step, pipeline_bytes=sent, needed_bandwidth_bytes_per_s=sent / busy))
    if not rows:
        raise LayoutError(f"no schedule can run this layout: {next(iter(refused.values()))}")
    rows.sort(key=lambda x: (not x.step.schedule.synchronous, x.step.step_time_s))
    return rows, refused
