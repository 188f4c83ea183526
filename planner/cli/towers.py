"""`planner towers`: a vision tower or an encoder before a language model, each under a layout of its own."""

from typing import Annotated, Any

from planner.cli import options as o
from planner.cli.choices import searches
from planner.cli.unfold import positional


@positional
@searches
def command(
    model: o.Model,
    place: o.Place,
    gpus: o.Gpus,
    size: o.StepBatch,
    *,
    tower: Annotated[
        list[str],
        o.asks(
            "--tower",
            "A preset or file, a config.json for its vision part, and its sequences (images) in one of the model's: "
            "internvit-6b=7, with tokens of each config.json=4x1024. May be given again.",
        ),
    ],
    frozen: Annotated[bool, o.asks("--frozen", "No tower is trained.")] = False,
    json: o.Json = False,
    **choices: Any,
) -> None:
    """Plan a language model with towers before it (vision, an encoder), each part under a layout of its own.

    All towers go forward over the whole batch, then the language model trains, then the towers go backward, on the
    same GPUs. Options of the layout are the language model's.

    Example: planner towers qwen2-72b --cluster dgx-h100 --gpus 256 --global-batch 512 --tower qwen2-vl-vit=4
    """
    from planner.api.towers import towers_plan

    setup = place.setup(model, towers=True)
    batch = size.sequences(setup.model.seq_len, gpus)
    with o.working("searching every layout of every part"):
        answer = towers_plan(setup, tower, gpus=gpus, batch=batch, frozen=frozen, **choices)
    o.show(answer, json)
