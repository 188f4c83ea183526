"""How far predictions have been from measured runs: scores by source, and one sentence for a recommendation."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.files import shipped_folder
from planner.base.units import format_seconds
from planner.hardware import Cluster, load_cluster
from planner.models import Transformer
from planner.validation.errors import LEAST_RUNS, fits_of, held_out, known_errors, unseen
from planner.validation.predict import Predictions, predict
from planner.validation.runs import MeasuredRun, cluster_name, read_runs
from planner.validation.score import score

STATE_SPACE = " 29 measured runs alone have state-space layers: this model's times are less certain."


def shipped_files() -> list[Path]:
    """The measured runs in the package, or at the top of the source tree."""
    return sorted(shipped_folder("measured_runs").glob("*.csv"))


def unseen_files() -> list[Path]:
    """The measured runs that no fit uses, beside those."""
    return sorted((shipped_folder("measured_runs") / "unseen").glob("*.csv"))


def scores(p: Predictions) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Scores by source, and of all rows together; there rank and regret are the mean over sources.

    Rows that could not be predicted count in `rows` and `unpredicted`, not in the errors.
    """
    source = np.array([run["source"] for run in p.runs])
    usable, ok = np.isfinite(p.step_time_s), p.ok

    def of(rows: Any) -> dict[str, Any]:
        k = rows & usable
        s = score(p.step_time_s[k], p.measured_s[k], p.fits[k], ok[k], p.memory_bytes[k], p.measured_memory_bytes[k])
        return s | {"rows": int(rows.sum()), "unpredicted": int((rows & ~usable).sum())}

    by_source = {name: of(source == name) for name in dict.fromkeys(source.tolist())}
    overall = of(np.ones(len(source), dtype=bool))
    ranks = [s["rank_correlation"] for s in by_source.values() if s["rank_correlation"] is not None]
    regrets = [s["regret"] for s in by_source.values() if s["regret"] is not None]
    numbers = [r for r in regrets if not isinstance(r, str)]
    overall["rank_correlation"] = float(np.mean(ranks)) if ranks else None
    overall["regret"] = "failed" if len(numbers) < len(regrets) else (float(np.mean(numbers)) if numbers else None)
    return by_source, overall


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Errors of this version on the shipped measured runs of one GPU architecture.

    errors: predicted over measured step time, less 1, shape (timed runs,); fits_right: share of all runs whose
    fitting in memory was predicted right; sources: scores by source. All empty where no runs are shipped.
    """

    architecture: str
    errors: Array
    fits_right: float
    sources: dict[str, dict[str, Any]]


def accuracy_of(architecture: str) -> Accuracy:
    """How far this version's step times are from the shipped measured runs on GPUs of that architecture.

    Where there are none, from those that no fit uses.
    """
    cluster_of = cache(load_cluster)
    near = _runs_on(architecture, shipped_files(), cluster_of) or _runs_on(architecture, unseen_files(), cluster_of)
    if not near:
        return Accuracy(architecture=architecture, errors=np.zeros(0), fits_right=np.nan, sources={})
    p = predict(near, cluster_of)
    timed = np.isfinite(p.step_time_s) & np.isfinite(p.measured_s) & p.ok
    return Accuracy(
        architecture=architecture, errors=p.step_time_s[timed] / p.measured_s[timed] - 1.0,
        fits_right=float(np.mean(p.fits == p.ok)), sources=scores(p)[0],
    )  # fmt: skip


def _runs_on(architecture: str, paths: list[Path], cluster_of: Callable[[str], Cluster]) -> list[MeasuredRun]:
    """The measured runs on GPUs of an architecture."""
    runs = [run for path in paths for run in read_runs(path)]
    return [run for run in runs if cluster_of(cluster_name(run)).accelerator.efficiency.name == architecture]


def accuracy_sentence(
    architecture: str,
    interval_s: tuple[float, float] | None = None,
    *,
    step_s: float | None = None,
    model: Transformer | None = None,
    unlike: str = "",
) -> str:
    """How far predictions have been from runs that they had not seen, on such GPUs or with experts.

    interval_s: of its step, `planner.validation.interval.step_interval_s`. step_s: as predicted. model: what is
    recommended for, whose kinds of layers say which runs count. unlike: in what no measured run is like it
    (`planner.validation.interval.unlike`).
    """
    experts = model is not None and bool(model.num_experts)
    known = known_errors(architecture, experts=experts)
    like = f"{unlike}; " if unlike else ""
    if interval_s is not None:
        low, high = (format_seconds(x) for x in interval_s)
        like += f"with a chance of 80 % the step takes {low} to {high}"
        if step_s is not None and not interval_s[0] <= step_s <= interval_s[1]:
            like += f", {'longer' if step_s < interval_s[0] else 'less'} than predicted, as like runs did"
        like += "; " if not len(known.error) else ": budget with these seconds. On "
    elif len(known.error):
        like += "on "
    if not len(known.error):
        few = f"fewer than {LEAST_RUNS} measured runs on {architecture} GPUs are shipped"
        return f"{like}{few}: {_few_sentence(architecture)}; see planner validate."
    size = np.abs(np.exp(-known.error) - 1.0)
    which = "of models with experts" if experts else f"on {architecture} GPUs"
    unseen_by = "No fit uses them." if experts else "The fits had not seen them; we have looked into them since."
    return (
        f"{like}{len(size)} measured runs {which}{'' if interval_s is None else ', like this or not'}, "
        f"step time was off by {100 * size.mean():.1f} % on average, by less than "
        f"{100 * np.quantile(size, 0.8):.0f} % in 80 % of them. {unseen_by} {_memory_sentence(architecture)}"
        f"{STATE_SPACE if model is not None and model.num_ssm_layers else ''}"
    )


def _few_sentence(architecture: str) -> str:
    """A sentence on the few measured runs of an architecture, if there are any."""
    error = np.concatenate([known.error[known.architecture == architecture] for known in (held_out(), unseen())])
    if not len(error):
        return "unverified here"
    off = -float(np.expm1(-error).mean())  # of the predicted step below the measured
    return f"{len(error)} of them, predicted {abs(off):.0%} too {'fast' if off > 0 else 'slow'} on average"


def _memory_sentence(architecture: str) -> str:
    """A sentence on memory, by an architecture's runs: where none failed, nothing of what doesn't fit."""
    known = fits_of(architecture)
    share = f"{100 * known.right / known.runs:.0f} %"
    if known.failed:
        return (
            f"Memory is judged by {known.runs:,} runs on {architecture} GPUs: of {share} it was right whether they fit."
        )
    return f"Memory is judged by {known.runs:,} runs on {architecture} GPUs: all ran, {share} were predicted to fit."
