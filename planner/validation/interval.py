"""The interval around a prediction: what fits that had not seen the runs most like it were off by.

`held_out.csv` keeps, for every shipped timed run, the step time predicted by a fit without the run's publication
(`benchmarks/cross_validate.py` writes it). A prediction's interval is the weighted quantiles of those errors: runs on
the same GPU architecture, nearer ones counting more, every set of runs alike. `coverage` says how often an interval
made without a run's own publication holds it. `unseen.csv` adds the errors on runs that no fit uses
(`measured_runs/unseen/`), some with experts, of which the shipped ones have none: those alone count for such a model,
on whatever architecture.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.hardware import Cluster
from planner.models import Transformer
from planner.step.estimate import Estimate
from planner.validation.predict import Models
from planner.validation.runs import MeasuredRun

Array = NDArray[np.float64]

LIKENESS = ("gpus", "matrix_elements_per_gpu", "tokens_per_gpu", "tp", "pp", "product_elements", "seq_len")
COLUMNS = ("source", "run", "architecture", *LIKENESS, "held_out_step_time_s", "measured_step_time_s", "experts")
ALONE = ("vtrain-single-h1024", "megatron-bridge-gb300")
# Octaves: runs that differ by a factor 1,000 in one quantity count 0.6 of those that don't. Chosen for `coverage`: at 4
# the interval of 80 % holds 84 % of the runs, at 6 80 %, at 10 79 % (sets counting alike 82, 80, 80).
WIDTH = 10.0
LEAST_RUNS = 10


def likeness(model: Transformer, *, gpus: Any, global_batch: Any, tp: Any, pp: Any, micro_batch: Any) -> Array:
    """What makes runs alike, shape (n, 7): GPUs, layers x hidden^2 and tokens a GPU, tp, pp, product size, sequence."""
    hidden = np.asarray(model.hidden, dtype=np.float64)
    columns = (
        gpus,
        model.num_layers * hidden**2 / gpus,
        global_batch * model.seq_len / gpus,
        tp,
        pp,
        hidden**2 * micro_batch * model.seq_len / tp,
        model.seq_len,
    )
    return np.stack(np.broadcast_arrays(*(np.asarray(c, dtype=np.float64) for c in columns)), axis=-1)


def likeness_of_runs(runs: list[MeasuredRun]) -> Array:
    """`likeness` of measured runs, shape (runs, 7); a micro-batch that isn't said is taken as 1."""
    models = Models()
    rows = []
    for run in runs:
        model = models.models[models.of(run)]
        rows.append(
            likeness(
                model,
                gpus=run["n_gpus"],
                global_batch=run["global_batch"],
                tp=run["tp"],
                pp=run["pp"],
                micro_batch=run["micro_batch"] or 1,
            )
        )
    return np.array(rows).reshape(-1, len(LIKENESS))


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Errors of predictions that had not seen the run, arrays of shape (n,) and (n, 7).

    error: logarithm of measured over predicted step time. experts: whether the model has any.
    """

    source: NDArray[np.str_]
    architecture: NDArray[np.str_]
    like: Array
    error: Array
    experts: NDArray[np.bool_]

    def where(self, rows: Any) -> HeldOut:
        """Some of them."""
        return HeldOut(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def _read(*names: str) -> HeldOut:
    """The errors in files beside this one."""
    rows: list[dict[str, str]] = []
    for name in names:
        text = (resources.files("planner.validation") / name).read_text(encoding="utf-8")
        rows += csv.DictReader(text.splitlines())
    number = np.array([[float(r[c]) for c in COLUMNS[3:]] for r in rows])
    return HeldOut(
        source=np.array([r["source"] for r in rows]),
        architecture=np.array([r["architecture"] for r in rows]),
        like=number[:, : len(LIKENESS)],
        error=np.log(number[:, -2] / number[:, -3]),
        experts=number[:, -1] > 0,
    )


@cache
def held_out() -> HeldOut:
    """The errors on the shipped runs of fits without their publication."""
    return _read("held_out.csv")


@cache
def unseen() -> HeldOut:
    """The errors of the shipped profiles on runs that no fit uses."""
    return _read("unseen.csv")


@cache
def _all_errors() -> HeldOut:
    return _read("held_out.csv", "unseen.csv")


def known_errors(architecture: str, *, experts: bool) -> HeldOut:
    """Those and the ones on unseen runs: of models without experts on an architecture, or of all that have some.

    None for an architecture of which there are fewer runs than leave one beyond either end of an interval of 80 %.
    """
    known = _all_errors()
    on = known.architecture == architecture
    on &= np.count_nonzero(on) >= LEAST_RUNS
    return known.where(on.any() & known.experts if experts else on & ~known.experts)


def held_out_mape() -> dict[str, float]:
    """Mean relative error of those predictions, by set and `overall`."""
    known = held_out()
    size = np.abs(np.exp(-known.error) - 1.0)
    by_set = {str(name): float(size[known.source == name].mean()) for name in np.unique(known.source)}
    return by_set | {"overall": float(size.mean())}


@dataclass(frozen=True, kw_only=True)
class Fits:
    """Of measured runs, how many there are, of how many it is predicted right whether they fit, how many did not."""

    runs: int
    right: int
    failed: int


@cache
def fits_of(architecture: str) -> Fits:
    """What the shipped runs on an architecture tell of memory (`fits.csv`), else those that no fit uses."""
    text = (resources.files("planner.validation") / "fits.csv").read_text(encoding="utf-8")
    row = next(r for r in csv.DictReader(text.splitlines()) if r["architecture"] == architecture)
    return Fits(runs=int(row["runs"]), right=int(row["right"]), failed=int(row["failed"]))


def error_quantiles(known: HeldOut, like: Array, shares: Any) -> Array:
    """Quantiles of the errors of runs like one, shape (shares,); like: of shape (7,).

    A run's weight falls with its distance in octaves, and with the root of how many runs its set has: runs of a set err
    alike, but not all the same, so they count as what lies half-way between so many runs and one. So does their number:
    the new run may lie beyond them all as any of them might, one more beside n, as in conformal prediction with weights
    (Tibshirani et al. 2019, arXiv 1904.06019); n is the geometric mean of the effective numbers (Kish 1965) of runs and
    of sets.
    """
    distance = ((np.log2(known.like / like) / WIDTH) ** 2).sum(axis=1)
    _, at, size = np.unique(known.source, return_inverse=True, return_counts=True)
    weight = np.exp(-0.5 * (distance - distance.min())) * size[at] ** -0.5
    order = np.argsort(known.error)
    middle = np.cumsum(weight[order]) - 0.5 * weight[order]
    of_runs, of_sets = ((w**2).sum() / w.sum() ** 2 for w in (weight, np.bincount(at, weight)))
    level, one_more = np.asarray(shares, dtype=np.float64), np.sqrt(of_runs * of_sets)
    level = level * (1.0 + one_more) - one_more * np.heaviside(0.5 - level, 0.5)
    within = np.clip(level, of_runs / 2.0, 1.0 - of_runs / 2.0)  # of the known ones, not of those without weight
    return np.asarray(np.interp(within, middle / weight.sum(), known.error[order]))


def interval_factors(
    architecture: str, like: Array, share: float = 0.8, *, experts: bool = False
) -> tuple[float, float] | None:
    """What to multiply a predicted step time by for the ends of its interval; None without runs like it.

    like: `likeness` of the layout, shape (7,). share: of cases in which the measured time lies between. experts:
    whether the model has any.
    """
    known = known_errors(architecture, experts=experts)
    if not len(known.error):
        return None
    low, high = np.exp(error_quantiles(known, like, [(1 - share) / 2, (1 + share) / 2]))
    return float(low), float(high)


def step_interval_s(
    model: Transformer, cluster: Cluster, result: Estimate, i: int, share: float = 0.8
) -> tuple[float, float] | None:
    """Between which step times the measured one of layout i lies in `share` of such cases; None without such runs.

    model: the one that was estimated, scalar fields.
    """
    x = result.layouts
    like = likeness(
        model,
        gpus=x.gpus[i],
        global_batch=x.global_batch[i],
        tp=x.tp[i],
        pp=x.pp[i],
        micro_batch=x.micro_batch[i],
    )
    factors = interval_factors(cluster.accelerator.efficiency.name, like, share, experts=bool(model.num_experts))
    step = float(result.step_time_s[i])
    return None if factors is None else (step * factors[0], step * factors[1])


def coverage(known: HeldOut, share: float = 0.8) -> dict[str, float]:
    """How often each set's runs lie in an interval made of other publications' errors, by set.

    Runs of a set whose kind no other publication has (`ALONE`) may be judged by its own other runs.
    """
    publication = np.array([name.split("-")[0] for name in known.source])
    out: dict[str, list[bool]] = {}
    for i, name in enumerate(known.source):
        others = known.architecture == known.architecture[i]
        others &= publication != publication[i] if name not in ALONE else np.arange(len(known.source)) != i
        if not others.any():
            continue
        low, high = error_quantiles(known.where(others), known.like[i], [(1 - share) / 2, (1 + share) / 2])
        out.setdefault(str(name), []).append(bool(low <= known.error[i] <= high))
    return {name: float(np.mean(inside)) for name, inside in out.items()}
