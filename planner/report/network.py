"""The network that suffices: as a record, as a view, and drawn with where the layout changes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from planner.base.units import GBIT, HOUR, counted, few_digits, gpus_text
from planner.choices.choice import option_words
from planner.hardware.read import WITH
from planner.report.plain_table import View, bold, plain_table, stacked
from planner.report.plots import BLUE, bars, figure_of, ruled
from planner.report.tables import layout_text
from planner.report.training import finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from planner.training_time.network import NetworkCase, NetworkCurve, NetworkNeed, NetworkWay


def network_record(
    case: NetworkCase, found: NetworkCurve, needs: Sequence[NetworkNeed], both: Sequence[NetworkWay],
    words: Mapping[str, Any], price: float | None, network_price: float | None,
) -> dict[str, Any]:  # fmt: skip
    """The curve with its marks, the network that suffices, what each strategy needs, the first paper's question.

    words: model, cluster and framework as they were given, for the commands.
    """
    cluster, model = case.setup.cluster, case.setup.model
    gpus, batch = case.request.gpus, case.request.global_batch
    tokens = batch * float(model.seq_len)
    nodes = -(-gpus // cluster.gpus_per_node)
    link = cluster.network.bandwidth_bytes_per_s / GBIT
    points = []
    for k, value in enumerate(found.values):
        step = float(found.step_s[k])
        gbit = value if case.axis.name == "bandwidth" else link * cluster.nics_per_node
        hourly = None if price is None else price * gpus + (network_price or 0.0) * gbit * nodes
        points.append({
            "value": value, "networks": case.axis.marks[value], "step_time_s": step, "tokens_per_s": tokens / step,
            "usd_per_million_tokens": None if hourly is None else hourly / HOUR * step / tokens * 1e6,
            "layout": found.layouts.row(k), "layout_text": layout_text(found.layouts.row(k)),
        })  # fmt: skip
    return {
        "model": model.name, "cluster": cluster.name, "framework": case.setup.framework.name, "gpus": gpus,
        "global_batch": batch, "gpus_per_node": cluster.gpus_per_node, "nics_per_node": cluster.nics_per_node,
        "nic_gbit_per_s": link, "along": case.axis.name, "unit": case.axis.unit,
        "worst": case.axis.worst, "nodes_per_pod": cluster.pod_nodes, "curve": points, "enough": found.enough,
        "strategies": [_need(n) for n in needs],
        "first_question": [_way(w, case, words) for w in both],
    }  # fmt: skip


def _need(n: NetworkNeed) -> dict[str, Any]:
    text = None if n.layouts is None else layout_text(n.layouts.row(0))
    return {
        "strategy": n.name, "step_time_s": finite(n.step_s), "enough": finite(n.enough), "layout_text": text,
        "none": n.none,
    }  # fmt: skip


def _way(w: NetworkWay, case: NetworkCase, words: Mapping[str, Any]) -> dict[str, Any]:
    held = " ".join(f"--{k} {','.join(map(str, v))}" for k, v in w.settles.items())
    own = [w for name, value in case.given.items() for w in option_words(f"--{name.replace('_', '-')}", value)]
    wire, of = w.cluster.network, {name: shlex.quote(str(word)) for name, word in words.items()}
    network = case.setup.cluster.network.name
    for figure in filter(None, case.setup.cluster.name.partition(WITH)[2].split(", ")):
        own += ["--figure", figure] * (wire.name == network or not figure.startswith("network."))
    command = (
        f"planner recommend {of['model']} --seq-len {case.setup.model.seq_len} --cluster {of['cluster']} "
        f"--network {wire.name} --gpus {case.request.gpus} --global-batch {case.request.global_batch} "
        f"--framework {of['framework']} {shlex.join(own)} {held}"
    )
    text = None if w.layouts is None else layout_text(w.layouts.row(0))
    return {
        "way": w.name, "settles": held, "network": wire.name, "nic_gbit_per_s": 8e-9 * wire.bandwidth_bytes_per_s,
        "step_time_s": finite(w.step_s), "layout_text": text,
        "enough": finite(w.need.enough), "none": w.need.none, "command": " ".join(command.split()), "near": w.near,
    }  # fmt: skip


def _value(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{few_digits(value)} {unit}"


def network_view(r: Mapping[str, Any]) -> View:
    """The network that suffices first, then the curve, the strategies and the first paper's question."""
    unit, wide = r["unit"], r["along"] == "bandwidth"
    best, nics = r["curve"][-1], r["nics_per_node"]
    lines: list[View] = [
        bold(
            f"{r['model']} on {gpus_text(r['gpus'])} of {r['cluster']}, batch {r['global_batch']:,}: "
            f"the {r['worst']} within 5 % of the fastest is {_value(r['enough'], unit)}"
            + (f" ({r['enough'] / r['gpus_per_node']:.3g} Gb/s per GPU)" if wide else "")
        ),
        f"  {r['framework']}; {counted(nics, 'NIC')} per node at every point"
        + (f", each with its share; the cluster's own have {r['nic_gbit_per_s']:g} Gb/s each" if wide else
           f", of {r['nic_gbit_per_s']:g} Gb/s"),
        "",
    ]  # fmt: skip
    priced = best["usd_per_million_tokens"] is not None
    known = "a node's network" if wide else "which have it"
    head = [unit, known, "step", "of the best", *(["USD/M tokens"] if priced else []), "best layout"]
    table = plain_table(*head, numbers=(0, 2, 3, 4) if priced else (0, 2, 3))
    for p in r["curve"]:
        money = [f"{p['usd_per_million_tokens']:.3g}"] if priced else []
        table.add_row(
            f"{p['value']:,g}", p["networks"], f"{p['step_time_s']:.4g} s",
            f"{best['step_time_s'] / p['step_time_s']:.0%}", *money, p["layout_text"],
        )  # fmt: skip
    lines.append(table)
    if wide:
        lines += ["", "A name stands for its bandwidth alone: latency and the achieved share stay the cluster's own."]
    if r["along"] == "oversubscription":
        lines += ["", f"Nodes of a pod: {r['nodes_per_pod']:,} (--figure pod_nodes)"]
    if priced:
        cheapest = min(r["curve"], key=lambda p: p["usd_per_million_tokens"])
        lines += ["", f"Cheapest by token: {_value(cheapest['value'], unit)}"]
    lines += [
        "",
        bold("What each strategy needs, to the next mark, for within 5 % of its own fastest"),
        _strategies(r),
        "Here each strategy has its fastest layout by the closed form; above each step is the exact timeline's.",
        *_question(r),
    ]
    return stacked(*lines)


def _strategies(r: Mapping[str, Any]) -> View:
    table = plain_table("strategy", "enough", "its step", "its layout on the best network", numbers=(1, 2))
    for n in r["strategies"]:
        if n["none"]:
            table.add_row(n["strategy"], "-", "-", f"none: {n['none']}")
        else:
            table.add_row(n["strategy"], _value(n["enough"], r["unit"]), f"{n['step_time_s']:.4g} s", n["layout_text"])
    return table


def _question(r: Mapping[str, Any]) -> list[View]:
    """Is InfiniBand needed: four lines, and the commands that give their figures."""
    if not r["first_question"]:
        return []
    base, better, best = r["first_question"]
    said = [
        f"  {w['way']}{', ' * bool(w['settles'])}{w['settles']}, on {w['network']}, "
        f"{r['nics_per_node']} x {w['nic_gbit_per_s']:g} Gb/s per node: "
        + (f"{w['step_time_s']:.4g} s per step ({w['layout_text']})" if w["layout_text"] else f"none: {w['none']}")
        for w in (base, better, best)
    ]
    needs = ", ".join(f"{w['way']} {_value(w['enough'], r['unit'])}" for w in (base, better))
    return [
        "", bold(f"Is the fast network needed?{_verdict(base, better, best)}"), *said,
        f"  the least network within 5 % of each way's fastest layout: {needs}", "",
        *(f"  {w['command']}" for w in (base, better, best)),
    ]  # fmt: skip


def _verdict(base: Mapping[str, Any], *slow: Mapping[str, Any]) -> str:
    """Whether the best on the slow network takes longer than what is near the baseline on the cluster's own."""
    steps = [w["step_time_s"] for w in slow if w["layout_text"]]
    if not base["layout_text"] or not steps:
        return ""
    longer = min(steps) / base["step_time_s"] - 1.0
    said = f"{abs(longer):.1%} {'longer' if longer > 0 else 'less'} than the baseline on {base['network']}"
    return f" {'Yes' if longer > base['near'] else 'No'}: on {slow[0]['network']} the fastest takes {said}."


def draw_network(r: Mapping[str, Any]) -> Figure:
    """The curve of a record of `planner network`, and a bar for each strategy."""
    needs = {f"{n['strategy']}: {n['step_time_s']:.3g} s": [n["enough"]] for n in r["strategies"] if not n["none"]}
    title = f"{r['model']}, {gpus_text(r['gpus'])} of {r['cluster']}, batch {r['global_batch']:,}"
    enough = partial(bars, rows=needs, title="Enough for each strategy's own fastest step", unit=r["unit"])
    return figure_of(title, partial(_curve, r=r), enough)


def _curve(axis: Any, r: Mapping[str, Any]) -> None:
    """Step time along the network, a letter for each layout."""
    x, y = [p["value"] for p in r["curve"]], [p["step_time_s"] for p in r["curve"]]
    axis.plot(x, y, marker="o", markersize=4, color=BLUE)
    axis.axhspan(y[-1], 1.05 * y[-1], color="#e8f1ea", label="within 5 % of the fastest")
    enough = f"enough: {_value(r['enough'], r['unit'])}"
    axis.axvline(r["enough"], color="#2e6b3f", linestyle="--", linewidth=1.2, label=enough)
    letters: dict[str, str] = {}
    for p in r["curve"]:
        letter = letters.setdefault(p["layout_text"], chr(ord("a") + len(letters)))
        axis.annotate(letter, (p["value"], p["step_time_s"]), xytext=(4, 5), textcoords="offset points", fontsize=8)
    for text, letter in letters.items():
        axis.plot([], [], " ", label=f"{letter}  {text}")
    axis.set(xlabel=f"{r['along']} ({r['unit']})", ylabel="seconds per step")
    axis.legend(fontsize=7, framealpha=0.9, edgecolor="none", handlelength=1.2)  # over the line that it would hide in
    ruled(axis.xaxis, x)
    ruled(axis.yaxis, y)
