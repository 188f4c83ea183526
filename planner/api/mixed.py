"""The best training on groups of machines that differ: `planner mixed`."""

from __future__ import annotations

from planner.api.answer import Answer
from planner.base.errors import InputError
from planner.hardware.groups import MixedCluster, load_mixed
from planner.layouts import Layouts
from planner.models import Transformer
from planner.question import load_setup, request, whole
from planner.report.mixed import mixed_record, mixed_view
from planner.search.mixed import MixedQuestion, mixed_ways
from planner.search.ranking import best_of


def question(mixed: MixedCluster, model: Transformer | str, batch: int, framework: str | None = None) -> MixedQuestion:
    """The question of a search on groups: their setups, under one framework, the first group's where none is named.

    Raises InputError if the groups' usual precisions differ; UnknownNameError and FileFormatError as `load_setup`.
    """
    name = framework or mixed.groups[0].cluster.framework
    held = [request(load_setup(model, g.cluster, framework=name), gpus=g.gpus) for g in mixed.groups]
    precisions = sorted({asked.precision.name.lower() for _, asked in held})
    if len(precisions) > 1:
        raise InputError(
            f"the groups of {mixed.name} train in {', '.join(precisions)}; allowed: groups of one precision"
        )

    def alone(g: int, part: int) -> tuple[float, Layouts]:
        setup, asked = held[g]
        best = best_of(setup, asked.sized(asked.gpus, part))
        return float(best.step_time_s[0]), best.layouts

    return MixedQuestion(
        setups=tuple(setup for setup, _ in held), gpus=tuple(g.gpus for g in mixed.groups), batch=batch,
        network=mixed.network, alone=alone,
        numerics=tuple({"precision": asked.precision, "attention": asked.attention} for _, asked in held),
    )  # fmt: skip


def training_on_groups(model: Transformer | str, groups: str, *, batch: int, framework: str | None = None) -> Answer:
    """The fastest ways to train on the groups of a file, and which of them are left out.

    Raises InputError, UnknownNameError or FileFormatError if a value is out of range, a name unknown, a file not valid;
    LayoutError if nothing fits on any of the groups.
    """
    whole("global_batch", batch)
    mixed = load_mixed(groups)
    asked = question(mixed, model, batch, framework)
    record = mixed_record(asked, mixed, mixed_ways(asked))
    return Answer("", record, mixed_view(record))
