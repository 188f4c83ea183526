"""The questions of other commands: time, fastest, explain, compare, sweep, export, and --why."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from planner.api import training
from planner.api.answer import Answer
from planner.api.compared import compare_plans, compare_schedules
from planner.api.fastest_of_paper import fastest_by_paper
from planner.api.inputs import Cluster, ClusterLike, Model, ModelLike, profile_of, setup_of, shape_of
from planner.api.layout_estimate import LayoutEstimate
from planner.api.plan import Plan
from planner.api.training import Given
from planner.base.errors import InputError, shown
from planner.base.files import given_path
from planner.choices.choice import tokens, whole, word
from planner.question import batch_or_usual, listed
from planner.training_time.goal import Goal, goal
from planner.training_time.joint import strategy

if TYPE_CHECKING:
    from planner.exporters.plan_export import Export
    from planner.models import Transformer
    from planner.sweeps.run import SweepProgress

AIM = ("tokens", "loss", "loss_law", "batch_law", "rule", "critical_batch")
"""Arguments that say what a training is to reach, as of `planner.training_time.goal.goal`; the rest is the search's."""


def _aim(model: Transformer, choices: dict[str, Any]) -> Goal:
    said = {name: choices.pop(name) for name in AIM if name in choices}
    for name in ("tokens", "critical_batch"):
        if isinstance(said.get(name), str):
            said[name] = tokens(name, said[name])
    for name in ("loss_law", "batch_law", "rule"):
        word(name, said.get(name, ""))
    return goal(model, **said)


def time(
    model: ModelLike, cluster: ClusterLike, *, gpus: int, batch: int | None = None, framework: str | None = None,
    given: Given | None = None, **choices: Any,
) -> Answer:  # fmt: skip
    """Days, steps, money and energy of a training with the recommended layout, failures included.

    batch: sequences per step; None is one near the critical batch, for a loss what trains soonest. choices: `tokens` or
    `loss`, the laws `loss_law`, `batch_law`, `rule`, `critical_batch`; and what the search may choose from, as of
    `planner.recommend`. given: assumptions by name, such as price_usd_per_hour.

    Raises:
        InputError, UnknownNameError: A value is out of range or of another kind, or a name is unknown.
        LayoutError: No layout is legal, or none fits in memory.
    """
    setup = setup_of(model, cluster, framework)
    exact, aim = choices.get("loss") is None, _aim(setup.model, choices)
    return training.training_time(
        setup, aim, given or {}, gpus=whole("gpus", gpus),
        batch=None if batch is None else whole("batch", batch), exact_tokens=exact, **choices,
    )  # fmt: skip


def explain(
    model: ModelLike, cluster: ClusterLike, *, gpus: int, batch: int | None = None, framework: str | None = None,
    given: Given | None = None, **choices: Any,
) -> Answer:  # fmt: skip
    """The limits of the best layout's step and training, and its traffic against the links; arguments as of `time`.

    batch: sequences per step; None is about 4M tokens.

    Raises:
        InputError, UnknownNameError, LayoutError: as `time`.
    """
    setup = setup_of(model, cluster, framework)
    aim, each = _aim(setup.model, choices), batch_or_usual(batch, setup.model.seq_len, whole("gpus", gpus))
    return training.explain(setup, aim, given or {}, gpus=gpus, batch=each, **choices)


def fastest(
    model: ModelLike, clusters: ClusterLike | Sequence[ClusterLike], *, max_gpus: int | None = None,
    max_cost: float | None = None, strategies: Sequence[str] = ("3d",), framework: str | None = None,
    given: Given | None = None, paper: str | None = None, run: bool = False, **choices: Any,
) -> Answer:  # fmt: skip
    """The shortest time to train over GPUs, batch and layout, on one cluster or several side by side.

    strategies: data, data+tensor, data+pipeline, 3d, each with :schedule if you like. Other arguments as of `time`.
    paper: by a paper's own model of costs instead, such as "lamy-poirier-2021", whose strategies may be :improved.
    run: also the layout that `recommend` names on the GPUs and batch of the shortest time.

    Raises:
        InputError, UnknownNameError, LayoutError: as `time`.
    """
    several = [clusters] if isinstance(clusters, (Cluster, str, os.PathLike)) else listed("clusters", clusters)
    if not several:
        raise InputError("clusters is empty; allowed: a cluster, or several")
    shape, profiles = shape_of(model), [profile_of(one) for one in several]
    if paper is not None:
        settled = {"max_cost": max_cost, "given": given, "run": run}
        if taken := [*choices, *(name for name, value in settled.items() if value)]:
            raise InputError(f"{taken[0]} is given, and settled by paper {paper}; leave one of them out")
        return fastest_by_paper(paper, shape, profiles, strategies, max_gpus)
    aim, ways = _aim(shape, choices), [strategy(text) for text in listed("strategies", strategies)]
    return training.fastest(
        shape, profiles, aim, given or {}, ways, framework=framework, max_gpus=max_gpus, max_cost=max_cost, run=run,
        **choices,
    )  # fmt: skip


def compare(
    first: ModelLike, second: ClusterLike, *, batch: int | None = None, framework: str | None = None, **layout: Any
) -> Answer:
    """Every legal schedule of a layout, by model, cluster and `batch`; without `batch` two files of plans.

    layout: choices as of `planner.estimate`.

    Raises:
        InputError, UnknownNameError, FileFormatError, LayoutError: as `planner.estimate`; or a file is no plan.
    """
    if batch is not None:
        setup = setup_of(first, second, framework)
        return compare_schedules(setup, global_batch=whole("batch", batch), **layout)
    if layout or isinstance(first, Model) or isinstance(second, Cluster):
        raise InputError("batch is missing; allowed: a model, a cluster and a batch, or the files of two plans")
    for name, value in (("first", first), ("second", second)):
        if not isinstance(value, str | os.PathLike):
            raise InputError(
                f"{name} is of type {type(value).__name__}; allowed: a plan's file, as Plan.save writes it"
            )
    return compare_plans(Path(first), Path(second), framework=framework)


def why(plan: Plan, wanted: str) -> Answer:
    """Why a plan's best isn't otherwise, such as "tp=8,recompute=full". Raises as `Plan.why`."""
    known: Plan = _found(plan, Plan)
    return known.why(wanted)


def _found(plan: Any, *kinds: type) -> Any:
    """The plan. Raises InputError if it is something else."""
    if not isinstance(plan, kinds):
        raise InputError(f"plan is {shown(plan)}; allowed: {' or '.join(x.__name__ for x in kinds)}, not its file")
    return plan


def sweep(
    definition: str | os.PathLike[str], output: str | os.PathLike[str], *, workers: int | None = None,
    dask: str | None = None, restart: bool = False, on_progress: Callable[[SweepProgress], None] = lambda _: None,
) -> Answer:  # fmt: skip
    """Every case of a sweep's file, to a Parquet file; interrupted, the same call goes on where it was.

    workers: processes; None is one per core. dask: the address of a Dask cluster that works instead of processes here.
    restart: forget what an earlier run kept or wrote. on_progress: told how far it is.

    Raises:
        FileFormatError, InputError, OutputError, MissingPackageError, ExecutionError: as `planner sweep`.
    """
    from planner.report.pareto import draw_fronts
    from planner.report.sweep import sweep_record, sweep_view
    from planner.sweeps import run
    from planner.sweeps.dask import answers_on
    from planner.sweeps.fronts import fronts
    from planner.sweeps.local import Local
    from planner.sweeps.parquet import read_results
    from planner.sweeps.results import load_results
    from planner.sweeps.sweep import load_sweep

    if dask is not None and workers is not None:
        raise InputError(f"--workers is {workers}; allowed without --dask: a Dask cluster has its own")
    crew = Local(workers).answers if dask is None else partial(answers_on, dask)
    path, begun = given_path("output", output), monotonic()
    done = run.run_sweep(
        load_sweep(given_path("definition", definition)), path, crew, restart=restart, on_progress=on_progress
    )
    table, seconds = read_results(path), monotonic() - begun
    what = (path, done, table, seconds)
    return Answer("", sweep_record(*what), sweep_view(*what), lambda: draw_fronts(fronts(load_results(path))))


def export(plan: Plan | LayoutEstimate, to: str, path: str | os.PathLike[str] | None = None) -> Export:
    """A plan's best layout, or a layout, as a framework's own file. Raises as `LayoutEstimate.export`."""
    return (plan.best if isinstance(plan, Plan) else _found(plan, Plan, LayoutEstimate)).export(to, path)
