"""Drawn layouts, each asked in every way: the seconds and bytes of recommend, estimate, simulate, a table, a sweep, a
report's record, a report's timeline and a measured run's prediction; those that differ.

    python benchmarks/all_ways.py --layouts 2000 --seed 1 --work all_ways.jsonl

Every choice of a layout is fixed in the search, so that it finds this one. `validate` takes a run's tokens as
dispatched by a plain all-to-all unless its profile says otherwise: it is held to an estimate with such a framework.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from planner.api.layout_estimate import estimate_one
from planner.api.recommended import search_plan
from planner.api.reports import simulate_shown
from planner.api.simulated import simulate_one
from planner.base.errors import LayoutError
from planner.base.units import GIB
from planner.choices.table import SETTLED
from planner.report.records import recommendation_record
from planner.step.timeline.timed import has_timeline, timed_estimate
from planner.sweeps.answer import answer
from planner.sweeps.columns import columns
from planner.sweeps.run import _chunk
from planner.sweeps.sweep import load_sweep
from planner.validation import predict, read_runs
from planner.validation.runs import COLUMNS
from tests.metamorphic.cases import Drawn, drawn

ROUNDING = 1e-9
Found = dict[str, tuple[float, float]]


def ways(case: Drawn, folder: Path) -> tuple[Found, Found, list[str]]:
    """Seconds and GiB by the way of asking; the same as a measured run's; ways that have no answer, and why."""
    one = estimate_one(case.setup, **case.choices)
    table = timed_estimate(case.setup, case.layouts)
    told = {"estimate": (one.step_time_s, one.memory_gib), "table": _row(table, 0)}
    plain = replace(case.setup, framework=replace(case.setup.framework, flex_dispatch=False))
    as_run = estimate_one(plain, **case.choices)
    runs = {"estimate": (as_run.step_time_s, as_run.memory_gib)}
    none: list[str] = []
    if has_timeline(case.layouts)[0] or case.choices["pp"] == 1:
        run = simulate_one(case.setup, **case.choices)
        told["simulate"] = run.step_time_s, max(run.peak_gib)
    for name, ask in (("recommend", _recommended), ("sweep", _swept)):
        found = ask(case, folder)
        if isinstance(found, str):
            none.append(f"{name}: {found}")
        else:
            told |= found
    measured = _validated(case, folder)
    if isinstance(measured, str):
        none.append(f"validate: {measured}")
    else:
        runs["validate"] = measured
    return told, runs, none


def _row(found: Any, i: int) -> tuple[float, float]:
    return float(found.step_time_s[i]), float(found.memory_bytes[i]) / GIB


def _fixed(case: Drawn) -> dict[str, Any]:
    row = case.layouts.row(0)
    return {name: row[name] for name in SETTLED} | {
        "allow_offload": False, "allow_async": True, "any_framework": True
    }  # fmt: skip


def _same(row: dict[str, Any], case: Drawn) -> bool:
    want = case.layouts.row(0)
    return all(row[name] == value for name, value in want.items())


def _other(row: dict[str, Any], case: Drawn) -> str:
    """The choices in which a row is another layout."""
    return ", ".join(name for name, value in case.layouts.row(0).items() if row[name] != value)


def _gpus(case: Drawn) -> int:
    return int(case.layouts.gpus[0])


def _recommended(case: Drawn, folder: Path) -> Found | str:
    """Of `planner recommend`: its answer, its record in a report, the report's timeline; or the nearest miss."""
    numbers = {name: case.choices[name] for name in ("global_batch", "precision", "attention")}
    try:
        plan = search_plan(case.setup, gpus=_gpus(case), **numbers, **_fixed(case))
    except LayoutError as error:
        return _why(str(error))
    if not len(plan):
        miss = plan.nearest_miss
        same = miss is not None and _same(miss.to_dict()["layout"], case)
        return {"nearest miss": (miss.step_time_s, miss.memory_gib)} if same else "another layout missed"
    best, i = plan.best, int(plan.found.best[0])
    if not _same(best.to_dict()["layout"], case):
        return f"another layout was found: {_other(best.to_dict()['layout'], case)}"
    record = recommendation_record(plan.found, case.setup.cluster)["best"][0]
    out = {"recommend": (best.step_time_s, best.memory_gib), "report": (record["step_time_s"], record["memory_gib"])}
    step = simulate_shown(case.setup, plan.found)[i]
    if has_timeline(case.layouts)[0]:
        out["report's timeline"] = float(step.step_time_s), float(max(step.peak_bytes)) / GIB
    return out


def _why(text: str) -> str:
    """Without the question's own names and numbers, to count by."""
    return re.sub(r"\d[\d,.]*", "_", text.split(": ", 1)[-1].split("; ")[0])[:80]


def _swept(case: Drawn, folder: Path) -> Found | str:
    """Of `planner sweep`: a file of one case, answered."""
    setup, fixed = case.setup, _fixed(case)
    lists = {
        "models": [setup.model.name], "clusters": [setup.cluster.name], "frameworks": [setup.framework.name],
        "gpus": [_gpus(case)], "global_batches": [case.choices["global_batch"]],
        "precisions": [case.choices["precision"]], "attentions": [case.choices["attention"]],
    }  # fmt: skip
    flags = ("sequence_parallel", "allow_offload", "allow_async", "any_framework", "offload_optimizer")
    lines = [f"{name} = {json.dumps(value)}" for name, value in lists.items()] + ["[search]"]
    lines += [f"{name} = {json.dumps(v if name in flags else [v])}" for name, v in fixed.items()]
    path = folder / "sweep.toml"
    path.write_text("\n".join(lines) + "\n")
    sweep = load_sweep(path)
    shown = columns(sweep.cases, sweep.file.tokens)
    chunk = _chunk(sweep, 0, [0], shown)
    row = dict(zip([column.name for column in shown], answer(chunk).rows[0], strict=True))
    if row["step_time_s"] is None:
        return _why(str(row["reason"]))
    if not _same({name: row.get(name, value) for name, value in case.layouts.row(0).items()}, case):
        return "another layout was found"
    return {"sweep": (row["step_time_s"], row["memory_gib"])}


def _validated(case: Drawn, folder: Path) -> tuple[float, float] | str:
    """Of `planner validate`: a run of this layout."""
    x = case.choices
    cells = {
        "source": "drawn", "run": "1", "model": case.setup.model.name, "cluster": case.setup.cluster.name,
        "n_gpus": _gpus(case), "outcome": "ok", "step_time_s": 1.0, "framework": case.setup.framework.name,
        "seq_splits": x["sequence_slices"], "fused_norm": "true",
    } | {name: x[name] for name in COLUMNS if name in x} | {"layer_split": x["layer_split"]}  # fmt: skip
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS, "framework", "layer_split"])
    writer.writeheader()
    writer.writerow({name: str(v).lower() if isinstance(v, bool) else v for name, v in cells.items()})
    path = folder / "runs.csv"
    path.write_text(text.getvalue())
    found = predict(read_runs(path))
    return _why(found.reasons[0]) or (float(found.step_time_s[0]), float(found.memory_bytes[0]) / GIB)


def differing(told: Found, runs: Found) -> dict[str, Any]:
    """The ways whose seconds or bytes are not the estimate's."""
    wrong: dict[str, Any] = {}
    for found in (told, runs):
        own = found["estimate"]
        wrong |= {name: (x, own) for name, x in found.items() if not np.allclose(x, own, ROUNDING, 0.0)}
    return wrong


def asked(seed: int, folder: Path) -> dict[str, Any]:
    """A drawn layout in every way; nothing where it doesn't fit in memory, which `recommend` then refuses."""
    case = drawn(seed)
    if not timed_estimate(case.setup, case.layouts).fits[0]:
        return {"seed": seed}
    told, runs, none = ways(case, folder)
    named = [*told, *(way for way in runs if way != "estimate")]
    wrong = differing(told, runs)
    return {"seed": seed, "ways": named, "none": none, "wrong": wrong} | ({"case": str(case)} if wrong else {})


def main() -> int:
    """Ask for so many layouts, print how many had each way and which differ; 1 where any does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layouts", type=int, default=2_000, help="How many that every way has an answer for.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, help="A file of what was found, from which an ended run goes on.")
    given = parser.parse_args()
    log = given.work.read_text().splitlines() if given.work and given.work.exists() else []
    done = {row["seed"]: row for row in map(json.loads, log)}
    begin, rows, full = time.process_time(), [], 0
    seeds = (given.seed * 1_000_000_007 + i for i in count())
    with tempfile.TemporaryDirectory() as name:
        while full < given.layouts:
            seed = next(seeds)
            if seed not in done:
                done[seed] = asked(seed, Path(name))
                if given.work:
                    with given.work.open("a") as stream:
                        stream.write(json.dumps(done[seed]) + "\n")
            if "ways" in done[seed]:
                rows.append(done[seed])
                full += not done[seed]["none"]
    wrong = [row for row in rows if row["wrong"]]
    for row in wrong[:20]:
        print(f"seed {row['seed']}, {row['case']}\n      {row['wrong']}")
    each = Counter(way for row in rows for way in row["ways"])
    print(*(f"{way:20} {number:6,}" for way, number in each.most_common()), sep="\n")
    print(
        *(f"{why:60} {count:6,}" for why, count in Counter(w for r in rows for w in r["none"]).most_common()), sep="\n"
    )
    seconds = time.process_time() - begin
    print(f"{full:,} layouts had all ways, of {len(rows):,} drawn that fit, seed {given.seed}: {len(wrong)} differ")
    print(f"{seconds:.0f} s of the processor")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
