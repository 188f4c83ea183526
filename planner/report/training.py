"""Training times, and the fewest GPUs that keep one, as records and views."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from planner.base.units import (
    DAY,
    HOUR,
    KWH,
    MINUTE,
    counted,
    few_digits,
    format_bytes,
    format_seconds,
    format_span,
    gpus_text,
)
from planner.models.flops import mfu_text, shown_mfu
from planner.report.plain_table import View, bold, plain_table, stacked
from planner.report.records import estimate_record
from planner.report.tables import chance_text, layout_text

if TYPE_CHECKING:
    from planner.models import Transformer
    from planner.scaling.training import TrainingTime
    from planner.training_time.assumptions import Assumptions
    from planner.training_time.fewest import Fewest
    from planner.training_time.time import TrainingPlan
    from planner.training_time.training import TrainingCase


def count_text(value: float) -> str:
    """A large number as a person says it: ``count_text(3.1e11) == "310B"``, K, M, B, T; plain below a thousand."""
    for unit, name in ((1e15, "e15"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= 0.9995 * unit:
            return f"{value / unit:.3g}{name}" if unit < 1e15 else f"{value:.3g}"
    return f"{value:.3g}"


def goal_record(case: TrainingCase) -> dict[str, Any]:
    """The goal of a training, and the laws used."""
    goal = case.goal
    return {
        "tokens_at_small_batch": goal.target.tokens,
        "tokens_origin": goal.origin,
        "loss_nats": goal.target.loss,
        "loss_law": goal.loss_law.name,
        "loss_law_source": goal.loss_law.source,
        "critical_batch_law": goal.batch_law.name,
        "critical_batch_law_source": goal.batch_law.source,
        "critical_batch_tokens": goal.critical,
        "critical_batch_sequences": goal.critical / int(case.setup.model.seq_len),
        "batch_scale_tokens": goal.scale,
        "batch_rule": goal.rule,
        "extrapolations": list(case.warnings),
    }


def assumptions_record(assumptions: Assumptions) -> dict[str, Any]:
    """Every figure with its unit, source and option."""
    return {name: asdict(a) for name, a in assumptions.figures.items()}


def finite(value: float) -> float | None:
    """The number, or None where it is none or endless: JSON has neither."""
    return value if math.isfinite(value) else None


def taken_by(run: TrainingTime, i: int = 0) -> dict[str, Any]:
    """Figures of one training, of an array of them."""
    return {
        "gpus": int(run.gpus[i]),
        "days": finite(float(run.wall_s[i]) / DAY),
        "goodput": float(run.goodput[i]),
        "gpu_hours": finite(float(run.gpu_hours[i])),
        "cost_usd": finite(float(run.cost_usd[i])),
    }


Factors = tuple[float, float] | None
"""Factors by which a step is shorter and longer in 80 % of cases like it; None without measured runs like it."""


def run_record(plan: TrainingPlan, factors: Factors = None) -> dict[str, Any]:
    """The run's figures, days and money with their interval."""
    run = plan.run
    out: dict[str, Any] = {f.name: finite(float(getattr(run, f.name)[0])) for f in fields(run)}
    out |= {"days": finite(plan.days), "energy_kwh": finite(float(run.energy_j[0]) / KWH)}
    out |= {"days_p50": None, "days_p90": None, "cheapest_spare_nodes": plan.cheapest_spares, "elastic": None}
    if plan.elastic is not None:
        out["elastic"] = {name: finite(x) for name, x in plan.elastic.items()}
    if plan.drawn_days is not None:
        out |= dict(zip(("days_p50", "days_p90"), plan.drawn_days, strict=True))
    for name in ("days", "cost_usd"):
        value = out[name]
        out[f"{name}_interval"] = None if factors is None or value is None else [value * f for f in factors]
    return out | {
        "gpus": plan.gpus,
        "global_batch": plan.batch,
        "global_batch_origin": plan.batch_origin,
        "samples_overhead": plan.overhead,
        "loss_nats": plan.loss,
    }


def time_record(plan: TrainingPlan, factors: Factors = None, fewer: TrainingPlan | None = None) -> dict[str, Any]:
    """A training time with its goal, layout and assumptions; fewer: a shorter one on fewer accelerators, if any."""
    case = plan.case
    return {
        "goal": goal_record(case),
        "run": run_record(plan, factors),
        "faster_on_fewer": None if fewer is None else taken_by(fewer.run),
        "layout": estimate_record(plan.found.estimate, plan.best, case.setup.cluster),
        "assumptions": assumptions_record(case.assumptions),
    }


def goal_lines(case: TrainingCase) -> list[str]:
    """The laws and what they say, in sentences."""
    goal, t = case.goal, case.goal.target
    sequences = goal.critical / case.setup.model.seq_len
    law, share = goal.batch_law.name, goal.batch_law.overhead
    origin = law if law == "given" else f"by {law} (--critical-batch-law)"
    lines = [
        f"  tokens: {count_text(t.tokens)}, {goal.origin}; at small batches they reach {t.loss:.3f} nats per token "
        f"by {goal.loss_law.name}",
        f"  critical batch: {count_text(goal.critical)} tokens, {sequences:,.0f} sequences, "
        f"{origin}: it takes {share:.0%} more samples than a small batch",
        "  beyond small batches: "
        + (
            f"samples grow as 1 + B / {count_text(goal.scale)} tokens (McCandlish et al. 2018)"
            if goal.rule == "overhead"
            else "no more samples up to the critical batch, none allowed beyond (--batch-rule cap)"
        ),
    ]
    return lines + [f"  careful: {w}" for w in case.warnings]


def assumption_lines(assumptions: Mapping[str, Mapping[str, Any]]) -> View:
    """A table of the figures behind the time, from their record."""
    shown = [a for a in assumptions.values() if a["used"]]
    off = ", ".join(a["option"] for a in assumptions.values() if not a["used"])
    rows = ((a["option"], "-" if a["value"] is None else f"{a['value']:,.6g}", a["unit"], a["source"]) for a in shown)
    table = plain_table("assumed", "value", "unit", "source", numbers=(1,), rows=rows)
    return stacked(table, *([f"not counted unless given: {off}"] if off else []))


def _interval_lines(run: TrainingTime, factors: Factors) -> list[str]:
    """Between which times and dollars the training lies as steps like its do, where that is known."""
    if factors is None or not math.isfinite(float(run.wall_s[0])):
        return []
    wall, money = ([float(x[0]) * f for f in factors] for x in (run.wall_s, run.cost_usd))
    text = f"  with a chance of 80 %: {format_span(*wall)}"
    return [text + (f", {count_text(money[0])} to {count_text(money[1])} USD" if math.isfinite(money[0]) else "")]


def _failure_lines(plan: TrainingPlan) -> list[str]:
    """Failures and checkpoints; spares, stragglers and what chance adds, where there are any."""
    run, storage, known = plan.run, plan.case.storage, plan.case.assumptions.reliability
    cluster = plan.case.setup.cluster
    stall, behind, interval = (float(x[0]) for x in (run.checkpoint_s, run.behind_s, run.interval_s))
    takes = f"{'stops the training for' if storage.host_copies else 'takes'} {format_seconds(stall)}"
    lines = [
        f"  a failure every {few_digits(float(run.mtbf_s[0]) / HOUR)} h on {gpus_text(plan.gpus)}; a checkpoint of "
        f"{format_bytes(storage.checkpoint_bytes)} {takes}; write one every "
        f"{few_digits(interval / MINUTE)} min (Daly 2006)"
    ]
    if storage.host_copies:
        nodes, room = math.ceil(plan.gpus / cluster.gpus_per_node), cluster.host_memory_bytes
        kept = float(storage.host_bytes(nodes))
        of = "" if room is None else f" of {format_bytes(room)}{', more than there is' * (kept > room)}"
        where = "a neighbour has it" if storage.host_copies == 2 and nodes > 1 else "it is in storage"
        lines.append(f"  {where} {format_seconds(behind)} later; a node's checkpoints take {format_bytes(kept)}{of}")
    if known.repair_s and math.isfinite(plan.days):
        lines.append(
            f"  it waits for a node {float(run.waiting_share[0]):.2%} of the time; spare nodes with which it takes the "
            f"fewest GPU-hours: {plan.cheapest_spares:,} (--spare-nodes)"
        )
    if plan.elastic is not None:
        mean, most = (format_seconds(plan.elastic[name] * DAY) for name in ("days", "days_p90"))
        usd = plan.elastic["cost_usd"]
        lines.append(
            f"  going on meanwhile with whole replicas on the nodes left: {mean}, nine in ten runs within {most}; "
            f"nodes at hand {count_text(plan.elastic['gpu_hours'])} GPU-hours"
            + ("" if math.isnan(usd) else f", {count_text(usd)} USD")
        )
    if known.slow_by:
        lines.append(f"  {float(run.slow_share[0]):.1%} of the work is done beside a straggler")
    if plan.drawn_days is not None:
        half, most = (format_seconds(x * DAY) for x in plan.drawn_days)
        lines.append(f"  of 2,000 drawn runs half end within {half}, nine in ten within {most}: chance alone")
    return lines


def time_view(plan: TrainingPlan, factors: Factors = None, fewer: TrainingPlan | None = None) -> View:
    """The time first, then what it is made of, the layout, the laws and every assumption; fewer: as `time_record`'s."""
    assumptions, model, cluster = plan.case.assumptions, plan.case.setup.model, plan.case.setup.cluster
    run, result, i = plan.run, plan.found.estimate, plan.best
    never = "never ends: failures leave less than a thousandth of the time to train"
    ends = f"takes {format_seconds(float(run.wall_s[0]))}" if math.isfinite(plan.days) else never
    lines: list[View] = [
        bold(f"Training on {count_text(float(run.tokens[0]))} tokens {ends}"),
        *_interval_lines(run, factors),
    ]
    if fewer is not None:
        sooner = format_seconds(float(fewer.run.wall_s[0]))
        lines.append(f"  {gpus_text(fewer.gpus)} take {sooner}: {plan.gpus:,} divide poorly into ranks")
    energy = float(run.energy_j[0]) / KWH / 1000
    rows = [
        ("  tokens processed", count_text(float(run.tokens[0]))),
        ("  optimizer steps", f"{run.steps[0]:,.0f}"),
        ("  seconds per step", f"{run.step_time_s[0]:.4g}"),
        ("  steps alone", format_seconds(float(run.busy_s[0]))),
        ("  goodput", f"{run.goodput[0]:.1%}"),
    ]
    spent = [
        ("  GPU-hours", count_text(float(run.gpu_hours[0]))),
        ("  money", "unknown: give --price" if math.isnan(plan.cost_usd) else f"{plan.cost_usd:,.0f} USD"),
        ("  energy", f"{few_digits(energy)} MWh"),
    ]
    rows += spent if math.isfinite(plan.days) else []
    lines += [plain_table("", "", numbers=(1,), rows=rows), ""]
    lines += _failure_lines(plan)
    lines += [
        f"  batch {counted(plan.batch, 'sequence')} of {model.seq_len:,} tokens, {plan.batch_origin}; "
        f"a loss of {plan.loss:.3f} nats per token, for {1 + plan.overhead:.3g} times the samples of small batches",
        f"  layout: {layout_text(result.layouts.row(i))}; {mfu_text(float(result.mfu[i]), model)}, "
        f"{format_bytes(float(result.memory_bytes[i]))} of {format_bytes(cluster.accelerator.memory_bytes)} "
        f"(fits in {chance_text(float(result.fit_chance[i]))} of such cases)",
        "",
        bold("Laws"),
        *goal_lines(plan.case),
        "",
        assumption_lines(assumptions_record(assumptions)),
    ]
    return stacked(*lines)


def _row(gpus: int, plan: TrainingPlan | None) -> dict[str, Any]:
    """One number of GPUs; only its number where nothing fits."""
    if plan is None:
        return {"gpus": gpus, "fits": False}
    run, result = plan.run, plan.found.estimate
    return {
        "gpus": gpus, "fits": True, "global_batch": plan.batch, "step_time_s": float(run.step_time_s[0]),
        "days": finite(plan.days), "gpu_hours": finite(float(run.gpu_hours[0])),
        "cost_usd": finite(plan.cost_usd), "mfu": float(result.mfu[plan.best]),
        "layout": result.layouts.row(plan.best),
    }  # fmt: skip


def fewest_record(found: Fewest, *, days: float | None, max_cost: float | None) -> Any:
    """The question, the two answers, and all numbers of GPUs that were tried."""
    return {
        "goal": goal_record(found.keeps.case),
        "days": days,
        "max_cost_usd": max_cost,
        "fewest_that_fit": found.fits.gpus,
        "fewest_that_keep": None if found.missed else found.keeps.gpus,
        "fewest_that_keep_in_90_percent": found.surely,
        "tried": [_row(gpus, plan) for gpus, plan in found.tried.items()],
    }


def _layout(plan: TrainingPlan) -> str:
    """A training's layout, and how likely it fits."""
    result, i = plan.found.estimate, plan.best
    return f"{layout_text(result.layouts.row(i))} (fits in {chance_text(float(result.fit_chance[i]))} of such cases)"


def fewest_view(found: Fewest, tried: Sequence[Mapping[str, Any]], factors: Any) -> View:
    """The answer first, then every number that was tried; tried: as of `fewest_record`."""
    keeps, limits = found.keeps.gpus, found.limits
    least = f"the fewest GPUs on which a layout fits: {found.fits.gpus:,}, with {_layout(found.fits)}"
    lines: list[View] = [] if limits else [bold(least)]
    if limits:
        sure = "no number tried does" if found.surely is None else f"{found.surely:,} do"
        kept = f"{gpus_text(keeps)} stay{'s' * (keeps == 1)} within {limits} by the prediction; "
        kept += f"{sure} with a chance of 90 %; on {keeps:,}: {_layout(found.keeps)}"
        lines += [bold(found.missed or kept), least]
    took = found.keeps.days
    if factors is not None and math.isfinite(took):
        span = format_span(*(took * DAY * f for f in factors))
        lines.append(f"on {gpus_text(keeps)} {format_seconds(took * DAY)}, {span} with a chance of 80 %")
    lines += ["", _table(tried, found.keeps.case.setup.model), ""]
    lines.append(
        "Tried: what divides a node, and whole nodes, 4, 5, 6 or 7 times a power of two of them: doubled until one is "
        "enough, then those below it."
    )
    return stacked(*lines, "", *goal_lines(found.keeps.case))


def _table(tried: Sequence[Mapping[str, Any]], model: Transformer) -> View:
    """A row for each number of GPUs."""
    priced = any(row.get("cost_usd") is not None for row in tried)
    money = ["USD"] * priced
    mfu, share = shown_mfu(model)
    table = plain_table("GPUs", "batch", "time", "GPU-hours", *money, mfu, "layout", numbers=tuple(range(5 + priced)))
    for row in tried:
        if not row["fits"]:
            table.add_row(f"{row['gpus']:,}", *["-"] * (4 + priced), "nothing fits")
            continue
        cost = [count_text(row["cost_usd"]) if row["cost_usd"] is not None else "-"] * priced
        table.add_row(
            f"{row['gpus']:,}", f"{row['global_batch']:,}",
            "never ends" if row["days"] is None else format_seconds(row["days"] * DAY),
            "-" if row["gpu_hours"] is None else count_text(row["gpu_hours"]), *cost, f"{row['mfu'] * share:.1%}",
            layout_text(row["layout"]),
        )  # fmt: skip
    return table
