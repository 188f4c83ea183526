"""Predictions beside measured runs: what `planner validate` shows."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.api.anchored import anchor_record, predicted_runs, told_lines
from planner.api.answer import Shown
from planner.base.arrays import Array
from planner.base.errors import InputError
from planner.base.files import given_path
from planner.calibration.anchor import Anchor
from planner.report.calibration import publications_view, scores_view
from planner.report.plain_table import View
from planner.report.plots import accuracy_panel, bars, figure_of
from planner.validation import Predictions, scores, shipped_files
from planner.validation.errors import held_out_mape
from planner.validation.interval import held_shares
from planner.validation.predict import loaders
from planner.validation.publications import publications_of
from planner.validation.runs import measured_once, runs_of
from planner.validation.score import predictions_csv

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

FITTED = (
    "The profiles were fitted to most of these runs (docs/accuracy.md): mape is the error of a fit. held, held out: "
    "the same of fits that had not seen the publication (of vtrain-single-h1024 and megatron-bridge-gb300 the part "
    "that they predict)."
)


@dataclass(frozen=True, repr=False)
class Validated(Shown):
    """Measured runs as they were predicted, and the scores of that.

    ends: both ends of each step's interval, shape (rows, 2). sources, overall: scores of each source and of all.
    anchor: the runs that the predictions stand on, which they leave out; None where no file is given.
    unseen: errors of fits that had not seen the publication, by source and `overall`; None where the runs, the profiles
    or the anchor are the user's own. repeated: rows left out, the same as one above but for run and note.
    """

    predictions: Predictions
    ends: Array
    sources: Mapping[str, dict[str, Any]]
    overall: dict[str, Any]
    anchor: Anchor | None
    unseen: Mapping[str, float] | None
    repeated: int = 0

    @property
    def unpredicted(self) -> list[dict[str, Any]]:
        """The runs that can't be predicted, each with its reason."""
        return [
            {"file": str(run.path), "line": run.line, "source": run["source"], "run": run["run"], "reason": reason}
            for run, reason in zip(self.predictions.runs, self.predictions.reasons, strict=True)
            if reason
        ]

    def to_dict(self) -> dict[str, Any]:
        """The record that `planner validate --json` prints; docs/json.md has the keys."""

        def scored(name: str, own: dict[str, Any]) -> dict[str, Any]:
            return own if self.unseen is None else own | {"held_out_mape": self.unseen.get(name)}

        return {
            "sources": {name: scored(name, own) for name, own in self.sources.items()},
            "overall": scored("overall", self.overall),
            "publications": [asdict(p) for p in publications_of(self.sources)],
            "filled_cells": self.predictions.filled_cells,
            "unpredicted": self.unpredicted,
            **({} if self.anchor is None else {"anchor": anchor_record(self.anchor)}),
        }

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each run: its measured cells, then what `planner validate --predictions` writes of it."""
        import pandas

        runs = pandas.DataFrame([run.cells for run in self.predictions.runs])
        predicted = pandas.read_csv(StringIO(predictions_csv(self.predictions, self.ends)))
        return runs.join(predicted.drop(columns=["source", "run"]))

    def plot(self) -> Figure:
        """The errors of all runs, and the mean error of each source, as fitted and held out."""
        errors = self.predictions.step_time_s / self.predictions.measured_s - 1.0
        rows = {
            n: [100 * x for x in (s["mape"], (self.unseen or {}).get(n)) if x is not None]
            for n, s in self.sources.items()
            if s["timed_rows"]
        }
        sources = partial(bars, rows=rows, title="Mean error", unit="%", series=("as fitted", "held out"))
        return figure_of("", partial(accuracy_panel, errors=errors[np.isfinite(errors)]), sources, bars=2 * len(rows))

    @property
    def lines(self) -> tuple[View, ...]:
        """The lines that `planner validate` prints."""
        cited = publications_of(self.sources)
        filled = f"{self.predictions.filled_cells} empty cells were filled by rule"
        lost = int(np.sum(~np.isfinite(self.predictions.step_time_s)))
        return (
            scores_view(self.sources, self.overall, self.unseen),
            *(() if self.anchor is None else ("", *told_lines(self.anchor))),
            *(() if self.unseen is None else ("", FITTED)),
            *(("", publications_view(cited)) if cited else ()),
            "",
            f"{filled}; {lost} runs could not be predicted.",
            *([f"Rows that repeat one above count once: {self.repeated}."] if self.repeated else []),
            *self._reasons(),
        )

    def _reasons(self) -> list[str]:
        """Why runs are not predicted: a line for each reason, with the first run that has it."""
        by_reason = defaultdict(list)
        for row in self.unpredicted:
            by_reason[row["reason"]].append(row)
        return [
            f"  {first['file']}:{first['line']} {first['run']}{f' and {len(more)} more' if more else ''}: {reason}"
            for reason, (first, *more) in by_reason.items()
        ]


def validate(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (), *,
    profiles: str | os.PathLike[str] | None = None, anchor: str | os.PathLike[str] | None = None,
) -> Validated:  # fmt: skip
    """Predictions beside measured runs, of a CSV file, several, or those that planner ships.

    profiles: a folder of profiles to use before the shipped ones. anchor: a CSV of runs measured on such a machine,
    which correct the figures.

    Raises:
        InputError: The files have no runs, or none that can be predicted.
        FileFormatError: A file can't be read, parsed or validated.
    """
    named = [files] if isinstance(files, str | os.PathLike) else files
    if not isinstance(named, Sequence):
        raise InputError(f"files is {named!r}; allowed: a CSV file of measured runs, or several")
    paths = [given_path("files", file) for file in named] or shipped_files()
    every = runs_of(paths)
    once = measured_once(every) if files else [True] * len(every)  # the shipped are what their sources list
    runs = list(compress(every, once))
    folder = None if profiles is None else given_path("profiles", profiles)
    own_runs = None if anchor is None else given_path("anchor", anchor)
    found, ends, known = predicted_runs(runs, own_runs, *loaders(folder))
    if not np.isfinite(found.step_time_s).any():
        first = found.runs[0]
        raise InputError(f"{first.path}:{first.line}: no run can be predicted: {found.reasons[0]}")
    inside, (sources, overall) = held_shares(found, ends), scores(found)
    for name, own in [*sources.items(), ("overall", overall)]:
        own["in_interval"] = inside[name]
    unseen = None if files or profiles or anchor else held_out_mape()
    return Validated(found, ends, sources, overall, known, unseen, len(every) - len(runs))
