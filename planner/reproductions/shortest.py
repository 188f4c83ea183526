"""A paper's question to the search of the shortest time, asked of our cost models on the paper's hardware."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from planner.base.units import DAY
from planner.costs.memory.fit_chance import FIT_CHANCE, safe_share
from planner.hardware import load_cluster, load_framework
from planner.models import load_model
from planner.reproductions import preset_of
from planner.scaling import lamy_poirier as lp
from planner.search import default_attention, default_precision
from planner.search.request import Request
from planner.setup import Setup
from planner.training_time.assumptions import assume
from planner.training_time.fastest import Fastest, plan_fastest
from planner.training_time.goal import goal
from planner.training_time.joint import strategy
from planner.training_time.training import TrainingCase

NO_FAILURES = 1e12  # hours


@dataclass(frozen=True, kw_only=True)
class Question(TrainingCase):
    """A paper's question: a setup, a goal, assumptions. preset: its file's figures, the paper's answer among them."""

    preset: Mapping[str, Any]


def paper_question(name: str, framework: str | None = None) -> Question:
    """The question of a paper, by its framework or another.

    Raises UnknownNameError for an unknown paper or framework, or a paper without such a question.
    """
    p = preset_of(name)
    model = load_model(p["model"])
    cluster = load_cluster(p["cluster"], network=p["network"]).with_node_size(p["node_size"])
    room = cluster.accelerator.memory_bytes * safe_share(FIT_CHANCE)
    cluster = replace(cluster, accelerator=replace(cluster.accelerator, room_bytes=room))
    return Question(
        preset=p,
        setup=Setup(model, cluster, load_framework(framework or p["framework"])),
        goal=goal(model, tokens=p["tokens"], batch_law=p["batch_law"], rule=p["rule"]),
        assumptions=assume(cluster, {"mtbf_hours": NO_FAILURES}),
    )


def shortest(question: Question, plan: str, max_gpus: int) -> Fastest:
    """The shortest time by a strategy on at most so many GPUs. Raises LayoutError if nothing fits in memory."""
    setup, cluster = question.setup, question.setup.cluster
    request = Request.of(setup.framework, precision=default_precision(cluster), attention=default_attention(cluster))
    return plan_fastest(question, strategy(plan), request, max_gpus=max_gpus)


PARTS = (
    ("forward and backward, all GPUs at peak", ()),
    ("kernels below peak, and what is no product", ()),
    ("recomputed forward", ("recompute_s",)),
    ("bubble, uneven stages", ("bubble_s", "imbalance_s")),
    ("tensor ranks' collectives that show", ("tensor_comm_s", "context_comm_s", "expert_comm_s")),
    ("data-parallel traffic that shows", ("data_comm_s", "sharding_comm_s")),
    ("sends between stages that show", ("pipeline_comm_s",)),
    ("optimizer", ("optimizer_s",)),
)
"""Parts of a training, with the parts of a step that are in them; the first two share the rest of it."""


def parts_of_ours(found: Fastest) -> dict[str, float]:
    """Days of the shortest training by part; failures and checkpoints apart."""
    i, time = found.best, found.estimate.time
    days = {name: sum(float(getattr(time, field)[i]) for field in fields) for name, fields in PARTS}
    layouts = found.estimate.layouts
    at_peak, kernels = PARTS[0][0], PARTS[1][0]
    rest = float(found.estimate.step_time_s[i]) - sum(days.values())
    days[at_peak] = float(found.estimate.model_flop[i] / (layouts.gpus[i] * found.estimate.peak_flops[i]))
    days[kernels] = rest - days[at_peak]
    return {name: value * float(found.run.steps[i]) / DAY for name, value in days.items()}


def parts_of_the_paper(question: Question) -> tuple[lp.Configuration, dict[str, float]]:
    """The fastest configuration under the paper's assumptions, and its days by part."""
    task, s, hardware = lp.PaperTask(), lp.STRATEGIES[question.preset["paper_strategy"]], lp.Hardware()
    c = lp.fastest(task, s, hardware)
    total = float(lp.time_s(task, s, hardware, c)) / DAY
    peak = total * float(lp.efficiency(task, s, hardware, c))
    waste = {name: peak * float(share) for name, share in lp.overheads(task, s, hardware, c).items()}
    # Of its 8 FLOP per parameter and token two are the recomputed forward's.
    figures = (0.75 * peak, 0.0, 0.25 * peak, waste["bubble"], waste["tensor"], waste["data"], 0.0, 0.0)
    return c, dict(zip((name for name, _ in PARTS), figures, strict=True))


def towards_today(question: Question, plan: str, max_gpus: int) -> list[tuple[str, Fastest]]:
    """The paper's question changed into today's usual one, a step at a time, each with its shortest training."""
    p, model = question.preset, question.setup.model
    small = load_cluster(p["cluster"], network=p["network"])
    accelerator = question.setup.cluster.accelerator
    nodes = replace(question, setup=replace(question.setup, cluster=replace(small, accelerator=accelerator)))
    failing = replace(nodes, assumptions=assume(nodes.setup.cluster))
    law = replace(failing, goal=goal(model, tokens=p["tokens"]))
    tokens = replace(failing, goal=goal(model))
    size = small.gpus_per_node
    trillions = f"{tokens.goal.target.tokens / 1e12:.3g}T"
    steps = (
        (f"nodes of {size} GPUs", nodes, p["strategy"], p["max_gpus"]),
        ("and failures, as usual", failing, p["strategy"], p["max_gpus"]),
        ("and today's critical batch, which more samples may exceed", law, p["strategy"], p["max_gpus"]),
        (f"and {trillions} tokens, the compute-optimal", tokens, p["strategy"], p["max_gpus"]),
        (f"and any schedule, up to {max_gpus:,} GPUs", tokens, plan, max_gpus),
    )
    return [(name, shortest(q, how, most)) for name, q, how, most in steps]


def shortest_figure(*, quantity: str = "days", framework: str, strategy: str, max_gpus: int) -> tuple[float, str]:
    """Days, or speed (trainings a day), of the shortest training of X_160 in Lamy-Poirier 2021's question.

    Raises PlannerError for an unknown name, or if nothing fits.
    """
    found = _shortest(framework, strategy, max_gpus)
    i = found.best
    days = float(found.run.wall_s[i]) / DAY
    note = f"{int(found.run.gpus[i]):,} GPUs, MFU {float(found.estimate.mfu[i]):.0%}"
    return {"days": days, "speed": 1.0 / days}[quantity], note


@cache
def _shortest(framework: str, plan: str, max_gpus: int) -> Fastest:
    """One search, of which several claims are."""
    return shortest(paper_question("lamy-poirier-2021", framework), plan, max_gpus)
