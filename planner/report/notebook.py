"""Results as HTML for a notebook's cell: tables and bars without script; whatever comes from a file is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from planner.base.units import format_seconds
from planner.report.tables import PARTS, layout_text

# A part's colour, by what it is: work, communication, waiting. Each bar's parts carry their names as titles.
WORK, COMMUNICATION, WAITING = "#3182bd", "#e6550d", "#bdbdbd"
KIND = {"host": WAITING, "imbalance": WAITING, "bubble": WAITING}
MOST_RANKS = 16


def sentence(text: str) -> str:
    """One line."""
    return f"<div>{escape(text)}</div>"


def block(text: str) -> str:
    """Lines as they are printed."""
    return f"<pre>{escape(text)}</pre>"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table: the first column left, figures right; cells are escaped."""

    def row(cells: Sequence[Any], tag: str) -> str:
        left = "text-align:left"
        return "".join(
            f'<{tag} style="{left if i == 0 else "text-align:right"}">{escape(str(c))}</{tag}>'
            for i, c in enumerate(cells)
        )

    body = "".join(f"<tr>{row(r, 'td')}</tr>" for r in rows)
    return f"<table><thead><tr>{row(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def _bar(parts: dict[str, float], whole: float) -> str:
    """A step as one bar: blue works, orange communicates, grey waits."""
    out = ""
    for name, seconds in parts.items():
        share = seconds / whole
        if share >= 0.002:
            colour = KIND.get(name, COMMUNICATION if name.endswith("_comm") else WORK)
            title = escape(f"{PARTS.get(name, name)}: {share:.1%}")
            out += (
                f'<span title="{title}" style="display:inline-block;height:14px;width:{100 * share:.2f}%;'
                f'background:{colour};box-shadow:inset -1px 0 white"></span>'
            )
    legend = f'<small><span style="color:{WORK}">&#9632;</span> work'
    legend += f' <span style="color:{COMMUNICATION}">&#9632;</span> exposed communication'
    legend += f' <span style="color:{WAITING}">&#9632;</span> waiting</small>'
    return f'<div style="width:600px;max-width:100%;white-space:nowrap;font-size:0">{out}</div>{legend}'


def _line(record: dict[str, Any]) -> tuple[str, ...]:
    """One layout in a table of them."""
    part, share = record["largest_overhead"], record["largest_overhead_share"]
    return (
        layout_text(record["layout"]),
        f"{record['step_time_s']:.4g}",
        f"{record['mfu']:.1%}",
        f"{record['memory_gib']:.1f}",
        f"{PARTS.get(part, part)} {share:.0%}",
    )


def _layouts(layouts: Iterable[dict[str, Any]]) -> str:
    return _table(("layout", "step s", "MFU", "GiB", "largest overhead"), map(_line, layouts))


def _summary(record: dict[str, Any], capacity_gib: float) -> str:
    """What one layout does, in a sentence."""
    verdict = "fits" if record["fits"] else "<b>does not fit</b>"
    return (
        f"<div>{format_seconds(record['step_time_s'])} per step, MFU {record['mfu']:.1%}, "
        f"{record['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU; {verdict}: {record['memory_gib']:.1f} of "
        f"{capacity_gib:.0f} GiB</div>"
    )


def plan_html(title: str, record: dict[str, Any]) -> str:
    """A recommendation (`planner recommend --json`): the answer, the runners-up, the front, how accurate."""
    out = f"<div>{escape(title)}</div>"
    capacity = record["memory_gib_per_gpu"]
    if record["best"]:
        best = record["best"][0]
        out += f"<div><b>Run this: {escape(layout_text(best['layout']))}</b></div>" + _summary(best, capacity)
        out += _bar(best["time_s"], best["step_time_s"]) + _layouts(record["best"])
        out += (
            f"<details><summary>Fastest for each amount of memory</summary>{_layouts(record['pareto_front'])}</details>"
        )
    else:
        out += "<div><b>Nothing fits in memory.</b> Nearest miss:</div>" + _layouts([record["nearest_miss"]])
    out += f"<div>{record['searched']:,} legal layouts, {record['fitting']:,} fit in memory.</div>"
    return f"<div>{out}<div>How accurate: {escape(record['accuracy'])}</div></div>"


def estimate_html(title: str, record: dict[str, Any]) -> str:
    """One layout (`planner estimate --json`): its line, then seconds and bytes by part."""
    step = record["step_time_s"]
    seconds = [(PARTS.get(k, k), f"{v:.4g}", f"{v / step:.1%}") for k, v in record["time_s"].items() if abs(v) >= 5e-7]
    sizes = [(k, f"{v:.2f}") for k, v in record["memory_parts_gib"].items() if v > 0]
    side = '<div style="display:inline-block;vertical-align:top;margin-right:2em">{}</div>'
    return (
        f"<div><div>{escape(title)}</div><div><b>{escape(layout_text(record['layout']))}</b></div>"
        + _summary(record, record["memory_gib_per_gpu"])
        + _bar(record["time_s"], step)
        + "<div>"
        + side.format(_table(("where the time goes", "s", "share"), [*seconds, ("step", f"{step:.4g}", "100.0%")]))
        + side.format(_table(("where the memory goes", "GiB"), [*sizes, ("peak", f"{record['memory_gib']:.2f}")]))
        + "</div></div>"
    )


def simulation_html(title: str, layout: str, record: dict[str, Any], picture: str) -> str:
    """A simulated step (`planner simulate --json`); `picture` is the timeline as SVG, or nothing."""
    ranks = record["ranks"]
    columns = zip(*(ranks[k] for k in ("busy_s", "idle_s", "exposed_comm_s", "update_s")), strict=True)
    rows = [
        (str(r), *(f"{max(x, 0.0):.4g}" for x in seconds), f"{ranks['peak_gib'][r]:.2f}")
        for r, seconds in enumerate(columns)
    ]
    if len(rows) > MOST_RANKS:
        rows = [*rows[: MOST_RANKS // 2], ("...", *[""] * 5), *rows[-MOST_RANKS // 2 :]]
    head = ("rank", "busy s", "idle s", "exposed comm s", "update s", "peak GiB")
    line = f"{format_seconds(record['step_time_s'])} per step over {record['operations']:,} operations, "
    line += f"{record['bubble']:.1%} of it idle" + ("" if record["fits"] else "; does not fit in memory")
    return (
        f"<div><div>{escape(title)}</div><div><b>{escape(layout)}</b></div><div>{escape(line)}</div>"
        f'<div style="overflow-x:auto">{picture}</div>{_table(head, rows)}</div>'
    )
