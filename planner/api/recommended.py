"""The search for the layouts to run: `recommend`, and the same question with its setup known."""

import os
from typing import Any, Unpack

from planner.api.anchored import anchored
from planner.api.frameworks import held_request
from planner.api.inputs import ClusterLike, ModelLike, SearchChoices, setup_of
from planner.api.plan import Plan
from planner.choices.choice import whole, word
from planner.question import RUNS, batch_or_usual, check_elsewhere, settled_room
from planner.search import recommend as rank_layouts
from planner.setup import Setup


def recommend(
    model: ModelLike,
    cluster: ClusterLike,
    *,
    gpus: int,
    batch: int | None = None,
    framework: str | None = None,
    base: str | None = None,
    top: int = 5,
    objective: str = "time",
    anchor: str | os.PathLike[str] | None = None,
    **choices: Unpack[SearchChoices],
) -> Plan:
    """Search every legal layout of a model on so many accelerators; the best `top`, and why the rest lost.

    batch: sequences per optimizer step; None is about 4M tokens. tp to sequence_parallel: allow only this
    value, or these; None allows all.
    allow_offload: also optimizer state, parameters and activations in host memory. allow_async: also schedules that
    change the training. any_framework: also what the framework does not have. exclude: what must not be chosen, such as
    "schedule=zb-*", "tp=8", or "cp" for any but its default. fit_chance: how likely a layout must fit in memory, 0.95
    unless given; besides, headroom_gib is the memory to leave free, and max_memory_gib the most to take.
    framework, precision, attention: None is what is usual on the cluster. framework: a profile, or one that
    `LayoutEstimate.export` writes for. base: torchtitan's own recipe, for a model that it doesn't have.
    objective: time, throughput, cost (one order) or memory. anchor: a CSV of runs measured on such a machine, which
    correct its figures.

    Raises:
        InputError: a value out of range, or of the wrong kind; names the field.
        UnknownNameError: no such model, cluster, framework, schedule, recompute mode, precision, kernel or objective.
        FileFormatError: a file that can't be read, parsed or validated.
        LayoutError: no layout is legal, or the framework can run none of the model; says why.
    """
    check_elsewhere(choices)
    setup = anchored(setup_of(model, cluster, framework), anchor)
    each = batch_or_usual(batch, setup.model.seq_len, whole("gpus", gpus))
    return search_plan(setup, gpus=gpus, global_batch=each, top=top, objective=objective, base=base, **choices)


def search_plan(
    setup: Setup, *, gpus: int, global_batch: int, top: int = 5, objective: str = "time", base: str | None = None,
    **choices: Any,
) -> Plan:  # fmt: skip
    """The plan for a question; choices: what the search may choose from, by name. Raises as `recommend`."""
    whole("gpus", gpus)
    whole("global_batch", global_batch)
    setup, request = held_request(setup, base, gpus=gpus, batch=global_batch, **choices)
    found = rank_layouts(
        setup,
        **request.question,
        top=whole("top", top, most=1000),
        objective=word("objective", objective),
        plainest=True,
    )
    # `Plan.elsewhere` says what would be faster with any framework.
    elsewhere_is_pointless = objective == "memory" or setup.export is not None or bool(choices.get("any_framework"))
    free = () if elsewhere_is_pointless else tuple(name for name in RUNS if choices.get(name) is None)
    asked = {name: choices.get(name) for name in ("headroom_gib", "max_memory_gib")}
    most = settled_room(setup.cluster.accelerator.memory_bytes, **asked)
    return Plan(setup, found, free, objective == "memory", most)
