"""Measured runs on one's own machine correct the profiles' figures, and with them what is predicted of other runs.

Each kind of time (`planner.calibration.moved.KINDS`) may last longer by a factor than the profiles say. Before any run
its logarithm is normal around 0, as wide as `anchor_spread.csv` says; a run's measured over predicted step time is what
these factors make of it, and a run's own error. One linear Gaussian update follows, repeated at the figures found, for
a step is not linear in them. All variances share one unknown scale, whose prior counts as `prior_runs` runs: the errors
of what is predicted are Student's t (Gelman et al., Bayesian Data Analysis, 3rd ed., section 14.2), wide where the
anchors disagree. `benchmarks/anchor.py` measures the spreads from the errors on published runs.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import InputError
from planner.calibration.moved import KINDS, moved_cluster, moved_framework, over_peak
from planner.choices.table import CHOICES
from planner.hardware import Cluster, load_cluster, load_framework
from planner.layouts import Layouts
from planner.setup import Setup
from planner.step.estimate import Estimate, estimate
from planner.validation.predict import LoadCluster, LoadFramework, Predictions, predict
from planner.validation.runs import NAMING, REAL, MeasuredRun, cluster_name, measured_once

STEP = 0.03
ROUNDS = 3
SLOWEST = 5.7
"""Times its prediction that a run to anchor on may take: no published run takes more of its held-out prediction
(`planner/validation/unseen.csv`)."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The spread before any run. figures: standard deviations of the logarithms, by `KINDS`, shape (6,).

    noise: of a run's own error; prior_runs: for how many runs these deviations count.
    """

    figures: Array
    noise: float
    prior_runs: float


@cache
def spread() -> Spread:
    """The one that the published runs' errors show."""
    text = (resources.files("planner.calibration") / "anchor_spread.csv").read_text(encoding="utf-8")
    value = {row["figure"]: float(row["value"]) for row in csv.DictReader(text.splitlines())}
    return Spread(
        figures=np.array([value[kind] for kind in KINDS]), noise=value["noise"], prior_runs=value["prior_runs"]
    )


@dataclass(frozen=True, kw_only=True)
class Update:
    """The figures after some runs: their shift, shape (6,), its covariance before the scale, (6, 6), and the scale."""

    shift: Array
    covariance: Array
    scale: float
    freedom: float
    before: Spread

    @property
    def prior_deviation(self) -> Array:
        """Standard deviation of each figure before the runs, on the scale after them, shape (6,)."""
        return self.scale * self.before.figures

    def deviation(self) -> Array:
        """Standard deviation of each figure's shift, shape (6,)."""
        return np.asarray(self.scale * np.sqrt(np.diag(self.covariance)))

    def half_width(self, slopes: Array, share: float = 0.8) -> Array:
        """Half width of a new run's error in logarithms, (n,). slopes: of its step time by the figures, (n, 6)."""
        variance = open_variance(self.covariance, slopes) + self.before.noise**2
        return np.asarray(t_quantile((1.0 + share) / 2.0, self.freedom) * self.scale * np.sqrt(variance))


def open_variance(covariance: Array, slopes: Array) -> Array:
    """The figures' part of the variance of log step times, shape (n,); slopes: of these by the figures, (n, 6)."""
    return np.asarray(np.einsum("ni,ij,nj->n", slopes, covariance, slopes))


def update(slopes: Array, error: Array, before: Spread) -> Update:
    """The figures after runs with such errors.

    slopes: of the runs' log step times by the figures, shape (runs, 6); error: log of measured over predicted with the
    profiles as they were, shape (runs,).
    """
    prior = np.diag(before.figures**2)
    across = prior @ slopes.T
    known = slopes @ across + before.noise**2 * np.eye(len(error))
    surprise = float(error @ np.linalg.solve(known, error))
    freedom = before.prior_runs + len(error)
    return Update(
        shift=across @ np.linalg.solve(known, error),
        covariance=prior - across @ np.linalg.solve(known, across.T),
        scale=float(np.sqrt((before.prior_runs + surprise) / freedom)),
        freedom=freedom,
        before=before,
    )


def t_quantile(level: float, freedom: float) -> float:
    """Quantile of Student's t: with x = sqrt(freedom) tan(angle) the density of the angle is cos^(freedom - 1)."""
    angle = np.linspace(0.0, np.pi / 2, 20_001)
    middle = np.cos((angle[1:] + angle[:-1]) / 2) ** (freedom - 1.0)
    below = np.concatenate([[0.0], np.cumsum(middle)])
    return float(np.sqrt(freedom) * np.tan(np.interp(2.0 * level - 1.0, below / below[-1], angle)))


def slopes_of(step_time_s: Callable[[Array], Array], at: Array) -> Array:
    """Slopes of log step times by the figures' logarithms, shape (n, 6); step_time_s: with figures moved so."""
    here = np.log(step_time_s(at))
    return np.stack([(np.log(step_time_s(at + move)) - here) / STEP for move in STEP * np.eye(len(at))], axis=-1)


def layout_slopes(setup: Setup, layouts: Layouts) -> Array:
    """`slopes_of` the steps of layouts at a setup's figures."""

    def step_time_s(at: Array) -> Array:
        moved = Setup(setup.model, moved_cluster(setup.cluster, at), moved_framework(setup.framework, at))
        return np.asarray(estimate(moved, layouts).step_time_s)

    return slopes_of(step_time_s, np.zeros(len(KINDS)))


@dataclass(frozen=True, eq=False, kw_only=True)
class Anchor:
    """Figures as some measured runs corrected them.

    runs: the runs that count; predicted_s, measured_s: with the profiles as they were, shape (runs,). after_s: with
    the corrected figures. left: why other runs of the file don't count, a phrase each.
    """

    runs: list[MeasuredRun]
    update: Update
    predicted_s: Array
    after_s: Array
    measured_s: Array
    left: tuple[str, ...]

    def of_layout(self, setup: Setup, layouts: Layouts) -> list[int]:
        """Which runs are the very layout (a table of one): all that a row states, and no choice that it can't state."""
        m, row = setup.model, layouts.row(0)
        row |= {"seq_splits": row["sequence_slices"], "n_gpus": int(layouts.gpus[0]), "framework": setup.framework.name}
        row |= {"model": m.name, "seq_len": m.seq_len, "layers": m.num_layers, "hidden": m.hidden, "vocab": m.vocab}
        unsaid = (n for n in CHOICES if n not in (*self.runs[0].cells, "sequence_slices"))
        if any(row[name] != CHOICES[name].plain(CHOICES[name].default) for name in unsaid):
            return []
        return [i for i, run in enumerate(self.runs) if all(run[c] in (None, row[c]) for c in row if c in run.cells)]

    def repeated(self) -> list[tuple[int, int]]:
        """Pairs of runs that differ only in names and in what was measured; each with the first of its kind."""
        first: dict[Any, int] = {}
        keys = (frozenset(x for x in run.cells.items() if x[0] not in (*NAMING, *REAL)) for run in self.runs)
        pairs = [(first.setdefault(key, i), i) for i, key in enumerate(keys)]
        return [(a, b) for a, b in pairs if a != b]

    def anchored(self, setup: Setup) -> AnchoredSetup:
        """A question with the corrected figures."""
        shift = self.update.shift
        return AnchoredSetup(
            model=setup.model,
            cluster=moved_cluster(setup.cluster, shift),
            framework=moved_framework(setup.framework, shift),
            export=setup.export,
            anchor=self,
        )

    def predict(self, runs: list[MeasuredRun], cluster_of: LoadCluster, framework_of: LoadFramework) -> Predictions:
        """Predictions of other runs with the corrected figures."""
        return _predict(runs, self.update.shift, cluster_of, framework_of)

    def intervals(
        self, p: Predictions, cluster_of: LoadCluster, framework_of: LoadFramework, share: float = 0.8
    ) -> Array:
        """Both ends of each interval of `predict`, seconds, shape (rows, 2); NaN where nothing is predicted."""
        slopes = _slopes(p.runs, np.zeros_like(self.update.shift), cluster_of, framework_of)
        half = self.update.half_width(slopes, share)
        return np.stack([p.step_time_s * np.exp(-half), p.step_time_s * np.exp(half)], axis=-1)


@dataclass(frozen=True)
class AnchoredSetup(Setup):
    """A question whose figures some runs have corrected; `dataclasses.replace` keeps which."""

    anchor: Anchor

    def interval_s(self, result: Estimate, i: int, share: float = 0.8) -> tuple[float, float]:
        """Between which step times the measured one of layout i of an estimate lies in `share` of such cases."""
        slopes = layout_slopes(self, result.layouts.take([i]))
        half, step = float(self.anchor.update.half_width(slopes, share)[0]), float(result.step_time_s[i])
        return step * float(np.exp(-half)), step * float(np.exp(half))


def anchor(
    runs: list[MeasuredRun],
    cluster: Cluster | None = None,
    cluster_of: LoadCluster = load_cluster,
    framework_of: LoadFramework = load_framework,
) -> Anchor:
    """A machine's figures as measured runs tell them.

    cluster: the one asked for, of whose kind the runs must be; None: any. cluster_of, framework_of: profiles by the
    names that the runs say.

    Raises InputError for a run on another kind of machine, over `SLOWEST`, or so fast that the figures would exceed the
    hardware's, and if none has a step time that can be predicted.
    """
    where = cache(cluster_of)
    kind = where(cluster_name(runs[0])) if cluster is None and runs else cluster
    if kind is not None:
        for run in runs:
            check_kind(run, where(cluster_name(run)), kind)
    plain, once = predict(runs, where, framework_of), np.array(measured_once(runs), dtype=np.bool_)
    usable = np.isfinite(plain.step_time_s) & np.isfinite(plain.measured_s) & plain.ok & once
    left = tuple(
        f"{run['run']}: {(reason or 'no measured step time') if first else 'the same measurement stands above'}"
        for run, reason, used, first in zip(runs, plain.reasons, usable, once, strict=True)
        if not used
    )
    if not usable.any():
        raise InputError(f"no run to anchor on; {left[0] if left else 'the file has none'}")
    used = [run for run, is_used in zip(runs, usable, strict=True) if is_used]
    measured = plain.measured_s[usable]
    times = measured / plain.step_time_s[usable]
    if (most := float(times.max())) > SLOWEST:
        run = used[int(times.argmax())]
        raise InputError(
            f"{run.path}: line {run.line}: the run takes {most:,.1f} times the predicted step; allowed to anchor on: "
            f"up to {SLOWEST:g} times, as no published run takes more; check step_time_s, in seconds, and n_gpus"
        )

    def step_time_s(shift: Array) -> Array:
        return _predict(used, shift, where, framework_of).step_time_s

    shift = np.zeros(len(KINDS))
    for _ in range(ROUNDS):
        slopes = _slopes(used, shift, where, framework_of)
        found = update(slopes, np.log(measured / step_time_s(shift)) + slopes @ shift, spread())
        shift = found.shift
    fast = over_peak(moved_cluster(where(cluster_name(used[0])), shift).accelerator, {run["precision"] for run in used})
    if fast:
        raise InputError(
            f"the runs to anchor on are up to {np.max(plain.step_time_s[usable] / measured):.3g} times as fast as "
            f"predicted; that would need {fast} of the datasheet, allowed: up to 1; check step_time_s and n_gpus"
        )
    return Anchor(
        runs=used, update=found, predicted_s=plain.step_time_s[usable], after_s=step_time_s(shift),
        measured_s=measured, left=left,
    )  # fmt: skip


def _predict(
    runs: list[MeasuredRun], shift: Array, cluster_of: LoadCluster, framework_of: LoadFramework, closed: bool = False
) -> Predictions:
    return predict(
        runs,
        lambda name: moved_cluster(cluster_of(name), shift),
        lambda name: moved_framework(framework_of(name), shift),
        closed_form=closed,
    )


def _slopes(runs: list[MeasuredRun], at: Array, cluster_of: LoadCluster, framework_of: LoadFramework) -> Array:
    """`slopes_of` some runs' steps; those of the closed form, which are the timeline's but for the bubble."""
    return slopes_of(lambda shift: _predict(runs, shift, cluster_of, framework_of, True).step_time_s, at)


def check_kind(run: MeasuredRun, own: Cluster, cluster: Cluster) -> None:
    """Raises InputError if a run's accelerators or links are not those of the cluster that is asked about."""
    parts: dict[str, Callable[[Cluster], Any]] = {
        "accelerators": lambda c: c.accelerator.name, "links in a node": lambda c: c.node_link.name
    }  # fmt: skip
    if run["n_gpus"] > own.gpus_per_node:
        parts["links between nodes"] = lambda c: c.network.name
    for what, of in parts.items():
        if of(own) != of(cluster):
            raise InputError(
                f"{run.path}: line {run.line}: the {what} of {run['cluster']} are {of(own)}, those of {cluster.name} "
                f"{of(cluster)}; allowed with an anchor: runs on one kind of machine"
            )
