"""The network that suffices: the best layout's step along the bandwidth between nodes, or along its latency.

Every point is a search of its own. A layout that is best at one point is also tried at all others, so that a faster
link never hurts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools
from planner.base.errors import InputError, LayoutError
from planner.base.units import GBIT
from planner.choices.table import CHOICES
from planner.hardware import Cluster
from planner.layouts import Layouts
from planner.search.grids import Grid
from planner.search.ranking import best_of, recommend
from planner.search.request import Request
from planner.search.scan import search, totals_all, wide_grids
from planner.setup import Setup
from planner.step.timeline.many import simulate_all

NEAR = 0.05
"""A network suffices where the step is within this share of that on the best network of the axis."""
BANDWIDTHS = {
    1.0: "1 GbE", 10.0: "10 GbE", 25.0: "25 GbE", 50.0: "", 100.0: "100 GbE, EDR", 200.0: "HDR",
    400.0: "NDR, 4 x EFA 100", 800.0: "XDR", 1600.0: "8 x HDR", 3200.0: "8 x NDR, EFA 3200",
}  # fmt: skip
"""Gb/s of a node, and which networks have it."""
LATENCIES = dict.fromkeys((1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0, 10_000.0), "")
"""Microseconds of a step between neighbours of a ring, in falling quality."""
OVERSUBSCRIPTIONS = {
    1.0: "non-blocking", 1.5: "", 2.0: "", 3.0: "", 4.0: "", 7.0: "LLaMA 3's, of 3,072 GPUs", 16.0: "", 32.0: "",
}  # fmt: skip
"""Of pods; LLaMA 3's: Grattafiori et al. 2024, arXiv 2407.21783, section 3.3.1."""
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "data parallel, replicated": {"zero": (0,)},
    "ZeRO 1": {"zero": (1,)},
    "ZeRO 2": {"zero": (2,)},
    "ZeRO 3": {"zero": (3,)},
    "1F1B": {"schedule": ("1f1b",), "pipelined": True},
    "layered accumulation": {"schedule": ("layered",), "zero": CHOICES["zero"].tried},
    "modular pipeline": {"schedule": ("modular",), "zero": CHOICES["zero"].tried},
    "breadth-first pipeline": {"schedule": ("breadth-first",), "pipelined": True, "zero": CHOICES["zero"].tried},
    "tensor ranks over nodes": {"tp": "over nodes"},
    "context ranks": {"cp": (2, 4, 8, 16)},
    "expert ranks": {"ep": (2, 4, 8, 16, 32, 64)},
}
"""The choices of a layout that a strategy settles, the first its own; the rest is searched."""
BASELINE = {"schedule": ("1f1b", "interleaved"), "zero": (0, 1)}
IMPROVED = {"schedule": ("layered", "modular", "breadth-first"), "zero": (1, 2, 3)}
"""The first paper's two ways (Lamy-Poirier 2021): plain pipelines, and layers at a time with partitioned state."""


def with_bandwidth(cluster: Cluster, gbit_per_node: float) -> Cluster:
    """The cluster with so many Gb/s for each node, over as many NICs as before."""
    each = gbit_per_node * GBIT / cluster.nics_per_node
    return replace(cluster, network=replace(cluster.network, bandwidth_bytes_per_s=each))


def with_latency(cluster: Cluster, microseconds: float) -> Cluster:
    """The cluster with so long a step between neighbours on the network, all of its latencies in proportion."""
    link = cluster.network
    return replace(cluster, network=link.stretched_by(microseconds * 1e-6 / link.latency_s))


@dataclass(frozen=True, kw_only=True)
class NetworkAxis:
    """A varied figure of the network: values from worst to best, with their names. worst: what its worst is called."""

    name: str
    unit: str
    worst: str
    marks: Mapping[float, str]
    change: Callable[[Cluster, float], Cluster]

    @property
    def values(self) -> tuple[float, ...]:
        """From the worst network to the best."""
        return tuple(sorted(self.marks, reverse=self.name != "bandwidth"))


AXES = {
    axis.name: axis
    for axis in (
        NetworkAxis(
            name="bandwidth", unit="Gb/s per node", worst="slowest network", marks=BANDWIDTHS, change=with_bandwidth
        ),
        NetworkAxis(name="latency", unit="us", worst="longest latency", marks=LATENCIES, change=with_latency),
        NetworkAxis(
            name="oversubscription", unit="to 1", worst="largest oversubscription", marks=OVERSUBSCRIPTIONS,
            change=lambda cluster, times: replace(cluster, oversubscription=times),
        ),
    )
}  # fmt: skip


def axis_of(name: str, cluster: Cluster) -> NetworkAxis:
    """An axis by its name; bandwidths go on in doublings up to the cluster's own, where a node has more."""
    axis, own = AXES[name], cluster.network.bandwidth_bytes_per_s / GBIT * cluster.nics_per_node
    most = max(axis.marks)
    if name != "bandwidth" or own <= most:
        return axis
    doubled = {most * 2.0**k: "" for k in range(1, 32) if most * 2.0**k < own}
    return replace(axis, marks={**axis.marks, **doubled, own: "the cluster's own"})


@dataclass(frozen=True, kw_only=True)
class NetworkCase:
    """A setup's question, asked again on other networks; given: choices that the user has settled, as given."""

    setup: Setup
    axis: NetworkAxis
    request: Request
    given: Mapping[str, Any] = field(default_factory=dict)

    def held(self, settles: Mapping[str, Any]) -> NetworkCase:
        """The same with more settled of the layout."""
        return replace(self, request=self.request.held(**settles))

    def on(self, value: float) -> Setup:
        """The setup with another network."""
        return replace(self.setup, cluster=self.axis.change(self.setup.cluster, value))

    @cached_property
    def grids(self) -> tuple[Grid, ...]:
        """The layouts to choose from, the same on every network. Raises LayoutError if there is none."""
        return tuple(wide_grids(self.setup, self.request))

    def best(self, setup: Setup, known: Layouts) -> Layouts:
        """The best layout of a search, simulated as `planner recommend` does; a table of one.

        known: legal layouts, no slower than which the best is: the better they are, the sooner the answer comes.
        Raises LayoutError if nothing is legal, or nothing fits.
        """
        return best_of(setup, self.request, _reach_s(setup, known), self.grids).layouts

    def quickest(self, value: float, reach_s: float = np.inf) -> tuple[float, Layouts]:
        """The least step of the closed form among all layouts that fit, with its layout; sooner than `best`.

        Raises LayoutError if nothing is legal, or nothing fits, or all steps are longer than `reach_s`.
        """
        shortlist = search(self.on(value), self.request, top=0, reach_s=reach_s, among=self.grids)
        if shortlist.fits is None or not len(shortlist.fits.layouts):
            raise LayoutError("nothing fits in memory")
        step_s = float(shortlist.fits.step_time_s[0])
        if step_s > reach_s:
            raise LayoutError(f"no layout that fits takes at most {reach_s:.4g} s per step")
        return step_s, shortlist.fits.layouts.take([0])

    def step_s(self, value: float, layouts: Layouts) -> float:
        """The least step of some layouts, by the closed form."""
        return float(totals_all(self.on(value), layouts)[0].min())


def exact_step_s(setup: Setup, layouts: Layouts) -> tuple[Array, Bools]:
    """Seconds of a step, and whether it fits; of pipelines by the timeline. Shape (n,)."""
    step_s, peak_bytes = np.empty((2, len(layouts)))
    for rows, of in ((layouts.pp == 1, totals_all), (layouts.pp > 1, simulate_all)):
        if rows.any():
            step_s[rows], peak_bytes[rows] = of(setup, layouts.take(rows))
    return step_s, peak_bytes <= setup.cluster.accelerator.usable_bytes


def _reach_s(setup: Setup, known: Layouts) -> float:
    """The least step of those layouts that fit; endless if none does."""
    step_s, fits = exact_step_s(setup, known)
    return float(np.min(step_s[fits], initial=np.inf))


@dataclass(frozen=True, kw_only=True)
class NetworkCurve:
    """The best layout at each value of an axis, worst network first: step_s of shape (n,), layouts a table of n.

    enough: the worst value whose step is within `NEAR` of the best network's, found by searching between two marks.
    """

    values: tuple[float, ...]
    step_s: Array
    layouts: Layouts
    enough: float


def curve(case: NetworkCase) -> NetworkCurve:
    """The best layout along the axis. Raises LayoutError if nothing is legal, or nothing fits."""
    values = case.axis.values
    found = []
    try:
        known = case.quickest(values[0])[1]
    except LayoutError:
        best_of(case.on(values[0]), case.request, among=case.grids)  # its error says what the least needs
        raise
    for value in values:
        known = case.best(case.on(value), known)
        found.append(known)
    rows = [tuple(one.row(0).items()) for one in found]
    distinct = list(dict.fromkeys(rows))
    winners = Layouts.concatenate([found[rows.index(row)] for row in distinct])
    own = np.array([distinct.index(row) for row in rows])
    table = np.stack([exact_step_s(case.on(v), winners)[0] for v in values])
    least = table.min(axis=1)
    pick = np.where(table[np.arange(len(values)), own] <= least, own, table.argmin(axis=1))

    limit_s = (1.0 + NEAR) * least[-1]

    def suffices(value: float) -> bool:
        setup = case.on(value)
        if exact_step_s(setup, winners)[0].min() <= limit_s:
            return True
        try:
            best = best_of(setup, case.request, limit_s, case.grids).layouts
        except LayoutError:  # none is as fast
            return False
        return bool(exact_step_s(setup, best)[0][0] <= limit_s)

    k = int(np.argmax(least <= limit_s))
    low, high = values[max(k - 1, 0)], values[k]
    for _ in range(2 if k else 0):
        middle = float(f"{(low * high) ** 0.5:.3g}")
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return NetworkCurve(values=values, step_s=least, layouts=winners.take(pick), enough=high)


@dataclass(frozen=True, kw_only=True)
class NetworkNeed:
    """A strategy's need of the network: its step on the best one, and the worst mark within `NEAR` of that.

    none: why there is no such layout, else empty.
    """

    name: str
    step_s: float = float("nan")
    enough: float = float("nan")
    layouts: Layouts | None = None
    none: str = ""


def need_of(case: NetworkCase, name: str, settles: Mapping[str, Any]) -> NetworkNeed:
    """The need of a strategy's best layout, by the closed form's steps."""
    node = case.setup.cluster.gpus_per_node
    if settles and (own := next(iter(settles))) in case.given:
        return NetworkNeed(name=name, none=f"{own} is given")
    if "ep" in settles and not case.setup.model.num_experts:
        return NetworkNeed(name=name, none="the model has no experts")
    wide = tuple(node * n for n in (2, 4, 8) if node * n <= case.request.gpus)  # tensor ranks that span nodes
    one = case.held({k: wide if v == "over nodes" else v for k, v in settles.items() if k not in case.given})
    values = case.axis.values
    try:
        best, layouts = one.quickest(values[-1])
    except (LayoutError, InputError) as error:
        return NetworkNeed(name=name, none=str(error))
    enough = _worst_within(one, (1.0 + NEAR) * best, layouts)
    return NetworkNeed(name=name, step_s=best, enough=enough, layouts=layouts)


def _worst_within(case: NetworkCase, limit_s: float, layouts: Layouts) -> float:
    """The worst value on which some layout's step is `limit_s` or less, as that of `layouts` is on the best.

    Searched only where the layout last found is too slow: a faster link never hurts.
    """
    values = case.axis.values
    enough = values[-1]
    for value in values[-2::-1]:
        if case.step_s(value, layouts) > limit_s:
            try:
                _, layouts = case.quickest(value, limit_s)
            except LayoutError:
                break
        enough = value
    return enough


@dataclass(frozen=True, kw_only=True)
class NetworkWay:
    """One way of the first paper's question: its step on a network, and the network that it needs.

    near: the share of a step by which another is called as fast.
    """

    name: str
    cluster: Cluster
    settles: Mapping[str, Any]
    step_s: float
    layouts: Layouts | None
    need: NetworkNeed
    near: float = NEAR


def ways(case: NetworkCase, slow: Cluster, asked_with: Callable[..., Request]) -> tuple[NetworkWay, ...]:
    """The baseline on the setup's own network; the improved way, and all that the framework runs, on a slow one.

    asked_with: the question with more settled, as `planner recommend` has it; raises LayoutError if the framework runs
    nothing of that.
    """
    out, own = [], case.setup.cluster
    asked: tuple[tuple[str, Mapping[str, Any], Cluster], ...] = (
        ("baseline", BASELINE, own), ("improved", IMPROVED, slow), ("what the framework runs", {}, slow)
    )  # fmt: skip
    for name, settles, cluster in asked:
        free: dict[str, Any] = {k: v for k, v in settles.items() if k not in case.given}
        setup = replace(case.setup, cluster=cluster)
        try:
            one = replace(case, request=asked_with(**free))
            need = need_of(one, name, {})
        except LayoutError as error:
            need = NetworkNeed(name=name, none=str(error))
        layouts, step = None, float("nan")
        if need.layouts is not None:  # what the command advises
            asks, known = one.request.question, _reach_s(setup, need.layouts)
            best = recommend(setup, **asks, plainest=True, reach_s=known, among=one.grids).chosen
            layouts, step = best.layouts, float(best.step_time_s[0])
        out.append(NetworkWay(name=name, cluster=cluster, settles=free, step_s=step, layouts=layouts, need=need))
    return tuple(out)
