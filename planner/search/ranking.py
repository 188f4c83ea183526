"""Rank every layout: the best, the front of time against memory, and why the rest lost."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import count
from typing import Any

import numpy as np

from planner.base.arrays import Ints
from planner.base.errors import LayoutError, UnknownNameError
from planner.base.pareto import pareto_front
from planner.base.units import format_bytes, gpus_text
from planner.layouts import Attention, Layouts, Precision
from planner.search.beyond_grids import WORTH_IT, try_more, try_others
from planner.search.finalists import refine
from planner.search.found import Recommendation, known
from planner.search.grids import Grid
from planner.search.pick import OTHER_KINDS, first_of_each, kinds, on_fewest_context_ranks, plainest_first
from planner.search.request import Fixed, Request
from planner.search.scan import search
from planner.search.shortlist import NEAR, Shortlist
from planner.setup import Setup
from planner.step.estimate import Estimate, estimate
from planner.step.step_costs import StepCosts, step_costs
from planner.step.timeline.timed import timed

OBJECTIVES = ("time", "throughput", "cost", "memory")
ALL_AGAIN = 1.5  # times a step without, at most, where all layers are recomputed: fewer may then be (`some_layers`)
LEAST_RUN = 24  # answers run on the timeline first where the plainest is looked for: more shown leave it as it is
ROUNDS = 4  # rounds that run what an answer names on the timeline; after them its best are those that were run


def _finalists(setup: Setup, shortlist: Shortlist) -> StepCosts:
    """The costs of all layouts that were kept. Raises LayoutError if none was."""
    pools = [pool.layouts for pool in (shortlist.fits, shortlist.over) if pool is not None and len(pool.serial)]
    if not pools:
        raise LayoutError(f"no layout that fits takes at most {shortlist.reach_s:.4g} s per step")
    return step_costs(setup, Layouts.concatenate(pools))


def _ties(shortlist: Shortlist, closed: Estimate, result: Estimate, order: Ints) -> int:
    """How many more fitting layouts are as good as the best, the simulated ones by their simulated step."""
    values = result.memory_bytes if shortlist.by_memory else result.step_time_s
    best = float(values[order[0]])
    simulated = np.flatnonzero(result.simulated)
    before = simulated[simulated < len(closed.step_time_s)]
    ran = np.stack([closed.step_time_s[before], closed.memory_bytes[before]])
    near = shortlist.ties(best)
    same = (near[:, :, None] == ran[:, None, :]).all(axis=0).any(axis=1)
    # Simulated, or of some layers alone, which the shortlist doesn't know.
    now = order[result.simulated[order] | (order >= len(closed.step_time_s))]
    return int(np.sum(~same) + np.sum(values[now] <= (1.0 + NEAR) * best)) - 1


def _distinct(order: Ints, step: Any, memory: Any) -> Ints:
    """Sorted indices without layouts that equal the one before in time and memory (a split that changes nothing)."""
    same = (step[order][1:] == step[order][:-1]) & (memory[order][1:] == memory[order][:-1])
    return np.asarray(order[np.r_[True, ~same]] if len(order) else order)


def _ranked(result: Estimate, objective: str) -> Ints:
    """The fitting layouts, distinct, best first."""
    rows = np.flatnonzero(result.fits)
    keys = (result.memory_bytes[rows], result.step_time_s[rows])
    order = rows[np.lexsort(keys if objective != "memory" else keys[::-1])]
    return _distinct(order, result.step_time_s, result.memory_bytes)


def recommend(
    setup: Setup,
    *,
    gpus: int,
    global_batch: int,
    precision: Precision,
    attention: Attention,
    fixed: Fixed | None = None,
    top: int = 5,
    objective: str = "time",
    rivals: int = 0,
    plainest: bool = False,
    reach_s: float = np.inf,
    among: Iterable[Grid] | None = None,
    best_alone: bool = False,
) -> Recommendation:
    """Search all legal layouts.

    objective: memory, or time, throughput, cost, which give the same order on a given number of accelerators.
    rivals: keep at least this many of the fastest layouts that fit, and as many of those that need up to twice the
    memory. plainest: among layouts too close to tell apart, prefer the one with the fewest unusual choices; list one
    layout per tp, pp, cp, ep and schedule (`planner.search.pick`). reach_s: ignore slower layouts; then the front and
    the counts are incomplete. among: the space's grids, where they are known. best_alone: run on the timeline what may
    be the best; the rest of the answer is the closed form's.

    Raises LayoutError or InputError if nothing is legal, nothing that fast, or numbers are out of range;
    UnknownNameError for an unknown objective.
    """
    if objective not in OBJECTIVES:
        raise UnknownNameError("objective", objective, OBJECTIVES)
    request = Request.of(
        setup.framework, gpus=gpus, global_batch=global_batch, precision=precision, attention=attention,
        fixed=fixed or Fixed(),
    )  # fmt: skip
    slowest_s = reach_s * (1.0 + OTHER_KINDS) * (ALL_AGAIN if setup.framework.block_recompute else 1.0)
    by_memory = objective == "memory"
    shortlist = search(setup, request, top=top, by_memory=by_memory, rivals=rivals, reach_s=slowest_s, among=among)
    costs = _finalists(setup, shortlist)
    closed = estimate(setup, costs.case.layouts, costs)
    tried = [] if by_memory else simulate_finalists(setup, request, closed, top, plainest, costs)
    result = Estimate.concatenate(tried) if tried else closed
    legal = shortlist.legal + sum(len(more.step_time_s) for more in tried[1:])
    counts = legal, shortlist.fitting - int(closed.fits.sum())
    alike = [result.layouts, on_fewest_context_ranks(result.layouts)] if plainest and not by_memory else []
    kind = [kinds(layouts) for layouts in alike]
    for rounds in count():  # each round runs at least one more layout on the timeline
        order = _ranked(result, objective)
        if rounds >= ROUNDS:
            order = order[known(result)[order]]
        found = _answer(request, result, order, _best(setup, result, order, kind)[:top], *counts)
        due = found.nearly_fastest if best_alone or reach_s < np.inf else found.named
        if known(result)[due].all():
            break
        result = timed(setup, result, due, costs)
    return replace(found, ties=_ties(shortlist, closed, result, order) if len(order) else 0)


def _answer(
    request: Request, result: Estimate, order: Ints, best: Ints, legal: int, fitting_elsewhere: int
) -> Recommendation:
    """The answer from ranked layouts, without its ties. fitting_elsewhere: fitting layouts that were not kept."""
    return Recommendation(
        request=request,
        estimate=result,
        legal=legal,
        fitting=fitting_elsewhere + int(result.fits.sum()),
        best=best,
        fastest=int(order[0]) if len(order) else None,
        front=order[pareto_front(result.step_time_s[order], result.memory_bytes[order])],
        ties=0,
    )


def best_of(setup: Setup, request: Request, reach_s: float = np.inf, among: Iterable[Grid] | None = None) -> Estimate:
    """The fastest layout that `planner recommend` finds, an estimate of one.

    reach_s: the step of some layout that fits; among: the space's grids. With either the same answer comes sooner.
    Raises LayoutError, InputError as `recommend`, or if nothing fits in memory.
    """
    found = recommend(setup, **request.question, top=1, reach_s=reach_s, among=among, best_alone=True)
    if not len(found.best):
        raise nothing_fits(setup, found, request.gpus)
    return found.chosen


def nothing_fits(setup: Setup, found: Recommendation, gpus: int) -> LayoutError:
    """That no layout fits, and how much the least needs of what it may take."""
    needed, room = (format_bytes(x) for x in (found.estimate.memory_bytes.min(), found.estimate.usable_bytes))
    return LayoutError(
        f"no layout of {setup.model.name} on {gpus_text(gpus)} fits in memory: the least needs {needed} per GPU, "
        f"of {room} that it may take; give more GPUs"
    )


def simulate_finalists(
    setup: Setup, request: Request, closed: Estimate, top: int, plainest: bool, costs: StepCosts | None = None
) -> list[Estimate]:
    """The finalists, the best of them simulated; then a few layouts that a search's grids don't have.

    These are one under another schedule, some with virtual stages filled by cost, and some with full recomputation, or
    offload, of some layers alone. costs: the finalists' `step_costs`, where they are known.
    """
    order = _ranked(closed, "time")
    kind = kinds(closed.layouts) if plainest else None
    out = [refine(setup, closed, order, {LEAST_RUN, max(top, LEAST_RUN)} if plainest else {top}, kind, costs)]
    order = order[np.argsort(out[0].step_time_s[order], kind="stable")]
    order = order[out[0].fits[order]]
    if request.fixed.schedule is None and request.fixed.virtual_stages is None:
        more = try_others(setup, out[0], order, request.fixed.allow_async)
        out += [] if more is None else [more]
    return out + try_more(setup, request, out[0], order, OTHER_KINDS if plainest else -WORTH_IT)


def _best(setup: Setup, result: Estimate, order: Ints, kind: Sequence[Ints]) -> Ints:
    """The layouts to list, best first: one per number of each of `kind`, the plainest of those too close to tell apart
    first; all, fastest first, where there is none.

    Micro-batches of several sequences on several context ranks are no other answer than one on fewer.
    """
    listed = plainest_first(setup, result, order) if kind else order
    return reduce(first_of_each, kind, listed)
