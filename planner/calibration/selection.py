"""Measured runs of one GPU architecture: those that a fit uses, those held out, and those left, with reasons."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.base.errors import InputError, UnknownNameError
from planner.calibration.figures import FittedFigure, Profiles, figures_of, parameters_of, predict_with
from planner.calibration.fit import Problem
from planner.validation import MeasuredRun
from planner.validation.defaults import framework_name
from planner.validation.runs import cluster_name, measured_once


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Runs to fit and runs held out, of one architecture; untimed: of those to fit, runs without a measured step time
    (out of memory, or not stated). left: how many other runs there are, by reason. base: the profiles that they name.
    """

    architecture: str
    runs: list[MeasuredRun]
    held: list[MeasuredRun]
    untimed: int
    left: dict[str, int]
    base: Profiles

    def named(self) -> tuple[list[str], list[str]]:
        """Clusters and frameworks that the runs name, by name or path, those held out included."""
        runs = [*self.runs, *self.held]
        clusters = dict.fromkeys(cluster_name(run) for run in runs)
        frameworks = dict.fromkeys(framework_name(run, self.base.cluster(cluster_name(run))) for run in runs)
        return list(clusters), list(frameworks)

    def problem(self, all_figures: bool = False) -> tuple[Problem, list[FittedFigure]]:
        """The fit of these runs, and the figures that it may move."""
        clusters, frameworks = self.named()
        figures = figures_of(
            parameters_of(self.architecture, all_figures),
            [self.base.cluster(name) for name in clusters],
            [self.base.framework(name) for name in frameworks],
        )
        return Problem(self.runs, self.base), figures


def select(runs: Sequence[MeasuredRun], architecture: str | None = None, hold_out: Sequence[str] = ()) -> Selection:
    """The runs for a fit.

    architecture: by default the one of most timed runs. hold_out: sources, or how their names begin.

    Raises UnknownNameError if no run's source begins so, or no run is on such GPUs; InputError if nothing with a
    measured step time is left to fit.
    """
    base, once = Profiles(), measured_once(runs)
    repeated = len(runs) - sum(once)
    runs = [run for run, first in zip(runs, once, strict=True) if first]
    p = predict_with((), np.zeros(0), list(runs), base, closed_form=True)
    left: Counter[str] = Counter(f"can't be predicted: {reason}" for reason in p.reasons if reason)
    if repeated:
        left["the same in another row but for its name"] = repeated
    timed = np.isfinite(p.measured_s) & np.isfinite(p.step_time_s)
    name = ["" if reason else architecture_of(run, base) for run, reason in zip(runs, p.reasons, strict=True)]
    found = Counter(n for n, is_timed in zip(name, timed, strict=True) if n and is_timed)
    if architecture is not None and architecture not in name:
        raise UnknownNameError("architecture", architecture, sorted({n for n in name if n}), "Of these are the runs.")
    if not found:
        first = next((f"; {reason}" for reason in p.reasons if reason), "")
        raise InputError(f"no run with a measured step time can be predicted{first}")
    chosen = architecture or found.most_common(1)[0][0]
    for other, n in Counter(n for n in name if n and n != chosen).items():
        left[f"on {other} GPUs; one architecture at a time: --architecture {other}"] = n
    near = [i for i, n in enumerate(name) if n == chosen]
    sources = {str(runs[i]["source"]) for i in near}
    for beginning in hold_out:
        if not any(s.startswith(beginning) for s in sources):
            raise UnknownNameError("source", beginning, sources, f"Of these are the runs on {chosen} GPUs.")
    out = {i for i in near if str(runs[i]["source"]).startswith(tuple(hold_out))}
    fitted = [i for i in near if i not in out]
    if not any(timed[i] for i in fitted):
        raise InputError(f"no run with a measured step time is left to fit on {chosen} GPUs; allowed: at least one")
    return Selection(
        architecture=chosen, runs=[runs[i] for i in fitted], held=[runs[i] for i in sorted(out)],
        untimed=sum(not timed[i] for i in fitted), left=dict(left), base=base,
    )  # fmt: skip


def architecture_of(run: MeasuredRun, base: Profiles) -> str:
    """The architecture of the accelerators that a run was measured on."""
    return base.cluster(cluster_name(run)).accelerator.efficiency.name
