"""The fewest GPUs as a record and a view."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from planner.report.plain_table import plain_table, stacked
from planner.report.tables import layout_text
from planner.report.training import count_text, finite, goal_lines, goal_record

if TYPE_CHECKING:
    from planner.training_time.fewest import Fewest
    from planner.training_time.time import TrainingPlan


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
    """What was asked, the two answers, and all numbers of GPUs that were tried."""
    return {
        "goal": goal_record(found.keeps.case),
        "days": days,
        "max_cost_usd": max_cost,
        "fewest_that_fit": found.fits.gpus,
        "fewest_that_keep": None if found.missed else found.keeps.gpus,
        "tried": [_row(gpus, plan) for gpus, plan in found.tried.items()],
    }


def fewest_view(found: Fewest, factors: Any) -> RenderableType:
    """The answer first, then every number that was tried."""
    fits, keeps, limits = found.fits.gpus, found.keeps.gpus, found.limits
    lines: list[RenderableType] = []
    if limits:
        kept = f"{keeps:,} GPUs keep {limits}; of the numbers tried none below does"
        lines.append(Text(found.missed or kept, style="bold"))
    lines.append(Text(f"{fits:,} GPUs are the fewest on which a layout fits", style="" if limits else "bold"))
    took = found.keeps.days
    if factors is not None and math.isfinite(took):
        low, high = (took * f for f in factors)
        lines.append(f"on {keeps:,} GPUs {took:,.1f} days, in 80 % of cases like this {low:,.1f} to {high:,.1f}")
    lines += ["", _table(found), ""]
    lines.append(
        "Tried: what divides a node, and whole nodes, 4, 5, 6 or 7 times a power of two of them: doubled until one is "
        "enough, then those below it."
    )
    return stacked(*lines, "", *goal_lines(found.keeps.case))


def _table(found: Fewest) -> RenderableType:
    """A row for each number of GPUs."""
    priced = any(p is not None and math.isfinite(p.cost_usd) for p in found.tried.values())
    money = ["USD"] * priced
    table = plain_table("GPUs", "batch", "days", "GPU-hours", *money, "MFU", "layout", numbers=tuple(range(5 + priced)))
    for gpus, plan in found.tried.items():
        if plan is None:
            table.add_row(f"{gpus:,}", *["-"] * (4 + priced), "nothing fits")
            continue
        row = _row(gpus, plan)
        cost = [count_text(row["cost_usd"]) if row["cost_usd"] is not None else "-"] * priced
        table.add_row(
            f"{gpus:,}", f"{row['global_batch']:,}", "never ends" if row["days"] is None else f"{row['days']:,.1f}",
            "-" if row["gpu_hours"] is None else count_text(row["gpu_hours"]), *cost, f"{row['mfu']:.1%}",
            layout_text(row["layout"]),
        )  # fmt: skip
    return table
