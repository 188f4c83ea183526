"""Errors of predictions on measured runs that had not seen them, and what the runs were like.

`held_out.csv` keeps, for every shipped timed run, the step time predicted by a fit without the run's publication;
`unseen.csv` those on runs that no fit uses (`measured_runs/unseen/`). `benchmarks/cross_validate.py` writes both. A run
is like another by its sizes, in octaves, and its traits, which agree or don't.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.base.arrays import Array, Bools
from planner.hardware import Cluster, Framework, load_cluster, load_framework
from planner.models import Transformer
from planner.validation.defaults import framework_name
from planner.validation.predict import Models
from planner.validation.publications import publication_of
from planner.validation.runs import MeasuredRun, cluster_name

LIKENESS = ("gpus", "matrix_elements_per_gpu", "tokens_per_gpu", "tp", "pp", "product_elements", "seq_len")
TRAITS = ("architecture", "stack", "link", "precision", "kind")
TRAIT_WORDS = ("GPU generation", "framework", "links", "precision", "kind of model")


def likeness(model: Transformer, *, gpus: Any, global_batch: Any, tp: Any, pp: Any, micro_batch: Any) -> Array:
    """Traits that make runs alike, (n, 7): GPUs, layers x hidden^2 and tokens per GPU, tp, pp, product, sequence."""
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


def traits(model: Transformer, cluster: Cluster, framework: Framework, gpus: int, precision: str) -> tuple[str, ...]:
    """The `TRAITS` of a run on so many GPUs; links: of a node, and of the network where a node is not enough."""
    link = cluster.node_link.kind + (f" and {cluster.network.kind}" if gpus > cluster.gpus_per_node else "")
    kind = "experts" if model.num_experts else "hybrid" if model.num_ssm_layers else "dense"
    return (cluster.accelerator.efficiency.name, framework.stack or framework.name, link, precision.lower(), kind)


def likeness_of_runs(runs: list[MeasuredRun]) -> tuple[Array, NDArray[np.str_]]:
    """`likeness` of measured runs, shape (runs, 7), and their `traits`, shape (runs, 5).

    A micro-batch that isn't said is taken as 1.
    """
    models, cluster_of, framework_of = Models(), cache(load_cluster), cache(load_framework)
    sizes, kinds = [], []
    for run in runs:
        model, cluster = models.models[models.of(run)], cluster_of(cluster_name(run))
        framework = framework_of(framework_name(run, cluster))
        like = likeness(
            model, gpus=run["n_gpus"], global_batch=run["global_batch"], tp=run["tp"], pp=run["pp"],
            micro_batch=run["micro_batch"] or 1,
        )  # fmt: skip
        sizes.append(like)
        kinds.append(traits(model, cluster, framework, run["n_gpus"], run["precision"]))
    return np.array(sizes).reshape(-1, len(LIKENESS)), np.array(kinds, dtype=str).reshape(-1, len(TRAITS))


COLUMNS = ("source", "run", *TRAITS, *LIKENESS, "held_out_step_time_s", "measured_step_time_s")
LEAST_RUNS = 10


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Errors of predictions that had not seen the run, arrays of shape (n,), (n, 7) and (n, 5).

    error: logarithm of measured over predicted step time.
    """

    source: NDArray[np.str_]
    like: Array
    traits: NDArray[np.str_]
    error: Array

    def where(self, rows: Any) -> HeldOut:
        """Some of them."""
        return HeldOut(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @property
    def architecture(self) -> NDArray[np.str_]:
        """The GPU architecture that each was measured on."""
        return self.traits[:, TRAITS.index("architecture")]

    @property
    def experts(self) -> Bools:
        """Whether each model has experts."""
        return np.asarray(self.traits[:, TRAITS.index("kind")] == "experts")

    @cached_property
    def publication(self) -> NDArray[np.str_]:
        """The publication of each run; a source of its own where that isn't known."""
        names, at = np.unique(self.source, return_inverse=True)
        found = [publication_of(str(name)) for name in names]
        return np.array([str(n) if p is None else p.sets for n, p in zip(names, found, strict=True)])[at]

    @cached_property
    def numbers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The set and the publication of each run as whole numbers, which are counted faster than names."""
        set_, publication = (np.unique(of, return_inverse=True)[1] for of in (self.source, self.publication))
        return set_, publication


def text_of(name: str) -> str:
    """A file beside this one."""
    return (resources.files("planner.validation") / name).read_text(encoding="utf-8")


def rows_of(name: str) -> list[dict[str, str]]:
    """The rows of a small file beside this one."""
    return list(csv.DictReader(text_of(name).splitlines()))


def columns_in(*texts: str) -> dict[str, list[str]]:
    """The columns of tables with the same ones, one table after the other: a dictionary per row takes twice as long."""
    out: dict[str, list[str]] = {}
    for text in texts:
        header, *rows = csv.reader(text.splitlines())
        for name, *values in zip(header, *rows, strict=True):
            out.setdefault(name, []).extend(values)
    return out


def errors_in(columns: Mapping[str, Sequence[str]]) -> HeldOut:
    """The errors in columns of such a file."""
    number = np.array([columns[name] for name in COLUMNS[2 + len(TRAITS) :]], dtype=np.float64)
    return HeldOut(
        source=np.array(columns["source"]),
        like=np.ascontiguousarray(number[: len(LIKENESS)].T),
        traits=np.ascontiguousarray(np.array([columns[name] for name in TRAITS]).T),
        error=np.log(number[-1] / number[-2]),
    )


@cache
def held_out() -> HeldOut:
    """The errors on the shipped runs of fits without their publication."""
    return errors_in(columns_in(text_of("held_out.csv")))


@cache
def unseen() -> HeldOut:
    """The errors of the shipped profiles on runs that no fit uses."""
    return errors_in(columns_in(text_of("unseen.csv")))


@cache
def all_errors() -> HeldOut:
    """Errors on held-out runs and on unseen runs."""
    return errors_in(columns_in(text_of("held_out.csv"), text_of("unseen.csv")))


@cache
def errors_of_kind(*, experts: bool) -> HeldOut:
    """All errors of models with experts, or of those without."""
    return all_errors().where(all_errors().experts == experts)


def known_errors(architecture: str, *, experts: bool) -> HeldOut:
    """Errors that tell of a GPU architecture: of models without experts on it, or of all models with experts.

    None for an architecture of which there are fewer runs than leave one beyond either end of an interval of 80 %.
    """
    known = errors_of_kind(experts=experts)
    on = known.architecture == architecture
    enough = np.count_nonzero(all_errors().architecture == architecture) >= LEAST_RUNS
    return known.where((on | experts) & enough)


def held_out_mape() -> dict[str, float]:
    """Mean relative error of those predictions, by set and `overall`."""
    known = held_out()
    size = np.abs(np.exp(-known.error) - 1.0)
    by_set = {str(name): float(size[known.source == name].mean()) for name in np.unique(known.source)}
    return by_set | {"overall": float(size.mean())}


@dataclass(frozen=True, kw_only=True)
class Fits:
    """Number of measured runs, of those predicted right whether they fit, and of those that did not fit.

    gpus: accelerators that any run was measured on, those of most runs first.
    """

    runs: int
    right: int
    failed: int
    gpus: tuple[str, ...]


@cache
def fits_of(architecture: str) -> Fits:
    """Fits of an architecture's shipped runs (`fits.csv`); if there are none, of the runs that no fit uses."""
    row = next(r for r in rows_of("fits.csv") if r["architecture"] == architecture)
    return Fits(
        runs=int(row["runs"]), right=int(row["right"]), failed=int(row["failed"]), gpus=tuple(row["gpus"].split())
    )  # fmt: skip
