"""The largest compute-optimal training within a time: for a compute the fewest accelerators that keep it, if any do."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import InputError, LayoutError
from planner.base.units import MEGA, MONTH
from planner.choices.choice import LARGEST, real
from planner.hardware import Cluster, Framework
from planner.models import Transformer, from_shape
from planner.scaling.batch import sizes
from planner.scaling.laws import get_loss_law
from planner.scaling.loss import compute_optimal_size
from planner.scaling.training import TrainingTime
from planner.search.request import Request
from planner.setup import Setup
from planner.step.estimate import Estimate
from planner.training_time.assumptions import Assumptions
from planner.training_time.fastest import Binding, bindings, every_choice, explored, job_bounds, wall_within
from planner.training_time.goal import OPTIMAL_TOKENS, Goal, goal
from planner.training_time.training import TrainingCase

VOCAB, HEAD = 128_256, 128
"""Sizes of every model: Llama 3's vocabulary, and the width of a head of nearly all of today's."""
ACTIVE = 8
"""Experts that a token meets, of a mixture; together they are as wide as the dense model's, as of DeepSeek-V3."""
SPANS = (8, 1000)
"""Times the accelerators that full peak would need, how many are searched: more where none of these keep the time."""
COMPUTES = tuple(10.0**e for e in range(22, 33))
"""FLOP of the trainings that are tried."""
FALLEN = 0.8  # of the most utilisation
STEPS = 5  # halvings of a decade: the largest is known to 8 %
FIRST_SIZES = 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The family that is scaled: width over layers, experts (0: dense), tokens per sequence."""

    aspect: float
    experts: int
    seq_len: int

    def __post_init__(self) -> None:
        """Raises InputError where no model is like that."""
        real("aspect", self.aspect, least=8.0, most=4096.0)
        if self.experts and not ACTIVE <= self.experts <= 4096:
            raise InputError(f"experts is {self.experts}; allowed: 0 (dense models), or {ACTIVE} to 4096")


@dataclass(frozen=True, kw_only=True)
class LargestQuestion:
    """Hardware, deadline, and limits on accelerators, power and money; the model follows from the compute."""

    cluster: Cluster
    framework: Framework
    shape: Shape
    assumptions: Assumptions
    deadline_s: float
    max_gpus: int | None
    max_power_w: float | None
    max_cost: float | None
    batch_law: str
    rule: str
    request: Request

    @property
    def peak_flops(self) -> float:
        """Peak FLOP/s of one accelerator."""
        return float(self.cluster.accelerator.peak_flops[self.request.precision.name.lower()])

    @property
    def power_w(self) -> float:
        """Power of one accelerator with its share of the site."""
        return self.assumptions.prices.power_w * self.assumptions.prices.site_factor

    @property
    def limits(self) -> Mapping[str, float]:
        """Most accelerators, by what limits them."""
        power = None if self.max_power_w is None else self.max_power_w // self.power_w
        said = {"GPUs": self.max_gpus, "power": power, "the cluster": self.cluster.max_gpus}
        return {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class LargestTraining:
    """A compute's training on the fewest accelerators that keep the time; without them where none do.

    estimate, run: of that one layout. utilisation: of the compute over what the accelerators could do in the time that
    it takes. shortest_s: the shortest time, where none keeps it and any fits.
    """

    flop: float
    model: Transformer
    goal: Goal
    estimate: Estimate | None = None
    run: TrainingTime | None = None
    binding: Binding | None = None
    utilisation: float = 0.0
    shortest_s: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Largest:
    """Trainings by ascending compute, the largest that keeps the time among them (None: not even the first does).

    limit: what the next larger one has too little of, where that was asked: GPUs, power, cost; else empty.
    """

    trainings: tuple[LargestTraining, ...]
    best: LargestTraining | None
    limit: str

    @property
    def falls_at_flop(self) -> float | None:
        """FLOP at which utilisation falls under `FALLEN` of its most, between two trainings in logarithms, or None."""
        done = [t for t in self.trainings if t.run is not None]
        bar = FALLEN * max((t.utilisation for t in done), default=0.0)
        last = max((i for i, t in enumerate(done) if t.utilisation >= bar), default=-1)
        if not 0 <= last < len(done) - 1:
            return None
        a, b = done[last], done[last + 1]
        return float(a.flop * (b.flop / a.flop) ** ((a.utilisation - bar) / (a.utilisation - b.utilisation)))


def _well(x: float, least: int) -> int:
    """A whole number near x that divides well: from `least` to twice that, times a power of two."""
    unit: int = 2 ** max(math.floor(math.log2(max(x, 1.0) / least)), 0)
    return max(round(x / unit), 1) * unit


def shape_of(flop: float, shape: Shape) -> Transformer:
    """The compute-optimal model of a compute, by the law of `OPTIMAL_TOKENS`; layers and width divide well.

    A token meets 12 h^2 parameters in a layer of width h.
    """
    n = float(compute_optimal_size(get_loss_law(OPTIMAL_TOKENS), flop))
    layers = _well((n / 12.0 / shape.aspect**2) ** (1 / 3), 4)
    heads = _well(math.sqrt(n / 12.0 / layers) / HEAD, 8)
    hidden = HEAD * heads
    mixture = shape.experts > 0
    return from_shape(
        family="moe" if mixture else "nemotron", name=f"{layers}x{hidden}", layers=layers, hidden=hidden,
        ffn=64 * max(round(8 * hidden / (3 * ACTIVE) / 64), 1) if mixture else 4 * hidden, heads=heads, kv_heads=heads,
        vocab=VOCAB, seq_len=shape.seq_len, experts=shape.experts, top_k=ACTIVE if mixture else 0,
    )  # fmt: skip


def training_of(q: LargestQuestion, flop: float) -> LargestTraining:
    """The compute's training on the fewest accelerators that keep the time."""
    model = shape_of(flop, q.shape)
    aim = goal(model, tokens=flop / 6.0 / sizes(model)[1], batch_law=q.batch_law, rule=q.rule)
    setup = Setup(model, q.cluster, q.framework)
    case = TrainingCase(setup=setup, goal=aim, assumptions=q.assumptions)
    least = max(math.ceil(flop / (q.peak_flops * q.deadline_s)), 1)
    failed = LargestTraining(flop=flop, model=model, goal=aim)
    for span in SPANS:
        most = max(least * span, q.cluster.gpus_per_node)
        most = int(min((most, *q.limits.values())))
        if most < least:
            break
        try:
            tried, _ = explored(case, q.request, job_bounds(model, aim, most, least))
        except LayoutError:
            continue
        if tried is None:
            continue
        wall = wall_within(case, tried, q.max_cost)
        failed = replace(failed, shortest_s=float(wall.min()))
        found = _fewest(q, case, tried, wall)
        if found is not None:
            return replace(failed, **found)
    return failed


def _fewest(q: LargestQuestion, case: TrainingCase, tried: Estimate, wall: Array) -> dict[str, Any] | None:
    """The training with the fewest accelerators in time, of every choice at a few sizes of job; None if none is."""
    soon = np.flatnonzero(wall <= q.deadline_s)
    if not len(soon):
        return None
    x = tried.layouts
    order = soon[np.lexsort((wall[soon], x.gpus[soon]))]
    _, first = np.unique(np.stack([x.gpus[order], x.global_batch[order]]), axis=1, return_index=True)
    chosen = order[np.sort(first)[:FIRST_SIZES]]
    chosen = chosen[np.maximum(x.gpus, x.global_batch)[chosen] <= LARGEST]  # beyond, few choices have to do
    result = tried
    if len(chosen):
        result = Estimate.concatenate([every_choice(case, q.request, tried, chosen)[0], tried])
    wall = wall_within(case, result, q.max_cost)
    run = case.runs(result.step_time_s, result.layouts)
    best = np.flatnonzero(wall <= q.deadline_s)
    i = int(best[np.lexsort((wall[best], run.gpus[best]))[0]])
    flop = case.goal.target.compute_flop
    return {
        "estimate": result.take(np.array([i])),
        "run": case.runs(result.step_time_s[[i]], result.layouts.take([i])),
        "binding": bindings(case, result, wall, np.array([i]))[0],
        "utilisation": flop / (float(run.gpus[i]) * q.peak_flops * float(wall[i])),
    }


def plan_largest(q: LargestQuestion, computes: tuple[float, ...]) -> Largest:
    """Trainings of ascending computes, up to the first that can't keep the time, and the largest that can.

    Raises InputError for numbers out of range, a cost without a price, a law or a shape that can't be.
    """
    _check(q)
    done: list[LargestTraining] = []
    for flop in computes:
        done.append(training_of(q, flop))
        if done[-1].run is None:
            break
    if done[-1].run is not None or len(done) == 1:
        best = done[-1] if done[-1].run is not None else None
        return Largest(trainings=tuple(done), best=best, limit="")
    low, high = done[-2], done[-1]
    for _ in range(STEPS):
        middle = training_of(q, math.sqrt(low.flop * high.flop))
        done.append(middle)
        low, high = (middle, high) if middle.run is not None else (low, middle)
    return Largest(trainings=tuple(sorted(done, key=lambda t: t.flop)), best=low, limit=_limit(q, low, high))


def _limit(q: LargestQuestion, best: LargestTraining, larger: LargestTraining) -> str:
    """The limit that a larger training as good as the best uses up."""
    assert best.run is not None
    more = larger.flop / best.flop
    over = {name: more * float(best.run.gpus[0]) / most for name, most in q.limits.items()}
    if q.max_cost is not None:
        over["cost"] = more * float(best.run.cost_usd[0]) / q.max_cost
    name = max(over, key=lambda k: over[k], default="")
    return name if name and over[name] > 1.0 else ""


def _check(q: LargestQuestion) -> None:
    for name, value, low, high in (
        ("months", q.deadline_s / MONTH, 0.01, 1200.0),
        ("gpus", q.max_gpus, 1, 1e12),
        ("power-mw", None if q.max_power_w is None else q.max_power_w / MEGA, 1e-3, 1e9),
        ("max-cost", q.max_cost, 1.0, 1e18),
    ):
        if value is not None:
            real(name, value, least=low, most=high)
    q.assumptions.check_cost(q.max_cost, q.cluster.accelerator.name)
    for name, most in q.limits.items():
        if most < 1:
            raise InputError(
                f"{name} suffices for no accelerator; one draws {q.power_w:,.0f} W with its share of the site"
            )
