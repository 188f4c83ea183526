"""`planner explain`: what limits a layout, and what would help."""

from typing import Any

from planner.cli import assumed as a
from planner.cli import options as o
from planner.cli.choices import searches
from planner.cli.unfold import positional


@positional
@searches
@a.assumes("price_usd_per_hour", "power_w", "site_factor")
def command(
    model: o.Model,
    place: o.Place,
    gpus: o.Gpus,
    size: o.StepBatch,
    *,
    tokens: a.Tokens = None,
    anchor: o.Anchor = None,
    critical_batch_law: a.BatchLawName = "zhang-2024",
    out: o.PlanOutput,
    given: dict[str, float | None],
    **choices: Any,
) -> None:
    """Elasticities of the best layout's step and training to hardware, batch, failures; its traffic against links.

    Example: planner explain gpt3-175b --cluster selene --gpus 1024 --global-batch 1536
    """
    from planner.api.training import explain
    from planner.training_time.goal import goal

    setup = place.setup(model, anchor)
    aim = goal(setup.model, tokens=tokens, batch_law=critical_batch_law)
    batch = size.sequences(setup.model.seq_len, gpus)
    with o.working("searching every legal layout"):
        answer = explain(setup, aim, given, gpus=gpus, batch=batch, **choices)
    out.show(answer)
