"""Commands whose signature is made: typer reads a command from it.

One parameter may stand for several options. And the common question is three words, `planner recommend llama3-70b h100
256`: cluster and GPUs may follow the model as plain words, in place of `--cluster` and `--gpus`. Megatron-LM's
arguments say the model, so beside them the words may begin with the cluster.
"""

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path
from re import fullmatch
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from planner.base.errors import InputError, shown
from planner.choices.choice import LARGEST, number
from planner.cli import completion

Command = Callable[..., None]


def typed(context: typer.Context) -> set[str]:
    """Names of a command's parameters that were given on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


class Unchecked:
    """A command or group of typer whose plain values pass unchecked: text, whole numbers, paths, what our parsers read.

    Typer checks each by a model of pydantic, which takes a tenth of a second to load.
    """

    callback: Command | None

    def get_params(self, ctx: Any) -> list[Any]:
        """The options."""
        kinds = inspect.signature(self.callback, eval_str=True).parameters if self.callback else {}
        every: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for option in every:
            if option.process_value.__name__ != "passed":
                _let_pass(option, *get_args(kinds[option.name].annotation if option.name in kinds else None))
        return every


def _let_pass(option: Any, kind: Any = None, declared: Any = None) -> None:
    """Lets an option's plain values pass; the others are left to typer."""
    checked = option.process_value
    while get_args(kind):  # of a list, or what may be left out
        kind = get_args(kind)[0]

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(one) for one in value]
        if declared.parser or isinstance(value, kind):
            return declared.parser(value) if declared.parser else value
        if kind in (int, float) and "_" in value:  # which int() and float() skip
            allowed = "a whole number" if kind is int else "a number"
            raise InputError(f"{option.opts[0]} is {shown(value)}; allowed: {allowed}")
        if kind is Path and (os.access(value, os.R_OK) or not os.access(value, os.F_OK)):
            return Path(value)
        if kind is not int or (declared.min, declared.max) != (None, None) or not fullmatch("[0-9]{1,9}", value):
            raise ValueError
        return int(value)

    def passed(context: Any, value: Any) -> Any:
        if value is None and not option.required:
            value = () if option.nargs == -1 or getattr(option, "multiple", False) else None
        else:
            try:
                value = plain(value)
            except (AttributeError, ValueError, TypeError, AssertionError):
                return checked(context, value)
        return option.callback(context, option, value) if option.callback else value

    option.process_value = passed


class Parsed(Unchecked, TyperCommand):
    """A command that refuses an empty text for a path: to Python it is the working directory."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What is left of the arguments. Raises InputError if a path's text is empty, or an anchor is given twice."""
        if sum(text.split("=")[0] == "--anchor" for text in args) > 1:
            raise InputError("--anchor is given twice; allowed: once, a file with all the runs")
        if self.callback and not all(text and text[-1] != "=" for text in args):
            kinds = inspect.signature(self.callback, eval_str=True).parameters
            texts, _, given = self.make_parser(ctx).parse_args(args=[*args])
            for one in given:
                every = texts[one.name] if isinstance(texts[one.name], list | tuple) else [texts[one.name]]
                kind = get_args(kinds[one.name].annotation)[0] if "" in every else None
                if {Path, list[Path]}.intersection((kind, *get_args(kind))):
                    name = one.metavar or " / ".join(one.opts)
                    raise InputError(f"{name} is ''; allowed: the path of a file or folder")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Help on the options in their groups, names whole: a table of rich's cuts them where a terminal is narrow."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            group = getattr(one, "rich_help_panel", None) or f"{one.param_type_name.title()}s"
            groups.setdefault(group, []).extend(filter(None, [one.get_help_record(ctx)]))
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl(rows)


class CommandGroup(Unchecked, TyperGroup):
    """The commands together."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Help on the commands, the first sentence of each whole."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(LARGEST)) for name, one in self.commands.items()])


def unfolded(command: Command) -> Command:
    """Gives a command, for each parameter whose type is a record of options, the options of its fields."""
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            kinds = get_type_hints(kind, include_extras=True)  # each in the module of its field's own class
            fields = inspect.signature(kind).parameters.values()
            options = [field.replace(annotation=kinds[field.name]) for field in fields]
            command = in_place_of(command, parameter.name, options, kind)
    return command


def in_place_of(command: Command, name: str, options: Iterable[inspect.Parameter], make: Callable[..., Any]) -> Command:
    """The command with options in place of one parameter, which is then what `make` makes of their values."""
    options = list(options)

    @wraps(command)
    def run(**values: Any) -> None:
        command(**{name: make(**{option.name: values.pop(option.name) for option in options})}, **values)

    own = inspect.signature(command, eval_str=True)
    every: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        every += options if parameter.name == name else [parameter]
    return with_signature(run, own, every)


def with_signature(command: Command, own: inspect.Signature, every: Iterable[inspect.Parameter]) -> Command:
    """The command with other parameters than its own, all of them keywords but what stands for the rest."""
    named = [p if p.kind is p.VAR_KEYWORD else p.replace(kind=p.KEYWORD_ONLY) for p in every]
    command.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in named}
    return command


SAYS = {"cluster": "In place of --cluster: a cluster, or its GPU (h100).", "gpus": "In place of --gpus."}
SUFFIX = "_word"


def positional(command: Command) -> Command:
    """Lets the command's options `--cluster` and, where it has it, `--gpus` be given as words after the model."""
    signature = inspect.signature(command, eval_str=True)
    named = [name for name in SAYS if name in signature.parameters]
    needed = [name for name in named if signature.parameters[name].default is inspect.Parameter.empty]

    @wraps(command)
    def with_words(**given: Any) -> None:
        if given.get("megatron_args") is not None and given["cluster"] is None:
            given |= _without_model(given)
        asked = [] if _is_plan(given.get("model")) else needed  # which says them itself
        for name in named:
            given[name] = _one_of(name, given.pop(name + SUFFIX), given[name], name in asked)
        command(**given)

    options = [_optional(p) if p.name in needed else p for p in signature.parameters.values()]
    return with_signature(with_words, signature, [*options, *(_word(name) for name in named)])


def _is_plan(model: str | None) -> bool:
    """Whether the model is a plan's file."""
    if model is None or not model.endswith(".json"):
        return False
    from planner.plan_file import is_plan

    return is_plan(model)


def _without_model(given: dict[str, Any]) -> dict[str, Any]:
    """The words as they are meant where the first is a cluster, not a model: the second is a number, or isn't there."""
    model, second, third = given["model"], given["cluster" + SUFFIX], given["gpus" + SUFFIX]
    if model is None or third is not None or isinstance(number(second or "0"), str):
        return {}
    return {"model": None, "cluster" + SUFFIX: model, "gpus" + SUFFIX: second}


def _one_of(name: str, word: str | None, option: Any, needed: bool) -> Any:
    """The value of an option that a word may stand for."""
    if word is None:
        if option is None and needed:
            raise InputError(f"--{name} is missing; allowed: --{name} VALUE, or the value as a word after the model")
        return option
    if option is not None:
        raise InputError(f"{name} is given twice, as {shown(word)} and as --{name} {option}; give one of the two")
    if name == "cluster":
        return word
    if not isinstance(given := number(word), int):
        raise InputError(f"{name} is {shown(word)}; allowed: a whole number from 1 to {LARGEST}")
    return given


def parameter(name: str, kind: Any, declared: Any, default: Any = None) -> inspect.Parameter:
    """A parameter as typer reads it: its type, the option or argument that it is, its default."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def _optional(option: inspect.Parameter) -> inspect.Parameter:
    """The option, no longer demanded by the option parser."""
    declared = option.annotation.__metadata__[0]
    return option.replace(default=None, annotation=Annotated[option.annotation.__origin__ | None, declared])


def _word(name: str) -> inspect.Parameter:
    """The argument that stands for an option."""
    complete = completion.clusters if name == "cluster" else None
    declared = typer.Argument(help=SAYS[name], metavar=name, autocompletion=complete, show_default=False)
    return parameter(name + SUFFIX, str | None, declared)
