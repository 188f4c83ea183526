"""`planner time`: how long a training takes, and what it costs."""

from typing import Annotated, Any

from planner.cli import assumed as a
from planner.cli import options as o
from planner.cli.choices import searches
from planner.cli.unfold import positional


@positional
@searches
@a.assumes()
def command(
    model: o.Model,
    place: o.Place,
    gpus: o.Gpus,
    *,
    aim: a.Aim,
    batch: Annotated[
        int | None,
        o.in_group(
            o.QUESTION,
            "Sequences per step; else near the critical batch, for a loss what trains soonest.",
            "--global-batch",
            "--batch",
        ),
    ] = None,
    batch_tokens: o.BatchTokens = None,
    anchor: o.Anchor = None,
    out: o.PlanOutput,
    given: dict[str, float | None],
    **choices: Any,
) -> None:
    """Days, steps, GPU-hours, money and energy of a training, failures included, with the recommended layout.

    Tokens that are given are processed as they are; a loss takes as many as the batch needs; with neither, the
    compute-optimal tokens.

    Example: planner time gpt3-175b --cluster dgx-a100-80gb --gpus 1024 --tokens 300e9 --global-batch 1536

    Exit code 1 where it never ends: it fails faster than it restarts.
    """
    from planner.api.training import training_time

    setup = place.setup(model, anchor)
    if batch_tokens is not None:
        batch = o.StepBatch(global_batch=batch, batch_tokens=batch_tokens).sequences(setup.model.seq_len, gpus)
    with o.working("searching every legal layout"):
        answer = training_time(
            setup, aim.goal(setup.model), given, gpus=gpus, batch=batch, exact_tokens=aim.loss is None, **choices
        )
    out.show(answer)
