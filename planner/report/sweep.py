"""A sweep's findings, for a terminal and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.base.errors import one_line
from planner.base.units import counted, format_seconds
from planner.report.plain_table import View, bold, plain_table, stacked
from planner.sweeps.columns import FAILED, FITS, NOT_LEGAL

if TYPE_CHECKING:
    import pyarrow as pa

    from planner.sweeps.run import SweepProgress

MOST_MODELS = 20


def sweep_record(path: Path, done: SweepProgress, table: pa.Table, seconds: float) -> dict[str, Any]:
    """Counts, and for each model the case of the highest throughput and the cheapest (docs/sweep.md)."""
    best = _best(table)
    return {
        "results": str(path),
        "cases": done.cases,
        "cases_kept": done.kept_cases,
        "layouts": done.layouts,
        "layouts_kept": done.kept_layouts,
        "seconds": seconds,
        **{name.replace(" ", "_"): count for name, count in _counts(table).items()},
        "fastest": [row for row, _ in best],
        "cheapest": [row for _, row in best if row],
    }


def sweep_view(path: Path, done: SweepProgress, table: pa.Table, seconds: float) -> View:
    """Counts, the best by model, and where the rows are."""
    made = done.layouts - done.kept_layouts
    rate = "" if done.already else f", {made:,} in {format_seconds(seconds)} ({made / seconds:,.0f}/s)"
    lines: list[View] = [bold(f"{counted(done.cases, 'case')}, {counted(done.layouts, 'layout')}{rate}")]
    if done.already:
        lines.append("  the results were there already: nothing to do")
    elif done.kept_cases:
        lines.append(f"  {counted(done.kept_cases, 'case')} kept from an earlier run")
    lines.append("  " + ", ".join(f"{count:,} {_SAID[name]}" for name, count in _counts(table).items()))
    if best := _best(table):
        lines += ["", _best_table(best)]
    return stacked(
        *lines,
        "",
        f"{one_line(str(path))}: {counted(table.num_rows, 'row')}, {table.num_columns} columns (docs/sweep.md)",
    )


_SAID = {
    FITS: "with a layout that fits",
    FAILED: "over memory whatever the layout",
    NOT_LEGAL: "without a legal layout",
}


def _counts(table: pa.Table) -> dict[str, int]:
    status = table["status"].to_pylist()
    return {name: status.count(name) for name in (FITS, FAILED, NOT_LEGAL)}


def _best(table: pa.Table) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """The row of highest throughput for each model and sequence length, and the cheapest if priced."""
    import pyarrow.compute as pc

    fits = table.filter(pc.equal(table["status"], FITS))
    groups = dict.fromkeys(zip(fits["model"].to_pylist(), fits["seq_len"].to_pylist(), strict=True))
    out = []
    for model, seq_len in groups:
        rows = fits.filter(pc.and_(pc.equal(fits["model"], model), pc.equal(fits["seq_len"], seq_len)))
        fastest = _row(rows, "time_s_per_billion_tokens")
        assert fastest is not None
        out.append((fastest, _row(rows, "cost_usd_per_billion_tokens")))
    return out


def _row(table: pa.Table, least: str) -> dict[str, Any] | None:
    """The row in which a column is least; the first of equals; None where all are null."""
    import pyarrow.compute as pc

    low = pc.min(table[least])
    if not low.is_valid:
        return None
    row: dict[str, Any] = table.slice(pc.index(table[least], low).as_py(), 1).to_pylist()[0]
    return row


def _best_table(best: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> View:
    table = plain_table(
        "best", "model", "case", "cluster", "GPUs", "batch", "h per 1e9 tokens", "USD per 1e9 tokens", "causal MFU",
        numbers=(2, 4, 5, 6, 7, 8),
    )  # fmt: skip
    for pair in best[:MOST_MODELS]:
        for what, row in zip(("fastest", "cheapest"), pair, strict=True):
            if row is None:
                continue
            cost = row["cost_usd_per_billion_tokens"]
            table.add_row(
                what, row["model"], f"{row['case']:,}", row["cluster"], f"{row['gpus']:,}", f"{row['global_batch']:,}",
                f"{row['time_s_per_billion_tokens'] / 3600:.3g}", "" if cost is None else f"{cost:.4g}",
                f"{row['causal_mfu']:.1%}",
            )  # fmt: skip
    return table
