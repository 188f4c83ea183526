"""A pass over a space's layouts by the closed form: what is kept of it for an answer, or a table of some or all."""

from collections.abc import Iterable, Iterator
from operator import itemgetter

import numpy as np

from planner.base.arrays import Array, Bools
from planner.base.records import concatenate, mapped
from planner.choices.table import CHOICES
from planner.costs.one_layer import OneLayer, one_layer
from planner.layouts import Layouts
from planner.search.bounds import Bounds, bounds
from planner.search.grids import CHUNK, Grid
from planner.search.request import Request
from planner.search.shortlist import Shortlist
from planner.search.space import space, whole_space
from planner.setup import Setup
from planner.step.estimate import Estimate, Totals, estimate, totals

WORTH_PRUNING = 0.1  # of a grid's rows: copying the others costs more than fewer save
PATIENCE = 4  # grids before bounds are looked at, and twice as many more after each look that was not worth it
SHARING = 2  # grids at most whose layers are costed together: they are cut alike
TABLE = 16_384  # layouts of a table estimated at once: few enough to stay in cache, enough to make numpy's calls cheap


def search(
    setup: Setup,
    request: Request,
    *,
    top: int = 1,
    by_memory: bool = False,
    rivals: int = 0,
    reach_s: float = np.inf,
    chunk: int = CHUNK,
    prune: bool = True,
    among: Iterable[Grid] | None = None,
) -> Shortlist:
    """The legal layouts that may matter by the closed form, and the number of all; raises what `space` does.

    top: how many layouts will be shown (0: as of `Shortlist`); by_memory: the least memory is best, not the least time.
    rivals: how many of the fastest to keep besides, of those that fit and of those that would in twice the memory.
    reach_s: keep only what fits and may have a step of so many seconds or fewer; then others are not all counted.
    chunk: layouts estimated at once; prune: leave out rows whose bounds say that they can't matter; among: the space's
    grids, where they are known. Nothing depends on them but memory and speed.
    """
    shortlist = Shortlist(
        setup.cluster.accelerator.usable_bytes, top, by_memory=by_memory, rivals=rivals, reach_s=reach_s
    )
    unpruned = patience = PATIENCE
    for whole, one in _parts(setup, chunk, among or wide_grids(setup, request, chunk)):
        grid = whole
        if prune and (unpruned <= 0 or (shortlist.reach_s < np.inf and patience == PATIENCE)):
            grid, one = _pruned(shortlist, whole, one)
            patience = 2 * patience if len(grid.serial) == len(whole.serial) else PATIENCE
            unpruned = patience if patience > PATIENCE else 0
        unpruned -= 1
        if len(grid.serial):
            shortlist.add(grid, totals(setup, grid.layouts, one))
    shortlist.sift()
    return shortlist


def wide_grids(setup: Setup, request: Request, chunk: int = CHUNK) -> Iterator[Grid]:
    """The space in grids that a search cuts; the network doesn't change them. Raises what `space` does."""
    return space(setup.model, setup.cluster, request, SHARING * chunk)


def fitting(setup: Setup, request: Request, room_bytes: float) -> tuple[Layouts, Totals]:
    """Every legal layout within so many bytes, as a table, and its totals. Raises what `space` does."""
    found = []
    for grid, one in _parts(setup, CHUNK, wide_grids(setup, request)):
        sums = totals(setup, grid.layouts, one)
        at = np.nonzero(grid.legal & (sums.memory_bytes <= room_bytes))
        found.append((grid.layouts.at(at), mapped(sums, itemgetter(at))))
    return Layouts.concatenate([layouts for layouts, _ in found]), concatenate([sums for _, sums in found])


def _parts(setup: Setup, chunk: int, grids: Iterable[Grid]) -> Iterator[tuple[Grid, OneLayer]]:
    """The grids, cut into some of about `chunk` layouts that share their `one_layer`."""
    for whole in grids:
        one, n = one_layer(setup, whole.layouts), len(whole.serial)
        rows = max(chunk * n // whole.legal.size, 1)
        for start in range(0, n, rows):
            part = slice(start, start + rows)
            yield (whole.take(part), one.take(part)) if n > rows else (whole, one)


def _pruned(shortlist: Shortlist, grid: Grid, one: OneLayer) -> tuple[Grid, OneLayer]:
    """The rows that may matter. The others are counted, of which none fits; those slower than `reach_s` are not."""
    bound = bounds(grid.layouts, one)
    out = shortlist.out(bound)
    if np.count_nonzero(out) <= WORTH_PRUNING * len(out):
        return grid, one
    shortlist.count(grid.take(out & (bound.memory_bytes > shortlist.capacity_bytes)))
    rest = np.flatnonzero(~out)
    return grid.take(rest), one.take(rest)


def estimate_all(setup: Setup, layouts: Layouts) -> Estimate:
    """`estimate` in chunks that stay in cache; the result does not depend on the chunk."""
    n = len(layouts)
    parts = [estimate(setup, layouts.take(slice(i, i + TABLE))) for i in range(0, n, TABLE)]
    return parts[0] if len(parts) == 1 else Estimate.concatenate(parts)


def totals_all(setup: Setup, layouts: Layouts) -> tuple[Array, Array]:
    """Step seconds and peak bytes of a table, as `estimate_all` gives them, without what they are made of."""
    parts = [totals(setup, layouts.take(slice(i, i + TABLE))) for i in range(0, len(layouts), TABLE)]
    return np.concatenate([part.step_time_s for part in parts]), np.concatenate([part.memory_bytes for part in parts])


def bounds_all(setup: Setup, layouts: Layouts) -> Bounds:
    """`bounds` of a table."""
    parts = [layouts.take(slice(i, i + TABLE)) for i in range(0, len(layouts), TABLE)]
    return concatenate([bounds(part, one_layer(setup, part)) for part in parts])


def sample(setup: Setup, request: Request, every: int) -> Estimate:
    """The estimate of each `every`-th legal layout, evenly through the space; raises what `space` does."""
    some, seen = [], 0
    for grid in space(setup.model, setup.cluster, request):
        at = np.flatnonzero(grid.legal)
        some.append(grid.layouts.at(np.unravel_index(at[-seen % every :: every], grid.legal.shape)))
        seen += len(at)
    return estimate_all(setup, Layouts.concatenate(some))


def every_estimate(setup: Setup, request: Request, simulated: Estimate) -> Estimate:
    """The estimate of every legal layout, those that were simulated last, as they are given."""
    layouts = whole_space(setup.model, setup.cluster, request)
    ran = simulated.layouts
    if not len(ran):
        return estimate_all(setup, layouts)
    rest = layouts.take(~_among(*Layouts.alike([layouts, ran])))
    return Estimate.concatenate([estimate_all(setup, rest), simulated])


def _among(layouts: Layouts, some: Layouts) -> Bools:
    """Whether a layout is one of some others."""
    columns = list(CHOICES)
    rows = {tuple(int(getattr(some, name)[i]) for name in columns) for i in range(len(some))}
    out = np.zeros(len(layouts), dtype=bool)
    for row in rows:
        same = np.ones(len(layouts), dtype=bool)
        for name, value in zip(columns, row, strict=True):
            same &= getattr(layouts, name) == value
        out |= same
    return out
