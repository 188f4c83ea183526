"""`simulate_all(setup, layouts)`: the exact steps of many layouts, whose timelines run side by side."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from planner.base import records
from planner.base.arrays import Array
from planner.base.cache import LruCache
from planner.choices.table import CHOICES, TEXTS
from planner.layouts import Layouts
from planner.schedules import Order, Pipeline, Schedule
from planner.setup import Setup
from planner.step.legality import check_legal
from planner.step.step_costs import StepCosts, step_costs
from planner.step.timeline.step import OrderedSteps, Sized, StepSimulation, finish, prepare, schedule_of, steady_step
from planner.step.timeline.timeline import run_all

TOGETHER = 250_000  # operations of layouts that are run side by side
# Operations: some 40 MB with what they wait for.
_ORDERS: LruCache[tuple[Schedule, Pipeline], Order] = LruCache(500_000)
_STEPS: LruCache[bytes, dict[tuple[object, ...], tuple[float, float]]] = LruCache(50_000)
"""Seconds and bytes of layouts that were simulated, by the setup's identity: some 40 MB."""


def simulate_all(setup: Setup, layouts: Layouts, costs: StepCosts | None = None) -> tuple[Array, Array]:
    """Seconds of the step and bytes of the fullest rank of every layout, shape (n,); as `simulate_each`.

    Results are cached by setup and layout, regardless of the memory's size, because a user's next question mostly
    repeats layouts.
    """
    one_model = records.take(setup.model, [0]) is setup.model
    cached = _STEPS.get(_identity(setup), dict) if one_model else {}
    keys = _keys(layouts) if one_model else [(i,) for i in range(len(layouts))]
    due = [i for i, key in enumerate(keys) if key not in cached]
    some = replace(setup, model=records.take(setup.model, due))
    own = None if costs is None or not due else costs.take(due)
    for at, step in simulate_each(some, layouts.take(due), own) if due else ():
        cached[keys[due[at]]] = step.step_time_s, float(step.peak_bytes.max())
    seconds, peak_bytes = np.array([cached[key] for key in keys]).reshape(-1, 2).T
    return seconds, peak_bytes


def _identity(setup: Setup) -> bytes:
    """All that a step depends on besides its layout: of memory only how fast it is."""
    accelerator = replace(setup.cluster.accelerator, memory_bytes=1.0, room_bytes=None)
    all_of_it = setup.model, replace(setup.cluster, name="", accelerator=accelerator), setup.framework
    return pickle.dumps(all_of_it)


def _keys(layouts: Layouts) -> list[tuple[object, ...]]:
    """Keys that set each layout apart from all others, in this table or another."""
    columns = {name: getattr(layouts, name).tolist() for name in CHOICES}
    names = {name: [getattr(layouts, f"{name}_names")[i] for i in columns[name]] for name in TEXTS}
    return list(zip(*(columns | names).values(), strict=True))


def simulate_each(
    setup: Setup, layouts: Layouts, costs: StepCosts | None = None
) -> Iterator[tuple[int, StepSimulation]]:
    """Every layout's number with its step as `simulate` has it, in an order of their own.

    Many run side by side, which is faster than one after the other, those of the same order together.
    costs: their `step_costs`, where they are known, as they are of legal layouts alone.

    Raises LayoutError for an illegal layout, ScheduleError for more operations than a timeline takes.
    """
    if costs is None:
        check_legal(setup.model, setup.cluster, layouts)
        costs = step_costs(setup, layouts)
    sizes = [schedule_of(layouts, i) for i in range(len(layouts))]
    for group in _groups(sizes):
        yield from zip(group, _side_by_side(costs, sizes, group), strict=True)


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
    jobs = []
    for i in rows:
        schedule, pipe = sizes[i]
        if not schedule.steady:
            order = _ORDERS.get((schedule, pipe), partial(schedule.order, pipe))
            jobs.append(OrderedSteps(row=i, schedule=schedule, pipe=pipe, order=order))
    prepared = prepare(costs, jobs) if jobs else []
    timelines = run_all([x.run for x in prepared])
    steps = {x.job.row: (x, timeline) for x, timeline in zip(prepared, timelines, strict=True)}
    for i in rows:
        yield finish(*steps[i]) if i in steps else steady_step(costs, i, *sizes[i])
