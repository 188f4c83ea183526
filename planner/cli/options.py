"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.base.errors import InputError
from planner.base.units import counted, parse_count, parse_number
from planner.choices.choice import length, parsed, tokens, whole
from planner.cli import completion as complete
from planner.cli.notes import note, note_of_config
from planner.cli.process import keep_freed_memory

if TYPE_CHECKING:
    from planner.api.answer import Answer, Shown
    from planner.plan_file import SavedPlan
    from planner.setup import Setup

OFF = 0.01  # of the tokens of a batch that are asked for, from which on it is said
UNFOLDED = 100_000  # columns of a pipe
QUESTION, WRITTEN = "The question", "What is written"
"""Groups of options in `--help`; those of the layout have theirs from `planner.cli.choices`."""


def in_group(group: str, says: str, *names: str, **more: Any) -> Any:
    """An option in a group of `--help`; without names it has its parameter's."""
    return typer.Option(*names, help=says, rich_help_panel=group, **more)


def asks(name: str, says: str, *others: str, **more: Any) -> Any:
    """An option of the question; others: its further names."""
    return in_group(QUESTION, says, name, *others, **more)


def writes(*names: str, says: str, **more: Any) -> Any:
    """An option that says what is written, and where."""
    return in_group(WRITTEN, says, *names, **more)


Model = Annotated[
    str,
    typer.Argument(
        help="A preset (planner models), a config.json or its folder, or a TOML file.", autocompletion=complete.models
    ),
]
one_of_layout = partial(
    typer.Argument,
    help="A preset, a config.json or its folder, a TOML file, or a plan.",
    autocompletion=complete.models,
)
LayoutModel = Annotated[str, one_of_layout()]
ClusterName = Annotated[
    str, asks("--cluster", "A cluster (planner clusters), its GPU, or a TOML file.", autocompletion=complete.clusters)
]
PlanCluster = Annotated[str | None, asks("--cluster", "In place of the plan's.", autocompletion=complete.clusters)]
Gpus = Annotated[int, asks("--gpus", "GPUs to use.")]
JobGpus = Annotated[int | None, asks("--gpus", "GPUs to use: they say dp.", min=1)]
GlobalBatch = Annotated[
    int | None,
    asks("--global-batch", "Batch size per step, in sequences; else about 4M tokens, or what a whole training takes."),
]
BatchTokens = Annotated[
    float | None,
    asks(
        "--batch-tokens",
        "Or tokens per optimizer step, such as 4M: the nearest 2^a or 3 x 2^a sequences, with the GPUs' odd factor.",
        parser=partial(tokens, "--batch-tokens"), metavar="<tokens>",
    ),
]  # fmt: skip
MaxCost = Annotated[
    float | None,
    asks(
        "--max-cost", "Most dollars, such as 1.4M; needs a price.", metavar="<USD>",
        parser=lambda text: parsed("--max-cost", text, parse_count, "a number of USD, such as 20000 or 1.4M"),
    ),
]  # fmt: skip
Network = Annotated[
    str | None, asks("--network", "Another of planner clusters' networks: ethernet-25g.", autocompletion=complete.links)
]
Nics = Annotated[int | None, asks("--nics-per-node", "NICs of a node; their speed is --network or --figure.")]
Figures = Annotated[
    list[str] | None,
    asks(
        "--figure",
        "A figure in place of the profile's: accelerator.memory_gib=141, or network.bandwidth_gbit_per_s=200 per NIC "
        "(planner clusters NAME lists all), or framework.overlap_tensor=0.",
    ),
]
FrameworkName = Annotated[
    str | None,
    asks(
        "--framework", "megatron-lm, megatron-core, nemo, fsdp, torchtitan, deepspeed... or a TOML file.",
        autocompletion=complete.frameworks,
    ),
]  # fmt: skip
SeqLen = Annotated[
    int | None,
    asks(
        "--seq-len", "Sequence length in tokens, instead of the model's, such as 4096, 128k or 1M.",
        parser=partial(length, "--seq-len"), metavar="<tokens>",
    ),
]  # fmt: skip
Anchor = Annotated[Path | None, asks("--anchor", "Runs measured on such a machine (docs/calibration.md).")]
Json = Annotated[bool, writes("--json", says="Print JSON (docs/json.md) and nothing else.")]


@dataclass(frozen=True, kw_only=True)
class Output:
    """The pictures to write, and whether the answer is printed as JSON."""

    svg: Annotated[Path | None, writes("--svg", says="Write a picture as SVG.")] = None
    png: Annotated[Path | None, writes("--png", says="Write a picture as PNG.")] = None
    html: Annotated[Path | None, writes("--html", says="Write a page: the picture, and what is printed.")] = None
    json: Json = False

    def __post_init__(self) -> None:
        """Raises as `check_files`: a command makes its options before its work."""
        check_files({"--svg": (self.svg, ".svg"), "--png": (self.png, ".png"), "--html": (self.html, ".html")})

    @property
    def paths(self) -> list[Path]:
        """Files to write."""
        return [path for path in (self.svg, self.png, self.html) if path is not None]

    def draw(self, answer: Shown) -> None:
        """Write an answer's pictures."""
        for path in self.paths:
            answer.save_picture(path)

    def show(self, answer: Shown) -> None:
        """Write an answer's pictures, then the answer on stdout."""
        self.draw(answer)
        show(answer, self.json)


@dataclass(frozen=True, kw_only=True)
class PlanOutput(Output):
    """What is written of a searched layout, and what is asked of it."""

    save: Annotated[Path | None, writes("--save", says="Write the plan, as --json prints it, to a file.")] = None
    why: Annotated[list[str] | None, asks("--why", "Why not such a layout: tp=8,pp=1.")] = None

    def __post_init__(self) -> None:
        """Raises as `Output`, and as `parse_wanted`."""
        from planner.search.why import parse_wanted

        super().__post_init__()
        check_files({"--save": (self.save, ".json", "")})
        for wanted in self.why or []:
            parse_wanted(wanted)

    def show(self, answer: Any) -> None:
        """Write an answer's plan and pictures, then the answer on stdout, with why the layout is no other."""
        plan = getattr(answer, "plan", answer)
        answers = [plan.why(wanted) for wanted in self.why or []]
        if self.save is not None and len(plan):
            plan.save(self.save)
        self.write(answer, answers)
        if self.json:
            print_json(answer.to_dict() | ({"why": [one.record for one in answers]} if answers else {}))
        else:
            print_view(*answer.lines, *(part for one in answers for part in ("", one.view)))
        end(answer)

    def write(self, answer: Any, answers: list[Answer]) -> None:
        """Write an answer's pictures."""
        self.draw(answer)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place that a model is trained on; `planner.cli.unfold` makes the options."""

    cluster: ClusterName
    network: Network = None
    nics_per_node: Nics = None
    figure: Figures = None
    framework: FrameworkName = None
    seq_len: SeqLen = None

    def names(self) -> dict[str, Any]:
        """Cluster, network and the framework's profile. Raises InputError if a figure is given."""
        if self.figure:
            raise InputError(f"--figure is {self.figure[0]}; a run that exists takes none: give a cluster's file")
        return {"cluster": self.cluster, "network": self.network, "framework": profile_of(self.framework)}

    def setup(self, model: str, anchor: Path | None = None, towers: bool = False) -> Setup:
        """Model, cluster and framework; towers: whether a config's vision encoder is asked for apart.

        Raises as `load_setup` and `planner.api.anchored.anchored`.
        """
        from planner.api.anchored import anchored
        from planner.api.frameworks import setup_under
        from planner.hardware import changed_cluster

        keep_freed_memory()
        if self.cluster is None:
            from planner.models import load_model

            load_model(model)  # of a plan, which says the cluster itself: refused, where it isn't taken for a model
        cluster = changed_cluster(self.cluster, figures(self.figure), network=self.network)
        setup = setup_under(model, cluster, self.framework, seq_len=self.seq_len, nics_per_node=self.nics_per_node)
        note_of_config(model, setup.model, self.seq_len, towers)
        return anchored(setup, anchor)

    def plan(self, path: Path) -> SavedPlan:
        """A plan, on another cluster or framework where one is given. Raises InputError for what can't be changed."""
        from planner.plan_file import read_plan

        for name in ("figure", "nics_per_node", "seq_len"):
            if getattr(self, name):
                raise InputError(f"--{name.replace('_', '-')} stands beside a plan; allowed: beside a model alone")
        return read_plan(path, cluster=self.cluster, network=self.network, framework=profile_of(self.framework))


def figures(given: list[str] | None) -> dict[str, float]:
    """Names and values of NAME=VALUE. Raises InputError for another form, or a name that is given twice."""
    allowed = "NAME=NUMBER, such as accelerator.memory_gib=141"
    names = [text.partition("=")[0].strip() for text in given or []]

    def number(text: str) -> float:
        return parsed("--figure", text, lambda _: parse_number(text.partition("=")[2], float), allowed)

    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--figure {name} is given {names.count(name)} times; allowed: once")
    return dict(zip(names, map(number, given or []), strict=True))


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """The batch of an optimizer step, in sequences or in tokens."""

    global_batch: GlobalBatch = None
    batch_tokens: BatchTokens = None

    def sequences(self, seq_len: Any, ranks: int = 1, unit: int = 1) -> int:
        """Sequences per optimizer step: of tokens the nearest number that divides well over so many ranks.

        unit: of which they are a multiple. With neither option it is `planner.question.USUAL_BATCH_TOKENS`, which
        stderr says.

        Raises InputError if both are given, one is out of range, or the tokens are less than one sequence.
        """
        from planner.question import batch_of_tokens, batch_or_usual

        if self.global_batch is not None and self.batch_tokens is not None:
            raise InputError("give --global-batch or --batch-tokens: one of the two")
        if self.global_batch is not None:
            return whole("global_batch", self.global_batch)
        if self.batch_tokens is None:
            usual = batch_or_usual(None, seq_len, ranks, unit)
            told = "about the 4M tokens of LLaMA 2 and 3's pretraining; --global-batch sets another"
            note(f"no batch is given, so it is {counted(usual, 'sequence')} per step, {told}")
            return usual
        found = batch_of_tokens("--batch-tokens", self.batch_tokens, int(seq_len), ranks, unit)
        made = found * int(seq_len)
        if abs(made / self.batch_tokens - 1.0) > OFF:
            told = f"{counted(found, 'sequence')}, {made / 1e6:,.3g}M tokens; asked: {self.batch_tokens / 1e6:,.3g}M"
            note(f"the batch is {told}; --global-batch takes any number of sequences")
        return found


def profile_of(framework: str | None) -> str | None:
    """The profile that a framework's name means (`planner.api.frameworks`)."""
    from planner.api.frameworks import named_framework

    return named_framework(framework)[0]


def check_files(files: Mapping[str, tuple[Path | None, *tuple[str, ...]]]) -> None:
    """Asks before long work whether files can be written: each option's path, where one is given, and its suffixes.

    A suffix "" allows a path without one, such as /dev/stdout.

    Raises InputError if a path ends otherwise, OutputError if its folder does not exist, or can't be written.
    """
    from planner.base.files import check_writable

    for option, (path, *suffixes) in files.items():
        if path is not None:
            if path.suffix not in suffixes:
                raise InputError(f"{option} is {path}; allowed: a path that ends in {suffixes[0]}")
            check_writable(path)


def print_json(record: dict[str, Any]) -> None:
    """A record on stdout."""
    import json

    typer.echo(json.dumps(record, indent=2, allow_nan=False))


def show(answer: Shown, json: bool) -> None:
    """An answer on stdout, for a program or for a person; exit code 1 where nothing is as was asked for."""
    if json:
        print_json(answer.to_dict())
    else:
        print_view(*answer.lines)
    end(answer)


def end(answer: Shown) -> None:
    """Ends a command with exit code 1 where nothing is as was asked for."""
    if not answer.kept:
        raise typer.Exit(1)


def print_view(*views: Any) -> None:
    """Views on stdout: on a terminal in colour and as wide as it is; in a pipe plain, a row a line, nothing folded.

    Text is shown as it is: a name from a file may hold what rich would take for markup. A pipe is folded only where
    COLUMNS asks for it. NO_COLOR is rich's.
    """
    import io
    import os

    from rich.console import Console

    from planner.report.plain_table import stacked

    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    console = Console(**plain)
    if console.is_terminal:
        console.print(stacked(*views))
        return
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and 20 <= int(columns) < UNFOLDED else UNFOLDED
    text = io.StringIO()
    Console(**plain, file=text, width=width, color_system=None).print(stacked(*views))
    # Not typer.echo: it writes UTF-8 to a stream that says it is ASCII.
    print("\n".join(line.rstrip() for line in text.getvalue().split("\n")), end="")


def working(what: str) -> AbstractContextManager[Any]:
    """A spinner on stderr while something runs, on a terminal only."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()
