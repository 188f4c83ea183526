"""A pipeline whose stages lie on several sites in order: what slow links between them add to its step. Array-first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import LayoutError
from planner.costs.case import Case
from planner.layouts import Layouts
from planner.search.request import Fixed, divisors
from planner.setup import Setup
from planner.step.estimate import Estimate

SCHEDULES = ("1f1b", "gpipe")
"""Those whose wait for slow links is known in closed form."""


def boundary_bytes(setup: Setup, layouts: Layouts) -> Array:
    """Bytes that all replicas of a layout together send to the next stage in one micro-batch, one copy of each."""
    return np.asarray(layouts.dp * layouts.cp * Case.of(setup, layouts).boundary_bytes)


def site_wait_s(
    sites: Any, stages: Any, micro_batches: Any, travel_s: Any, link_s: Any, work_s: Any, limited: Any,
    forward_share: Any = 1.0 / 3.0,
) -> Array:  # fmt: skip
    """Seconds that links between sites add to a pipeline's step.

    stages: of all sites; travel_s: of a micro-batch from site to site, start to end; link_s: what of that it occupies
    the link; work_s: the step without its bubble, of which forwards are `forward_share`. limited: 1F1B, not GPipe.

    The first micro-batch goes there and back. Under 1F1B a stage's forward waits for a backward that has followed an
    earlier forward next door, so every micro-batch waits once more; more where sites have one stage each. With one or
    two stages a site this is what running it takes, else up to two journeys more. And no link carries more than it can:
    a middle site sends activations on and gradients back, under GPipe the ones behind its forwards, then the others.
    """
    K, p, m = (np.asarray(x, dtype=np.float64) for x in (sites, stages, micro_batches))
    there_and_back = 2.0 * (K - 1.0)
    each = np.maximum(there_and_back / ((K - 1.0) * p / K + 1.0), 1.0)
    waits = np.where(limited, np.maximum(2.0 * (K - 2.0) + m * each, there_and_back), there_and_back) * travel_s
    both = m * np.where(K > 2, 2.0, 1.0) * link_s - np.asarray(work_s)
    apart = sum(np.maximum(m * link_s - share * work_s, 0.0) for share in (forward_share, 1.0 - forward_share))
    carried = np.where(limited, both, apart) + there_and_back * travel_s
    return np.asarray(np.where(K > 1, np.maximum(waits, carried), 0.0))


def pipeline_over_sites(
    setup: Setup, sites: int, gpus: int, bytes_per_s: float, latency_s: float, busy: float, fixed: Fixed,
    best: Callable[..., Estimate],
) -> tuple[Estimate, float, float, float]:  # fmt: skip
    """The best pipeline over equal sites: its layout, its step, seconds of a micro-batch from site to site, and the
    bytes/s with which it computes the share `busy` of its time.

    fixed: what the user has settled; best: a search with more settled. A layout is searched as if the sites were one
    cluster; stages are outermost, so all that a layout sends besides activations stays within a site.

    Raises LayoutError if no layout has a multiple of `sites` stages, or none fits.
    """
    depths = [d for d in fixed.among("pp", divisors(gpus)) if d % sites == 0 and d <= setup.model.num_layers]
    schedules = [s for s in SCHEDULES if fixed.schedule is None or s in fixed.schedule]
    if not depths or not schedules:
        raise LayoutError(f"no layout that is allowed has a multiple of {sites} stages under {' or '.join(SCHEDULES)}")
    found: list[tuple[Estimate, float, float, float]] = []
    none = LayoutError("no layout is legal")
    for schedule in schedules:
        for depth in depths:
            try:
                one = best(pp=(depth,), schedule=(schedule,), pipelined=depth > 1)
            except LayoutError as error:
                none = error
                continue
            found.append((one, *over_links(setup, one, sites, bytes_per_s, latency_s, busy)))
    if not found:
        raise none
    return min(found, key=lambda f: f[1])


def over_links(
    setup: Setup, one: Estimate, sites: int, bytes_per_s: float, latency_s: float, busy: float
) -> tuple[float, float, float]:
    """Step, seconds of a micro-batch from site to site, and the bytes/s that are enough, for one layout."""
    layouts, compute = one.layouts, float(one.step_time_s[0])
    size = float(boundary_bytes(setup, layouts)[0])
    work = compute - float(one.time.bubble_s[0])
    row = layouts.row(0)
    limited, forward = row["schedule"] == "1f1b", 1.0 / (4.0 if row["recompute"] == "full" else 3.0)

    def step_s(rate: Any) -> Array:
        link = size / np.asarray(rate)
        m = layouts.micro_batches[0]
        return compute + site_wait_s(sites, layouts.pp[0], m, latency_s + link, link, work, limited, forward)

    rates = np.geomspace(1e3, 1e15, 2401)
    good = np.flatnonzero(step_s(rates) * busy <= compute)
    enough = float(rates[good[0]]) if len(good) else float("inf")
    return float(step_s(bytes_per_s)), latency_s + size / bytes_per_s, enough if sites > 1 else 0.0
