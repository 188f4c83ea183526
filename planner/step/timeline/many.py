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
from planner.step.timeline.timeline import MOST_KEPT, run_all

TOGETHER = 250_000  # operations of layouts that are run side by side


def simulate_all(setup: Setup, layouts: Layouts) -> tuple[Array, Array]:
    """Seconds of the step and bytes of the fullest rank of every layout, shape (n,); raises as `simulate_each`."""
    seconds, peak_bytes = np.zeros(len(layouts)), np.zeros(len(layouts))
    for i, step in simulate_each(setup, layouts):
        seconds[i], peak_bytes[i] = step.step_time_s, step.peak_bytes.max()
    return seconds, peak_bytes


def simulate_each(setup: Setup, layouts: Layouts) -> Iterator[tuple[int, StepSimulation]]:
    """Every layout's number with its step as `simulate` has it, in an order of their own.

    Many run side by side, which is faster than one after the other, those of the same order together.

    Raises LayoutError for an illegal layout, ScheduleError for more operations than a timeline takes.
    """
    check_legal(setup.model, setup.cluster, layouts)
    costs = step_costs(setup, layouts)
    sizes = [schedule_of(layouts.take([i])) for i in range(len(layouts))]
    for group in _groups(sizes):
        yield from zip(group, _side_by_side(costs, sizes, group), strict=True)


def _order(schedule: Schedule, pipe: Pipeline) -> Order:
    again = not schedule.quick or pipe.p * pipe.m * pipe.v * pipe.k <= MOST_KEPT
    return _kept(schedule, pipe) if again else schedule.order(pipe)


@lru_cache(maxsize=16)
def _kept(schedule: Schedule, pipe: Pipeline) -> Order:
    """The order, which the same search or the next one asks for again."""
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
