"""Runs' logs, traces and snapshots: what they measured, beside the prediction, and as rows of measured runs."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

from planner.api.anchored import interval_s
from planner.api.answer import Answer
from planner.api.traced import snapshot_record, trace_record
from planner.base.errors import InputError
from planner.base.files import read_text, write_text
from planner.choices.choice import value_text
from planner.choices.table import CHOICES
from planner.exporters.target import OWN_FILE, family
from planner.hardware.framework_runs import of_allocator
from planner.imports.run import ExistingRun
from planner.imports.run_log import WARM, RunLog, log_formats, read_log
from planner.imports.trace_kinds import kind_of_file
from planner.layouts import Layouts
from planner.models.flops import forward_flops, step_flops
from planner.plan_file import read_plan
from planner.report.imported import observed_view
from planner.report.plain_table import stacked
from planner.report.traced import traced_view
from planner.search.found import largest_part
from planner.setup import Setup
from planner.step.estimate import Estimate
from planner.step.timeline.timed import timed_estimate
from planner.validation.predict import check_possible
from planner.validation.runs import COLUMNS, OPTIONAL, MeasuredRun, measured_once, read_runs

NOISY, SLOW, OTHER_MEMORY = 0.05, 0.02, 0.1
"""Spread of steps, share of far slower steps, and error of the memory from which on they are said first."""
TELLING = 10
"""Iterations from which on the halves of a log tell of two paces, not of its warm-up."""
OTHER_FLOP = 1.5
"""A log may count so many times more FLOP, or fewer, than any of our ways of counting."""


@dataclass(frozen=True, kw_only=True)
class ObservedRun:
    """A measured run: its setup, and a table of its one layout; cluster: as a table of runs names it."""

    setup: Setup
    layouts: Layouts
    cluster: str


def planned_run(path: Path, cluster: str | None = None) -> ObservedRun:
    """The run of a plan's best layout. Raises as `planner.plan_file.read_plan`."""
    plan = read_plan(path, cluster=cluster)
    return ObservedRun(setup=plan.setup, layouts=plan.layouts, cluster=cluster or plan.setup.cluster.name)


def configured_run(run: ExistingRun, cluster: str) -> ObservedRun:
    """The run of a framework's arguments or file (`run_of_megatron`, `run_of_file`), by its cluster's name."""
    return ObservedRun(setup=run.setup, layouts=run.layouts, cluster=cluster)


def observe(paths: Sequence[Path], run: ObservedRun | None = None) -> Answer:
    """The measurements of logs, traces and snapshots, beside the prediction if their run is given.

    Raises FileFormatError and InputError as `planner.imports.run_log.read_log`, or if a log is not the run's;
    as `planner.imports.trace.read_trace` and `planner.imports.memory_snapshot.read_snapshot`.
    """
    kinds = {path: kind_of_file(path) for path in paths}
    log_paths, traces, snapshots = ([p for p in paths if kinds[p] == kind] for kind in ("log", "trace", "snapshot"))
    known = None
    if run is not None:
        known = run.layouts.row(0) | {"seq_len": int(run.setup.model.seq_len), "gpus": int(run.layouts.gpus[0])}
        known |= {name: int(getattr(run.setup.model, name)) for name in ("num_layers", "hidden")}
        known |= {"batch": known["global_batch"], **_megatron_words(known, family(run.setup.framework))}
    logs = [read_log(path, known) for path in log_paths]
    for path, log in zip(log_paths, logs, strict=True):
        if run is not None and family(run.setup.framework) not in (OWN_FILE, *log_formats()[log.framework].families):
            raise InputError(
                f"{path}: a log of {log.framework}, the run's framework is {run.setup.framework.name}; allowed: a log "
                "of that framework, or a plan with the log's (planner recommend --framework)"
            )
    result = None if run is None else timed_estimate(run.setup, run.layouts)
    records = [
        log_record(path, log) | ({} if run is None or result is None else beside(log, run, result))
        for path, log in zip(log_paths, logs, strict=True)
    ]
    record = {"logs": records} | trace_record(traces, result) | snapshot_record(snapshots, result)
    return Answer("", record, stacked(*([observed_view(records)] if records else []), traced_view(record)))


def _megatron_words(row: dict[str, Any], kind: str) -> dict[str, Any]:
    """A layout's recomputation and sharding as Megatron-LM's arguments are printed; None: there are other ways."""
    plain = kind == "megatron" and row["zero"] < 2 and row["optimizer"].startswith("adam")
    recompute = {"none": None, "fine": "selective"}.get(row["recompute"], row["recompute"])
    return {"recompute": str(recompute), "shards_optimizer": row["zero"] > 0 if plain else None}


def log_record(path: Path, log: RunLog) -> dict[str, Any]:
    """The record of a log by itself."""
    return {
        "log": str(path), "framework": log.framework, "steps": len(log.values), "warm_up": log.warm_up,
        "kind": log.kind, "median": log.median, "spread": log.spread, "slow_share": log.slow_share,
        "halves": list(log.halves),
        "tflops_per_gpu": log.tflops, "memory_gib": None if log.memory_bytes is None else log.memory_bytes / 2**30,
        "global_batch": log.batch, "other_batch": log.other_batch,
    }  # fmt: skip


def beside(log: RunLog, run: ObservedRun, result: Estimate) -> dict[str, Any]:
    """The measured step and memory beside the predicted, and what to look at first."""
    row, gpus = run.layouts.row(0), int(run.layouts.gpus[0])
    batch, seq_len = int(row["global_batch"]), int(run.setup.model.seq_len)
    measured, predicted = log.step_time_s(gpus=gpus, batch=batch, seq_len=seq_len), float(result.step_time_s[0])
    low, high = interval_s(run.setup, result, 0)
    framework = run.setup.framework
    outside = framework.reserved_bytes if of_allocator(framework.unstated.memory) else 0.0
    held = float(result.memory_bytes[0]) - outside  # what its log counts: context and communicators lie outside
    memory = None if log.memory_bytes is None else log.memory_bytes / held - 1.0
    part, share = largest_part(result, 0)
    return {
        "measured_step_time_s": measured, "predicted_step_time_s": predicted, "interval_s": [low, high],
        "slower": measured / predicted - 1.0, "tokens_per_s_per_gpu": batch * seq_len / gpus / measured,
        "predicted_memory_gib": held / 2**30, "memory_more": memory,
        "largest_overhead": part, "overhead_share": share,
        "first": _first(log, measured, predicted, (low, high), memory),
    }  # fmt: skip


def _first(
    log: RunLog, measured: float, predicted: float, interval: tuple[float, float], memory: float | None
) -> list[str]:
    """Sentences on what to look at, the most telling first."""
    out = []
    if log.spread > NOISY:
        out.append(f"Steps differ by {log.spread:.0%}: first find what varies (data loading, clocks, other jobs).")
    if log.slow_share > SLOW:
        out.append(f"{log.slow_share:.0%} of the steps took over 1.5 times the median: checkpoints, evaluation, data?")
    low, high = interval
    off = abs(measured / predicted - 1.0)
    if measured > high:
        out.append(
            f"It is {off:.0%} slower than predicted, more than in nine of ten such cases: compare GPU clocks and "
            "power under load, what the framework overlaps, and a trace's gaps between kernels with the prediction."
        )
    elif measured < low:
        out.append(
            f"It is {off:.0%} faster than predicted, more than in nine of ten such cases: check that GPUs, sequence "
            "length and recomputation are the run's."
        )
    else:
        out.append("The step lies in its interval: this run can anchor what you plan (--row, then --anchor).")
    if memory is not None and abs(memory) > OTHER_MEMORY:
        out.append(f"Its peak memory is {abs(memory):.0%} {'above' if memory > 0 else 'below'} the predicted.")
    return out


def measured_rows(answer: Answer, run: ObservedRun) -> list[dict[str, str]]:
    """The logs as rows of a table of measured runs, cells as text.

    Raises InputError if there is none, or one says what the run can't have done.
    """
    if not answer.record["logs"]:
        raise InputError("--row: no file is a log; allowed: a log of the run, whose iterations weren't traced")
    m, layout = run.setup.model, run.layouts.row(0)
    cells = {name: layout[name] for name in (*COLUMNS, *OPTIONAL) if name in CHOICES} | {
        "source": "own", "model": m.name, "family": m.family, "layers": m.num_layers, "hidden": m.hidden, "ffn": m.ffn,
        "heads": m.num_heads, "kv_heads": m.num_kv_heads, "vocab": m.vocab, "seq_len": m.seq_len,
        "experts": m.num_experts or "", "top_k": m.top_k or "", "cluster": run.cluster,
        "n_gpus": int(run.layouts.gpus[0]), "seq_splits": layout["sequence_slices"],
        "step_time_kind": "measured", "outcome": "ok", "framework": run.setup.framework.name,
        "as_planned": run.setup.framework.overlap_grad_reduce > 0.0,  # else its arguments leave overlaps off
    }  # fmt: skip
    out = []
    for record in answer.record["logs"]:
        own = {
            "run": Path(record["log"]).stem,
            "step_time_s": f"{record['measured_step_time_s']:.6g}",
            "peak_memory_gib": "" if record["memory_gib"] is None else f"{record['memory_gib']:.4g}",
            "note": f"planner observe: {record['steps']} steady steps of a log of {record['framework']}",
        }
        text = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in (cells | own).items()}
        out.append({column: text.get(column, "") for column in (*COLUMNS, *OPTIONAL)})
        _check_row(record, run, MeasuredRun(path=Path(record["log"]), line=0, cells=cells | {
            "mfu": None, "step_time_s": record["measured_step_time_s"], "peak_memory_gib": record["memory_gib"],
        }))  # fmt: skip
    return out


def unwritten(run: ObservedRun) -> str:
    """The choices of a run that no column of measured runs has, in words; empty where there are none."""
    row, named = run.layouts.row(0), {*COLUMNS, *OPTIONAL, "sequence_slices"}
    return ", ".join(
        f"{c.typed} {value_text(row[name])}"
        for name, c in CHOICES.items() if name not in named and row[name] != c.plain(c.default)
    )  # fmt: skip


def _check_row(record: dict[str, Any], run: ObservedRun, row: MeasuredRun) -> None:
    """Raises InputError for a log with more than the GPUs can do, or whose own TFLOP/s are of another run."""
    m, step_s, stated = run.setup.model, record["measured_step_time_s"], record["tflops_per_gpu"]
    forward = float(sum(forward_flops(m, causal=True).values()))
    try:
        check_possible(row, forward, run.setup.cluster, step_s)
    except InputError as error:
        raise InputError(f"{row.path}: --row: {error}") from None
    each = step_s * row["n_gpus"] * 1e12
    low = 2.0 * forward * row["global_batch"] / each / OTHER_FLOP
    high = float(step_flops(m, row["global_batch"], "megatron", recompute=True)) / each * OTHER_FLOP
    first, second = record["halves"]
    if record["steps"] + record["warm_up"] >= TELLING and abs(second / first - 1.0) > WARM:
        raise InputError(
            f"{row.path}: --row: its first half runs at {first:.4g}, its second at {second:.4g}: two paces; allowed: "
            f"halves within {WARM:.0%}, such as a log of one of them"
        )
    if stated is not None and not low <= stated <= high:
        raise InputError(
            f"{row.path}: --row: the log says {stated:,.0f} TFLOP/s per GPU, its steps of {step_s:.4g} s mean "
            f"{low:,.0f} to {high:,.0f}, however counted; check the plan's model, global batch and GPUs"
        )


def add_rows(path: Path, rows: Sequence[dict[str, str]]) -> list[str]:
    """Write rows to a table of measured runs: a new one, or one with the same columns, whose rows stay.

    Returns the runs left out because a row is theirs already, but for its run and note: it would count twice.

    Raises FileFormatError if what stands there is no table of measured runs, InputError if its columns are others,
    OutputError if it can't be written.
    """
    header = [*COLUMNS, *OPTIONAL]
    text = read_text(path) if path.exists() else _csv([header])
    text += "" if text.endswith("\n") else "\n"  # an editor may have left the last line open
    read_runs(path, text)
    if next(csv.reader(io.StringIO(text))) != header:
        raise InputError(f"{path}: has other columns; allowed: a new file, or one that planner observe wrote")
    lines = [_csv([row.values()]) for row in rows]
    new = measured_once(read_runs(path, text + "".join(lines)))[-len(lines) :]
    write_text(path, text + "".join(compress(lines, new)))
    return [row["run"] for row, is_new in zip(rows, new, strict=True) if not is_new]


def _csv(rows: Iterable[Iterable[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
