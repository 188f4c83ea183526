"""The fewest GPUs as a record and a view."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from planner.base.units import DAY
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
        "days": finite(float(run.wall_s[0]) / DAY), "gpu_hours": finite(float(run.gpu_hours[0])),
        "cost_usd": finite(float(run.cost_usd[0])), "mfu": float(result.mfu[plan.best]),
        "layout": result.layouts.row(plan.best),
    }  # fmt: skip


def fewest_record(found: Fewest, *, days: float | None, max_cost: float | None) -> Any:
    """What was asked, the two answers, and all numbers of GPUs that were tried."""
    case = found.keeps.case
    return {
        "goal": goal_record(case.goal, int(case.setup.model.seq_len)),
        "days": days,
        "max_cost_usd": max_cost,
        "fewest_that_fit": int(found.fits.run.gpus[0]),
        "fewest_that_keep": int(found.keeps.run.gpus[0]),
        "tried": [_row(gpus, plan) for gpus, plan in found.tried.items()],
    }


def fewest_view(found: Fewest, *, days: float | None, max_cost: float | None, factors: Any) -> RenderableType:
    """The answer first, then every number that was tried."""
    fits, keeps = int(found.fits.run.gpus[0]), int(found.keeps.run.gpus[0])
    asked = [f"{days:g} days"] if days is not None else []
    asked += [f"{max_cost:,.0f} USD"] if max_cost is not None else []
    lines: list[RenderableType] = []
    if asked:
        lines.append(Text(f"{keeps:,} GPUs keep {' and '.join(asked)}; fewer don't", style="bold"))
    lines.append(Text(f"{fits:,} GPUs are the fewest on which a layout fits", style="" if asked else "bold"))
    took = float(found.keeps.run.wall_s[0]) / DAY
    if factors is not None and math.isfinite(took):
        low, high = (took * f for f in factors)
        lines.append(f"on {keeps:,} GPUs {took:,.1f} days, in 80 % of cases like this {low:,.1f} to {high:,.1f}")
    lines += ["", _table(found), ""]
    lines.append(
        "Tried: what divides a node, and whole nodes, 4, 5, 6 or 7 times a power of two of them: doubled until one is "
        "enough, then those below it."
    )
    case = found.keeps.case
    return stacked(*lines, "", *goal_lines(case.goal, int(case.setup.model.seq_len)))


def _table(found: Fewest) -> RenderableType:
    """A row for each number of GPUs."""
    priced = any(p is not None and math.isfinite(float(p.run.cost_usd[0])) for p in found.tried.values())
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
