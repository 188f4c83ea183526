"""Two layouts set against each other, part by part: why one was not chosen, and two plans side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.choices.choice import value_text
from planner.choices.table import CHOICES, usual
from planner.hardware import Cluster
from planner.report.plain_table import PlainTable, View, bold, plain_table, stacked
from planner.report.records import estimate_record
from planner.report.tables import PARTS, layout_text

if TYPE_CHECKING:
    from planner.search.why import Why

LEAST = 0.001  # of the whole: smaller differences are told together


def difference_record(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """b minus a, by part, of two layouts' records."""
    out: dict[str, Any] = {"step_time_s": b["step_time_s"] - a["step_time_s"]}
    for key in ("time_s", "memory_parts_gib"):
        out[key] = {name: b[key].get(name, 0.0) - a[key].get(name, 0.0) for name in {**a[key], **b[key]}}
    out["memory_gib"] = b["memory_gib"] - a["memory_gib"]
    return out


def difference_table(
    title: str, a: dict[str, float], b: dict[str, float], heads: tuple[str, str], total: str
) -> PlainTable:
    """Parts whose difference matters, the largest first, and their sums."""
    words = PARTS if title.startswith("seconds") else {}
    names = [*a, *(name for name in b if name not in a)]
    whole = max(abs(sum(a.values())), abs(sum(b.values())))
    names.sort(key=lambda name: -abs(b.get(name, 0.0) - a.get(name, 0.0)))
    told = [n for n in names if abs(b.get(n, 0.0) - a.get(n, 0.0)) >= LEAST * whole]
    rest = [n for n in names if n not in told]
    table = plain_table(title, *heads, "difference", numbers=(1, 2, 3))

    def row(name: str, x: float, y: float, style: str = "") -> None:
        table.add_row(name, f"{x:.4g}", f"{y:.4g}", f"{y - x:+.3g}", style=style)

    for name in told:
        row(words.get(name, name), a.get(name, 0.0), b.get(name, 0.0))
    if rest and told:
        row("all else", sum(a.get(n, 0.0) for n in rest), sum(b.get(n, 0.0) for n in rest))
    row(total, sum(a.values()), sum(b.values()), "bold")
    return table


def why_view(record: dict[str, Any]) -> View:
    """The reason, and what differs in time, or where the memory goes, of `why_record`."""
    asked = ", ".join(f"{CHOICES[key].typed} {value_text(v)}" for key, v in record["wanted"].items())
    lines: list[View] = [bold(f"Why not {asked}?"), f"  {record['text']}"]
    best, other = record["best"], record["layout"]
    if other is None or record["reason"] == "chosen":
        return stacked(*lines)
    lines.append(f"  {layout_text(other['layout'])}")
    if best is None:
        return stacked(*lines)
    heads = ("the best", "this")
    if record["reason"] == "memory":
        parts = (best["memory_parts_gib"], other["memory_parts_gib"])
        return stacked(*lines, "", difference_table("GiB of", *parts, heads, "peak of the fullest rank"))
    return stacked(*lines, "", difference_table("seconds of", best["time_s"], other["time_s"], heads, "step"))


def why_record(why: Why, cluster: Cluster) -> dict[str, Any]:
    """The answer to a `--why` as plain values (docs/json.md)."""
    other = None if why.other is None else estimate_record(why.other, 0, cluster)
    best = None if why.best is None else estimate_record(why.best, 0, cluster)
    return {
        "wanted": why.wanted,
        "reason": why.reason,
        "text": why.text,
        "best": best,
        "layout": other,
        "difference": difference_record(best, other) if best and other else None,
    }


def plans_view(names: tuple[str, str], titles: tuple[str, str], a: dict[str, Any], b: dict[str, Any]) -> View:
    """Two plans: what was asked, the choices that differ, and the step and the memory part by part.

    names: of the files; titles: what was asked, a line each; a, b: the layouts' records.
    """
    lines: list[View] = []
    for letter, name, title, record in zip("ab", names, titles, (a, b), strict=True):
        lines += [bold(f"{letter}: {name}"), f"  {title}", f"  {layout_text(record['layout'])}"]
    lines.append("")
    table = plain_table("", "a", "b", "b against a", numbers=(1, 2, 3))
    for text, key, form in FIGURES:
        x, y = float(a[key]), float(b[key])
        table.add_row(text, form.format(x), form.format(y), f"{y / x - 1.0:+.1%}" if x > 0 else "")
    lines += [table, ""]
    choices = differing(a["layout"], b["layout"])
    if choices:
        rows = ((key, *(value_text(record["layout"][key]) for record in (a, b))) for key in choices)
        lines += [plain_table("choice", "a", "b", rows=rows), ""]
    else:
        lines += ["The layouts are the same.", ""]
    lines.append(difference_table("seconds of", a["time_s"], b["time_s"], ("a", "b"), "step"))
    lines.append("")
    memory = (a["memory_parts_gib"], b["memory_parts_gib"])
    lines.append(difference_table("GiB of", *memory, ("a", "b"), "peak of the fullest rank"))
    return stacked(*lines)


FIGURES = (
    ("step, s", "step_time_s", "{:.4g}"),
    ("causal MFU", "causal_mfu", "{:.1%}"),
    ("tokens/s/GPU", "tokens_per_s_per_gpu", "{:,.0f}"),
    ("memory, GiB", "memory_gib", "{:.1f}"),
    ("GPUs", "gpus", "{:.0f}"),
)


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The choices in which two layouts differ, without what only follows another choice in both."""
    return [k for k in a if a[k] != b[k] and any(row[k] != usual(CHOICES[k], row) for row in (a, b))]
