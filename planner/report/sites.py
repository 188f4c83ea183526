"""A training on several sites, or on groups of machines that differ: as records and views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from planner.base.units import DAY, GBIT, GIB, counted, few_digits, format_seconds
from planner.report.plain_table import View, bold, plain_table, stacked
from planner.report.tables import layout_text
from planner.report.training import assumption_lines, assumptions_record, count_text, finite, goal_lines, goal_record

if TYPE_CHECKING:
    from planner.hardware.groups import MixedCluster
    from planner.search.mixed_question import MixedQuestion, MixedWay
    from planner.training_time.sites import Sites, SitesCase, SiteWay


def sites_record(case: SitesCase, ways: tuple[SiteWay, ...], **more: Any) -> dict[str, Any]:
    """The question and every way with its days and dollars.

    more: `best`, the name of the way that ends first; `loss_nats`, to which all train; `busy`, with which
    links are called enough; `extrapolations` of the law of replicas.
    """
    links = case.sites
    return {
        "model": case.setup.model.name, "cluster": case.setup.cluster.name, "framework": case.setup.framework.name,
        "sites": [{"gpus": g, "link_gbit_per_s": b / GBIT} for g, b in zip(links.gpus, links.bytes_per_s, strict=True)],
        "latency_s": links.latency_s, "global_batch": case.batch, "sync_every": case.every, "shares": case.shares,
        "bits": case.bits, "overlap_steps": case.overlap_steps, "top_k": case.top_k, "rank": case.rank, **more,
        "ways": [_record(w) for w in ways],
        "replica_law": case.law.name, "replica_law_source": case.law.source,
        "goal": goal_record(case),
        "assumptions": assumptions_record(case.assumptions),
    }  # fmt: skip


def _record(w: SiteWay) -> dict[str, Any]:
    if w.run is None:
        return {"way": w.name, "none": w.none}
    return {
        "way": w.name, "none": "", "gpus": w.gpus, "sites": w.sites, "step_time_s": w.step_s,
        "compute_s": w.compute_s, "arithmetic_s": w.arithmetic_s, "travel_s": w.travel_s,
        "sent_gib": w.sent_bytes / GIB, "enough_gbit_per_s": finite(w.enough_gbit), "loss_known": w.loss_known,
        "loss_ratio": w.loss_ratio, "tokens_ratio": w.tokens_ratio, "days": finite(float(w.run.wall_s[0]) / DAY),
        "goodput": float(w.run.goodput[0]), "cost_usd": finite(float(w.run.cost_usd[0])),
        "outer_gib_per_gpu": w.outer_bytes / GIB, "outer_on_host": w.outer_on_host,
        "layout": None if w.layouts is None else w.layouts.row(0),
        "layout_text": "" if w.layouts is None else layout_text(w.layouts.row(0)),
    }  # fmt: skip


def sites_text(sites: Sites) -> str:
    """How many GPUs each site has and how they are joined."""
    rates = list(dict.fromkeys(sites.bytes_per_s))
    links = ", ".join(f"{r / GBIT:g}" for r in (rates if len(rates) == 1 else sites.bytes_per_s))
    return f"{sites.text}, links of {links} Gb/s, {sites.latency_s * 1e3:g} ms one way"


def sites_view(case: SitesCase, r: Mapping[str, Any]) -> View:
    """The way that ends first, then all ways, then the laws and the assumptions."""
    days = {w["way"]: w["days"] for w in r["ways"] if w.get("days") is not None and w["loss_known"]}
    said = f"{r['best']} ends first" if days else "none ends, for failures leave too little time to train"
    costs = {w["way"]: w["cost_usd"] for w in r["ways"] if w["way"] in days and w["cost_usd"] is not None}
    cheapest, priced = min(costs, key=lambda way: (costs[way], way != r["best"]), default=r["best"]), bool(costs)
    said += f", {cheapest} is cheapest" * bool(days and cheapest != r["best"])
    unknown = [w for w in r["ways"] if w.get("days") is not None and not w["loss_known"]]
    sooner = [f"{w['way']} in {w['days']:,.1f} days" for w in unknown if w["days"] < min(days.values(), default=0.0)]
    said += f"; if no loss came of it, {' and '.join(sooner)}" if sooner else ""
    head = f"{r['model']} on {sites_text(case.sites)} of {r['cluster']}, batch {case.batch:,}: {said}"
    money = ["USD"] if priced else []
    table = plain_table(
        "way", "GPUs", "step", "computes", "loss", "tokens", "days", *money, f"Gb/s for {r['busy']:.0%}", "layout",
        numbers=tuple(range(1, 8 + priced)),
    )  # fmt: skip
    for w in r["ways"]:
        if w["none"]:
            table.add_row(w["way"], *["-"] * (7 + priced), f"none: {w['none']}")
            continue
        cost = [count_text(w["cost_usd"])] if priced else []
        lasts = "never ends" if w["days"] is None else f"{w['days']:,.1f}"
        loss = f"{w['loss_ratio'] - 1:+.2%}" if w["loss_known"] else "unknown"
        enough = w["enough_gbit_per_s"]
        gbit = "-" if w["sites"] == 1 else "none" if enough is None else few_digits(enough)
        table.add_row(
            w["way"], f"{w['gpus']:,}", f"{w['step_time_s']:.4g} s", f"{w['compute_s'] / w['step_time_s']:.0%}",
            loss, f"x {w['tokens_ratio']:.3g}", lasts, *cost, gbit, w["layout_text"],
        )  # fmt: skip
    return stacked(
        bold(head), "", table, "", bold("Law"), *_laws(case, r), "",
        bold("Assumed"), *_assumed(case, r), "", assumption_lines(assumptions_record(case.assumptions)),
    )  # fmt: skip


def _laws(case: SitesCase, r: Mapping[str, Any]) -> list[str]:
    return [
        f"  loss of sites that exchange seldom: {case.law.name} (--replica-law): {case.law.source}",
        f"  days are those to {r['loss_nats']:.3f} nats per token, with as many more tokens as the loss law asks for; "
        "a gain saves none",
        *(f"  careful: {text}" for text in r["extrapolations"]),
        *goal_lines(case),
    ]


def _assumed(case: SitesCase, r: Mapping[str, Any]) -> list[str]:
    lines = [
        "  all sites exchange directly, each 2 (M - 1) / M of the values over its own link, both ways at once; the "
        "slowest link and the longest latency hold all up",
        "  at every step: gradients travel behind the last micro-batch's backward pass; DiLoCo waits for its exchange; "
        f"Streaming DiLoCo sends {case.shares} shares in turn, each behind {case.overlap_steps:g} of its steps",
        f"  outer gradients of {case.bits:g} bits (--bits) add nothing to the loss: so at 4 bits in Douillard et al. "
        "2025 (arXiv 2501.18512, table 1: one model of 1B); a share at a time and behind steps neither",
        *_compressed(case, r),
        "  a failure stops all sites until the restart",
        "  pipeline: sites in order, 1F1B or GPipe; what is searched is the layout of one cluster, then the links",
    ]
    outer = next((w for w in r["ways"] if w["way"] == "DiLoCo" and w.get("outer_gib_per_gpu")), None)
    if outer is not None:
        where = "on the host: it doesn't fit beside the layout" if outer["outer_on_host"] else "beside the layout"
        lines.append(f"  the outer optimizer keeps {outer['outer_gib_per_gpu']:.3g} GiB per GPU, {where}")
    slowest = max((w for w in r["ways"] if not w["none"]), key=lambda w: w["travel_s"], default=None)
    if slowest is not None and slowest["travel_s"]:
        lines.append(f"  the longest exchange takes {format_seconds(slowest['travel_s'])} ({slowest['way']})")
    return lines


def _compressed(case: SitesCase, r: Mapping[str, Any]) -> list[str]:
    """What compressed gradients are, whose loss nobody has a law of, and what they take."""
    said = {
        "8-bit gradients": "8 bits a value, summed in full; loss as without, so with LLaMA of 8B to 32B (Lin et al. "
        "2026, arXiv 2605.00539, abstract)",
        "top-k gradients": f"the largest {case.top_k:.3g} of all (--top-k), each with its index; no loss in small "
        "models of images, speech and text (Lin et al. 2018, arXiv 1712.01887, abstract)",
        "PowerSGD": f"rank {case.rank:,} (--rank); no loss in small models of images and text (Vogels et al. 2019, "
        "arXiv 1905.13727, abstract); 12B needed a quarter of the width (Ramesh et al. 2021, 2102.12092, recalled)",
    }  # fmt: skip
    ways = {w["way"]: w for w in r["ways"] if not w["none"] and w["sites"] > 1}
    return [
        f"  {name}: {text}. A site sends {few_digits(ways[name]['sent_gib'])} GiB per step and computes "
        f"{format_seconds(ways[name]['arithmetic_s'])} more"
        for name, text in said.items() if name in ways
    ]  # fmt: skip


def mixed_record(asked: MixedQuestion, mixed: MixedCluster, ways: Sequence[MixedWay]) -> dict[str, Any]:
    """The groups, and the ways, fastest first."""
    setup, groups = asked.setups[0], mixed.groups
    return {
        "model": setup.model.name, "name": mixed.name, "framework": setup.framework.name, "global_batch": asked.batch,
        "network": None if mixed.network is None else mixed.network.name,
        "groups": [{"cluster": g.cluster.name, "network": g.cluster.network.name, "gpus": g.gpus} for g in groups],
        "ways": [_way_record(asked, w) for w in ways],
    }  # fmt: skip


def _way_record(asked: MixedQuestion, w: MixedWay) -> dict[str, Any]:
    parts = [
        {"group": g, "cluster": asked.setups[g].cluster.name, "gpus": asked.gpus[g], "layout": w.layouts[k].row(0),
         "global_batch": w.batches[k] if w.batches else asked.batch, "layers": list(w.layers[k]) if w.layers else None}
        for k, g in enumerate(w.groups)
    ]  # fmt: skip
    rate = asked.batch * float(asked.setups[0].model.seq_len) / w.step_s
    out = [g for g in range(len(asked.gpus)) if g not in w.groups]
    return {"way": w.name, "step_time_s": w.step_s, "tokens_per_s": rate, "parts": parts, "left_out": out}


def _said(way: str, part: Mapping[str, Any]) -> str:
    """The work of one group."""
    row, n = part["layout"], part["global_batch"]
    if part["layers"] is None:
        return f"{part['cluster']}: {counted(n, 'sequence')}, {layout_text(row)}"
    runs = [(n, len(list(same))) for n, same in groupby(part["layers"])]
    layers = " ".join(f"{times} x {n}" if times > 1 else str(n) for n, times in runs)
    return f"{part['cluster']}: tp {row['tp']} pp {len(part['layers'])}, layers {layers}"


def mixed_view(r: Mapping[str, Any]) -> View:
    """The fastest way and what it leaves out, then all of them."""
    best, names = r["ways"][0], [g["cluster"] for g in r["groups"]]
    out = ", ".join(names[g] for g in best["left_out"])
    has = ", ".join(f"{g['gpus']:,} of {g['cluster']}" for g in r["groups"])
    table = plain_table("step", "tokens/s", "way", "groups", numbers=(0, 1))
    for w in r["ways"]:
        common = w["parts"][0]["layout"]
        again = f" recompute {common['recompute']}" if common["recompute"] != "none" else ""
        more = f" dp {common['dp']} mb {common['micro_batch']}{again}" if w["way"] == "pipeline" else ""
        said = "; ".join(_said(w["way"], part) for part in w["parts"])
        table.add_row(f"{w['step_time_s']:.4g} s", f"{w['tokens_per_s']:,.0f}", w["way"] + more, said)
    return stacked(
        bold(
            f"{r['model']} on {r['name']} ({has}), batch {r['global_batch']:,}: {best['way']}, "
            f"{best['step_time_s']:.4g} s per step, " + (f"without {out}" if out else "on all groups")
        ),
        f"  {r['framework']}; between groups: {r['network'] or 'the slower of their networks'}", "", table, "",
        "A pipeline over groups is 1F1B with ZeRO 1, its layers by the exact partition within each stage's memory, "
        "simulated; replicas of a group are its own search.",
    )  # fmt: skip
