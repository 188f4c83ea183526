"""From a case's names and numbers to what a search needs: model, cluster with its changes, framework, assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import FileFormatError, PlannerError
from planner.hardware import Cluster, Framework
from planner.layouts import Attention, Precision, choice
from planner.models import Transformer
from planner.plans.assumptions import Assumptions, assume
from planner.search import Fixed, default_attention, default_precision
from planner.sweep.cases import OWN, Cases
from planner.sweep.definition import SweepFile
from planner.sweep.library import Library, Settings

__all__ = ["Ask", "Question", "Sweep"]

PRICE = "accelerator.price_usd_per_hour"


@dataclass(frozen=True, kw_only=True)
class Question:
    """One search. refused: why it can't be made, where the hardware lacks what is asked, else None."""

    model: Transformer
    cluster: Cluster
    framework: Framework
    gpus: int
    global_batch: int
    precision: Precision
    attention: Attention
    fixed: Fixed
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
    """A sweep's file with what it means: its cases, what is settled, and where names are looked up."""

    path: Path
    file: SweepFile
    cases: Cases
    fixed: Fixed
    library: Library

    def questions(self, search: int) -> tuple[Question, tuple[Ask, ...]]:
        """A search by its number, and the cases that it answers."""
        numbers = self.cases.of_search(search)
        question = self._question(self.cases.coordinates(numbers[0]))
        return question, tuple(self._ask(n, question) for n in numbers)

    def settings(self, at: Mapping[str, Any]) -> Settings:
        """The hardware fields that a case changes, in the profile's units: by price, design and axes.

        Raises:
            FileFormatError: a multiple of a figure that the profile lacks.
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

    def _question(self, at: Mapping[str, Any]) -> Question:
        cluster, framework = self.hardware(at, self.settings(at))
        precision = choice(Precision, at["precision"]) if at["precision"] else default_precision(cluster)
        known = cluster.accelerator.peak_flops
        lacks = precision.name.lower() not in known
        return Question(
            model=self.library.model(at["model"], at["seq_len"]),
            cluster=cluster,
            framework=framework,
            gpus=at["gpus"],
            global_batch=at["global_batch"],
            precision=precision,
            attention=choice(Attention, at["attention"]) if at["attention"] else default_attention(cluster),
            fixed=self.fixed,
            refused=f"{cluster.accelerator.name} has no {precision.name.lower()}, only {', '.join(known)}"
            if lacks
            else None,
        )

    def _ask(self, case: int, question: Question) -> Ask:
        at = self.cases.coordinates(case)
        settings = self.settings(at)
        cluster, framework = self.hardware(at, settings)
        shown: dict[str, Any] = {
            "model": at["model"],
            "cluster": at["cluster"],
            "network": cluster.network.name if at["network"] == OWN else at["network"],
            "framework": framework.name if at["framework"] == OWN else at["framework"],
            "seq_len": int(question.model.seq_len),
            "precision": question.precision.name.lower(),
            "attention": question.attention.name.lower(),
        }
        changed = dict(settings)
        names = {a.name: changed[a.name] if a.hardware else shown.get(a.name, at[a.name]) for a in self.cases.axes}
        given = assume(cluster, self.file.assumptions)
        return Ask(case=case, names=names, objective=at["objective"], assumptions=given)

    def check(self) -> None:
        """Nothing, if every name is known and every figure allowed: each is tried once, not in every combination.

        Raises:
            PlannerError: the first that is not.
        """
        axes = {axis.name: axis.values for axis in self.cases.axes}
        for name in axes["model"]:
            for seq_len in axes["seq_len"]:
                self.library.model(name, seq_len)
        for precision in self.file.precisions or ():
            choice(Precision, precision)
        for attention in self.file.attentions or ():
            choice(Attention, attention)
        for cluster in axes["cluster"]:
            for network in axes["network"]:
                for framework in axes["framework"]:
                    self._check_hardware({"cluster": cluster, "network": network, "framework": framework})

    def _check_hardware(self, at: dict[str, Any]) -> None:
        """Every changed figure alone, on one cluster, network and framework."""
        nodes, _ = self.hardware(at, ())
        assume(nodes, self.file.assumptions)
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
