"""Options of the commands that join scaling laws with the search: what to train, laws, failures, money."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.choices.choice import tokens
from planner.cli import completion as complete
from planner.cli.unfold import in_place_of, parameter

if TYPE_CHECKING:
    from planner.models import Transformer
    from planner.training_time.goal import Goal


def counted(name: str, says: str) -> Any:
    """An option of a number of tokens."""
    return typer.Option(name, help=says, parser=partial(tokens, name), metavar="<float>")


Tokens = Annotated[
    float | None,
    counted("--tokens", "Tokens to train on, such as 300e9 or 300B; fastest: those that small batches need."),
]
Loss = Annotated[float | None, typer.Option("--loss", help="Target loss in nats per token, instead of tokens.")]
LossLawName = Annotated[
    str,
    typer.Option(
        "--loss-law", help="kaplan-2020, hoffmann-2022, besiroglu-2024 or a file.", autocompletion=complete.loss_laws
    ),
]
BatchLawName = Annotated[
    str,
    typer.Option(
        "--critical-batch-law",
        help="kaplan-2020, kaplan-2020-compute, lamy-poirier-2021, zhang-2024, bergsma-2025 or a file.",
        autocompletion=complete.batch_laws,
    ),
]
CriticalBatch = Annotated[
    float | None, counted("--critical-batch", "The critical batch in tokens, such as 4M, instead of a law's.")
]
BatchRule = Annotated[
    str, typer.Option("--batch-rule", help="overhead: large batches need more samples; cap: none over the critical.")
]


@dataclass(frozen=True, kw_only=True)
class Aim:
    """The aim of a training, as the options say it, and the laws that say what that takes."""

    tokens: Tokens = None
    loss: Loss = None
    loss_law: LossLawName = "besiroglu-2024"
    critical_batch_law: BatchLawName = "zhang-2024"
    critical_batch: CriticalBatch = None
    batch_rule: BatchRule = "overhead"

    def goal(self, model: Transformer) -> Goal:
        """The goal of a training of a model. Raises as `planner.training_time.goal.goal`."""
        from planner.training_time.goal import goal

        return goal(
            model, tokens=self.tokens, loss=self.loss, loss_law=self.loss_law, batch_law=self.critical_batch_law,
            rule=self.batch_rule, critical_batch=self.critical_batch,
        )  # fmt: skip


ASSUMED = tomllib.loads((resources.files("planner.training_time") / "assumptions.toml").read_text(encoding="utf-8"))
"""Assumptions by name, each with its option and what it says; read here without what their checks import."""


def assumes(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command that takes `given` an option for every assumption, but for those that it goes without."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        return in_place_of(command, "given", [_figure(name) for name in ASSUMED if name not in without], dict)

    return decorate


def _figure(name: str) -> inspect.Parameter:
    """The option of an assumption."""
    one = ASSUMED[name]
    declared = typer.Option(one["option"], help=one["says"], rich_help_panel="What is assumed")
    return parameter(name, float | None, declared)
