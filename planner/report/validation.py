"""Scores of predictions beside measured runs, and where the runs were published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from planner.report.plain_table import plain_table, stacked

if TYPE_CHECKING:
    from planner.validation.publications import Publication


def percent(value: Any) -> str:
    """A share in percent; text as it is, nothing as a dash."""
    return "-" if value is None else value if isinstance(value, str) else f"{100 * value:.1f}"


def rank_text(scores: Mapping[str, Any]) -> str:
    """How alike predicted and measured ranks are."""
    return "-" if scores["rank_correlation"] is None else f"{scores['rank_correlation']:.3f}"


def scores_view(
    sources: Mapping[str, dict[str, Any]], overall: dict[str, Any], held_out: Mapping[str, float] | None = None
) -> RenderableType:
    """Scores by source and overall, in two tables that fit 80 columns.

    held_out: mape by source, and `overall`, of fits that had not seen the runs; with it a column `held`.
    """
    rows = [*sources.items(), ("overall", overall)]
    more = () if held_out is None else ("held",)
    columns = ("source", "rows", "timed", "mape", *more, "bias", "max", "rank", "regret")
    time = plain_table(*columns, numbers=tuple(range(1, len(columns))))
    memory = plain_table(
        "source", "oom right", "missed", "false", "rows", "mape", "in 80 %", numbers=(1, 2, 3, 4, 5, 6)
    )
    for name, s in rows:
        style = "bold" if name == "overall" else ""
        unseen = () if held_out is None else (percent(held_out.get(name)),)
        time.add_row(
            name, str(s["rows"]), str(s["timed_rows"]), percent(s["mape"]), *unseen, percent(s["bias"]),
            percent(s["max_error"]), rank_text(s), percent(s["regret"]), style=style,
        )  # fmt: skip
        memory.add_row(
            name, percent(s["oom_accuracy"]), str(s["oom_missed"]), str(s["oom_false"]), str(s["memory_rows"]),
            percent(s["memory_mape"]), percent(s.get("in_interval")), style=style,
        )  # fmt: skip
    second = "Memory, and steps that lie in their interval of 80 %, in %"
    return stacked("Step time, errors in %", time, "", second, memory)


def publications_view(publications: Sequence[Publication]) -> RenderableType:
    """Citation and licence of each, two lines a publication."""
    lines = ["Where these runs were published (numbers only were taken), and the licence of what holds them"]
    for p in publications:
        lines += [f"  {p.sets}: {p.citation}", f"    from {p.taken_from}; licence: {p.licence}"]
    return stacked(*lines)
