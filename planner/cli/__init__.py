"""The command line: one file a command; parsing, printing, exit codes. Heavy imports wait for the command."""

from __future__ import annotations

import sys

import typer

from planner.cli import (
    calibrate,
    clusters,
    compare,
    estimate,
    explain,
    fastest,
    laws,
    models,
    paper,
    partition,
    recommend,
    schedule,
    simulate,
    time,
    train,
    validate,
)
from planner.errors import PlannerError

__all__ = ["app", "main"]

INTERRUPTED = 130

app = typer.Typer(
    name="planner",
    help="Which parallel layout to train a transformer with, how fast it will be, and why.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("recommend")(recommend.command)
app.command("estimate")(estimate.command)
app.command("schedule")(schedule.command)
app.command("simulate")(simulate.command)
app.command("compare")(compare.command)
app.command("partition")(partition.command)
app.command("time")(time.command)
app.command("fastest")(fastest.command)
app.command("paper")(paper.command)
app.command("explain")(explain.command)
app.command("validate")(validate.command)
app.command("laws")(laws.command)
app.command("models")(models.command)
app.command("clusters")(clusters.command)
app.command("train")(train.command)
app.command("calibrate")(calibrate.command)


def main() -> None:
    """Run the command line; a fault of the user is one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:  # typer may take the interrupt itself
            print("planner: interrupted", file=sys.stderr)
    except PlannerError as error:
        print(f"planner: {error}", file=sys.stderr)
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        print("planner: interrupted", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    except Exception as error:
        # Usage errors of the option parser (typer carries its own copy, so there is no class to name).
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if text := " ".join(message().split()):
            print(f"planner: {text} (planner COMMAND --help)", file=sys.stderr)
        code = 2
    sys.exit(code if isinstance(code, int) else 0)
