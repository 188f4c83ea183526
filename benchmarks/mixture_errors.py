"""Where predictions of unseen mixtures err, and how far publications that state the same differ.

    python benchmarks/mixture_errors.py [--pairs]

The first table looks for a part of the step that is counted too short everywhere: by group of runs, the error by set,
its bias, and of all parts of the closed form's step the one whose multiple, added to the prediction, helps most where
it was fitted without the run's publication (least squares of the relative error, sets alike). None of these multiples
is in any profile. The second table has pairs of runs of one publication that differ in one choice, whatever their
virtual stages and batch: how far the predicted ratio of their seconds per token is off, on average of the publications'
means and of all pairs without sign. The level of a publication's software cancels there. --pairs prints each pair. The
third compares runs of different publications, or sets, that state the same model, cluster, precision and layout: the
ratio of their tokens per second, the least mean error that one prediction for all of them could have, and that of
planner's. Then how many of them that least error leaves over the bar of a single set, 12 % for dense models and 15 %
for mixtures, and how many planner does.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass, fields
from itertools import combinations, product
from typing import Any

import numpy as np

from planner.hardware import load_cluster, load_framework
from planner.step.step_time import StepTime
from planner.validation import MeasuredRun, Predictions, predict, read_runs, shipped_files, unseen_files
from planner.validation.defaults import candidates, framework_name
from planner.validation.predict import Models
from planner.validation.publications import publication_of
from planner.validation.runs import cluster_name

PARTS = tuple(f.name for f in fields(StepTime))
SIZES = ("num_layers", "hidden", "ffn", "num_heads", "num_experts", "top_k", "num_mtp_layers", "vocab", "seq_len")
BARS = {"dense": 0.12, "mixtures": 0.15}
LAYOUT = ("tp", "pp", "cp", "ep", "micro_batch", "virtual_stages")
CHOICES = (
    "n_gpus", "tp", "pp", "cp", "ep", "etp", "zero", "micro_batch", "precision", "recompute", "attention", "framework",
    "cuda_graphs", "cluster",
)  # fmt: skip


@dataclass(frozen=True)
class Runs:
    """Timed unseen mixtures: names of set and publication, seconds predicted and measured, parts (runs, parts)."""

    source: np.ndarray
    publication: np.ndarray
    predicted_s: np.ndarray
    measured_s: np.ndarray
    parts_s: np.ndarray

    def where(self, rows: np.ndarray) -> Runs:
        return Runs(*(getattr(self, f.name)[rows] for f in fields(self)))

    def weights(self) -> np.ndarray:
        _, at, count = np.unique(self.source, return_inverse=True, return_counts=True)
        return 1.0 / count[at] / len(count)

    def error(self, predicted_s: np.ndarray) -> float:
        return float(self.weights() @ np.abs(predicted_s / self.measured_s - 1.0))


def publication(source: str) -> str:
    found = publication_of(source)
    return source if found is None else found.sets


def with_parts(runs: list[MeasuredRun]) -> tuple[Runs, list[MeasuredRun]]:
    """The runs that have a prediction, with the parts of the layout that was chosen for each."""
    p = predict(runs, closed_form=True)
    rows, kept = [], []
    for i, (result, c) in p.chosen.items():
        if not (np.isfinite(p.measured_s[i]) and p.ok[i]):
            continue
        parts = [float(np.broadcast_to(getattr(result.time, name), len(result.layouts))[c]) for name in PARTS]
        source = runs[i]["source"]
        rows.append((source, publication(source), p.step_time_s[i], p.measured_s[i], parts))
        kept.append(runs[i])
    return Runs(*(np.array(column) for column in zip(*rows, strict=True))), kept


def multiple(runs: Runs, part_s: np.ndarray, rows: np.ndarray) -> float:
    """Of a part, what would best be added to the predictions of some runs."""
    some, share = runs.where(rows), part_s[rows] / runs.measured_s[rows]
    missing = 1.0 - some.predicted_s / some.measured_s
    squares = some.weights() @ share**2
    return float(some.weights() @ (share * missing) / squares) if squares > 0 else 0.0


def left_out(runs: Runs, part_s: np.ndarray) -> tuple[float, float]:
    """The error by set with a multiple of a part, each publication by the others'; and the multiple that all tell."""
    predicted_s = runs.predicted_s.copy()
    for name in np.unique(runs.publication):
        its = runs.publication == name
        predicted_s[its] += multiple(runs, part_s, ~its) * part_s[its]
    return runs.error(predicted_s), multiple(runs, part_s, np.ones(len(part_s), dtype=bool))


def parts_table(runs: Runs, kept: list[MeasuredRun], models: Models) -> None:
    efa = np.array(["efa" in load_cluster(cluster_name(run)).network.name for run in kept])
    uneven = np.array([routes_itself(run, models) for run in kept])
    groups = {"all": efa | ~efa, "over EFA": efa, "uneven experts": uneven & ~efa, "the others": ~efa & ~uneven}
    print(
        f"{'runs':16s} {'sets':>5s} {'publications':>13s} {'error %':>8s} {'bias %':>7s}  best part, others' multiple"
    )
    for name, rows in groups.items():
        some = runs.where(rows)
        bias = some.weights() @ np.log(some.predicted_s / some.measured_s)
        sets, publications = (len(np.unique(of)) for of in (some.source, some.publication))
        line = f"{name:16s} {sets:5d} {publications:13d} {100 * some.error(some.predicted_s):8.1f} {100 * bias:7.1f}"
        if publications > 1:
            scores = {part: left_out(some, some.parts_s[:, i]) for i, part in enumerate(PARTS)}
            part = min(scores, key=lambda p: scores[p][0])
            line += f"  {part[:-2]}: {100 * scores[part][0]:.1f} %, {scores[part][1]:+.2f} of it"
        print(line)


def choices_table(runs: Runs, kept: list[MeasuredRun], models: Models, every: bool) -> None:
    stated = []
    for run in kept:
        model = models.models[models.of(run)]
        sizes = tuple(float(getattr(model, size)) for size in SIZES if size != "seq_len")
        stated.append({name: run[name] for name in CHOICES} | {"model": sizes, "seq_len": model.seq_len})
    tokens = np.array(
        [run["global_batch"] * at["seq_len"] / run["n_gpus"] for run, at in zip(kept, stated, strict=True)]
    )
    predicted, measured = (np.log(seconds / tokens) for seconds in (runs.predicted_s, runs.measured_s))
    off: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for i, j in combinations(range(len(kept)), 2):
        differ = [name for name in stated[i] if stated[i][name] != stated[j][name]]
        if len(differ) == 1 and runs.publication[i] == runs.publication[j]:
            (name,) = differ
            a, b = sorted((i, j), key=lambda row: (str(type(stated[row][name])), stated[row][name]))
            ratios = [x[b] - x[a] for x in (measured, predicted)]
            off[name][runs.publication[i]].append(ratios[1] - ratios[0])
            if every:
                between = "" if name == "model" else f"{stated[a][name]} -> {stated[b][name]}"
                names = f"{kept[a]['source']} {kept[a]['run']} | {kept[b]['run']}"
                print(f"{name:12s} {between:24s} {np.exp(ratios[0]):6.3f} {np.exp(ratios[1]):6.3f}  {names}")
    print(f"\n{'differ in':14s} {'publications':>12s} {'pairs':>6s} {'mean %':>7s} {'off by %':>9s}")
    for name, by in off.items():
        mean, every_one = np.mean([np.mean(x) for x in by.values()]), np.concatenate(list(by.values()))
        off_by = 100 * np.abs(every_one).mean()
        print(f"{name:14s} {len(by):12d} {len(every_one):6d} {100 * mean:7.1f} {off_by:9.1f}")


def routes_itself(run: MeasuredRun, models: Models) -> bool:
    """Whether a run's routers are taken to be left to themselves."""
    framework = load_framework(framework_name(run, load_cluster(cluster_name(run))))
    return candidates(run, models.models[models.of(run)], framework)[0]["expert_imbalance"] > 1.0


def same_layout(run: MeasuredRun, models: Models) -> tuple[Any, ...]:
    model = models.models[models.of(run)]
    sizes = [getattr(model, size) for size in SIZES]
    return (*sizes, cluster_name(run), run["precision"], run["n_gpus"], *(run[c] or 1 for c in LAYOUT))


def same_software(run: MeasuredRun, models: Models) -> tuple[Any, ...]:
    framework = framework_name(run, load_cluster(cluster_name(run)))
    return (*same_layout(run, models), run["recompute"], run["zero"], framework)


def between_table(models: Models) -> None:
    runs = [run for path in (*shipped_files(), *unseen_files()) for run in read_runs(path)]
    p = predict(runs)
    error = np.abs(p.step_time_s / p.measured_s - 1.0)
    timed = np.flatnonzero(np.isfinite(error) & p.ok)
    widths = {"groups": 6, "pairs": 6, "ratio": 6, "80 %": 6, "best %": 7, "ours %": 7}
    columns = [f"{name:>{width}s}" for name, width in widths.items()]
    print(f"\n{'states the same':49s} {' '.join(columns)}  over  ours    of")
    for kind, what, name in product(("dense", "mixtures"), ("layout", "and software"), ("publications", "sets")):
        groups: dict[Any, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for i in timed:
            if has_experts(runs[i], models) == (kind == "mixtures"):
                key = (same_software if what == "and software" else same_layout)(runs[i], models)
                source = runs[i]["source"]
                groups[key][publication(source) if name == "publications" else source].append(i)
        several = [group for group in groups.values() if len(group) > 1]
        shown(f"{kind}, {what}, different {name}", p, error, several, BARS[kind])


def shown(name: str, p: Predictions, error: np.ndarray, groups: list[dict[str, list[int]]], bar: float) -> None:
    ratios, best, ours, over = [], [], [], np.zeros(3, dtype=int)
    for group in groups:
        each = [np.mean([np.log(p.measured_s[i] / p.runs[i]["global_batch"]) for i in rows]) for rows in group.values()]
        times = np.exp(each)
        ratios += [abs(a - b) for a, b in combinations(each, 2)]
        least = min((np.abs(t / times - 1.0) for t in times), key=np.mean)
        own = np.array([error[rows].mean() for rows in group.values()])
        best.append(least.mean())
        ours.append(own.mean())
        over += [np.sum(least > bar), np.sum(own > bar), len(own)]
    middle, most = np.exp(np.quantile(ratios, [0.5, 0.8]))
    means = f"{100 * np.mean(best):7.1f} {100 * np.mean(ours):7.1f} {over[0]:5d} {over[1]:5d} {over[2]:5d}"
    print(f"{name:49s} {len(groups):6d} {len(ratios):6d} {middle:6.2f} {most:6.2f} {means}")


def has_experts(run: MeasuredRun, models: Models) -> bool:
    return bool(models.models[models.of(run)].num_experts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", action="store_true")
    every = parser.parse_args().pairs
    models = Models()
    unseen = [run for path in unseen_files() for run in read_runs(path)]
    runs, kept = with_parts([run for run in unseen if has_experts(run, models)])
    parts_table(runs, kept, models)
    choices_table(runs, kept, models, every)
    between_table(models)


if __name__ == "__main__":
    main()
