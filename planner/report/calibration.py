"""A calibration as tables (figures, what was left, scores before and after), and the scores of a validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.base.units import counted
from planner.report.plain_table import View, plain_table, stacked

if TYPE_CHECKING:
    from planner.calibration.figures import FittedFigure
    from planner.calibration.identified import Calibration
    from planner.calibration.selection import Selection
    from planner.validation.publications import Publication

MOST_REASONS = 6
Scores = tuple[Mapping[str, dict[str, Any]], dict[str, Any]]


def selection_lines(chosen: Selection) -> list[str]:
    """Lines on the runs that are used, and those that are left."""
    n, timed = len(chosen.runs), len(chosen.runs) - chosen.untimed
    sources = len({run["source"] for run in chosen.runs})
    lines = [f"{timed} timed runs of {counted(sources, 'source')} on {chosen.architecture} GPUs"]
    if chosen.untimed:
        lines[0] += f"; {chosen.untimed} of {n} have no step time and count in what fits only"
    if chosen.held:
        held = dict.fromkeys(run["source"] for run in chosen.held)
        lines.append(f"held out: {len(chosen.held)} runs of {', '.join(held)}")
    reasons = sorted(chosen.left.items(), key=lambda pair: -pair[1])
    lines += [f"left: {counted(runs, 'run')} {reason}" for reason, runs in reasons[:MOST_REASONS]]
    if rest := reasons[MOST_REASONS:]:
        lines.append(f"left: {sum(runs for _, runs in rest)} more for {len(rest)} other reasons (--json lists them)")
    return lines


def shown(figure: FittedFigure, value: float) -> str:
    """A value in the profile's unit."""
    return f"{value / figure.profile_unit:.4g}"


def calibration_view(found: Calibration) -> View:
    """The fitted figures, and those that stay."""
    fit = found.fit
    table = plain_table("figure", "bounds", "profile", "fit", "+-", "told", "", numbers=(2, 3, 4, 5))
    for i, (f, value, error, share) in enumerate(zip(fit.figures, fit.value, fit.error, found.told, strict=True)):
        at = fit.at_bound(i)
        table.add_row(
            f.label, f"{shown(f, f.low)}..{shown(f, f.high)}", shown(f, f.profile), shown(f, value),
            f"{error / f.profile_unit:.2g}", f"{100 * share:.0f} %", f"at its {at} bound" if at else "",
        )  # fmt: skip
    count = f"{counted(len(fit.figures), 'figure')} fitted to {fit.timed_runs} timed runs"
    end = "" if fit.converged else "; stopped before it converged: --max-evaluations"
    told = "told: how much of what the bounds leave open the runs take away"
    parts: list[View] = [f"{count} (profile units; {told}){end}", table]
    if found.left:
        stay = plain_table("figure", "value", "why", numbers=(1,))
        for left in found.left:
            stay.add_row(left.figure.label, shown(left.figure, left.figure.profile), left.reason)
        parts += ["", "Left as the profile has them", stay]
    return stacked(*parts)


def two_scores_view(title: str, before: Scores, after: Scores) -> View:
    """Scores by source by the profiles as they are and by the fit."""
    table = plain_table("source", "timed", "mape", "now", "rank", "now", "regret", "now", numbers=tuple(range(1, 8)))
    rows = [*((name, was, after[0][name]) for name, was in before[0].items()), ("overall", before[1], after[1])]
    for name, was, now in rows:
        told = [(percent(s["mape"]), rank_text(s), percent(s["regret"])) for s in (was, now)]
        cells = [cell for pair in zip(*told, strict=True) for cell in pair]
        table.add_row(name, str(now["timed_rows"]), *cells, style="bold" if name == "overall" else "")
    return stacked(title, table)


def calibration_record(chosen: Selection, found: Calibration) -> dict[str, Any]:
    """The fit for JSON, values in the profile's units."""
    fit = found.fit

    def figure(f: FittedFigure) -> dict[str, Any]:
        return {
            "figure": f.label, "folder": f.folder, "profiles": list(f.names), "low": f.low / f.profile_unit,
            "high": f.high / f.profile_unit, "profile": f.profile / f.profile_unit, "start": f.start / f.profile_unit,
        }  # fmt: skip

    return {
        "architecture": chosen.architecture,
        "runs": len(chosen.runs),
        "timed_runs": fit.timed_runs,
        "left_runs": [{"reason": reason, "runs": runs} for reason, runs in chosen.left.items()],
        "converged": fit.converged,
        "figures": [
            figure(f)
            | {
                "fit": float(fit.value[i]) / f.profile_unit,
                "standard_error": float(fit.error[i]) / f.profile_unit,
                "told": float(found.told[i]),
                "at_bound": fit.at_bound(i) or None,
            }
            for i, f in enumerate(fit.figures)
        ],
        "left_figures": [figure(x.figure) | {"reason": x.reason} for x in found.left],
    }


def percent(value: Any) -> str:
    """A share in percent; text as it is, nothing as a dash."""
    return "-" if value is None else value if isinstance(value, str) else f"{100 * value:.1f}"


def rank_text(scores: Mapping[str, Any]) -> str:
    """How alike predicted and measured ranks are."""
    return "-" if scores["rank_correlation"] is None else f"{scores['rank_correlation']:.3f}"


def scores_view(
    sources: Mapping[str, dict[str, Any]], overall: dict[str, Any], held_out: Mapping[str, float] | None = None
) -> View:
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


def publications_view(publications: Sequence[Publication]) -> View:
    """Citation and licence of each, two lines a publication."""
    lines = ["Where these runs were published (numbers only were taken), and the licence of what holds them"]
    for p in publications:
        lines += [f"  {p.sets}: {p.citation}", f"    from {p.taken_from}; licence: {p.licence}"]
    return stacked(*lines)
