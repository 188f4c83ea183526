"""A plan's nodes in the order that suits the links measured between them."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.api.answer import Answer
from planner.base.arrays import Array
from planner.base.errors import FileFormatError, InputError, shown
from planner.base.files import read_csv, read_text
from planner.base.units import GBIT, parse_number
from planner.costs.placement import node_ranks
from planner.report.plain_table import plain_table, stacked
from planner.report.records import question_record
from planner.report.tables import layout_text, question_title
from planner.search.placed import EXACT, Placement

if TYPE_CHECKING:
    from planner.plan_file import SavedPlan

LEAST, MOST = 1e-3, 1e6
"""Bandwidths that a link may have, Gb/s."""


def read_bandwidths(path: Path) -> Array:
    """A square CSV of Gb/s from a node (row) to another (column); its diagonal isn't read.

    Raises FileFormatError if it is none, naming row and column from 1.
    """
    rows = [row for row in read_csv(path) if row]
    out = np.full((len(rows), len(rows)), math.nan)
    np.fill_diagonal(out, 1.0)
    for i, row in enumerate(rows):
        if len(row) != len(rows):
            raise FileFormatError(f"{path}: row {i + 1} has {len(row)} values; allowed: {len(rows)}, one for each row")
        for k, text in enumerate(row):
            with suppress(ValueError):
                out[i, k] = 1.0 if i == k else parse_number(text, float)
            if not LEAST <= out[i, k] <= MOST:
                allowed = f"allowed: a number of Gb/s, {LEAST:g} to {MOST:,.0f}"
                raise FileFormatError(f"{path}: row {i + 1}, column {k + 1} is {shown(text)}; {allowed}")
    return out


def read_hosts(path: Path) -> list[str]:
    """The first word of every line, which a launcher's host file begins with. Raises FileFormatError for one twice."""
    hosts = [words[0] for line in read_text(path).splitlines() if (words := line.partition("#")[0].split())]
    for i, host in enumerate(hosts):
        if host in hosts[:i]:
            raise FileFormatError(f"{path}: host {shown(host)} is there twice; allowed: each once")
    return hosts


def place_plan(plan: SavedPlan, gbit: Array, hosts: list[str] | None = None) -> Answer:
    """The order of a plan's nodes with the shortest step, and what the links cost in it and in the given one.

    gbit: Gb/s that a node (row) sends to another (column), over all of its NICs. hosts: their names, in this order.

    Raises InputError for another number of nodes or hosts than the plan's, or one alone; for a cluster with pods.
    """
    setup, layouts = plan.setup, plan.layouts
    cluster, each = setup.cluster, int(node_ranks(setup.cluster, plan.gpus))
    nodes = math.ceil(plan.gpus / each)
    if nodes == 1:
        raise InputError(f"the plan's {plan.gpus} GPUs are on one node; allowed: two nodes or more, to be put in order")
    for what, has in (("bandwidth", len(gbit)), ("hosts", nodes if hosts is None else len(hosts))):
        if has != nodes:
            raise InputError(f"{what} has {has} nodes; allowed: the plan's {nodes}, of {each} GPUs each")
    if cluster.oversubscription > 1.0:
        pods = f"oversubscription is {cluster.oversubscription:g}"
        raise InputError(f"{pods}; allowed: 1, for the bandwidths say what the links between nodes carry")
    own = cluster.network.reached_bytes_per_s * cluster.nics_per_node / GBIT
    one = Placement(setup=setup, layouts=layouts, shares=gbit / own)
    orders = {"given": tuple(range(nodes)), "best": one.best()}
    record = question_record(setup, plan.gpus, int(layouts.global_batch[0])) | {
        "layout": plan.row, "gpus_per_node": each, "network_gbit_per_s": own, "exact": nodes <= EXACT,
        "hosts": hosts or [f"node{i + 1}" for i in range(nodes)], "order": list(orders["best"]),
        "uniform_step_time_s": one.step_s({}),
        **{f"{name}_step_time_s": one.of_order(order) for name, order in orders.items()},
        "traffic": [x for kind in one.links if (x := _traffic(one, kind, gbit, orders))],
    }  # fmt: skip
    return Answer(question_title(setup, plan.gpus, int(layouts.global_batch[0])), record, _view(record))


def _traffic(one: Placement, kind: str, gbit: Array, orders: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """A kind's slowest link in each order, and the seconds that it adds; {} for a kind that never adds any."""
    out: dict[str, Any] = {"kind": kind}
    for name, order in orders.items():
        a, b = min((np.array(order)[one.links[kind]]).tolist(), key=lambda x: (gbit[x[0], x[1]], x))
        least = dict(zip(one.links, one.slowest([order])[0].tolist(), strict=True))
        late = one.step_s(least) - one.step_s(least | {kind: 1.0})
        out[name] = {"from": a, "to": b, "gbit_per_s": float(gbit[a, b]), "held_up_s": late}
    return out if any(out[name]["held_up_s"] for name in orders) else {}


def _view(r: dict[str, Any]) -> Any:
    """The verdict, the links that hold the step up, and the order."""
    given, best, hosts = r["given_step_time_s"], r["best_step_time_s"], r["hosts"]
    found = "" if r["exact"] else " found"
    said = f"The given order of nodes is as fast as any{found}: {given:.4g} s per step"
    if best < given:
        less = f"{1.0 - best / given:.1%} less than the {given:.4g} s of the given one"
        said = f"In another order of nodes a step takes {best:.4g} s, {less}"
    own = f"{r['uniform_step_time_s']:.4g} s on the cluster's own links, all {r['network_gbit_per_s']:,.0f} Gb/s"
    links = plain_table("traffic", "order", "slowest link", "Gb/s", "s more than the cluster's own", numbers=(3, 4))
    for traffic in r["traffic"]:
        for name in ("given", "best"):
            x = traffic[name]
            between = f"{hosts[x['from']]} to {hosts[x['to']]}"
            links.add_row(traffic["kind"], name, between, f"{x['gbit_per_s']:,.0f}", f"{x['held_up_s']:.3g}")
    return stacked(
        layout_text(r["layout"]), f"{said}; {own}.", "", links, "",
        f"The best order{found}: {' '.join(hosts[i] for i in r['order'])}",
        "Each kind of traffic goes at its slowest link: of a ring, of an all-to-all, between pipeline stages.",
    )  # fmt: skip
