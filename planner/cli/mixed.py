"""`planner mixed`: groups of machines that differ."""

from math import lcm
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as o
from planner.cli.choices import advises


@advises
def command(
    model: o.Model,
    groups: Annotated[Path, typer.Argument(help="A TOML file with [[groups]], each a cluster and its gpus.")],
    size: o.StepBatch,
    *,
    framework: o.FrameworkName = None,
    seq_len: o.SeqLen = None,
    json: o.Json = False,
    **choices: Any,
) -> None:
    """Train on machines that differ: one pipeline over all, unequal replicas, or some left out.

    Example: planner mixed llama2-7b mixed.toml --global-batch 512
    """
    from planner.api.inputs import Model
    from planner.api.sites import training_on_groups
    from planner.hardware.groups import load_mixed

    shape, cluster = Model(model, seq_len=seq_len), load_mixed(str(groups))
    batch = size.sequences(shape.seq_len, lcm(*(group.gpus for group in cluster.groups)))
    with o.working("searching every set of groups"):
        answer = training_on_groups(shape.transformer, cluster, batch=batch, framework=framework, **choices)
    o.show(answer, json)
