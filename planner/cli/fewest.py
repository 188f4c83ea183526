"""`planner fewest`: the fewest GPUs that fit, and that keep a deadline or a price."""

from functools import partial
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
    size: o.StepBatch,
    *,
    days: Annotated[float | None, o.asks("--days", "The training must end within so many days.", "--deadline")] = None,
    max_cost: o.MaxCost = None,
    max_gpus: Annotated[int | None, o.asks("--max-gpus", "Most GPUs; else the cluster's, or 100,000.")] = None,
    aim: a.Aim,
    anchor: o.Anchor = None,
    out: o.PlanOutput,
    given: dict[str, float | None],
    **choices: Any,
) -> None:
    """The fewest GPUs on which a training fits, and the fewest that keep a deadline or a price.

    Without a batch each number of GPUs has one under the critical batch. What a training takes: planner time.

    Example: planner fewest llama3-70b --cluster dgx-h100 --tokens 15T --days 60

    Exit code 1 where no number of GPUs keeps what was asked.
    """
    from planner.api.training import fewest_gpus

    setup = place.setup(model, anchor)
    batch = None if size == o.StepBatch() else partial(size.sequences, setup.model.seq_len)
    with o.working("searching every legal layout on more and more GPUs"):
        answer = fewest_gpus(
            setup, aim.goal(setup.model), given, days=days, max_cost=max_cost, max_gpus=max_gpus, batch=batch,
            exact_tokens=aim.loss is None, **choices,
        )  # fmt: skip
    out.show(answer)
