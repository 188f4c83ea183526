"""The choices beside a plan: another framework's schedules, more GPUs, and what the nearest other decisions cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.api.layout_estimate import LayoutEstimate
from planner.base import records
from planner.base.errors import InputError, LayoutError
from planner.base.units import format_bytes, format_seconds
from planner.choices.choice import value_text
from planner.choices.table import CHOICES
from planner.choices.training import read_training
from planner.costs.memory.fit_chance import FIT_CHANCE
from planner.layouts import GradDtype, MainDtype, OptimizerKind
from planner.report.tables import GRAPHS, PARTS, lighter_lines
from planner.search import Recommendation
from planner.search import recommend as search
from planner.search.found import EQUAL
from planner.search.neighbours import Changed, one_change
from planner.search.request import Fixed, Request
from planner.search.space import allows
from planner.setup import Setup

if TYPE_CHECKING:
    from planner.exporters.target import Target
    from planner.step.estimate import Estimate

WORTH_SAYING = 0.995  # of the best step
DOUBLINGS = 7
LIGHTER = (
    ("grad_dtype", GradDtype.BF16), ("optimizer", OptimizerKind.ADAM_BF16), ("optimizer", OptimizerKind.ADAM_8BIT),
    ("main_dtype", MainDtype.BF16),
)  # fmt: skip
"""Choices that take less memory, none of which a search tries by itself."""
ADAPTERS = "lora:16"
LONG, SHORTER, GRAPHED = 0.6, 0.8, 0.95
"""Shares of the step to run: of a layout over memory that says what memory costs; of an option, and of CUDA graphs,
worth a word."""
MOST_REASONS = 5
NEAR = 0.25  # of the batch: one as near would be taken in its place
LEAST = 0.001  # of the step: less is no difference
EVEN = 0.5  # a layout that is less likely to fit than not is not suggested


@dataclass(frozen=True, repr=False, eq=False)
class Alternatives:
    """What lies beside a search's answer; each is searched when it is first asked for.

    setup, found: the question and its answer. free: the choices that the user has not settled, in which the framework
    may be left. by_memory: least memory was asked for, not time. settled_bytes: most memory that a layout may take,
    whatever the chance that it fits.
    """

    setup: Setup
    found: Recommendation
    free: tuple[str, ...] = ()
    by_memory: bool = False
    settled_bytes: float = math.inf

    @cached_property
    def elsewhere(self) -> LayoutEstimate | None:
        """The best layout that the framework does not run, with tensor ranks as the best have; None if it gains little.

        None too where the plainest of the wider search is one that the framework runs.
        """
        found, request = self.found, self.found.request
        lacks = {name: None for name in self.free if getattr(self.setup.framework.runs, name)}
        if not lacks or not len(found.best):
            return None
        only: dict[str, Any] = {**lacks, "tp": tuple(np.unique(found.estimate.layouts.tp[found.best]).tolist())}
        worth = WORTH_SAYING * self._step_s
        other = request.held(**only)
        wider = _searched(self.setup, other, plainest=True, reach_s=worth)
        if wider is None or allows(request.fixed, wider.chosen.layouts)[0]:
            return None
        best = LayoutEstimate(self.setup, wider.estimate, int(wider.best[0]))
        return best if best.step_time_s < worth else None

    @cached_property
    def better_batch(self) -> dict[str, Any] | None:
        """A batch near the question's that more of the GPUs can share, and what it saves per sequence; None if little.

        Replicas, and tensor ranks and stages beside them, come out of the factors that batch and GPUs have in common:
        64 GPUs share 50 sequences as two replicas, 48 as sixteen.
        """
        found, request = self.found, self.found.request
        gpus, batch = request.gpus, request.global_batch
        common = math.gcd(gpus, batch)
        near = [round(batch / k) * k for k in range(common + 1, gpus + 1) if gpus % k == 0]
        near = [other for other in near if abs(other - batch) <= NEAR * batch]
        if not near or not len(found.best):
            return None
        other = near[-1]  # which most can share
        saved = self._saved_per_sequence(gpus, other)
        return {"global_batch": other, "saves_per_sequence": saved} if saved > EQUAL else None

    @cached_property
    def whole_nodes(self) -> dict[str, Any] | None:
        """Fewer GPUs, all of fewer nodes, that take less time per sequence; None if none do or the nodes are full.

        100 GPUs in nodes of eight run as twenty nodes of five; 96 fill twelve nodes, and have more common divisors.
        """
        found, request = self.found, self.found.request
        gpus = request.gpus - request.gpus % self.setup.cluster.gpus_per_node
        if gpus in (0, request.gpus) or not len(found.best):
            return None
        near = round(request.global_batch / gpus) * gpus
        batch = near if abs(near - request.global_batch) <= NEAR * request.global_batch else request.global_batch
        saved = self._saved_per_sequence(gpus, batch)
        return {"gpus": gpus, "global_batch": batch, "saves_per_sequence": saved} if saved > EQUAL else None

    def _saved_per_sequence(self, gpus: int, batch: int) -> float:
        """Share of a sequence's time that so many GPUs save with another batch; 0 if they save none."""
        found, request = self.found, self.found.request
        whole = (found.estimate.step_time_s[found.fastest] / request.global_batch) * batch
        best = _searched(self.setup, request.sized(gpus, batch), reach_s=float(whole))
        return 0.0 if best is None else 1.0 - float(best.estimate.step_time_s[best.fastest] / whole)

    @cached_property
    def fewest_gpus(self) -> int | None:
        """The fewest of 2, 4, 8, ... times the GPUs on which something fits, where nothing fits on these."""
        request = self.found.request
        for gpus in () if len(self.found.best) else (request.gpus << k for k in range(1, DOUBLINGS + 1)):
            if _searched(self.setup, request.sized(gpus, request.global_batch), objective="memory") is not None:
                return gpus
        return None

    @cached_property
    def fits_with(self) -> list[str]:
        """Options with each of which something fits, where nothing does: they take less memory, or leave less free.

        Each alone, else the fewest together; and adapters, where the framework has them.
        """
        if len(self.found.best):
            return []
        result, miss, target = self.found.estimate, self.found.nearest_miss, _target(self.setup)
        may = miss is not None and result.memory_bytes[miss] <= self.settled_bytes
        likely = math.floor(100 * result.fit_chance[miss]) / 100 if may else 0.0
        laxer = likely >= EVEN and math.isclose(result.least_chance, FIT_CHANCE)  # else the user settled the room
        found = [f"--fit-chance {likely:g}"] * laxer
        request = self.found.request

        def fits(fixed: Fixed) -> bool:
            return _searched(self.setup, replace(request, fixed=fixed), objective="memory") is not None

        level: dict[tuple[str, ...], Fixed] = {(): request.fixed}
        fitting: list[str] = []
        while level and not fitting:
            more = [((*said, option), less) for said, fixed in level.items() for option, less in self._lighter(fixed)]
            level = {tuple(sorted(said)): fixed for said, fixed in more}
            fitting = [" ".join(said) for said, fixed in level.items() if fits(fixed)]
        if (
            not request.fixed.train
            and (target is None or target.adapters is not None)
            and fits(_settled(request.fixed, "train", read_training(ADAPTERS)))
        ):
            fitting.append(f"--train {ADAPTERS}")
        return found + fitting

    @property
    def faster_with(self) -> dict[str, float]:
        """Options, and the shorter step with each, fastest first: CUDA graphs, where the host's launches make it long;
        those that take less memory, where memory does.

        Memory does where a layout over it takes less than `LONG` of the step.
        """
        return {option: one.step_time_s for option, one in self._shorter.items()}

    @property
    def faster_with_layout(self) -> dict[str, dict[str, Any]]:
        """The layout of each step of `faster_with`: often another than the one to run."""
        return {option: one.layout for option, one in self._shorter.items()}

    @cached_property
    def _shorter(self) -> dict[str, LayoutEstimate]:
        result, fixed = self.found.estimate, self.found.request.fixed
        if self.by_memory or not len(self.found.best):
            return {}
        tried = {GRAPHS: (_settled(fixed, "cuda_graphs", True), GRAPHED)} if self._launches_all else {}
        if np.any(result.step_time_s[~result.fits] < LONG * self._step_s):
            tried |= {option: (lighter, SHORTER) for option, lighter in self._lighter(fixed)}
        found = {option: self._best_with(*one) for option, one in tried.items()}
        short = {o: one for o, one in found.items() if one and one.step_time_s <= tried[o][1] * self._step_s}
        return dict(sorted(short.items(), key=lambda item: item[1].step_time_s))

    @property
    def _launches_all(self) -> bool:
        """Whether the host launches every kernel, which some layout waits for, though the framework has CUDA graphs."""
        result = self.found.estimate
        if not self.setup.framework.captures_graphs or "cuda_graphs" in dict(self.found.request.fixed.shared):
            return False
        return bool(np.any((result.step_time_s - result.time.host_s)[result.fits] < GRAPHED * self._step_s))

    def _lighter(self, fixed: Fixed) -> Iterator[tuple[str, Fixed]]:
        """Options and what is settled with each, one choice of `LIGHTER` more; what the user chose stays."""
        shared, target = dict(fixed.shared), _target(self.setup)
        for name, value in LIGHTER:
            free = shared.get(name, CHOICES[name].default) == CHOICES[name].default
            if free and (target is None or target.writes(name, value)):
                option = f"--{CHOICES[name].typed} {value_text(value)}"
                yield option, _settled(fixed, name, value)
        if not fixed.offload:
            yield "--allow-offload", replace(fixed, offload=True)

    def _best_with(self, fixed: Fixed, share: float) -> LayoutEstimate | None:
        """The layout to run with other choices; None if none takes less than that share of today's step."""
        request = replace(self.found.request, fixed=fixed)
        best = _searched(self.setup, request, plainest=True, reach_s=share * self._step_s)
        return None if best is None else LayoutEstimate(self.setup, best.estimate, int(best.best[0]))

    @property
    def _step_s(self) -> float:
        """The step of the layout to run."""
        return float(self.found.estimate.step_time_s[self.found.best[0]])

    @property
    def reasons(self) -> list[str]:
        """What options that take less memory bring, then the best change of each choice, or pair of degrees: sentences.

        The fastest change comes first.
        """
        found = self.found
        if not len(found.best):
            return []
        best = found.chosen
        changed = one_change(self.setup, best.layouts, found.request.fixed, found.request.attention.name.lower())
        if changed is None:
            return []
        row = best.layouts.row(0)
        said = [{k: v for k, v in change.items() if not CHOICES[k].follows} or change for change in changed.changes]
        nearest: dict[tuple[str, ...], tuple[float, int]] = {}
        for i, change in enumerate(said):
            share = float(changed.estimate.step_time_s[i] / best.step_time_s[0]) - 1.0
            told = abs(share) >= LEAST if changed.estimate.fits[i] else share < -EQUAL
            asked_for = found.request.fixed.offload or "offload_optimizer" not in change
            if told and asked_for and not change.keys() & {"grad_dtype", "attention"}:
                nearest[tuple(change)] = min(nearest.get(tuple(change), (np.inf, i)), (share, i))
        nearest_first = sorted(nearest.values())[:MOST_REASONS]
        lighter = lighter_lines(self.faster_with, self.faster_with_layout)
        return lighter + [_sentence(best, changed, i, said[i], row) for _, i in nearest_first]


def _target(setup: Setup) -> Target | None:
    """The framework that the answer is written for; of figures alone that is not known."""
    if setup.export is None:
        return None
    from planner.exporters.plan_export import get_target

    return get_target(setup.export)


def _searched(setup: Setup, request: Request, **how: Any) -> Recommendation | None:
    """What a search finds; None where it finds nothing: too many GPUs, nothing legal, or nothing that fast."""
    try:
        found = search(setup, **request.question, top=1, **how)
    except (InputError, LayoutError):
        return None
    return found if len(found.best) else None


def _settled(fixed: Fixed, name: str, value: Any) -> Fixed:
    """What is settled, with one more choice that all layouts of a search share."""
    return replace(fixed, shared=tuple((dict(fixed.shared) | {name: value}).items()))


def _sentence(best: Estimate, changed: Changed, i: int, said: dict[str, Any], row: dict[str, Any]) -> str:
    """One change's cost in words, and the part of the step where most of it is."""
    other = changed.estimate
    share = float(other.step_time_s[i] / best.step_time_s[0]) - 1.0
    with_ = ", ".join(f"{CHOICES[k].short or k.replace('_', ' ')} {value_text(v)}" for k, v in said.items())
    was = ", ".join(f"{CHOICES[k].short or k.replace('_', ' ')} {value_text(row[k])}" for k in said)
    if not other.fits[i]:
        need = format_bytes(float(other.memory_bytes[i]))
        safely = " safely" * bool(other.memory_bytes[i] <= other.capacity_bytes)
        return f"{with_} instead of {was}: {-share:.1%} faster, but its {need} per GPU don't fit{safely}."
    if share < 0:
        return f"{with_} instead of {was}: {-share:.1%} faster, too little to tell."
    a, b = (records.parts(x.time, j, "_s") for x, j in ((best, 0), (other, i)))
    part = max(a, key=lambda name: b[name] - a[name])
    return f"{with_} instead of {was}: {share:.1%} slower; {PARTS[part]} {format_seconds(b[part] - a[part])} more."
