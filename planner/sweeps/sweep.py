"""A sweep: its file, everything that it names checked; its cases, and from their names what each search needs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError, InputError, PlannerError
from planner.base.files import read_toml, validate
from planner.hardware import Cluster, Framework
from planner.layouts import Attention, Precision, choice
from planner.question import careful, numerics
from planner.search import default_attention
from planner.search.request import Request
from planner.setup import Setup
from planner.sweeps.cases import OWN, Cases, Library, Settings, cases
from planner.sweeps.definition import SweepFile
from planner.training_time.assumptions import Assumptions, assume, assumed_names

PRICE = "accelerator.price_usd_per_hour"
OF_HARDWARE = ("price_usd_per_hour", "power_w", "storage_gbyte_per_s")
"""Assumptions that are fields of the hardware in a sweep."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """One search. refused: why it can't be made, where the hardware lacks what is asked, else None."""

    setup: Setup
    request: Request
    refused: str | None


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A case that a search answers: its number, the names and figures of its row, and what money and power assume."""

    case: int
    names: Mapping[str, Any]
    objective: str
    assumptions: Assumptions


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep's file with what it means: its cases, and where names are looked up."""

    path: Path
    file: SweepFile
    cases: Cases
    library: Library

    def search(self, number: int) -> tuple[Search, tuple[Ask, ...]]:
        """A search by its number, and the cases that it answers."""
        numbers = self.cases.of_search(number)
        search = self._search(self.cases.coordinates(numbers[0]))
        return search, tuple(self._ask(n, search) for n in numbers)

    def settings(self, at: Mapping[str, Any]) -> Settings:
        """The hardware fields that a case changes, in the profile's units: by price, design and axes.

        Raises FileFormatError for a multiple of a figure that the profile lacks.
        """
        out: dict[str, Any] = {}
        if at["cluster"] in self.file.prices:
            out[PRICE] = self.file.prices[at["cluster"]]
        for design in self.file.designs or ():
            if design.name == at.get("design"):
                out |= design.hardware
        for axis in self.cases.axes:
            if axis.hardware and axis.name in at:
                value = at[axis.name]
                out[axis.name] = value * self._own_figure(at, axis.name, out) if axis.multiples else value
        return tuple(out.items())

    def hardware(self, at: Mapping[str, Any], settings: Settings) -> tuple[Cluster, Framework]:
        """A case's cluster and framework under given settings."""
        return self.library.hardware(at["cluster"], at["network"], at["framework"], settings)

    def _own_figure(self, at: Mapping[str, Any], name: str, settled: Mapping[str, Any]) -> float:
        figures = self.library.figures(at["cluster"], at["network"], at["framework"]) | dict(settled)
        if name not in figures:
            fault = f"field hardware.{name} has nothing to multiply: {at['cluster']} has no such figure"
            raise FileFormatError(f"{self.path}: {fault}; give values instead")
        return float(figures[name])

    def _search(self, at: Mapping[str, Any]) -> Search:
        cluster, framework = self.hardware(at, self.settings(at))
        refused = None
        try:
            precision, attention = numerics(cluster, at["precision"], at["attention"])
        except InputError as error:  # known names, by `check`: this accelerator lacks the precision
            refused = str(error)
            precision, attention = choice(Precision, at["precision"]), default_attention(cluster)
        model = self.library.model(at["model"], at["seq_len"])
        choices = self.file.search.model_dump()
        setup, fixed = careful(Setup(model, cluster, framework), precision=precision, **choices)
        request = Request.of(
            framework, gpus=at["gpus"], global_batch=at["global_batch"], precision=precision, attention=attention,
            fixed=fixed,
        )  # fmt: skip
        return Search(setup=setup, request=request, refused=refused)

    def _ask(self, case: int, search: Search) -> Ask:
        at = self.cases.coordinates(case)
        settings = self.settings(at)
        cluster, framework = self.hardware(at, settings)
        shown: dict[str, Any] = {
            "model": at["model"],
            "cluster": at["cluster"],
            "network": cluster.network.name if at["network"] == OWN else at["network"],
            "framework": framework.name if at["framework"] == OWN else at["framework"],
            "seq_len": int(search.setup.model.seq_len),
            "precision": search.request.precision.name.lower(),
            "attention": search.request.attention.name.lower(),
        }
        changed = dict(settings)
        names = {a.name: changed[a.name] if a.hardware else shown.get(a.name, at[a.name]) for a in self.cases.axes}
        given = assume(cluster, self.file.assumptions)
        return Ask(case=case, names=names, objective=at["objective"], assumptions=given)

    def everything(self) -> Iterator[Any]:
        """Every model and profile that the sweep names, in full: with the file, all that its results depend on."""
        axes = {axis.name: axis.values for axis in self.cases.axes}
        for name, seq_len in product(axes["model"], axes["seq_len"]):
            yield self.library.model(name, seq_len)
        for cluster, network, framework in product(axes["cluster"], axes["network"], axes["framework"]):
            yield self.library.hardware(cluster, network, framework, ())

    def check(self) -> None:
        """Raises PlannerError for the first unknown name or wrong figure; each is tried once, in no combination."""
        axes = {axis.name: axis.values for axis in self.cases.axes}
        for name, seq_len in product(axes["model"], axes["seq_len"]):
            self.library.model(name, seq_len)
        for precision in self.file.precisions or ():
            choice(Precision, precision)
        for attention in self.file.attentions or ():
            choice(Attention, attention)
        for cluster, network, framework in product(axes["cluster"], axes["network"], axes["framework"]):
            self._check_hardware({"cluster": cluster, "network": network, "framework": framework})

    def _check_hardware(self, at: dict[str, Any]) -> None:
        """Every changed figure alone, on one cluster, network and framework."""
        nodes, framework = self.hardware(at, ())
        assume(nodes, self.file.assumptions)
        model = self.library.model(self.file.models[0], None)
        careful(Setup(model, nodes, framework), **self.file.search.model_dump())
        for axis in self.cases.axes:
            for value in axis.values if axis.hardware else ():
                self._check_settings(at, self.settings(at | {axis.name: value}), f"hardware.{axis.name}")
        for i, design in enumerate(self.file.designs or ()):
            for name, value in design.hardware.items():
                self._check_settings(at, ((name, value),), f"designs.{i}.hardware.{name}")

    def _check_settings(self, at: Mapping[str, Any], settings: Settings, where: str) -> None:
        try:
            self.hardware(at, settings)
        except PlannerError as error:
            value = settings[-1][1]
            shown = f"{value:g}" if isinstance(value, float) else repr(value)
            fault, _, allowed = str(error).partition("; allowed: ")
            known = allowed and "unknown field" not in fault
            text = f"is {shown}; allowed: {allowed}" if known else f"can't be changed: {str(error).partition(': ')[2]}"
            raise FileFormatError(f"{self.path}: field {where} {text} (cluster {at['cluster']})") from None


def load_sweep(path: Path) -> Sweep:
    """A sweep's file with all that it names.

    Raises FileFormatError for the first fault, one line with the file, the field, its value and what is allowed.
    """
    file = validate(SweepFile, read_toml(path), path)
    known = [name for name in assumed_names() if name not in OF_HARDWARE]
    for name in file.assumptions:
        if name not in known:
            raise FileFormatError(f"{path}: unknown field assumptions.{name}; allowed: {', '.join(known)}")
    try:
        sweep = Sweep(path=path, file=file, cases=cases(file, str(path)), library=Library(path.parent))
        sweep.check()
    except PlannerError as error:
        text = str(error)
        raise FileFormatError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from None
    return sweep
