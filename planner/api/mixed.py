"""The best training on groups of machines that differ: `planner mixed`."""

from __future__ import annotations

from planner.api.answer import Answer
from planner.base.errors import InputError, LayoutError
from planner.hardware.groups import MixedCluster, load_mixed
from planner.layouts import Layouts
from planner.models import Transformer
from planner.question import careful, load_setup, numerics, whole
from planner.report.mixed import mixed_record, mixed_view
from planner.search.mixed import MixedQuestion, mixed_ways
from planner.search.ranking import recommend


def question(mixed: MixedCluster, model: Transformer | str, batch: int, framework: str | None = None) -> MixedQuestion:
    """The question of a search on groups: their setups, under one framework, the first group's where none is named.

    Raises:
        InputError: The groups' usual precisions differ.
        UnknownNameError, FileFormatError: as `load_setup`.
    """
    name = framework or mixed.groups[0].cluster.framework
    kinds = [numerics(g.cluster, None, None) for g in mixed.groups]
    held = [
        careful(load_setup(model, g.cluster, framework=name), precision=precision)
        for g, (precision, _) in zip(mixed.groups, kinds, strict=True)
    ]
    setups = tuple(setup for setup, _ in held)
    if len({precision for precision, _ in kinds}) > 1:
        raise InputError(
            f"the groups of {mixed.name} train in {', '.join(sorted({p.name.lower() for p, _ in kinds}))}; allowed: "
            "groups of one precision"
        )

    def alone(g: int, part: int) -> tuple[float, Layouts]:
        found = recommend(
            setups[g], gpus=mixed.groups[g].gpus, global_batch=part, precision=kinds[g][0], attention=kinds[g][1],
            fixed=held[g][1], top=1, plainest=True,
        )  # fmt: skip
        if not len(found.best):
            raise LayoutError(f"nothing fits on {mixed.groups[g].cluster.name}")
        at = found.best[:1]
        return float(found.estimate.step_time_s[at[0]]), found.estimate.layouts.take(at)

    return MixedQuestion(
        setups=setups, gpus=tuple(g.gpus for g in mixed.groups), batch=batch, network=mixed.network, alone=alone,
        numerics=tuple({"precision": p, "attention": a} for p, a in kinds),
    )  # fmt: skip


def training_on_groups(model: Transformer | str, groups: str, *, batch: int, framework: str | None = None) -> Answer:
    """The fastest ways to train on the groups of a file, and which of them are left out.

    Raises:
        InputError, UnknownNameError, FileFormatError: A value is out of range, a name unknown, a file not valid.
        LayoutError: Nothing fits on any of the groups.
    """
    whole("global_batch", batch)
    mixed = load_mixed(groups)
    asked = question(mixed, model, batch, framework)
    record = mixed_record(asked, mixed, mixed_ways(asked))
    return Answer("", record, mixed_view(record))
