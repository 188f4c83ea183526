"""A training on several sites with slow links between them: every way to divide it, and what each takes.

One site alone; data parallelism that exchanges at every step, compressed or not, every H steps (local SGD, DiLoCo), or
a share at a time behind the steps (Streaming DiLoCo); a pipeline whose stages lie on the sites in order, with what slow
links between them add to its step. Array-first.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product
from math import gcd
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import InputError, LayoutError
from planner.base.units import GBIT
from planner.costs.adapters import trained_parameters
from planner.costs.case import Case
from planner.costs.network.compressed import arithmetic_s, compressed
from planner.costs.network.sites import (
    OUTER_BYTES,
    SiteExchange,
    enough_bytes_per_s,
    every_step,
    exposed_s,
    sent_bytes,
    share_s,
)
from planner.layouts import Layouts
from planner.scaling.laws import ReplicaLaw
from planner.scaling.loss import loss_ratio, tokens_ratio
from planner.scaling.training import TrainingTime
from planner.search.ranking import best_of
from planner.search.request import Request, divisors
from planner.setup import Setup
from planner.step.estimate import Estimate
from planner.training_time.time import run_of
from planner.training_time.training import TrainingCase

BUSY = 0.95
"""The share of its time that a site computes with the links that are called enough."""
LAYERS_A_SHARE = 3
"""Number of Streaming DiLoCo's shares where it is not given: arXiv 2501.18512, table 4."""


def least_batch(gpus: tuple[int, ...]) -> int:
    """The least batch of which each site takes whole sequences, as many a GPU; other batches are multiples of it."""
    return sum(gpus) // gcd(*gpus)


@dataclass(frozen=True, kw_only=True)
class Sites:
    """GPUs of each site; bytes/s, each way, of its link to the others; seconds one way between the farthest two."""

    gpus: tuple[int, ...]
    bytes_per_s: tuple[float, ...]
    latency_s: float

    @property
    def slowest_bytes_per_s(self) -> float:
        """The link that an exchange among all sites waits for."""
        return min(self.bytes_per_s)

    def batches(self, batch: int) -> tuple[int, ...]:
        """Sequences of a step that each site takes, as many a GPU. Raises InputError if they are no whole numbers."""
        total, unit = sum(self.gpus), least_batch(self.gpus)
        if batch % unit:
            near = batch // unit * unit
            raise InputError(
                f"global_batch is {batch} on {self.text}; allowed: whole sequences per site, in proportion to its "
                f"GPUs: {f'{near} or ' if near else ''}{near + unit}"
            )
        return tuple(batch * g // total for g in self.gpus)

    @property
    def text(self) -> str:
        """How many GPUs each site has: "3 sites of 256 GPUs", "sites of 2 x 256, 128 GPUs"."""
        runs = [(len(list(same)), f"{g:,}") for g, same in groupby(self.gpus)]
        if len(runs) == 1:
            return f"{runs[0][0]:,} site{'s' * (runs[0][0] > 1)} of {runs[0][1]} GPUs"
        return f"sites of {', '.join(f'{n} x {g}' if n > 1 else g for n, g in runs)} GPUs"


@dataclass(frozen=True, kw_only=True)
class SitesCase(TrainingCase):
    """A training on sites, and how they may divide it; the fields of `SiteExchange` are DiLoCo's.

    every, shares, bits, overlap_steps: steps between exchanges, Streaming DiLoCo's shares, bits of an outer gradient,
    steps that a share travels behind. law: what seldom exchanges add to the loss. top_k, rank: the share of gradients
    that is sent, and PowerSGD's rank.
    """

    sites: Sites
    batch: int
    request: Request
    law: ReplicaLaw
    every: int
    shares: int
    bits: float
    overlap_steps: float
    exact_tokens: bool
    top_k: float
    rank: int

    @property
    def parameters(self) -> float:
        """Parameters that are exchanged: all that is trained."""
        return trained_parameters(self.setup, self.request.fixed.train)

    @cached_property
    def slowest(self) -> Estimate:
        """The best layout of the site whose best step is longest. Raises as `best`."""
        parts = sorted(set(zip(self.sites.gpus, self.sites.batches(self.batch), strict=True)))
        return max((self.best(*part) for part in parts), key=lambda one: float(one.step_time_s[0]))

    def best(self, gpus: int, batch: int, **settled: Any) -> Estimate:
        """The best layout of a search, an estimate of one. Raises LayoutError if nothing is legal, or nothing fits."""
        return best_of(self.setup, self.request.held(**settled).sized(gpus, batch))


@dataclass(frozen=True, kw_only=True)
class SiteWay:
    """One way to divide a training over sites, or why there is none.

    compute_s: a step without waiting for links, of which arithmetic_s compresses gradients; step_s: with it, amortised.
    travel_s, sent_bytes: of one exchange between sites. enough_gbit: Gb/s of a site's link with which it computes
    `BUSY` of its time. loss_known: not `UNPROVEN`; loss_ratio: as the law has it; tokens_ratio: tokens over those of
    data parallelism, for its loss. outer_bytes: of a GPU, what the outer optimizer or compression keeps; outer_on_host:
    it doesn't fit beside the layout.
    """

    name: str
    gpus: int = 0
    sites: int = 1
    compute_s: float = float("nan")
    step_s: float = float("nan")
    arithmetic_s: float = 0.0
    travel_s: float = 0.0
    sent_bytes: float = 0.0
    enough_gbit: float = 0.0
    loss_known: bool = True
    loss_ratio: float = 1.0
    tokens_ratio: float = 1.0
    outer_bytes: float = 0.0
    outer_on_host: bool = False
    layouts: Layouts | None = None
    run: TrainingTime | None = None
    none: str = ""


UNPROVEN = ("top-k gradients", "PowerSGD")
"""Ways whose loss no publication has for language models of today: none of them is called best."""


def exchanges(case: SitesCase, found: Estimate | None = None) -> dict[str, SiteExchange]:
    """The data-parallel ways by name; found: a site's best layout, without which the names alone count."""
    setup = case.setup
    layouts = Layouts.of(global_batch=1) if found is None else found.layouts
    micro_batches = int(layouts.micro_batches[0])
    each = every_step(setup.framework, case.request.precision, micro_batches, setup.model.num_layers)
    seldom = SiteExchange(every=case.every, bits=case.bits, kept_bytes=OUTER_BYTES if case.every > 1 else 0.0)
    some = replace(seldom, shares=case.shares, hidden_steps=case.overlap_steps)
    small = compressed(Case.of(setup, layouts), each, case.top_k, case.rank)
    return {"data parallel, every step": each, **small, "DiLoCo": seldom, "Streaming DiLoCo": some}


def site_ways(case: SitesCase) -> tuple[SiteWay, ...]:
    """Every way, in a fixed order."""
    largest = max(case.sites.gpus)
    out = [_way(case, "one site alone", lambda: _alone(case, largest))]
    for name in exchanges(case):
        out.append(_way(case, name, lambda name=name: _data_parallel(case, name)))
    out.append(_way(case, "pipeline over sites", lambda: _pipeline(case)))
    return tuple(out)


def best_way(ways: tuple[SiteWay, ...]) -> SiteWay | None:
    """The way that ends first, of those whose loss is known; None where none does."""
    ending = [(float(way.run.wall_s[0]), way) for way in ways if way.run is not None and way.loss_known]
    return min(ending, key=lambda pair: pair[0])[1] if ending else None


def _way(case: SitesCase, name: str, made: Any) -> SiteWay:
    """A way with its training time, or with the reason why there is none."""
    try:
        way: SiteWay = made()
    except LayoutError as error:
        return SiteWay(name=name, none=str(error))
    if way.tokens_ratio == float("inf"):
        return replace(way, name=name, none="no number of tokens makes up for its loss")
    target = replace(case.goal.target, tokens=case.goal.target.tokens * way.tokens_ratio)
    aim = replace(case, goal=replace(case.goal, target=target))
    run, _, _ = run_of(aim, way.step_s, gpus=way.gpus, batch=case.batch, exact_tokens=case.exact_tokens)
    return replace(way, name=name, run=run)


def _alone(case: SitesCase, gpus: int) -> SiteWay:
    """The largest site does it all."""
    found = case.best(gpus, case.batch)
    step = float(found.step_time_s[0])
    return SiteWay(name="", gpus=gpus, compute_s=step, step_s=step, layouts=found.layouts)


def _data_parallel(case: SitesCase, name: str) -> SiteWay:
    """Each site trains a copy on its part of the batch; all wait for the one whose best layout's step is longest."""
    found, links, sites = case.slowest, case.sites, len(case.sites.gpus)
    if name == "PowerSGD" and case.request.fixed.train:
        raise LayoutError("adapters have a low rank as they are")
    exchange = exchanges(case, found)[name]
    more = float(arithmetic_s(exchange, case.parameters, min(links.gpus)).max()) if sites > 1 else 0.0
    step = float(found.step_time_s[0]) + more
    travel = float(share_s(exchange, case.parameters, sites, links.slowest_bytes_per_s, links.latency_s))
    enough = float(enough_bytes_per_s(exchange, case.parameters, sites, links.latency_s, step, BUSY))
    N = case.goal.target.parameters
    ratio = float(loss_ratio(case.law, N, sites, exchange.every))
    size = case.goal.target.size(case.goal.loss_law)
    tokens = float(tokens_ratio(case.goal.loss_law, size, case.goal.target.tokens, ratio))
    kept = exchange.kept_bytes * case.parameters / min(links.gpus) if sites > 1 else 0.0
    return SiteWay(
        name=name, gpus=sum(links.gpus), sites=sites, compute_s=step, arithmetic_s=more,
        step_s=step + float(exposed_s(exchange, travel, step)), travel_s=travel, enough_gbit=enough / GBIT,
        sent_bytes=float(sent_bytes(exchange, case.parameters, sites)), loss_known=name not in UNPROVEN,
        loss_ratio=ratio, tokens_ratio=tokens,
        outer_bytes=kept, outer_on_host=bool(found.memory_bytes[0] + kept > found.usable_bytes), layouts=found.layouts,
    )  # fmt: skip


SCHEDULES = ("1f1b", "gpipe")
"""Schedules whose wait for slow links is known in closed form."""


def _pipeline(case: SitesCase) -> SiteWay:
    """The best pipeline whose stages lie on equal sites in order.

    A layout is searched as if the sites were one cluster; stages are outermost, so all that a layout sends besides
    activations stays within a site.

    Raises LayoutError if the sites differ, no layout has a multiple of as many stages, or none fits.
    """
    sites, number, gpus = case.sites, len(case.sites.gpus), sum(case.sites.gpus)
    if len(set(sites.gpus)) > 1:
        raise LayoutError("the sites differ in their GPUs: stages of unequal sites are not modelled")
    fixed, layers = case.request.fixed, case.setup.model.num_layers
    depths = [d for d in fixed.among("pp", divisors(gpus)) if d % number == 0 and d <= layers]
    schedules = [s for s in SCHEDULES if fixed.schedule is None or s in fixed.schedule]
    if not depths or not schedules:
        raise LayoutError(f"no layout that is allowed has a multiple of {number} stages under {' or '.join(SCHEDULES)}")
    found: list[tuple[Estimate, float, float, float]] = []
    for schedule, depth in product(schedules, depths):
        with suppress(LayoutError):
            one = case.best(gpus, case.batch, pp=(depth,), schedule=(schedule,), pipelined=depth > 1)
            found.append((one, *over_links(case.setup, one, number, sites.slowest_bytes_per_s, sites.latency_s, BUSY)))
    if not found:
        raise LayoutError(f"no layout with a multiple of {number} stages is legal and fits")
    best, step_s, travel_s, enough = min(found, key=lambda f: f[1])
    return SiteWay(
        name="", gpus=gpus, sites=number, compute_s=float(best.step_time_s[0]), step_s=step_s, travel_s=travel_s,
        sent_bytes=float(boundary_bytes(case.setup, best.layouts)[0]), enough_gbit=enough / GBIT, layouts=best.layouts,
    )  # fmt: skip


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
