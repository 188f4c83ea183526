"""The layouts to run, best first: what `recommend` returns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from planner.api.alternatives import Alternatives
from planner.api.anchored import anchor_entry, anchor_lines, next_lines, next_record, trust
from planner.api.answer import Answer, Shown
from planner.api.layout_estimate import LayoutEstimate
from planner.base.errors import InputError, LayoutError
from planner.base.files import check_writable, given_path, write_text
from planner.base.units import GIB, format_bytes, format_seconds, gpus_text
from planner.report import records, tables
from planner.report.difference import why_record, why_view
from planner.report.plain_table import View
from planner.report.plots import draw_layouts, draw_plan
from planner.report.records import layout_frame
from planner.search.pick import unusual
from planner.search.scan import every_estimate
from planner.search.why import parse_wanted, why_not

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False, eq=False)
class Plan(Shown, Alternatives, Sequence[LayoutEstimate]):
    """A sequence of the best layouts: the one to run, then by their step; empty where nothing fits in memory.

    Prints as `planner recommend` does; in a notebook, as tables.

    Attributes:
        setup: model, cluster and framework.
        found: the layouts that mattered in the search, with indices into them.
        free: the choices in which the framework may be left, to find what is faster elsewhere.
    """

    @property
    def gpus(self) -> int:
        """Accelerators to use."""
        return self.found.request.gpus

    @property
    def batch(self) -> int:
        """Sequences per optimizer step."""
        return self.found.request.global_batch

    def _at(self, row: Any) -> LayoutEstimate:
        return LayoutEstimate(self.setup, self.found.estimate, int(row))

    @property
    def best(self) -> LayoutEstimate:
        """The layout to run.

        Raises:
            LayoutError: nothing fits in memory; says what the nearest miss needs.
        """
        if len(self):
            return self._at(self.found.best[0])
        miss = self.nearest_miss
        assert miss is not None  # what does not fit misses
        raise LayoutError(
            f"no layout of {self.setup.model.name} on {gpus_text(self.gpus)} fits in "
            f"{format_bytes(self.setup.cluster.accelerator.usable_bytes)} per GPU; the nearest miss needs "
            f"{format_bytes(miss.memory_gib * GIB)}: use {self.fewest_gpus or 'more'} GPUs, allow_offload=True, or "
            "more memory"
        )

    @property
    def front(self) -> tuple[LayoutEstimate, ...]:
        """The fastest layout for each amount of memory, fastest first."""
        return tuple(self._at(i) for i in self.found.front)

    @property
    def nearest_miss(self) -> LayoutEstimate | None:
        """The layout over memory that exceeds it least, None where all fit."""
        return None if self.found.nearest_miss is None else self._at(self.found.nearest_miss)

    @property
    def searched(self) -> int:
        """Legal layouts that were estimated."""
        return self.found.legal

    @property
    def fitting(self) -> int:
        """Legal layouts that fit in memory."""
        return self.found.fitting

    @cached_property
    def accuracy(self) -> str:
        """How far predictions have been from measured runs on such GPUs, in one sentence."""
        if not len(self):
            return trust(self.setup)
        return trust(self.setup, self.step_time_interval_s, step_s=self[0].step_time_s, unlike=self[0].unlike)

    @property
    def assumed(self) -> tuple[str, ...]:
        """The assumptions of the best layout's estimate, a phrase each."""
        return self[0].assumed if len(self) else ()

    @property
    def step_time_interval_s(self) -> tuple[float, float] | None:
        """Between which seconds the best layout's measured step lies in 80 % of such cases."""
        return self[0].step_time_interval_s if len(self) else None

    @cached_property
    def _next(self) -> dict[str, Any]:
        return next_record(self.setup, self.found)

    def __len__(self) -> int:
        return len(self.found.best)

    @overload
    def __getitem__(self, index: int) -> LayoutEstimate: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LayoutEstimate]: ...
    def __getitem__(self, index: int | slice) -> LayoutEstimate | Sequence[LayoutEstimate]:
        if isinstance(index, slice):
            return [self._at(i) for i in self.found.best[index]]
        return self._at(self.found.best[index])

    def __iter__(self) -> Iterator[LayoutEstimate]:
        return (self._at(i) for i in self.found.best)

    def to_dict(self) -> dict[str, Any]:
        """The record that `planner recommend --json` prints; docs/json.md has the keys."""
        question = records.question_record(self.setup, self.gpus, self.batch)
        found = records.recommendation_record(self.found, self.setup.cluster)
        return question | found | self._beside | anchor_entry(self.setup) | self._next

    @cached_property
    def _beside(self) -> dict[str, Any]:
        """What is said beside the layouts: the alternatives, what is assumed, and how far it can be trusted."""
        return {
            "faster_with_any_framework": None if self.elsewhere is None else self.elsewhere.to_dict(),
            "better_batch": self.better_batch,
            "whole_nodes": self.whole_nodes,
            "fewest_gpus": self.fewest_gpus,
            "fits_with": self.fits_with,
            "faster_with": self.faster_with,
            "faster_with_layout": self.faster_with_layout,
            "step_time_interval_s": self.step_time_interval_s,
            "unlike_measured": self[0].unlike if len(self) else "",
            "assumed": list(self.assumed),
            "accuracy": self.accuracy,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan, as `planner recommend --save` does, for the commands that read one, such as `planner export`.

        Raises:
            LayoutError: nothing fits in memory, so there is no plan.
            OutputError: the path can't be written.
        """
        _ = self.best
        write_text(given_path("path", path), self.to_json() + "\n")

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        curve: bool = True,
        tokens: float | None = None,
        loss: float | None = None,
        why: Sequence[str] = (),
    ) -> None:
        """Write a report to read and play with, in seconds: one file for a browser.

        why: what `Plan.why` is asked, for the page to answer. curve: with the shortest time to train on `tokens`, or to
        a `loss` in nats per token; else compute-optimal.

        Raises:
            InputError: a suffix other than .html, or a number out of range.
            OutputError: the path can't be written.
        """
        from planner.api.reports import save_report

        target = given_path("path", path)
        if target.suffix != ".html":
            raise InputError(f"path is {target}; allowed: one that ends in .html")
        check_writable(target)
        command = (
            f"planner.recommend({self.setup.model.name!r}, {self.setup.cluster.name!r}, gpus={self.gpus}, "
            f"batch={self.batch}, ...)"
        )
        answers = [self.why(wanted) for wanted in why]
        save_report(self, target, command=command, curve=curve, tokens=tokens, loss=loss, answers=answers)

    def to_pandas(self, *, everything: bool = False) -> pandas.DataFrame:
        """A row a layout, best first; with `everything`, all that were searched, those that were simulated last."""
        found, setup = self.found, self.setup
        if not everything:
            return layout_frame(found.estimate, found.best)
        ran = found.estimate.take(np.flatnonzero(found.estimate.simulated))
        every = every_estimate(setup, found.request, ran)
        return layout_frame(every, slice(None))

    def plot(self) -> Figure:
        """The Pareto front of step time and memory, and the best layout's parts. Raises LayoutError if nothing fits."""
        best = self.best.to_dict()
        title = f"{self._title}: {tables.layout_text(best['layout'])}, {format_seconds(best['step_time_s'])} per step"
        return draw_plan(title, self.found, self.setup.cluster.accelerator.memory_bytes, best)

    def why(self, wanted: str) -> Answer:
        """Why the best isn't otherwise, and the best that is: `wanted` such as "tp=8,recompute=full".

        Raises:
            InputError, UnknownNameError: No choice of a layout, or a value of the wrong kind.
        """
        answer = why_not(self.setup, self.found, parse_wanted(wanted))
        record, draw = why_record(answer, self.setup.cluster), None
        if record["difference"] is not None:
            names = ("the best", tables.layout_text(record["layout"]["layout"]))
            draw = partial(draw_layouts, f"Why not {wanted}?", record["best"], record["layout"], series=names)
        return Answer("", record, why_view(record), draw)

    @property
    def _title(self) -> str:
        return tables.question_title(self.setup, self.gpus, self.batch)

    @property
    def lines(self) -> tuple[View, ...]:
        """The lines that `planner recommend` prints."""
        setup = self.setup
        odd = unusual(setup, self.found.estimate.layouts)
        view = tables.recommendation_view(self.found, setup, self._beside, odd)
        return self._title, "", view, *anchor_lines(self.setup), *next_lines(self._next)
