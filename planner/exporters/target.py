"""An export's framework: its name and version, the nearest layout that it can run, and the file itself.

Names and sentences in the file are made safe for the program that reads it: one line each, no control characters.
"""

import json
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.base.errors import LayoutError, one_line
from planner.base.files import read_toml
from planner.calibration.anchor import AnchoredSetup
from planner.calibration.moved import moved_framework
from planner.costs.case import Case
from planner.costs.memory.bytes_per_parameter import gradient_bytes, reduced_bytes
from planner.hardware import Cluster, Framework, framework_on, load_framework, profile_names
from planner.layouts import Layouts, OptimizerKind
from planner.models import Transformer
from planner.question import one_layout
from planner.schedules import SCHEDULES, get_schedule
from planner.search import Fixed
from planner.setup import Setup
from planner.step.given_stages import chunks_of
from planner.step.legality import first_broken
from planner.step.step_costs import step_costs
from planner.step.timeline.timed import timed_estimate

OPTIMIZERS = tuple(kind.name.lower() for kind in OptimizerKind)
MODELS = read_toml(Path(__file__).with_name("models.toml"))
"""Models that frameworks know by a name of their own, by framework."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Job(Setup):
    """The source of a framework's file: model, cluster, and the profile that the prediction assumes.

    layouts: a table of one, which the framework can run. head: sentences for the file's top: what this is, what it is
    predicted to take, and every choice of the plan that the framework can't express.
    path: of the file, None for stdout. base: the user's own recipe, "package.module:function".
    """

    layouts: Layouts
    head: tuple[str, ...]
    path: Path | None = None
    base: str | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The layout's choices by name."""
        return self.layouts.row(0)

    @property
    def gradients(self) -> tuple[str, str]:
        """The number formats in which gradients are kept and reduced, stated or the framework's: fp32 or bf16."""
        return gradient_formats(self, self.layouts)


def gradient_formats(setup: Setup, layouts: Layouts) -> tuple[str, str]:
    """The number formats in which a layout's gradients are kept and reduced: fp32 or bf16."""
    case = Case.of(setup, layouts)
    kept, sent = (float(of(case)[0]) for of in (gradient_bytes, reduced_bytes))
    return "fp32" if kept >= 4 else "bf16", "fp32" if sent >= 4 else "bf16"


class Nearest:
    """A layout on its way to one that a framework can run, with a sentence for each choice that it can't express."""

    def __init__(self, title: str, setup: Setup, row: dict[str, Any], base: str | None = None) -> None:
        self.title, self.setup, self.row, self.base = title, setup, dict(row), base
        self.notes: list[str] = []

    @property
    def layouts(self) -> Layouts:
        """The layout as it is now, a table of one."""
        return one_layout(self.setup.cluster, **self.row)

    def note(self, sentence: str) -> None:
        """Say something of the export that isn't a change of the layout."""
        self.notes.append(sentence)

    def own_heads(self) -> None:
        """Say that multi-token prediction is the model's own code's, where a framework's file can't ask for it."""
        if n := self.setup.model.num_mtp_layers:
            self.note(
                f"multi-token prediction, {n} module{'s' * (n > 1)}: no key for it; the model's own code has them"
            )

    def change(self, key: str, value: Any, reason: str) -> None:
        """Export another value of a choice, if it has another."""
        if self.row[key] != value:
            self.notes.append(f"{key} {_as_text(self.row[key])}: {reason}; exported as {key} {_as_text(value)}")
            self.row[key] = value

    def refuse(self, key: str, reason: str, remedy: str) -> LayoutError:
        """The error for a choice that has no equivalent."""
        return LayoutError(f"{key} {_as_text(self.row[key])}: {self.title} {reason}; {remedy}")

    def whole_layers(self, reason: str) -> None:
        """Fine recomputation where a framework repeats whole layers only, or nothing under a split backward."""
        if self.row["recompute"] == "fine":
            splits = get_schedule(self.row["schedule"]).splits_backward
            self.change("recompute", "none" if splits else "full", reason)

    def schedules(self, allowed: Sequence[str], reason: str = "no setting for it") -> None:
        """Keep the plan's schedule, or take of those allowed the fastest that fits, with the fewest chunks per rank.

        Raises LayoutError for an asynchronous schedule, since any other would be another training; or if none is legal.
        """
        row, schedule = self.row, get_schedule(self.row["schedule"])
        if row["pp"] == 1:
            # Without a pipeline the order of micro-batches is the framework's own.
            if schedule.one_layer_chunks or schedule.sliced:
                self._becomes({"schedule": "1f1b", "virtual_stages": 1, "sequence_slices": 1}, reason)
            return
        if not schedule.synchronous:
            remedy = "recommend without --allow-async, or with --schedule 1f1b"
            raise self.refuse("schedule", "keeps one version of the weights and has nothing like it", remedy)
        if schedule.name in allowed:
            return
        tried = []
        for name in allowed:
            other = SCHEDULES[name]
            v = row["virtual_stages"] if other.chunks is None else other.chunks
            if v is None or other.sliced or (other.chunks is None and v < 2):
                continue
            changes = {"schedule": name, "virtual_stages": v, "sequence_slices": 1}
            if v != row["virtual_stages"]:
                changes["pipeline_layout"] = ""
            if not schedule.looped_placement and v > 1 and row["layer_split"] == "balanced":
                changes["layer_split"] = "even"
            if row["zero"] > 1 and not other.layer_at_a_time:
                changes["zero"] = 1
            layouts = one_layout(self.setup.cluster, **(row | changes))
            if not first_broken(self.setup.model, self.setup.cluster, layouts)[0]:
                found = timed_estimate(self.setup, layouts)
                key = (not found.fits[0], found.step_time_s[0] if found.fits[0] else found.memory_bytes[0])
                tried.append((key, changes))
        if not tried:
            raise self.refuse("schedule", "has nothing like it that is legal here", "choose another, such as 1f1b")
        self._becomes(min(tried, key=lambda pair: pair[0])[1], reason)

    def _becomes(self, changes: dict[str, Any], reason: str) -> None:
        was, now = self.row["schedule"], changes["schedule"]
        kept = {k: v for k, v in changes.items() if self.row[k] != v}
        shown = ", ".join(
            f"{k} {_as_text(v)} (was {_as_text(self.row[k])})" for k, v in kept.items() if k != "schedule"
        )
        self.notes.append(f"schedule {was}: {reason}; exported as {now}{', ' if shown else ''}{shown}")
        self.row |= changes


class Target(ABC):
    """A framework that a plan is written for."""

    name: str
    """The name in `planner export --to`."""
    title: str
    """The framework's name."""
    version: str
    """The version whose published argument or key names were read."""
    suffix: str
    """File name extension."""
    profile: str
    """Its own profile, whose figures its predictions take where the asked one is of another family."""
    cluster_first = False
    """Whether the cluster's usual profile comes before, where it is of the family."""
    family: str
    """What `family` says of profiles whose figures its predictions may take."""
    unwritten: tuple[str, ...] = ()
    """Precisions that its file can't ask for, or that planner does not write."""
    others: tuple[str, ...] = ()
    """Profiles of the family that are another framework's own, with those that stand on them."""
    optimizers: tuple[str, ...] = ("adam",)
    """Optimizers that its file, or the script that it is for, can ask for."""
    equal_nodes = False
    """Whether its launcher starts equally many processes on each node."""
    chooses_gradients = True
    """Whether its file can say in which number format gradients are kept."""
    takes_base = False
    """Whether its file builds on a recipe of the user's own."""
    offloads_parameters = False
    """Whether it can keep sharded parameters in host memory without the optimizer's state."""
    moves_modules = False
    """Whether it can keep what some modules of each layer need for their backward pass in host memory."""
    adapters: str | None = None
    """A note on adapters beside frozen weights, perhaps empty; None: the framework has no adapters."""
    runs = Fixed()
    """The choices that it can run, where not all, and the rules of its own that layouts must keep."""

    @abstractmethod
    def adapt(self, nearest: Nearest) -> None:
        """Change the layout to one that the framework can run, with a note for each change.

        Raises LayoutError for a choice that has no equivalent.
        """

    @abstractmethod
    def render(self, job: Job) -> str:
        """The file. Raises LayoutError if a rule of the framework's own is broken."""

    def companions(self, job: Job) -> dict[Path, str]:
        """Files that the file needs beside it."""
        return {}

    # Most frameworks train whatever the user's own code builds.
    def check_question(self, model: Transformer, precision: str, base: str | None = None) -> None:
        """Raises LayoutError, before a search, if the framework can run no layout of a model in a precision."""
        if precision in self.unwritten:
            raise LayoutError(
                f"precision {precision}: planner writes none for {self.title}; recommend with --precision bf16"
            )

    def check_training(self, text: str) -> None:
        """Raises LayoutError if adapters are asked for, and the framework has none."""
        if text != "full" and self.adapters is None:
            raise LayoutError(f"train {text}: {self.title} has no adapters; train full, or export to megatron-bridge")

    def writes(self, name: str, value: Any) -> bool:
        """Whether its file can ask for a value of a choice that all layouts of a search share."""
        if name == "optimizer":
            return _as_text(value) in self.optimizers
        if name == "offload_modules":
            return self.moves_modules or _as_text(value) in ("none", "0")
        return name != "grad_dtype" or self.chooses_gradients or _as_text(value) == "framework"

    def check_shared(self, choices: Iterable[tuple[str, Any]]) -> None:
        """Raises LayoutError if its file can't ask for one of the values."""
        for name, value in choices:
            if not self.writes(name, value):
                raise LayoutError(f"{name} {_as_text(value)}: {self.title} has no setting for it; leave it out")

    def check_gpus(self, cluster: Cluster, gpus: int) -> None:
        """Raises LayoutError if its launcher can't start as many processes."""
        nodes, each, last = launch_shape(cluster, gpus)
        if self.equal_nodes and last < each:
            raise LayoutError(
                f"gpus is {gpus}, on the last node {last} of {each}: {self.title} starts equally many on each; "
                f"allowed: {gpus - last} or {nodes * each}"
            )

    def only(self, fixed: Fixed) -> Fixed:
        """A search's choices that the framework can run, within what the user has settled (`fixed`)."""
        return allowed(fixed, self.title, **self.runs.settled).without(*self.runs.never)

    def of_model(self, fixed: Fixed, model: Transformer) -> Fixed:
        """What `only` leaves, as far as it can run it of a model."""
        return fixed if self.pipelines(model) else allowed(fixed, self.title, pp=(1,))

    def pipelines(self, model: Transformer) -> bool:
        """Whether it runs pipelines of a model."""
        return True

    def left_to_code(self, row: dict[str, Any]) -> list[str]:
        """The degrees of a layout that the training code must make itself, for its file has no key for them."""
        return []

    def profile_on(self, cluster: Cluster) -> str:
        """Its own profile on a cluster."""
        usual = self.cluster_first and family(load_framework(cluster.framework)) == self.family
        return cluster.framework if usual else self.profile

    def own(self, setup: Setup) -> Setup:
        """The setup, under its own profile where the framework is another's; an anchor moves that too."""
        names = (setup.framework.name, *setup.framework.bases)
        nearest = next((name for name in names if name in (self.profile, *self.others)), self.profile)
        if family(setup.framework) == OWN_FILE or (family(setup.framework) == self.family and nearest == self.profile):
            return setup
        return under(setup, self.profile_on(setup.cluster))

    def in_precision(self, setup: Setup, precision: str) -> Setup:
        """The setup under the profile of what its file asks for in a precision."""
        return setup


def under(setup: Setup, profile: str) -> Setup:
    """The setup under a shipped profile; an anchor moves that too."""
    own = framework_on(setup.cluster, profile)
    if isinstance(setup, AnchoredSetup):
        own = moved_framework(own, setup.anchor.update.shift)
    return replace(setup, framework=own)


OWN_FILE = "a file of one's own"


def family(framework: Framework) -> str:
    """Whose code a profile is of; `OWN_FILE` where a file of one's own stands on no shipped profile."""
    names = (framework.name, *framework.bases)
    if any("deepspeed" in name for name in names):
        return "deepspeed"
    return framework.stack or next((name for name in names if name in profile_names("frameworks")), OWN_FILE)


def stage_layers(setup: Setup, layouts: Layouts) -> list[int]:
    """Layers of every stage in the order of the model, as the plan splits them."""
    stages = step_costs(setup, layouts).stages
    chunks = chunks_of(layouts, stages, setup.model, int(layouts.pp[0] * layouts.virtual_stages[0]))
    return [int(n) for n in chunks.layers]


def launch_shape(cluster: Cluster, gpus: int) -> tuple[int, int, int]:
    """Hosts, processes on each, and on the last: equal parts that fill over half a host, else whole hosts and a rest.

    As `planner.costs.placement.node_ranks`, by which the step was predicted.
    """
    most = min(gpus, cluster.gpus_per_host)
    each = next((n for n in range(most, most // 2, -1) if gpus % n == 0), most)
    hosts = -(-gpus // each)
    return hosts, each, gpus - each * (hosts - 1)


def allowed(fixed: Fixed, framework: str, **only: tuple[Any, ...]) -> Fixed:
    """The user's settled choices that are also allowed. Raises LayoutError if nothing is left of a choice."""
    changes: dict[str, Any] = {}
    for key, values in only.items():
        settled = getattr(fixed, key)
        both = values if settled is None else tuple(v for v in settled if v in values)
        if not both:
            said = ", ".join(_as_text(v) for v in settled)
            raise LayoutError(f"{key} is {said}; allowed on {framework}: {', '.join(_as_text(v) for v in values)}")
        changes[key] = both
    return replace(fixed, **changes)


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    name = getattr(value, "name", None)
    return name.lower() if isinstance(name, str) else str(value)


WIDTH = 110


def comments(sentences: Iterable[str]) -> list[str]:
    """Comment lines, a sentence wrapped where it is long; what doesn't print, or would end a line, becomes a space."""
    out: list[str] = []
    for sentence in sentences:
        # A word longer than a line stays in one piece: a comment that breaks inside a name is hard to search for.
        lines = textwrap.wrap(one_line(sentence), WIDTH, break_long_words=False, break_on_hyphens=False) or [""]
        out += [f"# {lines[0]}".rstrip(), *(f"#   {line}" for line in lines[1:])]
    return out


def identifier(name: str) -> str:
    """A name as a function of Python may have it: llama3-8b is llama3_8b."""
    plain = re.sub(r"[^0-9a-zA-Z]+", "_", name).strip("_").lower() or "model"
    return plain if plain[0].isalpha() else f"model_{plain}"


def quoted(text: str) -> str:
    """A string as JSON, YAML, TOML and Python all read it: in double quotes, ASCII only."""
    return json.dumps(one_line(text))
