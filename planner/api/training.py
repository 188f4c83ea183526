"""How long a training takes, the shortest time in which it can be done, and what would help."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from planner.api.anchored import trust
from planner.api.answer import Answer
from planner.api.frameworks import held_request, setup_under
from planner.api.layout_estimate import LayoutEstimate, closed
from planner.api.plan import Plan
from planner.base.errors import LayoutError
from planner.base.units import gpus_text
from planner.choices.choice import whole
from planner.hardware import Cluster
from planner.question import check_tokens
from planner.report import fastest as fastest_report
from planner.report import plots
from planner.report.fastest import sensitivity_record, sensitivity_view
from planner.report.plain_table import stacked
from planner.report.records import estimate_record, question_record
from planner.report.tables import layout_text
from planner.report.training import fewest_record, fewest_view, time_record, time_view
from planner.search import recommend
from planner.search.request import Request
from planner.setup import Setup
from planner.step.estimate import Estimate
from planner.training_time.assumptions import assume
from planner.training_time.fastest import Fastest, advised, plan_fastest
from planner.training_time.fewest import fewest
from planner.training_time.goal import Goal
from planner.training_time.joint import Strategy
from planner.training_time.sensitivity import RIVALS, sensitivity
from planner.training_time.time import TrainingPlan, faster_on_fewer, plan_time
from planner.training_time.training import TrainingCase

MOST_GPUS = 100_000
Given = Mapping[str, float | None]
"""Assumptions by name, in place of the shipped ones; None is not given."""


def training_time(
    setup: Setup, goal: Goal, given: Given, *, gpus: int, batch: int | None, exact_tokens: bool, **choices: Any
) -> Answer:
    """What `planner.time` answers, of a goal; raises as it does.

    exact_tokens: the goal's tokens are processed as they are, whatever the batch.
    """
    case, request = _case(setup, goal, given, **choices)
    plan = plan_time(case, request, gpus=gpus, batch=batch, exact_tokens=exact_tokens)
    fewer = faster_on_fewer(plan, request, batch=batch, exact_tokens=exact_tokens)
    one, factors = _factors(plan)
    record = question_record(case.setup, gpus) | time_record(plan, factors, fewer)
    title = f"{setup.model.name} on {gpus_text(gpus)} of {setup.cluster.name}"
    view, of = time_view(plan, factors, fewer), Plan(case.setup, plan.found)
    return closed(title, record, view, partial(plots.draw_time, title), one, of, kept=math.isfinite(plan.days))


def _case(setup: Setup, goal: Goal, given: Given, **choices: Any) -> tuple[TrainingCase, Request]:
    """The training of a question, and what its search is asked."""
    held, request = held_request(setup, **choices)
    check_tokens(request.fixed, goal.origin == "given")
    assumed = assume(held.cluster, given)
    return TrainingCase(setup=held, goal=goal, assumptions=assumed, train=request.fixed.train), request


def _factors(plan: TrainingPlan) -> tuple[LayoutEstimate, tuple[float, float]]:
    """A plan's layout, and by which the steps of 80 % of cases like this one are shorter and longer."""
    one = LayoutEstimate(plan.case.setup, plan.found.estimate, plan.best)
    low, high = one.step_time_interval_s
    step = float(plan.run.step_time_s[0])
    return one, (low / step, high / step)


def fewest_gpus(
    setup: Setup, goal: Goal, given: Given, *, days: float | None, max_cost: float | None, max_gpus: int | None,
    batch: Callable[[int], int] | None, exact_tokens: bool, **choices: Any,
) -> Answer:  # fmt: skip
    """The fewest GPUs on which a training fits, and that keep days and dollars; other arguments as `training_time`.

    max_gpus: most to try; None: the cluster's, or 100,000. batch: sequences on so many GPUs.

    Raises as `training_time`.
    """
    case, request = _case(setup, goal, given, **choices)
    cluster = setup.cluster
    most = cluster.max_gpus or MOST_GPUS if max_gpus is None else whole("max_gpus", max_gpus)
    cluster.check_gpus("max_gpus", most)
    case.assumptions.check_cost(max_cost, cluster.accelerator.name)

    def plan_of(gpus: int) -> TrainingPlan:
        return plan_time(case, request, gpus=gpus, batch=batch and batch(gpus), exact_tokens=exact_tokens)

    def late(plan: TrainingPlan) -> float:
        return _factors(plan)[1][1]

    found = fewest(plan_of, cluster.gpus_per_node, most=most, days=days, max_cost=max_cost, late=late)
    record = {"model": setup.model.name, "cluster": cluster.name} | fewest_record(found, days=days, max_cost=max_cost)
    one, factors = _factors(found.keeps)
    title = f"{setup.model.name} on {cluster.name}"
    view, of = fewest_view(found, record["tried"], factors), Plan(case.setup, found.keeps.found)
    return closed(title, record, view, partial(plots.draw_fewest, title), one, of, kept=not found.missed)


def explain(setup: Setup, goal: Goal, given: Given, *, gpus: int, batch: int, **choices: Any) -> Answer:
    """Elasticities of the best layout's step and training, and its traffic against the links.

    Raises as `training_time`.
    """
    setup, request = held_request(setup, gpus=gpus, batch=batch, **choices)
    case = TrainingCase(setup=setup, goal=goal, assumptions=assume(setup.cluster, given), train=request.fixed.train)
    found = recommend(setup, **request.question, top=1, rivals=RIVALS, plainest=True)
    if not len(found.best):
        raise LayoutError(f"no layout of {setup.model.name} on {gpus_text(gpus)} fits in memory; give more GPUs")
    result = sensitivity(case, found)
    best = int(found.best[0])
    one = LayoutEstimate(setup, found.estimate, best)
    layout = estimate_record(found.estimate, best, setup.cluster)
    record = question_record(setup, gpus, batch) | {"layout": layout} | sensitivity_record(result)
    text, step = layout_text(layout["layout"]), layout["step_time_s"]
    where = f"{setup.model.name} on {gpus_text(gpus)} of {setup.cluster.name}"
    title = f"{where}, batch {batch:,}: {text}, {step:.4g} s per step"
    draw = partial(plots.draw_explained, title)
    return closed(title, record, sensitivity_view(result), draw, one, Plan(setup, found))


def fastest(
    model: Any, clusters: Sequence[Cluster], goal: Goal, given: Given, strategies: Sequence[Strategy], *,
    framework: str | None = None, max_gpus: int | None = None, max_cost: float | None = None,
    nics_per_node: int | None = None, run: bool = False, **choices: Any,
) -> Answer:  # fmt: skip
    """The shortest wall time over GPUs, batch and layout, on every cluster and by every strategy, side by side.

    run: also what `planner recommend` names to run there. choices: what the search may choose from, as of it.

    Raises as `training_time`; LayoutError only if the only cluster and strategy has no layout.
    """
    done: list[tuple[TrainingCase, str, Fastest | str, Estimate | None]] = []
    for cluster in clusters:
        setup = setup_under(model, cluster, framework, nics_per_node=nics_per_node)
        for strategy in strategies:
            # A strategy's schedule is the user's word, whether the framework runs it or not.
            schedule = choices.get("schedule") or strategy.settles.get("schedule")
            case, request = _case(setup, goal, given, **(choices | {"schedule": schedule}))
            best = None
            try:
                most = max_gpus if max_gpus is not None else cluster.max_gpus or MOST_GPUS
                found: Fastest | str = plan_fastest(case, strategy, request, max_gpus=most, max_cost=max_cost)
                best = advised(case, strategy, request, found) if run and isinstance(found, Fastest) else None
            except LayoutError as error:
                if len(clusters) * len(strategies) == 1:
                    raise
                found = str(error)
            done.append((case, strategy.name, found, best))
    results = [
        {"cluster": case.setup.cluster.name, "strategy": name, "none": found} if isinstance(found, str)
        else fastest_report.fastest_record(found, case, best)
        for case, name, found, best in done
    ]  # fmt: skip
    views: list[Any] = []
    if len(done) > 1:
        side_by_side = fastest_report.side_by_side_view(
            [(c.setup.cluster.name, name, found) for c, name, found, _ in done]
        )
        views += [f"{model.name}, side by side", "", side_by_side, ""]
    case, _, found, best = done[0]
    if not isinstance(found, str):
        view = fastest_report.fastest_view(found, case, best)
        views += [f"{model.name} on {case.setup.cluster.name}", "", view, "", f"How accurate: {trust(case.setup)}"]
    record = {"model": model.name, "seq_len": int(model.seq_len), "results": results}
    return Answer("", record, stacked(*views), partial(plots.draw_fastest, record))
