"""Answers anchored on measured runs of one's own machine: the question, its intervals, and what to run next."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import InputError
from planner.base.files import given_path
from planner.base.units import counted, format_seconds
from planner.calibration.anchor import Anchor, AnchoredSetup, anchor, check_kind
from planner.calibration.moved import KINDS
from planner.calibration.next_runs import next_runs
from planner.layouts import Layouts
from planner.report.tables import layout_text
from planner.search import Recommendation
from planner.setup import Setup
from planner.step.estimate import Estimate
from planner.validation import MeasuredRun, Predictions, accuracy_sentence, predict, step_interval_s, unlike
from planner.validation.interval import intervals
from planner.validation.predict import LoadCluster, LoadFramework
from planner.validation.runs import cluster_name, runs_of

NORMAL_80 = 1.28
TO_ANCHOR_ON = " to anchor on"
OPEN = 0.05
"""Share of an interval's variance from which on what causes it is named."""
APART = 0.1
"""Steps of one layout that differ by more are said."""
OWN = "a run's own error"
TOLD = 0.1
"""Share of a figure's spread that runs take away, from which on they are said to tell it."""


def anchored(setup: Setup, path: str | os.PathLike[str] | None) -> Setup:
    """The question with the figures that measured runs correct; as it is where no file is given.

    path: a table as `planner validate` reads it, of runs on accelerators and links of the cluster's kind.

    Raises FileFormatError if the file can't be read, or a cell is wrong; InputError for a run on another kind of
    machine, or if none has a step time that can be predicted.
    """
    if path is None:
        return setup
    return anchor(runs_of([given_path("anchor", path)], TO_ANCHOR_ON), setup.cluster).anchored(setup)


def predicted_runs(
    runs: list[MeasuredRun], path: Path | None, cluster_of: LoadCluster, framework_of: LoadFramework
) -> tuple[Predictions, Array, Anchor | None]:
    """Predictions of measured runs, both ends of their intervals, shape (rows, 2), and the anchor if a file has one.

    The anchor's own rows are left out of the predictions: what they measured is known.

    Raises FileFormatError and InputError as `anchored`, or if none of the runs is left.
    """
    if path is None:
        p = predict(runs, cluster_of, framework_of)
        return p, intervals(p), None
    own = runs_of([path], TO_ANCHOR_ON)
    found = anchor(own, None, cluster_of, framework_of)
    rest = [run for run in runs if all(run.cells != known.cells for known in own)]
    if not rest:
        raise InputError(f"{path}: all runs are anchors; allowed: others to predict")
    kind, where = cluster_of(cluster_name(own[0])), cache(cluster_of)
    for run in rest:
        check_kind(run, where(cluster_name(run)), kind)
    p = found.predict(rest, cluster_of, framework_of)
    return p, found.intervals(p, cluster_of, framework_of), found


def interval_s(setup: Setup, result: Estimate, i: int) -> tuple[float, float]:
    """Between which step times the measured one of layout i of an estimate lies in 80 % of such cases."""
    return setup.interval_s(result, i) if isinstance(setup, AnchoredSetup) else step_interval_s(setup, result, i)


def unlike_measured(setup: Setup, result: Estimate, i: int) -> str:
    """In what no measured run is like layout i; empty where some are, or where one's own runs tell."""
    return "" if isinstance(setup, AnchoredSetup) else unlike(setup, result, i)


def trust(
    setup: Setup, interval: tuple[float, float] | None = None, *, step_s: float | None = None, unlike: str = ""
) -> str:
    """How far predictions have been from measured runs, in one sentence; of one's own runs where they anchor it."""
    if not isinstance(setup, AnchoredSetup):
        architecture = setup.cluster.accelerator.efficiency.name
        return accuracy_sentence(architecture, interval, step_s=step_s, model=setup.model, unlike=unlike)
    case = ""
    if interval is not None:
        low, high = (format_seconds(x) for x in interval)
        case = f"with a chance of 80 % the step takes {low} to {high}; "
    record = anchor_record(setup.anchor)
    return (
        f"{case}step time was off by {record['error_before']:.1%} on average on the {counted(record['runs'], 'run')} "
        f"that it is anchored on, by {record['error_after']:.1%} with the figures that they correct."
    )


def anchor_record(found: Anchor) -> dict[str, Any]:
    """The anchor's record: its runs, and the change in time and its standard deviation for each kind of figure."""
    deviation, prior = found.update.deviation(), found.update.prior_deviation
    kinds = zip(KINDS, np.expm1(found.update.shift).tolist(), deviation.tolist(), (deviation / prior), strict=True)
    return {
        "runs": len(found.runs),
        "names": [f"{run['source']}/{run['run']}" for run in found.runs],
        "error_before": float(np.mean(np.abs(found.predicted_s / found.measured_s - 1.0))),
        "error_after": float(np.mean(np.abs(found.after_s / found.measured_s - 1.0))),
        "time_change": {
            kind: {"change": change, "deviation": sd, "told": bool(share < 1.0 - TOLD)}
            for kind, change, sd, share in kinds
        },
        "left": list(found.left),
    }


def anchor_entry(setup: Setup) -> dict[str, Any]:
    """`anchor_record` under its key in an answer's record; nothing without an anchor."""
    return {"anchor": anchor_record(setup.anchor)} if isinstance(setup, AnchoredSetup) else {}


def anchor_lines(setup: Setup, layouts: Layouts | None = None) -> list[str]:
    """Sentences on a question's anchor, one per line; none without an anchor.

    layouts: the one asked about, a table of one, whose own measurements are said first.
    """
    if not isinstance(setup, AnchoredSetup):
        return []
    found = setup.anchor
    own = [] if layouts is None else [format_seconds(found.measured_s[i]) for i in found.of_layout(setup, layouts)]
    measured = [f"Measured: {', '.join(own)} for this layout."] if own else []
    others = {str(run["framework"]) for run in setup.anchor.runs if run["framework"]} - {setup.framework.name}
    ran = f"They ran {', '.join(sorted(others))}; this is for {setup.framework.name}."
    return measured + told_lines(found) + ([ran] if others else [])


def told_lines(found: Anchor) -> list[str]:
    """Sentences on the anchor's runs and how far the figures moved, one per line."""
    record = anchor_record(found)
    changes = record["time_change"]
    told = [
        f"{KINDS[kind]} {x['change']:+.1%} (within {NORMAL_80 * x['deviation']:.1%})"
        for kind, x in changes.items() if x["told"]
    ]  # fmt: skip
    rest = [KINDS[kind] for kind, x in changes.items() if not x["told"]]
    files = ", ".join(dict.fromkeys(str(run.path) for run in found.runs))
    bias = float(np.exp(np.mean(np.log(found.measured_s / found.predicted_s))))
    way = f"the profile predicts their steps {abs(1.0 / bias - 1.0):.1%} too {'short' if bias > 1 else 'long'}"
    lines = [f"Anchored on {counted(record['runs'], 'run')} of {files}: {way}."]
    lines.append(f"Time against the profile's: {'; '.join(told) if told else 'no figure moves'}.")
    if rest:
        lines.append(f"These runs tell little of {', '.join(rest)}.")
    for i, j in found.repeated():
        apart = max(found.measured_s[[i, j]]) / min(found.measured_s[[i, j]]) - 1.0
        if apart > APART:
            lines.append(f"Runs {found.runs[i]['run']} and {found.runs[j]['run']} are one layout, {apart:.0%} apart.")
    lines += [f"Left out: {reason}." for reason in found.left[:3]]
    return lines


def next_record(setup: Setup, found: Recommendation) -> dict[str, Any]:
    """Under `measure_next`: what is open of the best layout's step, by kind of time, and two runs that narrow it.

    Empty without an anchor.
    """
    runs = next_runs(setup, found) if isinstance(setup, AnchoredSetup) else None
    if runs is None:
        return {}
    width, deviation = np.expm1(runs.half_width).tolist(), runs.deviation
    named = []
    for k in range(len(runs.layouts)):
        told = deviation[k + 1] < (1.0 - TOLD) * deviation[k]
        named.append({
            "gpus": int(runs.layouts.gpus[k]), "layout": runs.layouts.row(k), "information_nats": runs.information[k],
            "half_width": width[k + 1],
            "tells": {
                kind: deviation[[k, k + 1], j].tolist() for j, kind in enumerate(KINDS) if told[j]
            },
        })  # fmt: skip
    share = dict(zip((*KINDS, "own_error"), runs.open_share.tolist(), strict=True))
    return {"measure_next": {"half_width": width[0], "open_share": share, "runs": named}}


def next_lines(record: dict[str, Any]) -> list[str]:
    """The same for a reader, a sentence a line."""
    if "measure_next" not in record:
        return []
    found = record["measure_next"]
    words = KINDS | {"own_error": OWN}
    shares = sorted(found["open_share"].items(), key=lambda pair: -pair[1])
    parts = ", ".join(f"{words[kind]} {share:.0%}" for kind, share in shares if share >= OPEN)
    lines = [f"The best layout's step is open by {found['half_width']:.1%}: {parts}.", "Measure next:"]
    for run in found["runs"]:
        tells = "; ".join(
            f"{KINDS[kind]} within {NORMAL_80 * a:.1%} to {NORMAL_80 * b:.1%}" for kind, (a, b) in run["tells"].items()
        )
        lines.append(
            f"  {run['gpus']} GPUs, batch {run['layout']['global_batch']}, {layout_text(run['layout'])}: "
            f"open by {run['half_width']:.1%}{f' ({tells})' if tells else ''}"
        )
    return lines
