"""Trainings whose time was published, from start to end: theirs beside ours, and the reason where we are far off."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from planner.base.units import DAY
from planner.choices.table import CHOICES, SETTLED
from planner.hardware import load_cluster, load_framework
from planner.models import load_model
from planner.reproductions.claims import Claim, Paper, near
from planner.search import Fixed, default_attention, default_precision
from planner.setup import Setup
from planner.training_time.assumptions import assume
from planner.training_time.goal import goal
from planner.training_time.time import plan_time

WITHIN = 0.2
UNITS = {"days": "days", "busy_days": "days without failures", "gpu_hours": "GPU-hours", "step_s": "s a step"}


def published_rows() -> list[dict[str, str]]:
    """The trainings, a dictionary each: `published_runs.csv`.

    layout: choices that are known, `name=value`, alternatives with `|`; the search finds the rest. reason: why ours is
    further off than 20 %, with its source.
    """
    text = Path(__file__).with_name("published_runs.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _known(text: str) -> tuple[Fixed, dict[str, Any]]:
    """A layout's known choices: what the search may not change, and the arithmetic."""
    fixed: dict[str, Any] = {}
    numerics: dict[str, Any] = {}
    for item in text.split():
        name, value = item.split("=")
        values = tuple(CHOICES[name].coded(int(v) if v.isdecimal() else v) for v in value.split("|"))
        if name in SETTLED:
            fixed[name] = values
        else:
            (numerics[name],) = values
    if "tp" in fixed:
        fixed |= {"cp": (1,), "sequence_parallel": (False,)}
    return Fixed(**fixed), numerics


def published_claim(row: dict[str, str]) -> Claim:
    """One training's published figure and ours."""
    model, cluster = load_model(row["model"]), load_cluster(row["cluster"])
    fixed, numerics = _known(row["layout"])
    plan = plan_time(
        Setup(model, cluster, load_framework(row["framework"] or cluster.framework)),
        goal(model, tokens=float(row["tokens"])), assume(cluster, None),
        gpus=int(row["gpus"]), batch=int(row["batch"]), exact_tokens=True,
        precision=numerics.get("precision", default_precision(cluster)),
        attention=numerics.get("attention", default_attention(cluster)), fixed=fixed,
    )  # fmt: skip
    run = plan.run
    ours = {
        "days": run.wall_s[0] / DAY, "busy_days": run.busy_s[0] / DAY, "gpu_hours": run.gpu_hours[0],
        "step_s": run.step_time_s[0],
    }[row["quantity"]]  # fmt: skip
    statement = f"{row['run']}, {float(row['tokens']) / 1e9:,.0f}B tokens on {int(row['gpus']):,}"
    mark: Any = row["mark"]
    return near(
        statement, UNITS[row["quantity"]], mark, float(row["published"]), float(ours), within=WITHIN,
        note=row["reason"] or row["source"],
    )  # fmt: skip


def paper() -> Paper:
    """All trainings."""
    return Paper(
        name="published-runs",
        title="Published trainings, start to end",
        source="each row's own, in planner/reproductions/published_runs.csv; agreement is within 20 %",
        claims=tuple(published_claim(row) for row in published_rows()),
    )
