"""An export's framework: its name and version, what it can run, and the file itself."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.base.errors import LayoutError
from planner.base.files import read_toml
from planner.calibration.anchor import AnchoredSetup
from planner.calibration.moved import moved_framework
from planner.choices.choice import value_text
from planner.exporters.nearest import Job, Nearest
from planner.hardware import Cluster, Framework, framework_on, load_framework, profile_names
from planner.layouts import Layouts, OptimizerKind
from planner.models import Transformer
from planner.search import Fixed
from planner.setup import Setup
from planner.step.given_stages import chunks_of
from planner.step.step_costs import step_costs

OPTIMIZERS = tuple(kind.name.lower() for kind in OptimizerKind)
MODELS = read_toml(Path(__file__).with_name("models.toml"))
"""Models that frameworks know by a name of their own, by framework."""


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
    bf16_states = False
    """Whether its file can ask for weights, gradients and moments in bf16 alone."""
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
            return value_text(value) in self.optimizers
        if name == "main_dtype":
            return self.bf16_states or value_text(value) == "fp32"
        if name == "offload_modules":
            return self.moves_modules or value_text(value) in ("none", "0")
        return name != "grad_dtype" or self.chooses_gradients or value_text(value) == "framework"

    def check_shared(self, choices: Iterable[tuple[str, Any]]) -> None:
        """Raises LayoutError if its file can't ask for one of the values."""
        for name, value in choices:
            if not self.writes(name, value):
                raise LayoutError(f"{name} {value_text(value)}: {self.title} has no setting for it; leave it out")

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
            said = ", ".join(value_text(v) for v in settled)
            raise LayoutError(f"{key} is {said}; allowed on {framework}: {', '.join(value_text(v) for v in values)}")
        changes[key] = both
    return replace(fixed, **changes)
