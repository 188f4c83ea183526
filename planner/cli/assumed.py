"""Options of the commands that join scaling laws with the search: what to train, laws, failures, money."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import completion as complete
from planner.errors import InputError, shown
from planner.units import parse_count


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
Loss = Annotated[float | None, typer.Option("--loss", help="Target loss in nats a token, instead of tokens.")]
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
Mtbf = Annotated[float | None, typer.Option("--mtbf-hours", help="Mean time between failures of a GPU; 1e12: never.")]
Restart = Annotated[float | None, typer.Option("--restart-minutes", help="From a failure to the next step.")]
CheckpointBytes = Annotated[float | None, typer.Option("--checkpoint-bytes", help="Of a checkpoint, a parameter.")]
StorageRate = Annotated[float | None, typer.Option("--storage-gbyte-per-s", help="Checkpoint writes, GB/s a node.")]
Price = Annotated[float | None, typer.Option("--price", help="USD a GPU-hour.")]
Power = Annotated[float | None, typer.Option("--power-w", help="W a GPU while it trains.")]
Site = Annotated[float | None, typer.Option("--site-factor", help="W of hosts, network, cooling a W of GPU.")]
