"""`planner laws`: the scaling laws, and what each says of one training."""

from dataclasses import asdict
from typing import Annotated

import typer

from planner.cli import assumed as a
from planner.cli import completion as complete
from planner.cli import options as o


def command(
    model: Annotated[
        str | None, typer.Argument(help="Also compare the laws on this preset or file.", autocompletion=complete.models)
    ] = None,
    tokens: a.Tokens = None,
    json: o.Json = False,
) -> None:
    """List the scaling laws with their sources, or compare what they say of one model.

    Example: planner laws gpt3-175b --tokens 300e9
    """
    from planner.api.answer import Answer
    from planner.base.errors import InputError
    from planner.models import load_model
    from planner.report import laws as report
    from planner.scaling.laws import read_laws
    from planner.training_time.law_comparison import compare_laws

    if model is None:
        if tokens is not None:
            raise InputError(f"--tokens is {tokens:g} without a model; allowed: a model as well")
        laws = read_laws()
        o.show(Answer("", asdict(laws), report.laws_view(laws)), json)
        return
    record = compare_laws(load_model(model), tokens)
    o.show(Answer(record["model"], record, report.comparison_view(record)), json)
