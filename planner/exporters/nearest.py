"""The source of a framework's file, and a layout on its way to one that the framework can run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.base.errors import LayoutError
from planner.base.units import counted
from planner.choices.choice import value_text
from planner.costs.case import Case
from planner.costs.memory.bytes_per_parameter import gradient_bytes, reduced_bytes
from planner.layouts import Layouts
from planner.question import one_layout
from planner.schedules import SCHEDULES, get_schedule
from planner.setup import Setup
from planner.step.legality import first_broken
from planner.step.timeline.timed import timed_estimate


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
            self.note(f"multi-token prediction, {counted(n, 'module')}: no key for it; the model's own code has them")

    def change(self, key: str, value: Any, reason: str) -> None:
        """Export another value of a choice, if it has another."""
        if self.row[key] != value:
            self.notes.append(f"{key} {value_text(self.row[key])}: {reason}; exported as {key} {value_text(value)}")
            self.row[key] = value

    def refuse(self, key: str, reason: str, remedy: str) -> LayoutError:
        """The error for a choice that has no equivalent."""
        return LayoutError(f"{key} {value_text(self.row[key])}: {self.title} {reason}; {remedy}")

    def activations_stay(self, reason: str) -> None:
        """No activations in host memory where a framework moves neither layers' nor modules'."""
        self.change("offload_layers", 0, reason)
        self.change("offload_modules", "none", reason)

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
            f"{k} {value_text(v)} (was {value_text(self.row[k])})" for k, v in kept.items() if k != "schedule"
        )
        self.notes.append(f"schedule {was}: {reason}; exported as {now}{', ' if shown else ''}{shown}")
        self.row |= changes
