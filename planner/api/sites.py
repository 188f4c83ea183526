"""Trainings on several sites, and on groups of machines that differ: `planner sites`, `planner mixed`."""

import math
from collections.abc import Sequence
from typing import Any

from planner.api.anchored import trust
from planner.api.answer import Answer
from planner.api.frameworks import held_request, setup_under
from planner.api.training import Given
from planner.base.errors import InputError, LayoutError
from planner.base.units import GBIT, counted
from planner.choices.choice import real, whole
from planner.hardware.groups import MachineGroup, MixedCluster, load_mixed
from planner.layouts import Layouts
from planner.models import Transformer
from planner.question import check_tokens
from planner.report.plain_table import stacked
from planner.report.sites import mixed_record, mixed_view, sites_record, sites_view
from planner.report.tables import closing_lines
from planner.scaling.laws import get_replica_law
from planner.scaling.loss import beyond_fit
from planner.search.mixed import mixed_ways
from planner.search.mixed_question import MixedQuestion
from planner.search.ranking import best_of
from planner.setup import Setup
from planner.training_time.assumptions import assume
from planner.training_time.goal import Goal
from planner.training_time.sites import BUSY, LAYERS_A_SHARE, Sites, SitesCase, best_way, site_ways

BITS = (4, 8, 16, 32)
UNMEASURED_SITES = "That is of one cluster: what sites exchange is derived, no measured run has such links."
MEASURED_MIXED = (
    "That is of machines that are alike; on 24 measured pipelines over V100 and T4 nodes step time was off by 21 % on "
    "average."
)
MOST_SITES = 1000


def training_on_sites(
    setup: Setup, goal: Goal, given: Given, *, sites: Sequence[int], gbit: Sequence[float], latency_ms: float,
    batch: int, sync_every: int, shares: int | None, bits: int, overlap_steps: float, replica_law: str,
    exact_tokens: bool, top_k: float = 0.001, rank: int | None = None, **choices: Any,
) -> Answer:  # fmt: skip
    """Days and dollars of every way to train on sites of so many GPUs, joined by links of so many Gb/s.

    gbit: of each site's link, or one for all. latency_ms: one way. sync_every, shares, bits, overlap_steps: DiLoCo's
    steps between exchanges, Streaming DiLoCo's shares (None: of three layers each), bits of an outer gradient, steps
    that a share travels behind. top_k: of gradients, the share that is sent; rank: PowerSGD's (None: a quarter of the
    width). choices: what the search may choose from, as of `planner.recommend`.

    Raises InputError or UnknownNameError if a value is out of range or of another kind, or a name is unknown;
    LayoutError if no way is legal and fits.
    """
    if not 1 <= len(sites) <= MOST_SITES:
        raise InputError(f"sites are {len(sites)}; allowed: 1 to {MOST_SITES}")
    for gpus in sites:
        whole("sites", gpus)
    if len(gbit) not in (1, len(sites)):
        raise InputError(f"gbit has {counted(len(gbit), 'value')}; allowed: one, or one per site, {len(sites)}")
    for rate in gbit:
        real("gbit", rate, least=1e-3, most=1e6)
    real("latency_ms", latency_ms, least=0, most=1e4)
    whole("global_batch", batch)
    real("overlap_steps", overlap_steps, least=0, most=float(whole("sync_every", sync_every, most=10**6)))
    if bits not in BITS:
        raise InputError(f"bits is {bits}; allowed: {', '.join(map(str, BITS))}")
    layers = int(setup.model.num_layers)
    shares = math.ceil(layers / LAYERS_A_SHARE) if shares is None else whole("shares", shares, most=layers)
    real("top_k", top_k, least=1e-6, most=0.5)
    hidden = int(setup.model.hidden)
    rank = max(hidden // 4, 1) if rank is None else whole("rank", rank, most=hidden)
    setup, request = held_request(setup, **choices)
    check_tokens(request.fixed, goal.origin == "given")
    shared = dict(request.fixed.shared)
    rates = tuple(r * GBIT for r in (gbit if len(gbit) > 1 else list(gbit) * len(sites)))
    case = SitesCase(
        setup=setup, goal=goal, assumptions=assume(setup.cluster, given),
        sites=Sites(gpus=tuple(sites), bytes_per_s=rates, latency_s=latency_ms / 1e3), batch=batch, request=request,
        law=get_replica_law(replica_law), every=sync_every, shares=shares,
        bits=float(bits), overlap_steps=overlap_steps, exact_tokens=exact_tokens, top_k=top_k, rank=rank,
    )  # fmt: skip
    ways = site_ways(case)
    best = best_way(ways)
    if best is None:
        other = f" ({sites[0]}x{len(sites)}: {sites[0]} sites of {len(sites)})" if len(set(sites)) == 1 else ""
        raise LayoutError(
            f"{setup.model.name} trains in no way on {case.sites.text}{other}; {ways[0].name}: {ways[0].none}"
        )
    record = sites_record(
        case, ways, best=best.name, loss_nats=goal.target.loss, busy=BUSY,
        extrapolations=[
            *beyond_fit(case.law, goal.target.parameters, len(sites), sync_every),
            *([f"{case.law.name}: of whole models, not of adapters"] if shared.get("train") else []),
        ],
    )  # fmt: skip
    record["accuracy"] = f"{trust(setup)} {UNMEASURED_SITES}"
    view = stacked(sites_view(case, record), *closing_lines((), record["accuracy"]))
    return Answer("", record, view, kept=best.run is not None and math.isfinite(float(best.run.wall_s[0])))


def _peak_flops(group: MachineGroup) -> float:
    peak = group.cluster.accelerator.peak_flops
    return group.gpus * max(peak.get("bf16", 0.0), peak.get("fp16", 0.0))


def question(
    mixed: MixedCluster, model: Transformer | str, batch: int, framework: str | None = None, **choices: Any
) -> MixedQuestion:
    """The question of a search on groups: their setups, under one framework; choices: as of `training_on_groups`.

    Where none is named it is that of the group with the most FLOP/s in 16 bits.

    Raises InputError if the groups' usual precisions differ; UnknownNameError and FileFormatError as `load_setup`.
    """
    name = framework or max(mixed.groups, key=_peak_flops).cluster.framework
    held = [held_request(setup_under(model, g.cluster, name), gpus=g.gpus, **choices) for g in mixed.groups]
    precisions = sorted({request.precision.name.lower() for _, request in held})
    if len(precisions) > 1:
        raise InputError(
            f"the groups of {mixed.name} train in {', '.join(precisions)}; allowed: groups of one precision"
        )

    def alone(g: int, part: int, reach_s: float) -> tuple[float, Layouts]:
        setup, request = held[g]
        best = best_of(setup, request.sized(request.gpus, part), reach_s)
        return float(best.step_time_s[0]), best.layouts

    return MixedQuestion(
        setups=tuple(setup for setup, _ in held), gpus=tuple(g.gpus for g in mixed.groups), batch=batch,
        network=mixed.network, alone=alone,
        numerics=tuple({"precision": request.precision, "attention": request.attention} for _, request in held),
    )  # fmt: skip


def training_on_groups(
    model: Transformer | str, groups: MixedCluster | str, *, batch: int, framework: str | None = None, **choices: Any
) -> Answer:
    """The fastest ways to train on the groups of a file, or of what was loaded from it, and which of them are left out.

    choices: fit_chance, headroom_gib and max_memory_gib, as of `planner.recommend`.

    Raises InputError, UnknownNameError or FileFormatError if a value is out of range, a name unknown, a file not valid;
    LayoutError if nothing fits on any of the groups.
    """
    whole("global_batch", batch)
    mixed = load_mixed(groups) if isinstance(groups, str) else groups
    asked = question(mixed, model, batch, framework, **choices)
    record = mixed_record(asked, mixed, mixed_ways(asked))
    each = {s.cluster.accelerator.efficiency.name: s for s in asked.setups}
    record["accuracy"] = " ".join([*(f"{name}: {trust(each[name])}" for name in sorted(each)), MEASURED_MIXED])
    return Answer("", record, stacked(mixed_view(record), *closing_lines((), record["accuracy"])))
