"""Which runs to measure next for an anchored answer, as plain values and as sentences."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.api.anchored import TOLD
from planner.calibration.anchor import AnchoredSetup
from planner.calibration.moved import KINDS
from planner.calibration.next_runs import next_runs
from planner.report.tables import layout_text
from planner.search import Recommendation
from planner.setup import Setup

NORMAL_80 = 1.28
OPEN = 0.05
"""Share of an interval's variance from which on what causes it is named."""
OWN = "a run's own error"


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
