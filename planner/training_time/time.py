"""How long a training takes on a number of accelerators: the best layout's step, times the steps, with failures."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from planner.base.errors import InputError, LayoutError
from planner.base.units import DAY, HOUR, counted
from planner.choices.choice import whole
from planner.scaling.batch import samples_factor
from planner.scaling.drawn import drawn_wall_s, elastic_wall_s
from planner.scaling.goodput import waiting_share
from planner.scaling.loss import loss_at
from planner.scaling.training import TrainingTime
from planner.search import Recommendation, recommend
from planner.search.ranking import nothing_fits
from planner.search.request import Request
from planner.training_time.goal import Goal
from planner.training_time.training import TrainingCase

WHOLE = 4
"""Nodes of which a job is a multiple, where its number of GPUs divides well."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A training on a number of accelerators.

    run: one-element arrays; best: row of the layout in `found`'s table; overhead: samples over those that small
    batches would need for the same loss, as a share; loss: in nats per token, what the tokens reach at this batch;
    batch_origin: where the batch comes from, for a person.
    """

    case: TrainingCase
    batch: int
    batch_origin: str
    found: Recommendation
    best: int
    run: TrainingTime
    overhead: float
    loss: float

    @property
    def gpus(self) -> int:
        """Accelerators."""
        return int(self.run.gpus[0])

    @property
    def days(self) -> float:
        """From its start to its end; endless where it fails faster than it restarts."""
        return float(self.run.wall_s[0]) / DAY

    @cached_property
    def drawn_days(self) -> tuple[float, float] | None:
        """Days in which half of drawn runs end, and nine in ten; None where none can be drawn."""
        walls = drawn_wall_s(self.run, self.case.assumptions.reliability)
        return None if walls is None else (float(np.quantile(walls, 0.5)) / DAY, float(np.quantile(walls, 0.9)) / DAY)

    @cached_property
    def elastic(self) -> dict[str, float] | None:
        """Days, GPU-hours of nodes at hand and dollars on average, where it goes on with what failures leave it."""
        a, size = self.case.assumptions, self.case.setup.cluster.gpus_per_node
        replicas, nodes = int(self.found.estimate.layouts.dp[self.best]), -(-self.gpus // size)
        drawn = elastic_wall_s(self.run, a.reliability, nodes, replicas) if a.reliability.repair_s else None
        if drawn is None:
            return None
        hours, price = float(drawn[1].mean()) * size / HOUR, a.prices.price_per_hour
        cost = float("nan") if price is None else hours * price
        days = {"days": float(drawn[0].mean()) / DAY, "days_p90": float(np.quantile(drawn[0], 0.9)) / DAY}
        return days | {"gpu_hours": hours, "cost_usd": cost}

    @cached_property
    def cheapest_spares(self) -> int:
        """Spare nodes, up to a thousand, with which the training takes the fewest GPU-hours."""
        cluster, known = self.case.setup.cluster, self.case.assumptions.reliability

        def cost(spares: int) -> float:
            waits = float(waiting_share(known.repair_s, self.run.mtbf_s, spares)[0])
            return (self.gpus + spares * cluster.gpus_per_node) / (1.0 - waits)

        return next((n for n in range(1000) if cost(n) <= cost(n + 1)), 1000)

    @property
    def cost_usd(self) -> float:
        """Dollars; NaN without a price."""
        return float(self.run.cost_usd[0])


def default_batch(critical: float, gpus: int) -> int:
    """A batch under the critical one that divides well, sequences: 2^a or 3 x 2^a for each accelerator.

    With more accelerators than the critical batch has sequences: so many for each of their number's odd part, that
    what divides no power of two is replicas; where that is over the critical batch, the largest divisor under it.
    """
    for part in (gpus, gpus // (gpus & -gpus)):
        if critical >= part:
            each = int(critical / part)
            return part * max(k << a for k in (1, 3) for a in range(each.bit_length()) if k << a <= each)
    return max(d for d in range(1, gpus + 1) if gpus % d == 0 and d <= max(critical, 1.0))


def _batch(goal: Goal, seq_len: int, gpus: int, given: int | None) -> tuple[int, str]:
    """Sequences per step, and where they come from, for a person."""
    critical = goal.critical / seq_len
    batch = default_batch(critical, whole("gpus", gpus)) if given is None else whole("batch", given)
    if goal.rule == "cap" and batch * seq_len > max(goal.critical, seq_len):
        raise InputError(
            f"batch is {batch}; allowed with the batch rule cap: up to the critical {critical:,.0f} sequences"
        )
    near = "over" if batch > critical else "just under" if batch >= 0.9 * critical else "under"
    shown = f"{critical:,.0f}" if critical >= 10.0 else f"{critical:.3g}"
    return batch, "given" if given is not None else f"{near} the critical batch of {shown} sequences"


def plan_time(
    case: TrainingCase, request: Request, *, gpus: int, batch: int | None, exact_tokens: bool
) -> TrainingPlan:
    """Training time with the recommended layout. request: what its search is, whatever its size.

    batch: sequences, or None for one near the critical batch, of whose halves that one is taken where smaller ones need
    fewer tokens which trains soonest; exact_tokens: the goal's tokens are processed as they are, whatever the batch,
    rather than as many more as its overhead asks for.

    Raises InputError or LayoutError if numbers are out of range, nothing is legal, or nothing that is fits in memory.
    """
    goal, length = case.goal, int(case.setup.model.seq_len)
    size, origin = _batch(goal, length, gpus, batch)
    plan = _plan_of(case, request, gpus, size, origin, exact_tokens)
    while batch is None and not exact_tokens and goal.rule == "overhead":
        less = default_batch(plan.batch / 2.0, gpus)
        said = f"which trains sooner than one near the critical batch of {goal.critical / length:,.0f} sequences"
        try:
            other = _plan_of(case, request, gpus, less, said, exact_tokens)
        except LayoutError:
            break
        if other.run.wall_s[0] >= plan.run.wall_s[0]:
            break
        plan = other
    return plan


def faster_on_fewer(
    plan: TrainingPlan, request: Request, *, batch: int | None, exact_tokens: bool
) -> TrainingPlan | None:
    """The same training on the next lower multiple of `WHOLE` nodes, if its steps take less there.

    A number that divides poorly leaves few layouts. Other arguments as of `plan_time`.
    """
    unit = WHOLE * plan.case.setup.cluster.gpus_per_node
    fewer = plan.gpus // unit * unit
    if not 0 < fewer < plan.gpus:
        return None
    try:
        other = plan_time(plan.case, request, gpus=fewer, batch=batch, exact_tokens=exact_tokens)
    except LayoutError:
        return None
    return other if other.run.busy_s[0] < plan.run.busy_s[0] else None


def _plan_of(
    case: TrainingCase, request: Request, gpus: int, batch: int, origin: str, exact_tokens: bool
) -> TrainingPlan:
    """Training time with the layout recommended for a batch. Raises as `plan_time`."""
    setup, goal = case.setup, case.goal
    model = setup.model
    if exact_tokens and goal.target.tokens < (least := batch * int(model.seq_len)):
        raise InputError(
            f"tokens is {goal.target.tokens:,.0f}; allowed: from one batch on, {counted(batch, 'sequence')} of "
            f"{model.seq_len:,} tokens, {least:,}"
        )
    found = recommend(setup, **request.sized(gpus, batch).question, top=1, plainest=True)
    if not len(found.best):
        raise nothing_fits(setup, found, gpus)
    best = int(found.best[0])
    step = found.estimate.step_time_s[best]
    run, over, tokens = run_of(case, step, gpus=gpus, batch=batch, exact_tokens=exact_tokens)
    worth = tokens / (1.0 if goal.rule == "cap" else over)
    loss = float(loss_at(goal.loss_law, goal.target.size(goal.loss_law), worth))
    return TrainingPlan(
        case=case, batch=batch, batch_origin=origin, found=found, best=best, run=run, overhead=over - 1.0, loss=loss
    )


def run_of(
    case: TrainingCase, step_time_s: Any, *, gpus: int, batch: int, exact_tokens: bool = False
) -> tuple[TrainingTime, float, float]:
    """A training whose step is known: its time, the samples over those that small batches need, and its tokens.

    step_time_s: of a step of `batch` sequences on `gpus` accelerators.
    """
    goal, size = case.goal, float(batch * case.setup.model.seq_len)
    over = float(samples_factor(size, goal.scale))
    tokens = goal.target.tokens * (1.0 if exact_tokens or goal.rule == "cap" else over)
    return case.run(step_time_s, gpus, size, tokens), over, tokens
