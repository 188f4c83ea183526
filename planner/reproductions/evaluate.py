"""From a claim to its outcome: what evaluates it, by name, and ratios of two evaluations.

A schedule's figures come from the timeline of its own order of operations, not from its closed form.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from planner.base.errors import LayoutError, PlannerError
from planner.base.units import DAY, GIB
from planner.hardware import load_cluster
from planner.question import largest_question
from planner.reproductions.claims import Claim, Outcome, merged
from planner.reproductions.layout_figures import layout_figure
from planner.reproductions.measured_figures import all_runs_figure, run_figure
from planner.reproductions.shortest import shortest_figure
from planner.reproductions.trainer_figures import volume_figure
from planner.scaling import lamy_poirier as lp
from planner.schedules import Pipeline, get_schedule
from planner.step.timeline.timeline import Timeline, durations, run
from planner.training_time.largest import COMPUTES, Largest, plan_largest


def timeline_figure(
    *, quantity: str, schedule: str, p: int, m: int, v: int = 1, k: int = 1, F: float = 1, I: float = 1, W: float = 1,
    transfer: float = 0, kept: float = 0.0,
) -> tuple[float, str]:  # fmt: skip
    """A figure of a pipeline with equal ranks.

    F, I, W: of one micro-batch through a rank; transfer: between ranks. kept: what W still needs of the activations.
    quantity: bubble (idle share of the step), idle over work, step (in F's unit), peak (activations of the fullest
    rank, in micro-batches of all of its layers), total peak (those of all ranks), versions, copies (of the weights).

    Raises PlannerError for an unknown schedule, or one that can't run.
    """
    rule = get_schedule(schedule)
    pipe = Pipeline(p=p, m=m, v=v, k=k)
    if quantity in ("versions", "copies"):
        return float(rule.copies if quantity == "copies" else max(rule.weight_versions(pipe, r) for r in range(p))), ""
    parts = max(v // rule.copies, 1) * k  # of a micro-batch's pass through a rank; each copy has its own chunks
    timeline = _run(rule.name, p, m, v, k, parts, F, I, W, transfer, kept)
    whole = timeline.span_s if rule.unsynchronised_end else timeline.makespan_s
    work = float(timeline.busy_s.mean())
    peaks = timeline.peak(kept=kept) / parts
    figures: dict[str, Any] = {
        "bubble": 1.0 - work / whole, "idle over work": whole / work - 1.0, "step": whole, "speed": 1.0 / whole,
        "peak": peaks.max(), "total peak": peaks.sum(),
    }  # fmt: skip
    return float(figures[quantity]), ""


@lru_cache(maxsize=64)
def _run(
    name: str, p: int, m: int, v: int, k: int, parts: int, F: float, I: float, W: float, transfer: float, kept: float
) -> Timeline:
    """The timeline of one step, the order fitted to the durations where the schedule can."""
    pipe = Pipeline(p=p, m=m, v=v, k=k)
    seconds = (F / parts, I / parts, W / parts)
    order = get_schedule(name).fitted(pipe, seconds, transfer, kept)
    return run(order, durations(order, *seconds), transfer)


def largest_figure(*, quantity: str, cluster: str, mtbf_hours: float, **asked: Any) -> tuple[float, str]:
    """FLOP of a training: the largest that is done in time, or where utilisation falls under four fifths of its most.

    quantity: largest, falls. asked: as of `planner.question.largest_question`.

    Raises PlannerError for an unknown name, or if nothing is done in time.
    """
    found = _found(cluster, mtbf_hours, tuple(sorted(asked.items())))
    if found.best is None or found.best.run is None or found.falls_at_flop is None:
        raise LayoutError(f"no training on {cluster} is done in time")
    note = f"the largest on {int(found.best.run.gpus[0]):,} GPUs at {found.best.utilisation:.1%}"
    return {"largest": found.best.flop, "falls": found.falls_at_flop}[quantity], note


@cache
def _found(cluster: str, mtbf_hours: float, asked: tuple[tuple[str, Any], ...]) -> Largest:
    """One search, of which several claims are."""
    question = largest_question(load_cluster(cluster), given={"mtbf_hours": mtbf_hours}, **dict(asked))
    return plan_largest(question, COMPUTES)


_fastest_of_2021 = cache(lp.fastest)


def model_of_2021(
    *, quantity: str, strategy: str, at: Sequence[int] | None = None, ethernet: bool = False
) -> tuple[float, str]:
    """A figure of a strategy: of the configuration that the search finds, or of a given one.

    at: n_b, n_l, n_a, n_mu, b_mu. ethernet: the slow network alone, between GPUs and between stages.
    quantity: days, GPUs, state (GiB per GPU), speed (trainings per day).

    Raises PlannerError if no configuration keeps the rules.
    """
    task, s = lp.PaperTask(), lp.STRATEGIES[strategy]
    hardware = lp.Hardware()
    if ethernet:
        hardware = replace(hardware, network_bytes_per_s=lp.ETHERNET)
    if at is None:
        c = _fastest_of_2021(task, s, hardware)
    else:
        c = lp.Configuration(n_b=at[0], n_l=at[1], n_a=at[2], n_mu=at[3], b_mu=at[4])
    six, four = (float(lp.time_s(replace(task, all_reduces=n), s, hardware, c)) / DAY for n in (6, 4))
    note = f"{c.n_b} x {c.n_l} x {c.n_a} GPUs, {c.n_mu} micro-batches of {c.b_mu}"
    if s.tensor:
        note += f"; {four:.2f} days with four all-reduces per layer"
    state = float(lp.memory_bytes(task, s, c)["state"]) / GIB
    return {"days": six, "GPUs": float(c.gpus), "state": state, "speed": 1.0 / six}[quantity], note


EVALUATORS: Mapping[str, Callable[..., tuple[float, str]]] = {
    "timeline": timeline_figure,
    "layout": layout_figure,
    "run": run_figure,
    "runs": all_runs_figure,
    "model of 2021": model_of_2021,
    "shortest": shortest_figure,
    "largest": largest_figure,
    "volume": volume_figure,
}
"""The sources of our figures; each gives a figure and a note."""


def evaluate(claim: Claim) -> Outcome:
    """Ours: of the claim's arguments, or with `over`, which changes some of them, the ratio to what those give.

    In `% more` it is what the ratio is over one.
    """
    if not claim.by:
        return Outcome(claim=claim, ours=None)
    arguments = dict(claim.arguments)
    over = arguments.pop("over", None)
    evaluator = EVALUATORS[claim.by]
    try:
        ours, note = evaluator(**arguments)
        if over is not None:
            base, _ = evaluator(**merged(arguments, over))
            ours = 100.0 * (ours / base - 1.0) if claim.unit == "% more" else ours / base
    except PlannerError as error:
        return Outcome(claim=claim, ours=None, note=str(error))
    return Outcome(claim=claim, ours=float(ours), note=note)
