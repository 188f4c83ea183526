"""The fewest GPUs on which a training fits, and the fewest that keep a deadline or a price."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.base.errors import InputError, LayoutError
from planner.base.units import DAY, format_seconds, gpus_text
from planner.search.request import divisors
from planner.training_time.time import TrainingPlan

PARTS = (4, 5, 6, 7)
"""Node counts of an octave that are tried: jobs of 11 or 13 nodes divide little."""


SURELY = 4
NEAR = 0.05
"""The shortest training is also told on the fewest GPUs of those that take so much longer."""


@dataclass(frozen=True, kw_only=True)
class Fewest:
    """Trainings on the numbers of GPUs that were tried, from the fewest; None where nothing legal fits.

    fits: the fewest GPUs on which a layout fits; keeps: the fewest that keep what was asked, else the same.
    limits: what was asked to be kept, for a person; empty where nothing was. missed: that none keeps it, if none does;
    `keeps` is then the shortest. surely: the fewest GPUs, up to `SURELY` times as many, that keep it if it lasts as
    many times longer as `late` says; None if none does or late isn't given.
    """

    limits: str
    tried: dict[int, TrainingPlan | None]
    fits: TrainingPlan
    keeps: TrainingPlan
    missed: str = ""
    surely: int | None = None


def job_sizes(gpus_per_node: int, most: int) -> list[int]:
    """Numbers of GPUs worth a job, ascending: what divides a node, then whole nodes, 4, 5, 6 or 7 times 2^a of them."""
    nodes = {n << a for n in PARTS for a in range(most.bit_length())} | {1, 2, 3}
    return sorted(g for g in {*divisors(gpus_per_node), *(n * gpus_per_node for n in nodes)} if g <= most)


def first_that(sizes: Sequence[int], good: Callable[[int], bool]) -> int | None:
    """The first of ascending numbers that is good, where all twice as large as a good one are; None where none is.

    Doubled until one is good; then those between it and the last one tried are, from the least.
    """
    bad = -1
    for i, size in enumerate(sizes):
        if bad >= 0 and size < 2 * sizes[bad]:
            continue
        if good(size):
            return next((s for s in sizes[bad + 1 : i] if good(s)), size)
        bad = i
    return next((s for s in sizes[bad + 1 :] if good(s)), None)


def fewest(
    plan_of: Callable[[int], TrainingPlan], gpus_per_node: int, *, most: int, days: float | None,
    max_cost: float | None, late: Callable[[TrainingPlan], float] | None = None,
) -> Fewest:  # fmt: skip
    """The fewest GPUs that fit, and that keep days and dollars.

    plan_of: the training on so many GPUs; raises LayoutError where nothing legal fits. late: how many times as long as
    predicted a training may take.

    Raises InputError if days or max_cost is not above 0; LayoutError if nothing fits on as many as `most`.
    """
    for name, value in (("days", days), ("max_cost", max_cost)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{name} is {value:g}; allowed: a number above 0")
    tried: dict[int, TrainingPlan | None] = {}
    refused: list[LayoutError] = []

    def plan(gpus: int) -> TrainingPlan | None:
        if gpus not in tried:
            try:
                tried[gpus] = plan_of(gpus)
            except LayoutError as error:
                tried[gpus] = None
                refused.append(error)
        return tried[gpus]

    def over(done: TrainingPlan | None, times: float = 1.0) -> float:
        """What a training takes over what is allowed: it keeps all up to 1."""
        if done is None:
            return float("inf")
        slow = 0.0 if days is None else done.days * times / days
        return slow if max_cost is None else max(slow, done.cost_usd * times / max_cost)

    said = [f"{days:g} day{'s' * (days != 1)}"] if days is not None else []
    limits = " and ".join([*said, f"{max_cost:,.0f} USD"] if max_cost is not None else said)
    sizes = job_sizes(gpus_per_node, most)
    least = first_that(sizes, lambda gpus: plan(gpus) is not None)
    if least is None:  # a settled choice may want a number that no doubling meets, such as tp 5
        least = next((gpus for gpus in sizes if plan(gpus) is not None), None)
    fits = None if least is None else plan(least)
    if least is None or fits is None:
        raise LayoutError(f"nothing runs on up to {gpus_text(most)}; on the last that were tried: {refused[-1]}")
    enough = first_that([s for s in sizes if s >= least], lambda gpus: over(plan(gpus)) <= 1.0)
    # Days may fall under the limit and dollars rise over it, or days rise again, between two doublings.
    near = min(tried, key=lambda gpus: over(tried[gpus]))
    between = next((s for s in sizes if near < 2 * s and s < 2 * near and over(plan(s)) <= 1.0), enough)
    enough = between if enough is None or between is None else min(enough, between)
    found, missed = None if enough is None else plan(enough), ""
    if found is None:
        found, missed = _not_kept([p for p in tried.values() if p is not None], most, limits, max_cost is not None)
    surely = None
    if late and limits and enough is not None:
        times = late(found)
        more = [s for s in sizes if enough <= s <= SURELY * enough]
        surely = first_that(more, lambda gpus: over(plan(gpus), times) <= 1.0)
    known = dict(sorted(tried.items()))
    return Fewest(limits=limits, tried=known, fits=fits, keeps=found, missed=missed, surely=surely)


def _not_kept(plans: list[TrainingPlan], most: int, limits: str, priced: bool) -> tuple[TrainingPlan, str]:
    """The shortest plan, and what to say where none keeps what was asked: the shortest and the cheapest tried."""
    soonest, cheapest = min(plans, key=lambda p: p.days), min(plans, key=lambda p: p.cost_usd)
    near = min((p for p in plans if p.days <= (1.0 + NEAR) * soonest.days), key=lambda p: p.gpus, default=soonest)
    fewer = f"; {format_seconds(near.days * DAY)} on {near.gpus:,}" if near is not soonest else ""
    money = f"; the cheapest {cheapest.cost_usd:,.0f} USD on {cheapest.gpus:,}" if priced else ""
    if soonest.days == float("inf"):
        return soonest, f"no number of GPUs tried up to {most:,} keeps {limits}: failures let none end"
    return soonest, (
        f"no number of GPUs tried up to {most:,} keeps {limits}: the shortest takes "
        f"{format_seconds(soonest.days * DAY)} on {soonest.gpus:,} GPUs{fewer}{money}"
    )
