"""The shortest time: wall time minimised over accelerators, batch and layout together; fronts, knee, what binds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.base.errors import InputError, LayoutError
from planner.base.pareto import knee, pareto_front
from planner.choices.choice import whole
from planner.choices.table import DEGREES
from planner.hardware.machines import UNLIMITED
from planner.layouts import Layouts
from planner.models import Transformer
from planner.scaling.training import TrainingTime
from planner.search.beyond_grids import Tried, filled, that_fit
from planner.search.ranking import recommend
from planner.search.request import Request
from planner.search.scan import bounds_all, estimate_all, search, totals_all
from planner.step.estimate import Estimate
from planner.step.step_costs import step_costs
from planner.step.step_time import step_time
from planner.training_time.goal import Goal
from planner.training_time.joint import JobSizes, Strategy, coarse, families, fine
from planner.training_time.training import TrainingCase

NEAR = 300  # candidates that compete for a point of a front once a constraint is relaxed
HOPEFUL = 512  # of each octave, estimated before the others
DEGREES_OF = 4  # best candidates on some accelerators with some batch, whose degrees are searched there
BEST_OF_OCTAVE = 24  # coarse candidates of half an octave of accelerators that are refined
NEAR_BEST = 0.02  # few choices are tried at first, which tells sizes of job apart no better than this
SIZES_NEAR_BEST = 4
MOST_FOLLOWED = 8  # times: two sufficed in all of nine questions that were tried
WITHOUT_PIPELINE = "a pipeline without its bubble"  # what binds where a layout has none, but one near it would gain
WORTH_SAYING = 0.02  # a constraint whose relaxation gains less does not bind
WORTH_FOLLOWING = 0.002  # a size of job that gains less than this share of the time is not searched too
NEVER = 1e12  # times the hours between failures
MOST_BATCH = 4.0  # times McCandlish et al.'s scale: beyond, five times the samples


@dataclass(frozen=True, kw_only=True)
class Binding:
    """The constraint whose doubling shortens a point's time most, and the share saved; "compute" if none does.

    gains: the share that the doubling of each constraint saves.
    """

    name: str
    gain: float
    gains: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Fastest:
    """The outcome of a search. Indices point into `estimate` and `run`, which hold all candidates that were kept.

    best: the shortest time; by_gpus, by_cost: fronts from the least to the most of it (GPU-hours where there is no
    price); knee_gpus, knee_cost: positions in those fronts; binding: for each point of by_gpus.
    max_gpus: most searched.
    """

    strategy: str
    estimate: Estimate
    run: TrainingTime
    searched: int
    best: int
    by_gpus: Ints
    by_cost: Ints
    knee_gpus: int
    knee_cost: int
    binding: tuple[Binding, ...]
    max_gpus: int


def _price(run: TrainingTime) -> Array:
    """Dollars, or GPU-hours where there is no price, or one of 0."""
    return run.cost_usd if np.any(run.cost_usd > 0) else run.gpu_hours


def _relaxed(q: TrainingCase, result: Estimate) -> dict[str, Array]:
    """Wall times of a table of candidates, each constraint relaxed twofold."""
    c, x = q.setup.cluster, result.layouts
    step, fits = result.step_time_s, result.fits
    sooner = replace(c, network=c.network.later(0.5), node_link=c.node_link.later(0.5))
    room = result.memory_bytes <= 2 * c.accelerator.usable_bytes
    out = {
        "critical batch": q.wall_s(step, fits, x, relaxed=2.0),
        "memory": q.wall_s(step, room, x),
        "failures": q.with_assumption("mtbf_hours", 2.0).wall_s(step, fits, x),
        "bubble": q.wall_s(step - 0.5 * (result.time.bubble_s + result.time.imbalance_s), fits, x),
    }
    for name, other in (
        ("network", replace(c, network=c.network.faster(2.0))),
        ("node link", replace(c, node_link=c.node_link.faster(2.0))),
        ("latency", sooner),
        ("node size", c.with_node_size(min(2 * c.gpus_per_node, UNLIMITED))),
    ):
        out[name] = q.wall_s(step_time(step_costs(replace(q.setup, cluster=other), x)).total_s, fits, x)
    return out


def bindings(q: TrainingCase, result: Estimate, wall: Array, points: Ints) -> tuple[Binding, ...]:
    """The limit at each point of a front, among the candidates near it with no more accelerators."""
    hopeful = q.wall_s(result.step_time_s, True, result.layouts, relaxed=2.0)
    near = []
    for i in points:
        rows = np.flatnonzero(result.layouts.gpus <= result.layouts.gpus[i])
        near.append(rows[np.argsort(hopeful[rows], kind="stable")[:NEAR]])
    every = np.unique(np.concatenate([*near, points]))
    relaxed = _relaxed(q, result.take(every))
    out = []
    for i, rows in zip(points, near, strict=True):
        here = np.searchsorted(every, np.r_[rows, i])
        gains = {k: max(1.0 - float(times[here].min()) / float(wall[i]), 0.0) for k, times in relaxed.items()}
        name = max(gains, key=lambda k: gains[k])
        worth = gains[name] >= WORTH_SAYING
        said = WITHOUT_PIPELINE if name == "bubble" and result.layouts.pp[i] == 1 else name
        out.append(Binding(name=said if worth else "compute", gain=gains[name], gains=gains))
    return tuple(out)


def job_bounds(model: Transformer, goal: Goal, max_gpus: int, least_gpus: int = 1) -> JobSizes:
    """Batches from a 256th of the critical one to where samples are five times the least, or twice the cap."""
    if goal.rule == "cap" and goal.critical < model.seq_len:
        raise InputError(
            f"the critical batch is {goal.critical:,.0f} tokens; allowed with the batch rule cap: at least a sequence, "
            f"{model.seq_len:,}"
        )
    most = 2.0 * goal.critical if goal.rule == "cap" else MOST_BATCH * goal.scale
    critical = goal.critical / model.seq_len
    return JobSizes(
        max_gpus=max_gpus, least_gpus=least_gpus, least_batch=max(critical / 256, 1.0),
        most_batch=max(most / model.seq_len, 1.0),
    )  # fmt: skip


def plan_fastest(
    q: TrainingCase, plan: Strategy, request: Request, *, max_gpus: int, max_cost: float | None = None, points: int = 12
) -> Fastest:
    """Search accelerators up to `max_gpus`, batches and layouts of a strategy for the shortest wall time.

    Few of each choice find the accelerators and batches of the fronts; there, every choice is searched, as by
    `planner.search.recommend` but for its simulation. request: what the search is asked, whatever its size.

    Raises InputError for numbers out of range, a cost without a price, or a choice that the strategy settles too;
    LayoutError if nothing fits in memory, or under the cost.
    """
    cluster = q.setup.cluster
    cluster.check_gpus("max-gpus", whole("max-gpus", max_gpus))
    q.assumptions.check_cost(max_cost, cluster.accelerator.name)
    if max_cost is not None and not max_cost > 0:
        raise InputError(f"max-cost is {max_cost:g}; allowed: above 0")
    request = replace(request, fixed=plan.within(request.fixed))
    sizes = job_bounds(q.setup.model, q.goal, max_gpus)
    tried, looked = explored(q, request, sizes)
    if tried is None:
        calm, _ = explored(q.with_assumption("mtbf_hours", NEVER), request, sizes)
        why = "what is legal does not fit in memory; give more GPUs"
        often = "it fails too often to end; give a longer --mtbf-hours, or less --restart-minutes"
        raise _nothing(q, plan, max_gpus, why if calm is None else often)
    wall = wall_within(q, tried, max_cost)
    if not np.isfinite(wall).any():
        price = _price(q.runs(tried.step_time_s, tried.layouts))
        least = float(price[np.isfinite(wall_within(q, tried, None))].min())
        raise _nothing(q, plan, max_gpus, f"max-cost is {max_cost:,.0f} USD; allowed: about {least:,.0f} or more")
    gpus, price = tried.layouts.gpus, _price(q.runs(tried.step_time_s, tried.layouts))
    fronts = [_thinned(pareto_front(x, wall), x, n) for x, n in ((gpus, points), (price, points // 2))]
    chosen = np.unique(np.concatenate([*fronts, _near_best(tried.layouts, wall)]))
    best, more = every_choice(q, request, tried, chosen)
    best, further = _followed(q, request, sizes, best, max_cost)
    result = Estimate.concatenate([best, tried])
    wall, run = wall_within(q, result, max_cost), q.runs(result.step_time_s, result.layouts)
    searched = np.where(np.arange(len(wall)) < len(best.step_time_s), wall, np.inf)
    price = _price(run)
    by_gpus, by_cost = (pareto_front(along, searched) for along in (result.layouts.gpus, price))
    return Fastest(
        strategy=plan.name, estimate=result, run=run, searched=looked + more + further,
        best=int(by_gpus[-1]), by_gpus=by_gpus, by_cost=by_cost, knee_gpus=knee(wall[by_gpus], price[by_gpus]),
        knee_cost=knee(wall[by_cost], price[by_cost]), binding=bindings(q, result, wall, by_gpus),
        max_gpus=max_gpus,
    )  # fmt: skip


def advised(q: TrainingCase, plan: Strategy, request: Request, found: Fastest) -> Estimate:
    """The layout that `planner recommend` names on the GPUs and batch of the shortest time, an estimate of one."""
    x, held = found.estimate.layouts, replace(request, fixed=plan.within(request.fixed))
    asked = held.sized(int(x.gpus[found.best]), int(x.global_batch[found.best]))
    return recommend(q.setup, **asked.question, top=1, plainest=True).chosen


def _followed(
    q: TrainingCase, request: Request, sizes: JobSizes, best: Estimate, max_cost: float | None
) -> tuple[Estimate, int]:
    """Searched layouts, and those of other sizes of job that they lead to while these are faster; how many more.

    A choice that was not tried at first, such as ZeRO 0, suits other accelerators and batches than those tried did.
    """
    model, cluster, searched = q.setup.model, q.setup.cluster, 0
    for _ in range(MOST_FOLLOWED):
        wall, critical = wall_within(q, best, max_cost), q.goal.critical / model.seq_len
        front = best.layouts.take(pareto_front(best.layouts.gpus, wall))
        # More GPUs leave each fewer sequences: micro-batches half and twice as large are tried too.
        others = [replace(front, micro_batch=np.maximum(front.micro_batch * x, 1).astype(np.int64)) for x in (0.5, 2)]
        near = fine(model, cluster, Layouts.concatenate([front, *others]), request, sizes, (critical,))
        tried = estimate_all(q.setup, near.at((slice(None),)))
        shorter, better = wall_within(q, tried, max_cost), []
        for most in (*front.gpus, sizes.max_gpus):
            row = int(np.where(near.gpus <= most, shorter, np.inf).argmin())
            if shorter[row] < (1.0 - WORTH_FOLLOWING) * wall[best.layouts.gpus <= most].min():
                better.append(row)
        if not better:
            break
        found, more = every_choice(q, request, tried, np.unique(better))
        best, searched = Estimate.concatenate([best, found]), searched + more
    return best, searched


def _nothing(q: TrainingCase, plan: Strategy, max_gpus: int, why: str) -> LayoutError:
    """The error where no candidate is left."""
    where = f"{max_gpus:,} GPUs of {q.setup.cluster.name} by {plan.name}"
    return LayoutError(f"nothing trains {q.setup.model.name} on at most {where}: {why}")


def explored(q: TrainingCase, request: Request, sizes: JobSizes) -> tuple[Estimate | None, int]:
    """Candidates near the fronts of accelerators, batches and few of each choice, and how many were tried.

    None where nothing fits in memory.

    Raises LayoutError if no layout has such sizes.
    """
    model, cluster = q.setup.model, q.setup.cluster
    first = coarse(model, cluster, families(model, cluster, request, sizes), request, sizes)
    near = first.at((_promising(q, first) if len(first) else slice(0),))
    if not len(near):
        return None, len(first)
    second = fine(model, cluster, near, request, sizes, (q.goal.critical / model.seq_len,))
    both = Layouts.concatenate([near, second.at((slice(None),))])
    return estimate_all(q.setup, both), len(first) + len(second)


def _promising(q: TrainingCase, layouts: Layouts) -> Ints:
    """Candidates on or near the fronts of time against accelerators and against cost: the best few of each octave.

    The most hopeful by their bounds are estimated first, then all that may still be better than what these show.
    """
    bound, n = bounds_all(q.setup, layouts), len(layouts)
    hope, cheapest = _wall_and_price(q, layouts, bound.step_time_s, bound.memory_bytes)
    wall, price = np.full((2, n), np.inf)
    octave = np.floor(2.0 * np.log2(layouts.gpus)).astype(np.int64)
    octaves = [np.flatnonzero((octave == o) & np.isfinite(hope)) for o in np.unique(octave)]

    def best(of: Array, most: int) -> list[Ints]:
        return [rows[np.argsort(of[rows], kind="stable")[:most]] for rows in octaves]

    def know(rows: Ints) -> None:
        if len(rows):
            some = layouts.take(rows)
            wall[rows], price[rows] = _wall_and_price(q, some, *totals_all(q.setup, some))

    first = np.concatenate(best(hope, HOPEFUL))
    know(first)
    front, limit = pareto_front(price, wall), np.full(n, -np.inf)
    for rows, few in zip(octaves, best(wall, BEST_OF_OCTAVE), strict=True):
        limit[rows] = wall[few].max(initial=-np.inf)
    faster = np.r_[np.inf, wall[front]][np.searchsorted(price[front], cheapest, side="right")]
    may = np.isfinite(hope) & (hope <= np.maximum(faster, limit))
    may[first] = False
    know(np.flatnonzero(may))
    keep = np.unique(np.concatenate([pareto_front(price, wall), *best(wall, BEST_OF_OCTAVE)]))
    return np.asarray(keep[np.isfinite(wall[keep])])


def _wall_and_price(q: TrainingCase, layouts: Layouts, step_s: Array, peak_bytes: Array) -> tuple[Array, Array]:
    """Wall seconds, endless where a layout doesn't fit, and the price."""
    wall = q.wall_s(step_s, peak_bytes <= q.setup.cluster.accelerator.usable_bytes, layouts)
    return wall, _price(q.runs(step_s, layouts))


def wall_within(q: TrainingCase, result: Estimate, max_cost: float | None) -> Array:
    """Wall seconds of candidates, endless where one doesn't fit or costs more."""
    wall = q.wall_s(result.step_time_s, result.fits, result.layouts)
    if max_cost is None:
        return wall
    return np.where(_price(q.runs(result.step_time_s, result.layouts)) <= max_cost, wall, np.inf)


def _near_best(layouts: Layouts, wall: Array) -> Ints:
    """The best candidates of a few sizes of job that are nearly the fastest: other choices may put one first."""
    rows = np.flatnonzero(wall <= (1.0 + NEAR_BEST) * wall.min())
    rows = rows[np.argsort(wall[rows], kind="stable")]
    _, first = np.unique(np.stack([layouts.gpus[rows], layouts.global_batch[rows]]), axis=1, return_index=True)
    return np.asarray(rows[np.sort(first)[:SIZES_NEAR_BEST]])


def _thinned(front: Ints, along: Any, points: int) -> Ints:
    """About so many points of a front, evenly in the logarithm of `along`, with both ends."""
    x = np.log(np.asarray(along, dtype=np.float64)[front])
    aims = np.linspace(x[0], x[-1], points)
    return np.asarray(front[np.unique(np.abs(x[None, :] - aims[:, None]).argmin(axis=1))])


def every_choice(q: TrainingCase, request: Request, tried: Estimate, chosen: Ints) -> tuple[Estimate, int]:
    """The best of every choice at the accelerators and batches of some candidates, and how many were searched.

    Tensor, pipeline and context ranks are those of the best candidates on as many accelerators with such a batch, and
    of the chosen ones next to it in size: on an odd number of accelerators few candidates were tried.
    """
    layouts, searched = tried.layouts, 0
    quickest_of: list[tuple[Layouts, list[Tried]]] = []
    sizes = np.stack([layouts.gpus, layouts.global_batch], axis=1)
    apart, place = np.unique(sizes[chosen], axis=0, return_inverse=True)
    for i, (gpus, batch) in enumerate(apart):
        here = np.flatnonzero((sizes == (gpus, batch)).all(axis=1) & tried.fits)
        quickest = here[np.argsort(tried.step_time_s[here], kind="stable")[:DEGREES_OF]]
        near = layouts.take(np.concatenate([quickest, chosen[np.abs(place.ravel() - i) == 1]]))
        degrees: dict[str, Any] = {
            name: tuple(np.unique(getattr(near, name)).tolist()) for name in DEGREES if name != "dp"
        }
        sized = request.held(**degrees).sized(int(gpus), int(batch))
        shortlist = search(q.setup, sized)
        assert shortlist.fits is not None, "a candidate that fits is among the layouts searched"
        fits = shortlist.fits.layouts
        quickest_of.append((fits.take([0]), filled(q.setup, sized, fits)))
        searched += shortlist.legal
    best, more = [], iter(that_fit(q.setup, [way for _, ways in quickest_of for way in ways]))
    for first, ways in quickest_of:
        best.append(first)
        for way in ways:
            few, seconds = next(more)
            best.append(few.take([int(seconds.argmin())]) if len(few) else way.layouts.take([0]))
    return estimate_all(q.setup, Layouts.concatenate(best)), searched
