"""The command line: one file a command; parsing, printing, exit codes. Heavy imports wait for the command."""

import gc
import io
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer

import planner
from planner.base.errors import PlannerError, one_line, shown
from planner.cli.notes import begin, tell
from planner.cli.unfold import Command, CommandGroup, Parsed

__all__ = ["app", "main"]

INTERRUPTED, TERMINATED = 130, 143
NEW_OBJECTS = 200_000  # between two looks for cycles of garbage: imports leave many objects and few cycles

COMMANDS = (
    "recommend", "serve", "estimate", "schedule", "simulate", "compare", "partition", "time", "fastest", "fewest",
    "largest", "sweep", "pareto", "heatmap", "network", "sites", "mixed", "towers", "place", "paper", "explain",
    "export", "check", "validate", "observe", "laws", "models", "clusters", "train", "calibrate", "probe", "doctor",
    "mcp",
)  # fmt: skip
"""Every command, in the order of `--help`; each is in a module of its name, as `command`."""


def _show_version(asked: bool) -> None:
    if asked:
        print(f"planner {planner.__version__}")
        raise typer.Exit


def _describe(asked: bool) -> None:
    if asked:
        import json

        from planner.cli.describe import described

        print(json.dumps(described(application()), indent=2, allow_nan=False))
        raise typer.Exit


def common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
    describe: Annotated[
        bool,
        typer.Option(
            "--describe",
            help="Print every command and option as JSON, for a program.",
            callback=_describe,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Which parallel layout to train a transformer with, how fast it will be, and why."""
    begin()
    context.call_on_close(tell)


@cache
def application(names: tuple[str, ...] = COMMANDS, listed: bool = False) -> typer.Typer:
    """The command line with these commands alone: typer takes 2 to 3 ms to build each.

    listed: without their options, for a list of commands shows what each is for alone.
    """
    out = typer.Typer(name="planner", rich_markup_mode=None, pretty_exceptions_enable=False)
    out.callback(cls=CommandGroup)(common)
    for name in names:
        command = import_module(f"planner.cli.{name}").command
        out.command(name, cls=Parsed)(_without_options(command) if listed else command)
    return out


def _without_options(command: Command) -> Command:
    def bare() -> None: ...

    bare.__doc__ = command.__doc__
    return bare


def __getattr__(name: str) -> typer.Typer:
    """`app`: all commands, for those who look at them."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return application()


def main() -> None:
    """Run the command line; a fault of the user or of the system is one line on stderr and exit code 2."""
    gc.set_threshold(NEW_OBJECTS)
    with _stopped_as_by_ctrl_c() as stopped:
        code = _run()
    gc.freeze()  # as Python ends, it would look for cycles through all objects: a tenth of a second
    sys.exit(TERMINATED if stopped else code)


def _run() -> int:
    """The exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal's encoding may lack a name's letters
    try:
        named = sys.argv[1:2] if sys.argv[1:2] and sys.argv[1] in COMMANDS else COMMANDS
        completing = "_PLANNER_COMPLETE" in os.environ  # a shell asks without arguments
        line = application(tuple(named), listed=not completing and sys.argv[1:] in ([], ["--help"]))
        code = line(sys.argv[1:] or ["--help"], standalone_mode=False, prog_name="planner")
        if code == INTERRUPTED:  # typer may take the interrupt itself
            print("planner: interrupted", file=sys.stderr)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a full disk can still be said
    except PlannerError as error:
        code = _fault(_by_option(str(error), named))
    except (KeyboardInterrupt, typer.Abort):
        print("planner: interrupted", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        code = 0
    except OSError as error:
        _drop_output()
        code = _fault(f"{error.filename or 'standard output'}: can't be read or written: {error.strerror or error}")
    except MemoryError as error:
        code = _fault(f"out of memory{f' ({error})' if str(error) else ''}; ask for less at once")
    except Exception as error:
        # Usage errors of the option parser (typer carries its own copy, so there is no class to name).
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        text = _option_fault(error) or message().strip()
        code = _fault(f"{text} (planner COMMAND --help)") if text else 2
    return code if isinstance(code, int) else 0


@contextmanager
def _stopped_as_by_ctrl_c() -> Iterator[list[int]]:
    """A request to end (SIGTERM) cleans up as an interrupt does; what came is in the list."""
    stopped: list[int] = []

    def stop(number: int, _frame: object) -> None:
        stopped.append(number)
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: signals are the caller's own
        yield stopped
        return
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGTERM, before)


def _fault(message: str) -> int:
    print(f"planner: {one_line(message)}", file=sys.stderr)
    return 2


def _option_fault(error: Exception) -> str:
    """What is wrong with an option's value, which some of typer's versions leave out, or with one of Megatron-LM's.

    Nothing where it is neither.
    """
    option = str(getattr(error, "option_name", ""))
    if option:
        from planner.imports.names import megatron_arguments

        if option.removeprefix("--") in megatron_arguments("model", "read"):
            return (
                f"{option} is Megatron-LM's; allowed: planner estimate --megatron-args '...', or --tp, --pp, --vp, ..."
            )
        near = _options_like(option.strip("-"), error)
        return f"No such option: {option}{f' (perhaps: {near})' if near else ''}"
    names, found = getattr(getattr(error, "param", None), "opts", None), getattr(error.__cause__, "errors", None)
    if not names or found is None:
        return ""
    fault = found(include_url=False)[0]
    kinds = {"int_parsing": "a whole number", "float_parsing": "a number", "bool_parsing": "true or false",
             "value_error": "the path of a file or folder"}  # fmt: skip
    allowed = kinds.get(fault["type"]) or fault["msg"].removeprefix("Input should be ")
    return f"{_typed(names) or names[0]} is {shown(fault['input'])}; allowed: {allowed}"


def _options_like(word: str, error: Any) -> str:
    """Options of a command spelt nearly as a word, else those with the word in their names, else in their help."""
    params = error.ctx.command.params if error.ctx and len(word) > 1 else []
    names = {name.strip("-"): one for one in params for name in one.opts if name.startswith("--")}
    said = "[- ]".join(map(re.escape, word.removesuffix("s").split("-")))
    whole = re.compile(rf"\b{said}s?\b", re.IGNORECASE)
    near = (
        get_close_matches(word, names, cutoff=0.7)
        or [name for name in names if whole.search(name)]
        or [name for name, one in names.items() if whole.search(one.help or "")]
    )
    return ", ".join(f"--{name}" for name in near[:3])


def _typed(names: Sequence[str]) -> str | None:
    """The one of an option's names that was typed, if any."""
    return next((name for name in names for word in sys.argv if word.partition("=")[0] == name), None)


def _by_option(message: str, commands: Sequence[str]) -> str:
    """A fault with the option that was typed in place of the field that it begins with; others as they are typed.

    What a file says, whose name the fault begins with, stays as it is written there.
    """
    given = {word.removeprefix("./") for word in sys.argv[1:]}
    if len(commands) != 1 or re.match(r"[^'=]+\.\w+: ", message) or message.partition(": ")[0] in given:
        return message
    line: Any = typer.main.get_command(application(tuple(commands)))
    options = {one.name: one.opts for one in line.commands[commands[0]].params}
    if fields := re.match("[a-z_]+(?: and [a-z_]+)?(?= (is|has|are) )", message):
        said = re.sub("[a-z_]+", lambda word: _typed(options.get(word[0], ())) or word[0], fields[0])
        message = said + message[fields.end() :]

    def hyphens(word: re.Match[str]) -> str:
        name = word[0].replace("_", "-")
        return name if f"--{name}" in options.get(word[0], ()) else word[0]

    return re.sub(r"(?<!['\w.=-])[a-z]+_[a-z_]+(?![\w=])", hyphens, message)


def _drop_output() -> None:
    """Nobody reads what is left in standard output's buffer; Python would try to write it once more at its end."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
