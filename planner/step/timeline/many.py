"""`simulate_all(setup, layouts)`: the exact steps of many layouts, whose timelines run side by side."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from planner.base import records
from planner.base.arrays import Array
from planner.base.kept import Kept
from planner.choices.table import CHOICES, TEXTS
from planner.layouts import Layouts
from planner.schedules import Order, Pipeline, Schedule
from planner.setup import Setup
from planner.step.legality import check_legal
from planner.step.step_costs import StepCosts, step_costs
from planner.step.timeline.step import PreparedStep, Sized, StepSimulation, finish, prepare, schedule_of, steady_step
from planner.step.timeline.timeline import run_all

TOGETHER = 250_000  # operations of layouts that are run side by side
MOST_STEPS = 10_000  # of a setup whose seconds and bytes are kept
_ORDERS: Kept[tuple[Schedule, Pipeline], Order] = Kept(500_000)  # operations: some 40 MB with what they wait for

Said = tuple[float, float]


def simulate_all(setup: Setup, layouts: Layouts) -> tuple[Array, Array]:
    """Seconds of the step and bytes of the fullest rank of every layout, shape (n,); raises as `simulate_each`.

    What was said of the same layouts of the same setup is said again, whatever memory they may take: the next question
    of a user mostly has them in common with the last.
    """
    one_model = records.take(setup.model, [0]) is setup.model
    kept, keys = _said(_identity(setup)) if one_model else {}, _keys(layouts)
    said = [kept.get(key) for key in keys]
    due = [i for i, known in enumerate(said) if known is None]
    some = replace(setup, model=records.take(setup.model, due))
    for at, step in simulate_each(some, layouts.take(due)) if due else ():
        said[due[at]] = step.step_time_s, float(step.peak_bytes.max())
    if len(kept) > MOST_STEPS:
        kept.clear()
    kept |= {keys[i]: said[i] for i in due}
    seconds, peak_bytes = np.array(said, dtype=np.float64).reshape(-1, 2).T
    return seconds, peak_bytes


@lru_cache(maxsize=8)
def _said(setup: bytes) -> dict[tuple[object, ...], Said | None]:
    """Seconds and bytes of the layouts of a setup that were simulated."""
    return {}


def _identity(setup: Setup) -> bytes:
    """All that a step depends on besides its layout."""
    accelerator = replace(setup.cluster.accelerator, room_bytes=None)
    return pickle.dumps((setup.model, replace(setup.cluster, accelerator=accelerator), setup.framework))


def _keys(layouts: Layouts) -> list[tuple[object, ...]]:
    """What sets each layout apart from all others, in this table or another."""
    columns = {name: getattr(layouts, name).tolist() for name in CHOICES}
    names = {name: [getattr(layouts, f"{name}_names")[i] for i in columns[name]] for name in TEXTS}
    return list(zip(*(columns | names).values(), strict=True))


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
    prepared: dict[int, PreparedStep] = {}
    own = {i: costs.take(slice(i, i + 1)) for i in rows}
    for i in rows:
        schedule, pipe = sizes[i]
        if not schedule.steady:
            order = _ORDERS.get((schedule, pipe), partial(schedule.order, pipe))
            prepared[i] = prepare(own[i], schedule, pipe, order)
    timelines = dict(zip(prepared, run_all([x.run for x in prepared.values()]), strict=True))
    for i in rows:
        yield finish(prepared[i], timelines[i]) if i in prepared else steady_step(own[i], *sizes[i])
