"""Predictions for measured runs: rows to layouts, all of a cluster's in one pass, one chosen for each row.

Profiles of one's own stand in the place of the shipped ones of the same names (`loaders`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools
from planner.base.errors import InputError
from planner.base.files import is_path
from planner.choices.table import CHOICES
from planner.hardware import Cluster, Framework, load_cluster, load_framework
from planner.hardware.framework_runs import Unstated, of_allocator
from planner.layouts import Layouts, Recompute
from planner.models import FAMILIES, Transformer, from_shape, load_model, model_names, stack, with_seq_len
from planner.models.flops import forward_flops, step_flops
from planner.schedules.base import WHOLE_ROUNDS
from planner.setup import Setup
from planner.step.estimate import Estimate, estimate
from planner.step.legality import UNEVEN_CHUNKS, first_broken
from planner.step.step_costs import step_costs
from planner.step.timeline.timed import timed
from planner.validation.defaults import candidates, filled_cells, framework_name, same_preset
from planner.validation.runs import MeasuredRun, cluster_name, said


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """A prediction a run, arrays of shape (rows,): NaN times where a run can't be predicted, with its reason.

    memory_bytes: what a run's source measured of it; where it states no memory, all that the fullest accelerator holds.
    measured_s: the measured step time, or where a source gives only TFLOP/s or MFU the time that it means.
    chosen: by row, the estimate of the layouts that a run may have had, and which of them was taken. A row that can't
    be predicted is not in it.
    """

    runs: list[MeasuredRun]
    step_time_s: Array
    memory_bytes: Array
    fits: Bools
    measured_s: Array
    measured_memory_bytes: Array
    reasons: list[str]
    filled_cells: int
    chosen: dict[int, tuple[Estimate, int]]

    @property
    def ok(self) -> Bools:
        """Whether the run fit in memory."""
        return np.array([run["outcome"] == "ok" for run in self.runs], dtype=bool)


# Rules that Megatron-Core's interleaved runs need not keep: it may count embedding and head as layers of the first and
# last chunk (126 layers on 64 chunks of 2), and end with a round of fewer micro-batches.
INTERLEAVED_ANYHOW = (UNEVEN_CHUNKS, f"interleaved {WHOLE_ROUNDS}")
SHAPE = ("family", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "seq_len", "experts", "top_k")


class Models:
    """The transformers of the runs, each distinct one made once."""

    def __init__(self) -> None:
        self.models: list[Transformer] = []
        self.flop: list[float] = []
        """Of each model's forward pass of a sequence, attention as the mask leaves it."""
        self.index: dict[tuple[Any, ...], int] = {}

    def of(self, run: MeasuredRun) -> int:
        """The index of a run's model: from its shape cells, or the preset or file that it names."""
        shape = tuple(run[c] for c in SHAPE)
        made = (*shape, said(run, "tied_below_ffn"))
        key = made if run["layers"] else (run["model"], run["seq_len"], run["vocab"], run.path.parent)
        if key not in self.index:
            self.models.append(self._make(run))
            self.flop.append(float(sum(forward_flops(self.models[-1], causal=True).values())))
            self.index[key] = len(self.models) - 1
        return self.index[key]

    def _make(self, run: MeasuredRun) -> Transformer:
        if run["layers"] is None:
            model = load_model(run.named("model"))
            model = with_seq_len(model, run["seq_len"]) if run["seq_len"] else model
            return replace(model, vocab=run["vocab"]) if run["vocab"] else model
        for column in ("hidden", "heads", "vocab", "seq_len"):
            if run[column] is None:
                raise InputError(f"column {column} is empty, but layers are given")
        if run["model"] in model_names():
            preset = load_model(run["model"])
            for column, own in (("layers", preset.num_layers), ("hidden", preset.hidden)):
                if run[column] != own:
                    raise InputError(f"{column} is {run[column]}, but {preset.name} has {own}; name another model")
        if run["family"] not in FAMILIES:
            raise InputError(f"family is {run['family']!r}; allowed: {', '.join(FAMILIES)}")
        if (known := same_preset(run)) is not None:
            return replace(with_seq_len(known, run["seq_len"]), vocab=run["vocab"])
        model = from_shape(
            family=run["family"],
            layers=run["layers"],
            hidden=run["hidden"],
            ffn=run["ffn"] or 4 * run["hidden"],
            heads=run["heads"],
            kv_heads=run["kv_heads"] or run["heads"],
            vocab=run["vocab"],
            seq_len=run["seq_len"],
            experts=run["experts"] or 0,
            top_k=run["top_k"] or 0,
            name=run["model"],
        )
        tied_below = said(run, "tied_below_ffn")
        return model if tied_below is None else replace(model, tied=bool(model.ffn < tied_below))


def _check_row(run: MeasuredRun, layout: dict[str, Any]) -> None:
    """A row's names and its product of degrees; raises InputError with the reason why it can't be predicted."""
    for name, value in layout.items():
        CHOICES[name].coded(value)
    gpus = layout["dp"] * layout["tp"] * layout["pp"] * layout["cp"]
    if gpus != run["n_gpus"]:
        raise InputError(f"dp tp pp cp make {gpus} accelerators, n_gpus is {run['n_gpus']}")


def _measured_s(run: MeasuredRun, model: Transformer, cluster: Cluster) -> float:
    """The measured step time, or the one that the source's TFLOP/s or MFU means; NaN where there is none."""
    if run["step_time_s"] is not None:
        return float(run["step_time_s"])
    if run["tflops_per_gpu"] is not None:
        flop = step_flops(model, run["global_batch"], "megatron", recompute=run["recompute"] == "full")
        return float(flop / (run["tflops_per_gpu"] * 1e12 * run["n_gpus"]))
    if run["mfu"] is not None:
        peak = cluster.accelerator.peak_flops.get(run["precision"], np.nan)
        return float(step_flops(model, run["global_batch"], "palm") / (run["mfu"] * peak * run["n_gpus"]))
    return float("nan")


def check_possible(run: MeasuredRun, forward_flop: float, cluster: Cluster, step_s: float) -> None:
    """Raises InputError for a run whose products beat the datasheet's peak, or with more memory than a GPU has.

    forward_flop: of a sequence. Frozen weights have no gradients.
    """
    gpu = cluster.accelerator
    rate = (
        (3.0 if run["train"] in (None, "full") else 2.0) * forward_flop * run["global_batch"] / (step_s * run["n_gpus"])
    )
    peak = gpu.peak_flops.get(run["precision"], np.inf)
    if rate > peak:
        said = next(name for name in ("step_time_s", "tflops_per_gpu", "mfu") if run[name] is not None)
        raise InputError(
            f"{said} is {run[said]:g}, which means {rate / 1e12:,.0f} TFLOP/s per GPU; allowed: up to the "
            f"{peak / 1e12:,.0f} of {gpu.name}'s datasheet in {run['precision']}; check {said}, n_gpus and global_batch"
        )
    memory, most = run["peak_memory_gib"], np.ceil(gpu.memory_bytes / 2.0**30)
    if memory is not None and memory > most:
        raise InputError(f"peak_memory_gib is {memory:g}; allowed: up to {most:.0f}, which {gpu.name} has")


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """The candidates of all runs on one cluster with one framework."""

    cluster: Cluster
    framework: Framework
    rows: list[int]
    models: list[int]
    layouts: list[dict[str, Any]]


LoadCluster = Callable[[str], Cluster]
LoadFramework = Callable[[str], Framework]
# A framework's name, whether the run was launched as planned, whether all states are sharded, whether memory is stated,
# and what is said of launches, of repeats, of whose loss ran, of when gradients are reduced, of tensor-parallel
# collectives, of gated MLPs, and of whose memory it is.
Said = str | None
Software = tuple[str, bool, bool, bool, Said, Said, Said, Said, Said, Said, Said]


def _as_run(framework_of: LoadFramework, software: Software) -> Framework:
    """A framework with the launches, repeats, loss and overlaps that runs are said, or else taken, to have had.

    A run that was launched as planned has all that the profile has.
    """
    name, planned, sharded, stated, launches, repeats, loss, reduction, tensor, gate, whose = software
    own = framework_of(name)
    unstated = Unstated() if planned else own.unstated
    of_loss = framework_of(loss or unstated.loss or name)
    if (reduction or ("hidden" if sharded else unstated.reduction)) == "exposed":
        own = replace(own, overlap_grad_reduce=0.0, overlap_grad_reduce_pipelined=0.0, overlap_param_gather=0.0)
    allocated = stated and (whose or unstated.memory) == "allocated"
    return replace(
        own,
        flex_dispatch=own.flex_dispatch and planned,  # else a run that dispatched so has a profile that says so
        blocking_launches=own.blocking_launches or launches == "blocking",
        recompute_stops_early=own.recompute_stops_early and repeats != "all",
        entropy_forward_bytes=of_loss.entropy_forward_bytes,
        entropy_backward_bytes=of_loss.entropy_backward_bytes,
        overlap_tensor=0.0 if (tensor or unstated.tensor) == "exposed" else own.overlap_tensor,
        gate_tensors=5.0 if gate == "shifted" else own.gate_tensors,
        freed_in_turn=own.freed_in_turn or allocated,
        fragmentation=0.0 if allocated else own.fragmentation,
    )


def predict(
    runs: list[MeasuredRun], cluster_of: LoadCluster = load_cluster, framework_of: LoadFramework = load_framework,
    *, closed_form: bool = False,
) -> Predictions:  # fmt: skip
    """Predict every run as `timed_estimate` does; a run that can't be predicted keeps NaN and its reason.

    cluster_of, framework_of: profiles by name, so that a calibration can try others. closed_form: without the timeline,
    as a calibration compares thousands.
    """
    n = len(runs)
    models = Models()
    groups: dict[tuple[str, Software], RunGroup] = {}
    reasons, measured = [""] * n, np.full(n, np.nan)
    cluster_by, framework_by = cache(cluster_of), cache(partial(_as_run, framework_of))
    for i, run in enumerate(runs):
        try:
            where = cluster_name(run)
            cluster = cluster_by(where)
            name = framework_name(run, cluster)
            tables = ("launches", "repeats", "loss", "reduction", "tensor", "gate", "memory")
            known = (bool(run["as_planned"]), run["zero"] == 3, bool(run["peak_memory_gib"]))
            software: Software = (name, *known, *(said(run, table) for table in tables))
            framework = framework_by(software)
            k = models.of(run)
            options = candidates(run, models.models[k], framework, cluster.accelerator.efficiency.name)
            _check_row(run, options[0])
            step_s = _measured_s(run, models.models[k], cluster)
            check_possible(run, models.flop[k], cluster, step_s)
        except InputError as error:
            reasons[i] = str(error)
            continue
        measured[i] = step_s
        key = (where, software)
        if key not in groups:
            groups[key] = RunGroup(cluster=cluster, framework=framework, rows=[], models=[], layouts=[])
        group = groups[key]
        group.rows.extend([i] * len(options))
        group.models.extend([k] * len(options))
        group.layouts.extend(options)
    step, memory, fits = np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, dtype=bool)
    chosen: dict[int, tuple[Estimate, int]] = {}
    for group in groups.values():
        chosen |= _predict_group(group, models.models, runs, closed_form, memory, fits, reasons)
    for row, (result, c) in chosen.items():
        step[row], reasons[row] = result.step_time_s[c], ""
    return Predictions(
        runs=runs,
        step_time_s=step,
        memory_bytes=memory,
        fits=fits,
        measured_s=measured,
        measured_memory_bytes=np.array([(r["peak_memory_gib"] or np.nan) for r in runs]) * 2.0**30,
        reasons=reasons,
        filled_cells=sum(filled_cells(r) for r in runs),
        chosen=chosen,
    )


def _predict_group(
    group: RunGroup,
    models: list[Transformer],
    runs: list[MeasuredRun],
    closed_form: bool,
    memory: Array,
    fits: Any,
    reasons: list[str],
) -> dict[int, tuple[Estimate, int]]:
    """Return which candidate was chosen for each row of a group; fill in memory, what fits and which rule is broken.

    It is the fastest of a row's legal candidates that recompute and shard least. What recomputes nothing counts where
    it is likelier to fit than not. A row fits if one of its candidates does. Illegal ones are not estimated: their
    costs may be undefined.
    """
    layouts, table = Layouts.of_rows(group.layouts), stack(models, np.array(group.models))
    as_said = [runs[row]["virtual_stages"] is not None for row in group.rows]
    strict, lenient = (np.array(first_broken(table, group.cluster, layouts, but)) for but in ((), INTERLEAVED_ANYHOW))
    broken = np.where(as_said, lenient, strict)
    for row, text in zip(reversed(group.rows), reversed(broken), strict=True):
        reasons[row] = text
    (allowed,) = np.nonzero(broken == "")
    if not len(allowed):
        return {}
    setup = Setup(stack(models, np.array(group.models)[allowed]), group.cluster, group.framework)
    costs = step_costs(setup, layouts.take(allowed))
    result = estimate(setup, costs.case.layouts, costs)
    rows = np.array(group.rows)[allowed]
    likely = result.fit_chance >= 0.5
    wanted = np.where((result.layouts.recompute == Recompute.NONE) & likely, 0, np.where(likely, 1, 2))
    chosen: dict[int, int] = {}
    for c in np.lexsort((result.step_time_s, result.layouts.zero, wanted)):
        chosen.setdefault(int(rows[c]), int(c))
    if not closed_form:
        picked = np.array(list(chosen.values()))
        result = timed(setup, result, picked[strict[allowed[picked]] == ""], costs)
    usual = group.framework.unstated.memory
    whose = np.array([said(runs[r], "memory") or usual if runs[r]["peak_memory_gib"] else "device" for r in rows])
    seen = np.where(np.char.startswith(whose, "first-rank"), result.first_rank_bytes, result.memory_bytes)
    seen = seen - np.where(list(map(of_allocator, whose)), group.framework.reserved_bytes, 0.0)
    for row, c in chosen.items():
        memory[row] = seen[c]
    np.logical_or.at(fits, rows, result.fits)
    return {row: (result, c) for row, c in chosen.items()}


def loaders(folder: Path | None) -> tuple[LoadCluster, LoadFramework]:
    """How to load clusters and frameworks by the names that runs say: from a folder where it has one, else the shipped.

    folder: laid out as `hardware_profiles/`, as `planner calibrate --from` writes it; None: the shipped ones only.

    Raises InputError if the folder has no profiles, or one that does not load: all are read, whatever the runs name.
    """
    if folder is None:
        return load_cluster, load_framework
    clusters, frameworks = (sorted((folder / kind).glob("*.toml")) for kind in ("clusters", "frameworks"))
    if not clusters and not frameworks:
        raise InputError(f"{folder}: no profiles in it; allowed: a folder with clusters/*.toml or frameworks/*.toml")
    own_clusters = {path.stem: load_cluster(str(path)) for path in clusters}
    own_frameworks = {path.stem: load_framework(str(path)) for path in frameworks}
    return (
        lambda name: own_clusters.get(_stem(name)) or load_cluster(name),
        lambda name: own_frameworks.get(_stem(name)) or load_framework(name),
    )


def _stem(name: str) -> str:
    """A profile's name, by which one of one's own takes its place, also where it is named by a path."""
    return Path(name).stem if is_path(name) else name
