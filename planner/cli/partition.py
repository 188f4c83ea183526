"""`planner partition`: how many layers each pipeline stage should have."""

from typing import Any

import typer

from planner.cli import options as o
from planner.cli.choices import asked_layout, takes_layout
from planner.cli.unfold import positional


@positional
@takes_layout("layer_split")
def command(
    context: typer.Context,
    model: o.LayoutModel,
    place: o.Place,
    size: o.StepBatch,
    *,
    gpus: o.JobGpus = None,
    json: o.Json = False,
    **choices: Any,
) -> None:
    """Split the layers over pipeline stages by cost, embedding and head counted, so that every rank fits in memory.

    Example: planner partition llama3-8b --cluster dgx-a100-80gb --tp 2 --pp 8 --global-batch 64
    """
    from planner.api.compared import partition

    setup, row = asked_layout(context, model, place, size, gpus, choices)
    o.show(partition(setup, **row), json)
