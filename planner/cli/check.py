"""`planner check`: launch arguments in a pull request or before a commit."""

import subprocess
from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.estimate import MOST_BYTES
from planner.cli.unfold import positional

GIT_SECONDS = 60


@positional
def command(
    file: Annotated[Path, typer.Argument(help="A launch script with Megatron-LM's arguments.")],
    cluster: o.ClusterName,
    against: Annotated[
        str | None, o.asks("--against", "A revision of git: say what changes from the file as it is there.")
    ] = None,
    gpus: Annotated[int | None, o.asks("--gpus", "GPUs of the job, unless the file says.", min=1)] = None,
    model: Annotated[str | None, o.asks("--model", "The model, in place of the file's arguments.")] = None,
    vocab: Annotated[int | None, o.asks("--vocab", "Words of the tokenizer.", min=1)] = None,
    network: o.Network = None,
    framework: o.FrameworkName = None,
    fit_chance: Annotated[
        float, o.asks("--fit-chance", "How likely the run must fit in memory.", min=0.0, max=0.999)
    ] = 0.95,
    json: o.Json = False,
) -> None:
    """Check a launch script: whether it fits in memory, and what it changes against another revision.

    Example: planner check launch.sh --cluster dgx-h100 --gpus 64 --against main

    Exit code 1 where it may not fit, or an argument is probably misspelt.
    """
    from planner.api.compared import check_megatron
    from planner.base.files import read_text

    framework = o.profile_of(framework)
    text = read_text(file, MOST_BYTES)
    before = None if against is None else (against, _as_of(against, file))
    answer = check_megatron(
        text, cluster, name=str(file), before=before, fit_chance=fit_chance, network=network, framework=framework,
        gpus=gpus, model=model, vocab=vocab,
    )  # fmt: skip
    o.show(answer, json)


def _as_of(revision: str, file: Path) -> str:
    """The file's text in a revision of git."""
    from planner.base.errors import InputError, shown

    allowed = "allowed: a revision of git in which the file stands"
    if revision.startswith("-"):
        raise InputError(f"--against is {shown(revision)}; {allowed}")
    wanted = ["git", "-C", str(file.resolve().parent), "show", f"{revision}:./{file.name}"]
    try:
        done = subprocess.run(wanted, capture_output=True, timeout=GIT_SECONDS, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise InputError(f"--against is {shown(revision)}; git can't be asked: {error}") from None
    if done.returncode != 0 or len(done.stdout) > MOST_BYTES:
        raise InputError(f"--against is {shown(revision)}; {allowed} ({file.name}, at most {MOST_BYTES:,} bytes)")
    try:
        return done.stdout.decode()
    except UnicodeDecodeError:
        raise InputError(f"{revision}:{file.name} is no text in UTF-8") from None
