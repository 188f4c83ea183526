"""`planner mixed`: groups of machines that differ."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.unfold import unfolded


@unfolded
def command(
    model: o.Model,
    groups: Annotated[Path, typer.Argument(help=r"A TOML file with \[\[groups]], each a cluster and its gpus.")],
    size: o.StepBatch,
    *,
    framework: o.FrameworkName = None,
    seq_len: o.SeqLen = None,
    json: o.Json = False,
) -> None:
    """Train on machines that differ: one pipeline over all, unequal replicas, or some left out.

    Example: planner mixed llama2-7b mixed.toml --global-batch 512
    """
    from planner.api.inputs import Model
    from planner.api.sites import training_on_groups

    shape = Model(model, seq_len=seq_len)
    with o.working("searching every set of groups"):
        answer = training_on_groups(
            shape.transformer, str(groups), batch=size.sequences(shape.seq_len), framework=o.profile_of(framework)
        )
    o.show(answer, json)
