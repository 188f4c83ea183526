"""The largest training within a time: as a record, as a view, and drawn against training compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.base.units import DAY, MEGA, MONTH, few_digits, gpus_text
from planner.models import counts
from planner.report.plain_table import View, bold, plain_table, stacked
from planner.report.plots import SERIES, figure_of
from planner.report.tables import layout_text
from planner.report.training import assumption_lines, assumptions_record, count_text, finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from planner.training_time.largest import Largest, LargestQuestion, LargestTraining


def largest_record(kinds: Sequence[tuple[LargestQuestion, Largest]]) -> dict[str, Any]:
    """The question, and for each kind of model the largest training and those of the curve."""
    q = kinds[0][0]
    return {
        "cluster": q.cluster.name, "network": q.cluster.network.name, "framework": q.framework.name,
        "months": q.deadline_s / MONTH, "max_gpus": q.max_gpus,
        "max_power_mw": None if q.max_power_w is None else q.max_power_w / MEGA, "max_cost_usd": q.max_cost,
        "critical_batch_law": q.batch_law, "batch_rule": q.rule, "aspect": q.shape.aspect, "seq_len": q.shape.seq_len,
        "kinds": [_kind(q, found) for q, found in kinds], "assumptions": assumptions_record(q.assumptions),
    }  # fmt: skip


def _kind(q: LargestQuestion, found: Largest) -> dict[str, Any]:
    return {
        "experts": q.shape.experts, "largest": None if found.best is None else _training(q, found.best),
        "limit": found.limit, "falls_at_flop": found.falls_at_flop, "curve": [_training(q, t) for t in found.trainings],
    }  # fmt: skip


def _training(q: LargestQuestion, t: LargestTraining) -> dict[str, Any]:
    """One compute's training; without accelerators where none keep the time."""
    record: dict[str, Any] = {
        "flop": t.flop, "layers": int(t.model.num_layers), "hidden": int(t.model.hidden),
        "parameters": float(counts.total_params(t.model)), "tokens": t.goal.target.tokens,
        "critical_batch": t.goal.critical / t.model.seq_len, "extrapolations": list(t.goal.warnings),
        "shortest_days": finite(t.shortest_s / DAY), "gpus": None,
    }  # fmt: skip
    if t.run is None or t.estimate is None or t.binding is None:
        return record
    row, gpus = t.estimate.layouts.row(0), int(t.run.gpus[0])
    return record | {
        "gpus": gpus, "days": float(t.run.wall_s[0]) / DAY, "utilisation": t.utilisation,
        "mfu": float(t.estimate.mfu[0]), "goodput": float(t.run.goodput[0]), "global_batch": row["global_batch"],
        "power_mw": gpus * q.power_w / MEGA, "cost_usd": finite(float(t.run.cost_usd[0])), "binding": t.binding.name,
        "gains_if_relaxed_twofold": dict(t.binding.gains), "layout": row, "layout_text": layout_text(row),
    }  # fmt: skip


def kind_name(kind: Mapping[str, Any]) -> str:
    """A model kind's name."""
    return f"mixtures of {kind['experts']} experts" if kind["experts"] else "dense models"


def largest_view(r: Mapping[str, Any]) -> View:
    """The answer for each kind of model, then its curve."""
    lines: list[View] = []
    for kind in r["kinds"]:
        lines += [bold(_answer(r, kind)), *_said(r, kind), "", _curve(kind), ""]
    lines.append(
        "what binds: what saves most time where it is twice as good, by 2 % or more, with no more GPUs; "
        "utilisation: the FLOP, 6 for each token and parameter that it meets, none of attention's scores (so no MFU), "
        "over the peak of the GPUs in all the days, failures included"
    )
    return stacked(*lines, "", assumption_lines(r["assumptions"]))


def _months(r: Mapping[str, Any]) -> str:
    return f"{r['months']:.3g} month{'s' * (r['months'] != 1)}"


def _answer(r: Mapping[str, Any], kind: Mapping[str, Any]) -> str:
    where, best = f"{kind_name(kind)} on {r['cluster']}", kind["largest"]
    if best is None:
        return f"{where}: nothing of {kind['curve'][0]['flop']:.0e} FLOP or more is done in {_months(r)}"
    money = "" if best["cost_usd"] is None else f", {count_text(best['cost_usd'])} USD"
    return (
        f"{where}: the largest in {_months(r)} is {best['flop']:.2g} FLOP, on {gpus_text(best['gpus'])} "
        f"({few_digits(best['power_mw'])} MW{money}) at {best['utilisation']:.1%} utilisation"
    )


def _said(r: Mapping[str, Any], kind: Mapping[str, Any]) -> list[str]:
    """Lines on the limit to size, and on where utilisation falls."""
    best = kind["largest"]
    if best is None:
        return []
    lines = [
        f"  {count_text(best['parameters'])} parameters ({best['layers']} layers, width {best['hidden']:,}) on "
        f"{count_text(best['tokens'])} tokens; batch {best['global_batch']:,}, critical "
        f"{best['critical_batch']:,.0f} by {r['critical_batch_law']}"
    ]
    lines += [f"  careful: {text}" for text in best["extrapolations"]]
    tried = [t for t in kind["curve"] if t["gpus"] is None]
    if kind["limit"]:
        lines.append(f"  a larger one takes more than the {kind['limit']} asked for")
    elif tried:
        days, flop = tried[0]["shortest_days"], tried[0]["flop"]
        said = "nothing of it fits" if days is None else f"takes {days:,.0f} days or more on any number of GPUs"
        lines.append(f"  {flop:.2g} FLOP: {said}; what binds the largest most: {best['binding']}")
    if kind["falls_at_flop"] is not None:
        lines.append(f"  utilisation falls under four fifths of its most at {kind['falls_at_flop']:.2g} FLOP")
    return lines


def _curve(kind: Mapping[str, Any]) -> View:
    """A row for each compute."""
    table = plain_table(
        "FLOP", "parameters", "tokens", "GPUs", "days", "utilisation", "batch", "layout", "what binds",
        numbers=(0, 1, 2, 3, 4, 5, 6),
    )  # fmt: skip
    for t in kind["curve"]:
        size = (f"{t['flop']:.2g}", count_text(t["parameters"]), count_text(t["tokens"]))
        if t["gpus"] is None:
            days = "-" if t["shortest_days"] is None else f"{t['shortest_days']:,.0f}"
            table.add_row(*size, "none", days, "-", "-", "", "")
            continue
        gains = t["gains_if_relaxed_twofold"]
        named = sorted((k for k, v in gains.items() if v >= 0.02), key=lambda k: -gains[k])[:3]
        table.add_row(
            *size, f"{t['gpus']:,}", f"{t['days']:.0f}", f"{t['utilisation']:.1%}", f"{t['global_batch']:,}",
            t["layout_text"], ", ".join(f"{k} ({gains[k]:.0%})" for k in named) or "compute",
        )  # fmt: skip
    return table


def draw_largest(r: Mapping[str, Any]) -> Figure:
    """Curves of a record of `planner largest`: all kinds on the left, what binds the first kind on the right."""
    title = f"Compute-optimal training in {_months(r)}, {r['cluster']}"
    done = [[t for t in kind["curve"] if t["gpus"] is not None] for kind in r["kinds"]]

    def used(axis: Any) -> None:
        for kind, ran, colour in zip(r["kinds"], done, SERIES, strict=False):
            if ran:
                x, y = [t["flop"] for t in ran], [100 * t["utilisation"] for t in ran]
                says = f"{kind_name(kind)}: up to {x[-1]:.1e} FLOP, on {ran[-1]['gpus']:,} GPUs"
                axis.semilogx(x, y, marker="o", color=colour, label=says)
                axis.axvline(x[-1], color=colour, linestyle=":", linewidth=1.2)
        axis.margins(y=0.1)
        axis.set(xlabel="training compute (FLOP)", ylabel="utilisation, % of peak")
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False, fontsize=8)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0e}")

    def binds(axis: Any) -> None:
        for name, colour in zip(done[0][0]["gains_if_relaxed_twofold"] if done[0] else (), SERIES, strict=False):
            gains = [100 * t["gains_if_relaxed_twofold"][name] for t in done[0]]
            axis.semilogx([t["flop"] for t in done[0]], gains, marker=".", color=colour, label=name)
        axis.set(xlabel="training compute (FLOP)", ylabel="time saved if twice as good, %")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0e}")
        axis.set_title(f"What binds ({kind_name(r['kinds'][0])})")
        axis.legend(frameon=False, fontsize=8)

    return figure_of(title, used, binds)
