"""`simulate_all(setup, layouts)`: the exact steps of many layouts, whose timelines run side by side."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from planner.base.arrays import Array
from planner.layouts import Layouts
from planner.schedules import Order, Pipeline, Schedule
from planner.setup import Setup
from planner.step.legality import check_legal
from planner.step.step_costs import StepCosts, step_costs
from planner.step.timeline.step import PreparedStep, Sized, StepSimulation, finish, prepare, schedule_of, steady_step
from planner.step.timeline.timeline import run_all

TOGETHER = 250_000  # operations of layouts that are run side by side


def simulate_all(setup: Setup, layouts: Layouts) -> tuple[Array, Array]:
    """Seconds of the step and bytes of the fullest rank of every layout, shape (n,), as `simulate` of each has them.

    Many run side by side, which is faster than one after the other, those of the same order together.

    Raises:
        LayoutError: an illegal layout.
    """
    check_legal(setup.model, setup.cluster, layouts)
    costs = step_costs(setup, layouts)
    seconds, peak_bytes = np.zeros(len(layouts)), np.zeros(len(layouts))
    sizes = [schedule_of(layouts.take([i])) for i in range(len(layouts))]
    for group in _groups(sizes):
        for i, step in zip(group, _side_by_side(costs, sizes, group), strict=True):
            seconds[i], peak_bytes[i] = step.step_time_s, step.peak_bytes.max()
    return seconds, peak_bytes


def _order(schedule: Schedule, pipe: Pipeline) -> Order:
    return schedule.order(pipe) if schedule.quick else _generated(schedule, pipe)


@lru_cache(maxsize=16)
def _generated(schedule: Schedule, pipe: Pipeline) -> Order:
    """The order of a schedule that takes up to a tenth of a second to make: the next search asks for it again."""
    return schedule.order(pipe)


def _groups(sizes: list[Sized]) -> list[list[int]]:
    """Layouts to run side by side: those of one order one after another, of about `TOGETHER` operations in all."""
    long = [3 * pipe.m * pipe.v * pipe.k for _, pipe in sizes]
    order = sorted(range(len(sizes)), key=lambda i: (long[i], sizes[i][1].p, sizes[i][0].name))
    out: list[list[int]] = []
    total = 0
    for i in order:
        operations = long[i] * sizes[i][1].p
        if not out or total + operations > TOGETHER:
            out.append([])
            total = 0
        out[-1].append(i)
        total += operations
    return out


def _side_by_side(costs: StepCosts, sizes: list[Sized], rows: list[int]) -> Iterator[StepSimulation]:
    """The steps of some rows, in their order."""
    orders: dict[tuple[str, Pipeline], Order] = {}
    prepared: dict[int, PreparedStep] = {}
    for i in rows:
        schedule, pipe = sizes[i]
        if not schedule.steady:
            same = (schedule.name, pipe)
            orders[same] = orders.get(same) or _order(schedule, pipe)
            prepared[i] = prepare(costs.take([i]), schedule, pipe, orders[same])
    timelines = dict(zip(prepared, run_all([x.run for x in prepared.values()]), strict=True))
    for i in rows:
        yield finish(prepared[i], timelines[i]) if i in prepared else steady_step(costs.take([i]), *sizes[i])
