"""Options of the commands that join scaling laws with the search: what to train, laws, failures, money."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from planner.base.errors import InputError, shown
from planner.base.units import parse_count
from planner.cli import completion as complete


def count(text: str) -> float:
    """A number of tokens: 300e9 or 300B."""
    try:
        return parse_count(text)
    except ValueError:
        raise InputError(f"--tokens is {shown(text)}; allowed: a number, such as 300e9 or 300B") from None


Tokens = Annotated[
    float | None,
    typer.Option("--tokens", help="Tokens to train on, such as 300e9 or 300B.", parser=count, metavar="<float>"),
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
    float | None, typer.Option("--critical-batch", help="The critical batch in tokens, instead of a law's.")
]
BatchRule = Annotated[
    str, typer.Option("--batch-rule", help="overhead: large batches need more samples; cap: none over the critical.")
]

FIGURES = {
    "mtbf_hours": ("--mtbf-hours", "Mean time between failures of a GPU; 1e12: never."),
    "restart_minutes": ("--restart-minutes", "From a failure to the next step."),
    "checkpoint_bytes_per_parameter": ("--checkpoint-bytes", "Of a checkpoint, per parameter."),
    "storage_gbyte_per_s": ("--storage-gbyte-per-s", "Checkpoint writes, GB/s per node."),
    "price_usd_per_hour": ("--price", "USD per GPU-hour."),
    "power_w": ("--power-w", "W per GPU while it trains."),
    "site_factor": ("--site-factor", "W of hosts, network and cooling per W of GPU."),
}
"""Assumptions by name (`planner.training_time.assumptions`), each with its option and what it says."""


def assumes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command that takes `given` an option for every assumption, or for those named."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        options = [_figure(name) for name in names or FIGURES]

        @wraps(command)
        def run(**values: Any) -> None:
            command(given={option.name: values.pop(option.name) for option in options}, **values)

        kept = [p for p in own.parameters.values() if p.name != "given"]
        rest = [p for p in kept if p.kind is p.VAR_KEYWORD]
        every = [p.replace(kind=p.KEYWORD_ONLY) for p in kept if p not in rest] + options + rest
        run.__signature__ = own.replace(parameters=every)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in every}
        return run

    return decorate


def _figure(name: str) -> inspect.Parameter:
    """The option of an assumption."""
    option, says = FIGURES[name]
    declared = Annotated[float | None, typer.Option(option, help=says, rich_help_panel="What is assumed")]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=declared)
