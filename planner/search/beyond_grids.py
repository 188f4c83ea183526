"""Layouts that the grids of a search lack, tried on its best by simulation: under schedules whose closed form takes
long; with virtual stages filled by cost, where even ones are listed; with recomputation, or activations in host memory,
of as few layers as fit, where all recompute."""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.arrays import Array
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


def try_filled(setup: Setup, request: Request, result: Estimate, order: Any) -> list[Estimate]:
    """Estimates of some more layouts with virtual stages filled by cost, faster than the best, of each tp, pp, cp, ep
    and schedule the fastest. order: fitting layouts, best first.
    """
    limit_s = float(result.step_time_s[order[0]]) * (1.0 - WORTH_IT) if len(order) else 0.0
    return _faster(setup, filled(setup, request, result.layouts.take(order)), limit_s)


def filled(setup: Setup, request: Request, x: Layouts) -> tuple[Layouts, Array] | None:
    """Some layouts with their virtual stages filled by cost, and the closed form's seconds; endless where one doesn't
    fit. None if there is none.

    x: fitting layouts, best first. All numbers of virtual stages are tried in the fastest that have even ones, of
    pipelines for which the grids have no others.
    """
    model = setup.model
    looped = trait(x, "looped_placement") & trait(x, "has_ends") & ~trait(x, "one_layer_chunks")
    even = (x.virtual_stages > 1) & (x.layer_split == Split.EVEN) & (x.recompute_layers == 0) & looped
    some = [i for i in np.flatnonzero(even) if not by_cost(model, int(x.pp[i]))][:MOST_EVEN]
    chunks = [fillable(model, int(x.pp[i])) for i in some]
    if not any(chunks):
        return None
    table = x.take(np.repeat(some, [len(each) for each in chunks]))
    stages, split = np.concatenate(chunks).astype(np.int64), np.full(len(table), Split.BALANCED)
    table = replace(table, virtual_stages=stages, layer_split=split)
    table = table.take(legal(model, setup.cluster, table) & allows(request.fixed, table))
    if not len(table):
        return None
    sums = totals(setup, table)
    return table, np.where(sums.memory_bytes <= setup.cluster.accelerator.usable_bytes, sums.step_time_s, np.inf)


def try_some_layers(
    setup: Setup, request: Request, result: Estimate, order: Any, slower: float = -WORTH_IT
) -> list[Estimate]:
    """Estimates of some more layouts that recompute fewer layers, of each tp, pp, cp, ep and schedule the fastest.

    A question that allows `full` alone means every layer, and none is tried. With --allow-offload, activations go to
    the host in layouts that then recompute nothing.

    order: fitting layouts, best first. Each of the fastest that recompute all layers gets the fewest with which it fits
    in memory by the closed form; the fastest of these are run on the timeline. slower: by which share of the best step
    they may be slower than it.
    """
    fixed = request.fixed
    whole_only = filled_one_by_one(result.layouts)  # no rule lets their virtual stages recompute some layers
    every = order[((result.layouts.recompute == FULL) & ~whole_only)[order]]
    full, alone = every[:MOST_FULL], every[result.layouts.pp[every] == 1][:MOST_FULL]
    limit = float(result.step_time_s[order[0]]) * (1.0 + slower) if len(full) else 0.0
    out: list[Estimate] = []
    if len(full) and setup.framework.block_recompute and fixed.recompute_layers is None and fixed.recompute != (FULL,):
        out += _faster(setup, _fewest(setup, result.layouts.take(full), never=fixed.never), limit)
    kept = Recompute.NONE in (fixed.recompute or (Recompute.NONE,)) and fixed.offload_layers is None
    if len(alone) and fixed.offload and setup.framework.offloads_layers and kept:
        whole = replace(result.layouts.take(alone), recompute=np.full(len(alone), Recompute.NONE))
        out += _faster(setup, _fewest(setup, whole, "offload_layers"), limit)
    return out


def _faster(setup: Setup, found: tuple[Layouts, Array] | None, limit_s: float) -> list[Estimate]:
    """The fastest of each kind of some layouts on the timeline, where they fit and take less than the limit."""
    if found is None:
        return []
    few, seconds = found
    order = np.argsort(seconds, kind="stable")
    hopeful = first_of_each(order[seconds[order] < limit_s], kinds(few))[:MOST_SIMULATED]
    if not len(hopeful):
        return []
    timed = timed_estimate(setup, few.take(hopeful))
    faster = np.flatnonzero(timed.fits & (timed.step_time_s < limit_s))
    return [timed.take(faster)] if len(faster) else []


def _fewest(
    setup: Setup, layouts: Layouts, choice: str = "recompute_layers", never: Broken = ()
) -> tuple[Layouts, Array] | None:
    """The smallest number of layers with which each layout fits, and the closed form's seconds of its step.

    choice: the choice that counts layers. never: as of `Fixed`. Layouts that don't fit with fewer than all layers are
    left out. None if none is left.
    """
    most = -(-int(setup.model.num_layers) // (layouts.pp * layouts.virtual_stages))
    source_row = np.repeat(np.arange(len(layouts)), most - 1)
    layers = np.concatenate([np.arange(1, n) for n in most]).astype(np.int64)
    changes: dict[str, Any] = {choice: layers}
    table = replace(layouts.take(source_row), **changes)
    if not len(source_row):
        return None
    legal_rows = np.flatnonzero(legal(setup.model, setup.cluster, table) & allows(Fixed(never=never), table))
    if not len(legal_rows):
        return None
    sums = totals(setup, table.take(legal_rows))
    fits = np.flatnonzero(sums.memory_bytes <= setup.cluster.accelerator.usable_bytes)
    if not len(fits):
        return None
    fewest = fits[np.unique(source_row[legal_rows[fits]], return_index=True)[1]]
    return table.take(legal_rows[fewest]), sums.step_time_s[fewest]
