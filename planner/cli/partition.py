"""`planner partition`: how many layers each pipeline stage should have."""

from typing import Any

from planner.cli import options as o
from planner.cli.choices import filling, takes_layout
from planner.cli.unfold import positional


@positional
@takes_layout("layer_split")
def command(
    model: o.Model, place: o.Place, size: o.StepBatch, *, gpus: o.JobGpus = None, json: o.Json = False, **choices: Any
) -> None:
    """Split the layers over pipeline stages by cost, embedding and head counted, so that every rank fits in memory.

    Example: planner partition llama3-8b --cluster dgx-a100-80gb --tp 2 --pp 8 --global-batch 64
    """
    from planner.api.compared import partition

    setup = place.setup(model)
    row = filling(gpus, choices)
    o.show(partition(setup, global_batch=size.sequences(setup.model.seq_len, row["dp"]), **row), json)
