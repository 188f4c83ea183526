"""`planner estimate`: one layout in full, or an existing run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.base.errors import InputError, shown
from planner.choices.table import CHOICES
from planner.cli import options as o
from planner.cli.choices import asked_layout, takes_layout
from planner.cli.unfold import positional, typed

if TYPE_CHECKING:
    from planner.api.answer import Shown

OF_PYTHON = ("pp", "ep", "recompute", "train", "optimizer")
"""Choices that DeepSpeed's JSON lacks, or may lack."""
OF_AUTO = ("global_batch", "micro_batch", "precision")
"""Choices that it may leave "auto"."""
MOST_BYTES = 2**20


@positional
@takes_layout()
def command(
    context: typer.Context,
    place: o.Place,
    size: o.StepBatch,
    *,
    model: Annotated[str | None, o.one_of_layout(show_default=False)] = None,
    anchor: o.Anchor = None,
    megatron_args: Annotated[
        str | None, o.asks("--megatron-args", "A run's arguments for Megatron-LM, or @FILE with them.")
    ] = None,
    deepspeed: Annotated[Path | None, o.asks("--deepspeed", "A run's configuration for DeepSpeed.")] = None,
    torchtitan: Annotated[Path | None, o.asks("--torchtitan", "A run's TOML for torchtitan before 0.3.")] = None,
    gpus: Annotated[int | None, o.asks("--gpus", "GPUs of an existing run; of a layout they say dp.", min=1)] = None,
    vocab: Annotated[int | None, o.asks("--vocab", "Words of an existing run's tokenizer.", min=1)] = None,
    save: Annotated[
        Path | None, o.writes("--save", says="Write the layout as a plan, as --json prints it, to a file.")
    ] = None,
    out: o.Output,
    **choices: Any,
) -> None:
    """Estimate one layout: seconds and bytes, broken down. Or an existing run: how good it is, what to change first.

    Example: planner estimate gpt3-175b --cluster selene --tp 8 --pp 12 --dp 4 --global-batch 1536

    Or: planner estimate --megatron-args @launch.sh --cluster selene --gpus 512
    """
    from planner.base.files import write_text

    o.check_files({"--save": (save, ".json", "")})
    if vocab is not None and megatron_args is None:
        raise InputError("--vocab is for an existing run, with --megatron-args")
    files = {"--megatron-args": megatron_args, "--deepspeed": deepspeed, "--torchtitan": torchtitan}
    if any(file is not None for file in files.values()):
        from planner.api.existing_run import review_file, review_megatron

        _check_beside(files, choices | vars(place) | vars(size), anchor)
        with o.working("searching what else it could run"):
            known = place.names() | {"model": model, "gpus": gpus, "attention": choices["attention"]}
            if deepspeed is not None:
                known |= {"seq_len": place.seq_len} | _beside_json(context, choices | vars(size))
                answer: Shown = review_file("deepspeed", deepspeed, **known)
            elif torchtitan is not None:
                answer = review_file("torchtitan-toml", torchtitan, **known)
            else:
                answer = review_megatron(text_of(str(megatron_args)), vocab=vocab, **known)
    else:
        if model is None:
            raise InputError(f"MODEL is missing; give it, or an existing run with {', '.join(files)}")
        from planner.api.layout_estimate import estimate_one

        setup, row = asked_layout(context, model, place, size, gpus, choices, anchor)
        answer = estimate_one(setup, **row)
    if save is not None:
        write_text(save, answer.to_json() + "\n")
    out.show(answer)


def _beside_json(context: typer.Context, choices: dict[str, Any]) -> dict[str, Any]:
    """What stands beside DeepSpeed's JSON: what it can't say, and what fills its "auto", None where it isn't given."""
    given = typed(context)
    said = {name: x if name in given else None for name, x in choices.items()}
    python = {name: choices[name] for name in OF_PYTHON} | {"optimizer": said["optimizer"]}
    return python | {"filled": {name: said[name] for name in OF_AUTO}}


def _check_beside(files: dict[str, Any], given: dict[str, Any], anchor: Path | None) -> None:
    """Raises InputError if an option stands beside an existing run's configuration, which makes that choice itself."""
    named = [name for name, file in files.items() if file is not None]
    if len(named) > 1:
        raise InputError(f"{named[0]} and {named[1]} are both given; allowed: one of them")
    own = named == ["--deepspeed"]
    if anchor is not None:
        raise InputError("--anchor stands beside an existing run's configuration; allowed: with one layout's choices")
    if not own and given["seq_len"] is not None:
        raise InputError("--seq-len stands beside an existing run's configuration; change its sequence length there")
    free = {"attention", "seq_len", "cluster", "network", "framework", *((*OF_PYTHON, *OF_AUTO) if own else ())}
    for name, value in given.items():
        choice = CHOICES.get(name)
        default = None if choice is None or choice.derived else choice.plain(choice.default)
        if name not in free and value not in (None, default):
            raise InputError(
                f"--{name.replace('_', '-')} stands beside an existing run's configuration; change it there"
            )


def text_of(arguments: str) -> str:
    """A launch script's text: the option's own, or that of @FILE.

    Raises InputError if @ names no file, FileFormatError if it can't be read.
    """
    from planner.base.files import read_text

    if not arguments.startswith("@"):
        return arguments
    if Path(arguments[1:]).is_dir():  # of "@" alone the working directory
        raise InputError(f"--megatron-args is {shown(arguments)}; allowed: arguments, or @FILE with them")
    return read_text(Path(arguments[1:]), MOST_BYTES)
