"""A paper's shortest training beside ours, as records and a view: the difference told part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from planner.base.units import DAY
from planner.report.plain_table import plain_table, stacked

if TYPE_CHECKING:
    from planner.reproductions import Paper
    from planner.training_time.fastest import Fastest


def point(found: Fastest) -> dict[str, Any]:
    """Days, GPUs, steps, batch, tokens and MFU of the shortest training of a search."""
    i, run = found.best, found.run
    return {
        "days": float(run.wall_s[i]) / DAY, "gpus": int(run.gpus[i]), "steps": float(run.steps[i]),
        "global_batch": int(found.estimate.layouts.global_batch[i]), "tokens": float(run.tokens[i]),
        "mfu": float(found.estimate.mfu[i]),
    }  # fmt: skip


def paper_fastest_view(r: dict[str, Any], paper: Paper) -> RenderableType:
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
    today = plain_table("our costs, one change after another", "days", "GPUs", "batch", "MFU", numbers=(1, 2, 3, 4))
    for row in ({"change": "the paper's question"} | ours, *r["towards_today"]):
        today.add_row(
            row["change"], f"{row['days']:.3g}", f"{row['gpus']:,}", f"{row['global_batch']:,}", f"{row['mfu']:.0%}"
        )
    return stacked(
        Text(title, style="bold"), f"  {paper.title}; {paper.source}", "",
        f"Its question: {r['tokens'] / 1e9:,.0f}B tokens at its critical batch, no failures, nodes of 16 A100, "
        "200 Gb/s per GPU.",
        f"Its assumptions, as derived here, give {r['paper_days']:.2f} days on {r['paper_gpus']:,} GPUs; our costs "
        f"take {ours['gpus']:,} ({r['framework']}, {ours['layout']}).",
        "", parts, "", today,
    )  # fmt: skip


def paper_model_view(r: dict[str, Any], paper: Paper) -> RenderableType:
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
        Text(f"{r['model']} by the model of costs of {paper.title}", style="bold"), f"  {paper.source}", "",
        f"{r['parameters']:.3g} parameters, {r['steps']:,.0f} steps at its critical batch of "
        f"{r['critical_batch']:,.0f} sequences; kernels at full peak, no failures.", "", table,
        "n_b: replicas; n_l: stages; n_a: tensor ranks",
    )  # fmt: skip
