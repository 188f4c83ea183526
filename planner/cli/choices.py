"""The options of a command that takes a layout or searches for one: made from the table of choices.

A command declares `**choices`, and the decorators here put an option in its place for every choice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from planner.base.errors import InputError
from planner.base.units import parse_number
from planner.choices.choice import Choice, number, parsed
from planner.choices.enumerations import names
from planner.choices.table import CHOICES, DEGREES, NUMERICS, SETTLED, SHARED
from planner.cli import completion
from planner.cli.notes import note
from planner.cli.unfold import Command, in_place_of, parameter, typed, unfolded, with_signature

if TYPE_CHECKING:
    from planner.cli.options import Place, StepBatch
    from planner.setup import Setup

LAYOUT = "The layout"
SEARCHED = "What may be chosen: all that is legal, unless given; 2,4 means 2 or 4"
ADVISED = "What may be advised"
INSTEAD = "In place of the plan's layout"


def takes_layout(*without: str) -> Callable[[Command], Command]:
    """Gives a command an option for every choice of one layout, but for those that it has itself or goes without."""

    def decorate(command: Command) -> Command:
        return _with_options(command, [_one(c) for c in CHOICES.values() if c.name not in (*without, "global_batch")])

    return decorate


def filling(gpus: int | None, choices: dict[str, Any]) -> dict[str, Any]:
    """The choices of a layout with as many replicas as fill the GPUs, where their number is given.

    Raises InputError if the other choices don't divide it, or the replicas that are given don't fill it.
    """
    if gpus is None:
        return choices
    each = max(choices["tp"] * choices["pp"] * choices["cp"], 1)
    if gpus < 1:
        raise InputError(f"gpus is {gpus}; allowed: a whole number from 1")
    if gpus % each or choices["dp"] not in (1, gpus // each):
        given = {name: choices[name] for name in DEGREES if choices[name] != 1}
        said = f"{' x '.join(given)} is {' x '.join(map(str, given.values()))}"
        rule = "what divides gpus" if choices["dp"] == 1 else "dp x tp x pp x cp = gpus"
        raise InputError(f"{said}; allowed: {rule}, here {gpus}")
    return choices | {"dp": gpus // each}


def asked_layout(
    context: typer.Context, model: str, place: Place, size: StepBatch, gpus: int | None, choices: dict[str, Any],
    anchor: Path | None = None,
) -> tuple[Setup, dict[str, Any]]:  # fmt: skip
    """The setup and one layout's choices: those of a plan, where the model is one, but for what is given beside it.

    gpus: they say dp, a plan's too. Raises as `Place.setup`, `Place.plan`, `filling` and `StepBatch.sequences`.
    """
    from planner.api.anchored import anchored
    from planner.plan_file import is_plan

    if not is_plan(model):
        setup, row = place.setup(model, anchor), filling(gpus, choices)
        return setup, row | {"global_batch": size.sequences(setup.model.seq_len, row["dp"])}
    saved, said = place.plan(Path(model)), typed(context)
    given = {name: x for name, x in choices.items() if name in said}
    own = {name: saved.row[name] for name in choices}
    if own["etp"] == own["tp"]:  # as usual: experts follow other tensor ranks
        own["etp"] = choices["etp"]
    row = filling(gpus, own | ({} if gpus is None else {"dp": 1}) | given)
    same = size.global_batch is None and size.batch_tokens is None
    batch = saved.row["global_batch"] if same else size.sequences(saved.setup.model.seq_len, row["dp"])
    if saved.anchored and anchor is None:
        note(f"{model}: its figures follow measured runs; these don't, without --anchor")
    return anchored(saved.setup, anchor), row | {"global_batch": batch}


def searches(command: Command) -> Command:
    """Gives a command an option for every choice that a search can be held to, and those of the numerics."""
    options = [_one(CHOICES[name], LAYOUT) for name in (*NUMERICS, *SHARED)] + [
        _several(CHOICES[name]) for name in SETTLED
    ]
    return _with_options(command, [*_care(), *options])


def advises(command: Command) -> Command:
    """Gives a command the options that say how much memory what it advises may take."""
    return _with_options(command, _care()[:3])


def replaces(*without: str) -> Callable[[Command], Command]:
    """Gives a command that takes `instead` an option for what a search can be held to, in place of a plan's choice."""
    rows = [CHOICES[name] for name in SETTLED if name not in without]
    options = [_parameter(c, c.plain_kind | None, None, c.says, INSTEAD, c.kind is bool) for c in rows]
    return lambda command: in_place_of(command, "instead", options, dict)


def _care() -> list[inspect.Parameter]:
    """The options that say what may be advised: how much memory, whose and which schedules, the host's memory."""

    def option(field: str, name: str, kind: Any, default: Any, says: str, **more: Any) -> inspect.Parameter:
        return parameter(field, kind, typer.Option(*name.split(), help=says, rich_help_panel=ADVISED, **more), default)

    return [
        option("fit_chance", "--fit-chance", float | None, None,
               "How likely a layout must fit in memory. Default: 0.95."),
        option("headroom_gib", "--headroom", float | None, None, "Besides, memory to leave free, such as 8GiB.",
               parser=lambda text: gib("--headroom", text), metavar="<GiB>"),
        option("max_memory_gib", "--max-memory", float | None, None, "Besides, memory to take at most, such as 70GiB.",
               parser=lambda text: gib("--max-memory", text), metavar="<GiB>"),
        option("any_framework", "--any-framework", bool, False, "Also schedules that the framework does not have."),
        option("allow_async", "--allow-async", bool, False, "Also schedules that change the training, such as 2bw."),
        option("allow_offload", "--allow-offload", bool, False,
               "Also optimizer state, parameters and activations in host memory."),
        option("exclude", "--exclude --not", list[str] | None, None,
               "What must not be chosen: schedule=zb-*, tp=4,8, or cp for any but its default. May be given again."),
    ]  # fmt: skip


def gib(name: str, text: str) -> float:
    """A size in GiB: 8GiB or 8. Raises InputError if the text is no such size."""
    size = text.strip().lower().removesuffix("gib")
    return parsed(name, text, lambda _: parse_number(size, float), "a number of GiB, such as 8GiB")


def _with_options(command: Command, options: list[inspect.Parameter]) -> Command:
    """The command with the options in place of `**choices`, and those of its records of options."""
    command = unfolded(command)
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    return with_signature(command, signature, [*own, *(p for p in options if p.name not in signature.parameters)])


def _one(choice: Choice, panel: str = LAYOUT) -> inspect.Parameter:
    """The option for one value of a choice."""
    kind: Any = choice.plain_kind
    default = None if choice.derived else choice.plain(choice.default)
    says = f"{choice.says} Default: {choice.derived}." if choice.derived else choice.says
    both = bool(default or (choice.derived and choice.kind is bool))
    return _parameter(choice, kind | None if choice.derived else kind, default, says, panel, both)


def _several(choice: Choice) -> inspect.Parameter:
    """The option for the values of a choice that a search may take."""
    kind: Any = bool if choice.kind is bool else list[choice.plain_kind]  # type: ignore[name-defined]
    listed = {} if choice.kind is bool else {"parser": several(choice), "callback": joined, "metavar": "<value,...>"}
    return _parameter(choice, kind | None, None, choice.says, SEARCHED, choice.kind is bool, **listed)


def several(choice: Choice) -> Callable[[str], tuple[Any, ...]]:
    """How the values of a choice are read: 4, or 2,4."""

    def read(text: str) -> tuple[Any, ...]:
        words = [part.strip() for part in text.split(",")]
        return tuple(number(one) if choice.kind is int else one for one in words)

    return read


def joined(given: list[tuple[Any, ...]] | None) -> list[Any] | None:
    """The values of an option that was given several times, each time with several."""
    return [value for values in given for value in values] if given else None


def _parameter(
    choice: Choice, kind: Any, default: Any, says: str, panel: str, both: bool, **more: Any
) -> inspect.Parameter:
    """An option as typer reads it; both: a flag can be set and unset."""
    names_of = [f"--{name}" for name in (choice.typed, choice.also) if name]
    if choice.kind is bool and both:
        names_of = [f"{option}/--no-{option[2:]}" for option in names_of]
    complete = None
    if choice.enumeration:
        complete = completion.one_of(names(choice.enumeration))
    elif choice.name == "schedule":
        complete = completion.schedules
    declared = typer.Option(*names_of, help=says, rich_help_panel=panel, autocompletion=complete, **more)
    return parameter(choice.name, kind, declared, default)
