"""Layouts that the grids of a search lack, tried on its best by simulation: under schedules whose closed form takes
long; with virtual stages filled by cost, where even ones are listed; with recomputation, or activations in host memory,
of as few layers as fit, where all recompute."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from planner.base.arrays import Array, Ints
from planner.layouts import Layouts, Recompute, Split
from planner.schedules import SCHEDULES
from planner.search.compare import with_schedule
from planner.search.pick import first_of_each, kinds
from planner.search.request import Broken, Fixed, Request
from planner.search.space import allows, by_cost, fillable
from planner.setup import Setup
from planner.step.estimate import Estimate, estimate, totals
from planner.step.given_stages import filled_one_by_one
from planner.step.legality import legal
from planner.step.pipelines import trait
from planner.step.step_costs import step_costs
from planner.step.step_time import step_time
from planner.step.timeline.many import simulate_all
from planner.step.timeline.timed import timed_estimate

MOST_OPERATIONS = 12_000  # of one layout: about 50 ms to simulate
MOST_PIPELINES = 2
WORTH_IT = 0.002  # a smaller gain is within what the timeline leaves out
FULL = Recompute.FULL
MOST_EVEN = 16  # whose virtual stages are filled by cost instead
MOST_FULL = 64  # that recompute all layers: of many virtual stages few have layers to leave alone
MOST_SIMULATED = 2


def try_others(setup: Setup, result: Estimate, order: Any, allow_async: bool) -> Estimate | None:
    """An estimate of one more layout that is faster than the best, with its step time simulated; None if there is none.

    The best pipelines, small enough to simulate at once, are run under every schedule that the search leaves out.
    """
    layouts = result.layouts
    pipelines = [int(i) for i in order[:20] if layouts.pp[i] > 1][:MOST_PIPELINES]
    best = float(result.step_time_s[order[0]]) * (1.0 - WORTH_IT) if len(order) else 0.0
    others = [x for x in SCHEDULES.values() if not x.quick and (x.synchronous or allow_async)]
    candidates = [with_schedule(layouts.take([i]), setup.model, schedule) for i in pipelines for schedule in others]
    chosen: tuple[Layouts, float] | None = None
    for one, step_time_s, peak_bytes in _hopeful(setup, candidates, best):
        if step_time_s < best and peak_bytes <= setup.cluster.accelerator.usable_bytes:
            best, chosen = step_time_s, (one, peak_bytes)
    if chosen is None:
        return None
    layout, peak = chosen
    return estimate(setup, layout).with_simulated(np.array([0]), best, peak)


def _hopeful(setup: Setup, candidates: list[Layouts], best_s: float) -> list[tuple[Layouts, float, float]]:
    """The small, legal candidates that are faster than the best without their bubble: each with its step, and its
    fullest rank's bytes."""
    if not candidates:
        return []
    table = Layouts.concatenate(candidates)
    small = 3 * table.pp * table.virtual_stages * table.micro_batches <= MOST_OPERATIONS
    table = table.take(np.flatnonzero(small & legal(setup.model, setup.cluster, table)))
    if not len(table):
        return []
    costs = step_costs(setup, table)
    hopeful = np.flatnonzero(step_time(costs, bubble=False).total_s < best_s)  # what no order can go below
    if not len(hopeful):
        return []
    found = zip(hopeful, *simulate_all(setup, table.take(hopeful), costs.take(hopeful)), strict=True)
    return [(table.take([i]), float(step_time_s), float(peak_bytes)) for i, step_time_s, peak_bytes in found]


class Tried(NamedTuple):
    """Layouts to try beside those of the grids.

    source: numbers, shape (n,); of layouts that share one the first that fits counts. slower: by which share of the
    best step they may be slower than it.
    """

    layouts: Layouts
    source: Ints
    slower: float = -WORTH_IT


def try_more(setup: Setup, request: Request, result: Estimate, order: Any, slower: float = -WORTH_IT) -> list[Estimate]:
    """Estimates of some more layouts on the timeline, with virtual stages filled by cost and then with fewer layers
    recomputed: of each way, and each tp, pp, cp, ep and schedule, the fastest by the closed form.

    order: fitting layouts, best first. slower: by which share of the best step those with fewer may be slower than it.
    """
    best_s = float(result.step_time_s[order[0]]) if len(order) else 0.0
    layouts, chosen, limits = result.layouts, [], np.zeros(0)
    ways = [*filled(setup, request, layouts.take(order)), *_some_layers(setup, request, layouts, order, slower)]
    for way, (few, seconds) in zip(ways, that_fit(setup, ways), strict=True):
        limit_s, quickest = best_s * (1.0 + way.slower), np.argsort(seconds, kind="stable")
        hopeful = quickest[seconds[quickest] < limit_s]
        if len(hopeful):
            chosen.append(few.take(first_of_each(hopeful, kinds(few))[:MOST_SIMULATED]))
            limits = np.append(limits, np.full(len(chosen[-1]), limit_s))
    if not chosen:
        return []
    timed = timed_estimate(setup, Layouts.concatenate(chosen))
    faster = np.flatnonzero(timed.fits & (timed.step_time_s < limits))
    return [timed.take(faster)] if len(faster) else []


def that_fit(setup: Setup, ways: list[Tried]) -> list[tuple[Layouts, Array]]:
    """Of each way the layouts that fit, and count, by the closed form, and its seconds: estimated as one table."""
    if not ways:
        return []
    sums, start, out = totals(setup, Layouts.concatenate([way.layouts for way in ways])), 0, []
    for layouts, source, _ in ways:
        here = slice(start, start := start + len(layouts))
        fits = np.flatnonzero(sums.memory_bytes[here] <= setup.cluster.accelerator.usable_bytes)
        first = fits[np.unique(source[fits], return_index=True)[1]]
        out.append((layouts.take(first), sums.step_time_s[here][first]))
    return out


def filled(setup: Setup, request: Request, x: Layouts) -> list[Tried]:
    """Some layouts with their virtual stages filled by cost; none if there is none.

    x: fitting layouts, best first. All numbers of virtual stages are tried in the fastest that have even ones, of
    pipelines for which the grids have no others.
    """
    model = setup.model
    looped = trait(x, "looped_placement") & trait(x, "has_ends") & ~trait(x, "one_layer_chunks")
    even = (x.virtual_stages > 1) & (x.layer_split == Split.EVEN) & (x.recompute_layers == 0) & looped
    some = [i for i in np.flatnonzero(even) if not by_cost(model, int(x.pp[i]))][:MOST_EVEN]
    chunks = [fillable(model, int(x.pp[i])) for i in some]
    if not any(chunks):
        return []
    table = x.take(np.repeat(some, [len(each) for each in chunks]))
    stages, split = np.concatenate(chunks).astype(np.int64), np.full(len(table), Split.BALANCED)
    table = replace(table, virtual_stages=stages, layer_split=split)
    table = table.take(legal(model, setup.cluster, table) & allows(request.fixed, table))
    return [Tried(table, np.arange(len(table)))] if len(table) else []


def _some_layers(setup: Setup, request: Request, x: Layouts, order: Any, slower: float) -> list[Tried]:
    """Layouts that recompute fewer layers than all.

    A question that allows `full` alone means every layer, and none is tried. With --allow-offload, activations go to
    the host in layouts that then recompute nothing.

    order: fitting layouts, best first: the fastest that recompute all layers get the fewest with which they fit.
    """
    fixed, out = request.fixed, []
    whole_only = filled_one_by_one(x)  # no rule lets their virtual stages recompute some layers
    every = order[((x.recompute == FULL) & ~whole_only)[order]]
    full, alone = every[:MOST_FULL], every[x.pp[every] == 1][:MOST_FULL]
    if len(full) and setup.framework.block_recompute and fixed.recompute_layers is None and fixed.recompute != (FULL,):
        out += _fewer(setup, x.take(full), slower, never=fixed.never)
    kept = Recompute.NONE in (fixed.recompute or (Recompute.NONE,)) and fixed.offload_layers is None
    if len(alone) and fixed.offload and setup.framework.offloads_layers and kept:
        whole = replace(x.take(alone), recompute=np.full(len(alone), Recompute.NONE))
        out += _fewer(setup, whole, slower, "offload_layers")
    return out


def _fewer(
    setup: Setup, layouts: Layouts, slower: float, choice: str = "recompute_layers", never: Broken = ()
) -> list[Tried]:
    """Each layout with every smaller number of layers than all, fewest first; none if there is none.

    choice: the choice that counts layers. never: as of `Fixed`.
    """
    most = -(-int(setup.model.num_layers) // (layouts.pp * layouts.virtual_stages))
    source = np.repeat(np.arange(len(layouts)), most - 1)
    if not len(source):
        return []
    layers = np.concatenate([np.arange(1, n) for n in most]).astype(np.int64)
    changes: dict[str, Any] = {choice: layers}
    table = replace(layouts.take(source), **changes)
    rows = np.flatnonzero(legal(setup.model, setup.cluster, table) & allows(Fixed(never=never), table))
    return [Tried(table.take(rows), source[rows], slower)] if len(rows) else []
