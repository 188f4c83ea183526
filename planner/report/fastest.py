"""Shortest times as records and views: fronts, knees, what binds, what would help; a paper's beside ours."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.base.units import DAY, KWH, format_seconds, gpus_text
from planner.hardware import Cluster
from planner.models.flops import shown_mfu
from planner.report import training
from planner.report.plain_table import View, bold, plain_table, stacked
from planner.report.records import estimate_record
from planner.report.tables import layout_text
from planner.schedules import get_schedule

if TYPE_CHECKING:
    from planner.models import Transformer
    from planner.reproductions import Paper
    from planner.step.estimate import Estimate
    from planner.training_time.fastest import Fastest
    from planner.training_time.sensitivity import Sensitivity
    from planner.training_time.training import TrainingCase


def _point(found: Fastest, i: int, cluster: Cluster) -> dict[str, Any]:
    run = found.run
    return training.taken_by(run, i) | {
        "global_batch": int(found.estimate.layouts.global_batch[i]),
        "tokens": float(run.tokens[i]),
        "steps": float(run.steps[i]),
        "energy_kwh": float(run.energy_j[i]) / KWH,
        "layout": estimate_record(found.estimate, i, cluster),
    }


def fastest_record(found: Fastest, case: TrainingCase, best: Estimate | None = None) -> dict[str, Any]:
    """One search: the shortest time, both fronts with their knees, what binds at each point; best: what to run."""
    cluster = case.setup.cluster
    by_gpus = [
        _point(found, int(i), cluster) | {"binding": b.name, "gain_if_relaxed_twofold": b.gain}
        for i, b in zip(found.by_gpus, found.binding, strict=True)
    ]
    return {
        "cluster": cluster.name,
        "network": cluster.network.name,
        "gpus_per_node": cluster.gpus_per_node,
        "strategy": found.strategy,
        "searched": found.searched,
        "goal": training.goal_record(case),
        "shortest": by_gpus[-1],
        "time_against_gpus": by_gpus,
        "knee_gpus": by_gpus[found.knee_gpus]["gpus"],
        "time_against_cost": [_point(found, int(i), cluster) for i in found.by_cost],
        "knee_cost_gpu_hours": float(found.run.gpu_hours[found.by_cost[found.knee_cost]]),
        "assumptions": training.assumptions_record(case.assumptions),
    } | ({} if best is None else {"run": {"days": _days(case, best), "layout": estimate_record(best, 0, cluster)}})


def _days(case: TrainingCase, best: Estimate) -> float:
    """Days of a training in a layout, an estimate of one."""
    return float(case.runs(best.step_time_s, best.layouts).wall_s[0]) / DAY


def _knee_mark(found: Fastest, place: int) -> str:
    """The mark at the knee; it says if the knee is only the end of the range."""
    last = place == len(found.by_gpus) - 1 and 2 * int(found.run.gpus[found.by_gpus[place]]) > found.max_gpus
    return " <- knee, limited by --max-gpus" if last else " <- knee"


def _by_gpus(found: Fastest, model: Transformer) -> View:
    """The front of time against accelerators, the knee marked."""
    mfu, share = shown_mfu(model)
    table = plain_table("GPUs", "time", "goodput", "batch", mfu, "layout", "what binds", numbers=(0, 1, 2, 3, 4))
    run, x = found.run, found.estimate
    for place, (i, b) in enumerate(zip(found.by_gpus, found.binding, strict=True)):
        knee = place == found.knee_gpus
        gain = f"{b.name} ({b.gain:.0%})" if b.name != "compute" else b.name
        table.add_row(
            f"{int(run.gpus[i]):,}", format_seconds(float(run.wall_s[i])), f"{run.goodput[i]:.0%}",
            f"{int(x.layouts.global_batch[i]):,}", f"{share * x.mfu[i]:.1%}", layout_text(x.layouts.row(int(i))),
            gain + (_knee_mark(found, place) if knee else ""), style="bold" if knee else "",
        )  # fmt: skip
    return table


def _by_cost(found: Fastest) -> View:
    """The front of time against money, or GPU-hours where there is no price."""
    priced = not np.isnan(found.run.cost_usd).all()
    table = plain_table("USD" if priced else "GPU-hours", "time", "GPUs", "batch", "", numbers=(0, 1, 2, 3))
    for place, i in enumerate(found.by_cost):
        price = float((found.run.cost_usd if priced else found.run.gpu_hours)[i])
        table.add_row(
            training.count_text(price), format_seconds(float(found.run.wall_s[i])), f"{int(found.run.gpus[i]):,}",
            f"{int(found.estimate.layouts.global_batch[i]):,}", "<- knee" if place == found.knee_cost else "",
        )  # fmt: skip
    return table


def stale_lines(found: Fastest) -> list[str]:
    """A warning for a schedule that changes the training: at which weights it takes gradients."""
    used = {found.estimate.layouts.row(int(i))["schedule"] for i in found.by_gpus}
    schedules = [get_schedule(name) for name in sorted(used)]
    return [f"  careful: {s.name}: {s.staleness}" for s in schedules if not s.synchronous]


def fastest_view(found: Fastest, case: TrainingCase, best: Estimate | None = None) -> View:
    """The shortest time first, then the fronts, the laws and every assumption."""
    i, run = found.best, found.run
    cost = float(run.cost_usd[i])
    money = "" if np.isnan(cost) else f", {training.count_text(cost)} USD"
    hours = training.count_text(float(run.gpu_hours[i]))
    return stacked(
        bold(
            f"Shortest time to the loss of {training.count_text(case.goal.target.tokens)} tokens at small batches: "
            f"{format_seconds(float(run.wall_s[i]))} on {gpus_text(int(run.gpus[i]))}, batch "
            f"{int(found.estimate.layouts.global_batch[i]):,}, {hours} GPU-hours{money}"
        ),
        f"  {layout_text(found.estimate.layouts.row(i))}",
        *(
            []
            if best is None
            else [
                f"  to run: {layout_text(best.layouts.row(0))}, {format_seconds(_days(case, best) * DAY)}, "
                f"{best.step_time_s[0]:.4g} s per step by the timeline"
            ]
        ),
        f"  {found.searched:,} combinations of GPUs, batch and layout searched, --strategies {found.strategy}",
        *stale_lines(found),
        "",
        bold("Time against GPUs"),
        _by_gpus(found, case.setup.model),
        "  what binds: the constraint whose doubling helps most, and the time that it saves; "
        "compute if no doubling saves 2 %",
        "",
        bold("Time against cost"),
        _by_cost(found),
        "",
        bold("Laws"),
        *training.goal_lines(case),
        "",
        training.assumption_lines(training.assumptions_record(case.assumptions)),
    )


def side_by_side_view(rows: list[tuple[str, str, Fastest | str]]) -> View:
    """Searches beside each other: cluster, strategy, and the result or why there is none."""
    table = plain_table(
        "cluster", "strategy", "shortest", "GPUs", "knee", "GPUs", "binds at the shortest", numbers=(2, 3, 4, 5)
    )
    for cluster, plan, found in rows:
        if isinstance(found, str):
            table.add_row(cluster, plan, "none", "", "", "", found)
            continue
        run, knee = found.run, found.by_gpus[found.knee_gpus]
        last = found.binding[-1]
        table.add_row(
            cluster, plan, format_seconds(float(run.wall_s[found.best])), f"{int(run.gpus[found.best]):,}",
            format_seconds(float(run.wall_s[knee])), f"{int(run.gpus[knee]):,}", f"{last.name} ({last.gain:.0%})",
        )  # fmt: skip
    return table


def sensitivity_record(found: Sensitivity) -> dict[str, Any]:
    """Effects and operations as plain values; null where a quantity has no such figure."""
    effects = [
        {k: training.finite(v) if isinstance(v, float) else v for k, v in asdict(e).items()} for e in found.effects
    ]
    operations = [asdict(o) | {"hides": o.intensity >= o.threshold} for o in found.operations]
    return {"effects": effects, "network_operations": operations}


def _share(value: float | None) -> str:
    if value is None or np.isnan(value):
        return "-"
    return "never ends" if np.isinf(value) else f"{value:+.1%}"


def sensitivity_view(found: Sensitivity) -> View:
    """Effects, the largest first, then each network operation against its link."""
    effects = plain_table("quantity", "step", "training", "twofold saves", "replanned", numbers=(1, 2, 3, 4))
    for e in found.effects:
        slopes = ["-" if np.isnan(x) else f"{x:+.3f}" for x in (e.elasticity, e.training)]
        effects.add_row(e.name, *slopes, _share(e.twofold), _share(e.replanned))
    operations = plain_table("operation", "link", "intensity", "threshold", "ratio", "shows", numbers=(2, 3, 4, 5))
    for o in found.operations:
        operations.add_row(
            o.name, o.link, f"{o.intensity:,.0f}", f"{o.threshold:,.0f}", f"{o.intensity / o.threshold:.2f}",
            format_seconds(o.exposed_s),
        )  # fmt: skip
    endless = all(np.isnan(e.training) for e in found.effects)
    never = "  It never ends: failures leave less than a thousandth of the time to train; fewer GPUs fail less often."
    return stacked(
        *([never, ""] if endless else []),
        bold("What would help"),
        effects,
        "  step, training: elasticity, per cent of that time for one per cent of the quantity (training: failures and "
        "checkpoints counted); twofold saves: share of the training time that twice as much (of a latency or restart: "
        "half) saves, the layout as it is; replanned: the fastest layout then beside the fastest now",
        "",
        bold("Network operations against their links"),
        operations,
        "  intensity: FLOP of the work beside an operation for each byte sent; threshold: the GPU's peak over the "
        "link's bandwidth; a ratio above 1 can hide; shows: seconds per step in our models",
    )


def point(found: Fastest) -> dict[str, Any]:
    """Days, GPUs, steps, batch, tokens and MFU of the shortest training of a search."""
    i, run = found.best, found.run
    return {
        "days": float(run.wall_s[i]) / DAY, "gpus": int(run.gpus[i]), "steps": float(run.steps[i]),
        "global_batch": int(found.estimate.layouts.global_batch[i]), "tokens": float(run.tokens[i]),
        "mfu": float(found.estimate.mfu[i]),
    }  # fmt: skip


def paper_fastest_view(r: dict[str, Any], paper: Paper, model: Transformer) -> View:
    """The paper's days and ours in one line, the parts of both, and how ours become today's."""
    ours = r["ours"]
    title = (
        f"{r['model']}: {r['published_days']:.3g} days by {r['paper']}, {ours['days']:.3g} days by our costs on its "
        f"question, {r['towards_today'][-1]['days']:.3g} days on today's usual question"
    )
    parts = plain_table("days", "its assumptions", "our costs", "difference", numbers=(1, 2, 3))
    for row in r["parts"]:
        a, b = row["paper_days"], row["ours_days"]
        parts.add_row(row["part"], f"{a:.2f}", f"{b:.2f}", f"{round(b - a, 2) + 0.0:+.2f}")
    lost = r["failures_and_checkpoints_days"]
    parts.add_row("checkpoints", "0.00", f"{lost:.2f}", f"{lost:+.2f}")
    parts.add_row("all", f"{r['paper_days']:.2f}", f"{ours['days']:.2f}", f"{ours['days'] - r['paper_days']:+.2f}")
    mfu, share = shown_mfu(model)
    today = plain_table("our costs, one change after another", "days", "GPUs", "batch", mfu, numbers=(1, 2, 3, 4))
    for row in ({"change": "the paper's question"} | ours, *r["towards_today"]):
        today.add_row(
            row["change"], f"{row['days']:.3g}", f"{row['gpus']:,}", f"{row['global_batch']:,}",
            f"{share * row['mfu']:.1%}",
        )  # fmt: skip
    return stacked(
        bold(title), f"  {paper.title}; {paper.source}", "",
        f"Its question: {r['tokens'] / 1e9:,.0f}B tokens at its critical batch, no failures, nodes of 16 A100, "
        "200 Gb/s per GPU.",
        f"Its {r['published_days']:.3g} days are worked out from its configuration, as recalled. Its assumptions, as "
        f"derived here, give {r['paper_days']:.2f} days on {r['paper_gpus']:,} GPUs; our costs take "
        f"{ours['gpus']:,} ({r['framework']}, {ours['layout']}).",
        "", parts, "", today,
    )  # fmt: skip


def paper_model_view(r: dict[str, Any], paper: Paper) -> View:
    """A row for each cluster and strategy of a paper's own model of costs."""
    table = plain_table(
        "cluster", "strategy", "days", "GPUs", "n_b x n_l x n_a", "micro-batches", "efficiency", "GiB per GPU",
        numbers=(2, 3, 4, 5, 6, 7),
    )  # fmt: skip
    for row in r["results"]:
        if "none" in row:
            table.add_row(row["cluster"], row["strategy"], "none", "", "", "", "", row["none"])
            continue
        c = row["configuration"]
        table.add_row(
            row["cluster"], row["strategy"], f"{row['days']:.3g}", f"{row['gpus']:,}",
            f"{c['n_b']:,} x {c['n_l']} x {c['n_a']}", f"{c['n_mu']:,} of {c['b_mu']}", f"{row['efficiency']:.0%}",
            f"{sum(row['memory_gib'].values()):.3g}",
        )  # fmt: skip
    return stacked(
        bold(f"{r['model']} by the model of costs of {paper.title}"), f"  {paper.source}", "",
        f"{r['parameters']:.3g} parameters, {r['steps']:,.0f} steps at its critical batch of "
        f"{r['critical_batch']:,.0f} sequences; kernels at full peak, no failures.", "", table,
        "n_b: replicas; n_l: stages; n_a: tensor ranks",
    )  # fmt: skip
