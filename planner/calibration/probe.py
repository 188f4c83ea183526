"""A probe's measurements (`planner probe --write probe.py`) as a cluster's figures: each beside the profile's.

A rate's figure is the profile's times predicted over measured seconds of the same kernel by the planner's own formula,
the median over the large ones. Where the probe says nothing of a figure it stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import InputError
from planner.base.files import is_path
from planner.base.units import GIB
from planner.calibration.figures import FittedFigure
from planner.calibration.probe_file import Probe, Row
from planner.calibration.profile_files import fitted_profiles
from planner.costs.kernels.attention import key_block
from planner.costs.kernels.device import Device, matmul_s
from planner.hardware import Cluster, Framework, Link
from planner.layouts import Precision

LARGE = 0.25
"""Fraction of the work of the largest kernel of a kind, from which on a kernel shows its rate."""
SLOWER = 0.05
"""A rank whose products take this much longer than the median's is named."""
RINGS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
"""Passes round a ring that a collective takes; gloo's are measured beside its all-reduce's."""
GLOO = {"all_gather": "gather_passes", "reduce_scatter": "scatter_passes"}
HOST = {
    "layer_forward": {"forward": 1.0}, "layer_backward": {"plain": 1.0, "forward": -1.0},
    "tensor": {"tensor": 0.5, "plain": -0.5}, "sharded": {"sharded": 0.5, "plain": -0.5},
    "recompute": {"recomputed": 1.0, "plain": -1.0, "forward": -1.0},
}  # fmt: skip
"""Of which of a layer's timed passes the host's figures are sums."""
KERNELS = {"FLASH_ATTENTION": "flash2", "CUDNN_ATTENTION": "flash3"}


@dataclass(frozen=True, kw_only=True)
class ProbedFigure:
    """A figure of a profile as a probe has it; spread: the standard deviation of the kernels, or repeats, that tell it.

    kernels: how many these are; 0 where none is, and the host's times hold it.
    """

    figure: FittedFigure
    value: float
    spread: float
    kernels: int

    @property
    def unsteady(self) -> bool:
        """Its measurements spread by more than itself: it isn't written, and the profile's stands."""
        return self.spread > self.value


def probed_figures(probe: Probe, cluster: Cluster, framework: Framework | None = None) -> list[ProbedFigure]:
    """The figures of a cluster's profiles that a probe tells, and the host times of a framework's.

    Raises InputError if it tells none, or a kernel was faster than the cluster's accelerators can be.
    """
    on_processor = cluster.node_link.kind == "memory"
    if on_processor != (probe.machine.device == "cpu"):
        ran, has = ("a processor", "GPUs") if not on_processor else ("a GPU", "processors")
        raise InputError(f"the probe ran on {ran}, --cluster {cluster.name} has {has}: name the cluster that it ran on")
    found = [
        *_processors(probe, cluster), *_products(probe, cluster), *_attention(probe, cluster),
        *_memory(probe, cluster), *_links(probe, cluster), *_host(probe, framework),
    ]  # fmt: skip
    for f in found:
        if f.value > f.figure.high and not f.unsteady:
            raise InputError(
                f"{f.figure.label} would be {f.value:.3g}, allowed: up to 1; the probe ran on {probe.machine.name}, "
                f"--cluster {cluster.name} has {cluster.accelerator.name}: name the cluster that it ran on"
            )
    if not found:
        raise InputError("the probe has no figure that a profile has; allowed: one with products, memory or attention")
    return found


def probe_profiles(
    found: Sequence[ProbedFigure], probe: Probe, cluster: str, frameworks: Sequence[str] = ()
) -> dict[str, str]:
    """Texts of the profiles with a probe's steady figures, by path in a folder laid out as `hardware_profiles/`.

    The cluster names the first of the frameworks; a processor keeps the precisions of which the probe timed products.
    """
    timed = {row.precision for row in _timed(probe.products)} if probe.machine.device == "cpu" else set()

    def own(folder: str, data: dict[str, Any]) -> dict[str, Any]:
        if folder == "clusters" and frameworks:
            return data | {
                "framework": str(Path(frameworks[0]).absolute()) if is_path(frameworks[0]) else frameworks[0]
            }
        if folder == "accelerators" and timed & set(data["peak_tflops"]):
            return data | {"peak_tflops": {k: v for k, v in data["peak_tflops"].items() if k in timed}}
        return data

    about = f"planner calibrate --probe: {probe.machine.name}, torch {probe.machine.torch}, {date.today().isoformat()}"
    return fitted_profiles(
        [(f.figure, f.value, f.spread) for f in found if not f.unsteady], [cluster], frameworks, about, own
    )


def slow_ranks(probe: Probe) -> list[Row]:
    """Ranks whose products are slower than the median's."""
    return [row for row in probe.ranks if row.slower > SLOWER]


def hidden_share(probe: Probe) -> float | None:
    """Fraction of the shorter of a product and an all-reduce that hides where both run; None without the figures."""
    time_s = {row.kind: row.seconds for row in probe.overlap if row.seconds}
    if set(time_s) != {"product", "all_reduce", "both"}:
        return None
    alone = (time_s["product"], time_s["all_reduce"])
    return float(np.clip((sum(alone) - time_s["both"]) / min(alone), 0.0, 1.0))


def grouped_share(probe: Probe) -> float | None:
    """Time of experts' products at once over that of one by one, the median of the sizes; None without the figures."""
    pairs = pairwise(_timed(probe.experts))
    each = [
        a.seconds / b.seconds
        for a, b in pairs
        if (a.kind, b.kind) == ("grouped", "one by one") and (a.rows, a.columns) == (b.rows, b.columns)
    ]
    return float(np.median(each)) if each else None


def group_rates(probe: Probe) -> list[dict[str, float]]:
    """Of all-reduces in groups side by side, bytes per second that a rank sends: the largest timed of each kind."""
    largest = {(r.ranks, r.stride): r for r in sorted(_timed(probe.groups), key=lambda r: r.bytes)}
    return [
        {"ranks": n, "stride": stride, "bytes_per_s": 2.0 * (n - 1) / n * r.bytes / r.seconds}
        for (n, stride), r in sorted(largest.items())
    ]


def _figure(folder: str, name: str, field: str, now: float, keys: tuple[str, ...] = ()) -> FittedFigure:
    high = 1.0 if folder in ("efficiency", "links", "frameworks") else np.inf  # shares, seconds; else counts
    return FittedFigure(
        folder=folder, names=(name,), field=field, keys=keys, low=0.0, high=high, profile=now, start=now
    )  # fmt: skip


def _probed(figure: FittedFigure, each: Array) -> list[ProbedFigure]:
    """A figure from what each kernel tells of it; none without kernels."""
    each = each[np.isfinite(each) & (each > 0)]
    if not len(each):
        return []
    return [ProbedFigure(figure=figure, value=float(np.median(each)), spread=float(np.std(each)), kernels=len(each))]


def _timed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.seconds > 0 and not row.missing]


def _processors(probe: Probe, cluster: Cluster) -> list[ProbedFigure]:
    """On a processor a rank of the probe is what a GPU is elsewhere: its threads and memory, and so many a node."""
    if probe.machine.device != "cpu":
        return []
    accelerator, threads, ranks = cluster.accelerator, probe.machine.threads, probe.machine.local_world
    memory = _figure("accelerators", accelerator.name, "memory_gib", accelerator.memory_bytes / GIB)
    units = _figure("accelerators", accelerator.name, "num_compute_units", accelerator.num_compute_units)
    node = _figure("clusters", cluster.name, "gpus_per_node", cluster.gpus_per_node)
    figures = ((units, threads), (node, ranks), (memory, (probe.machine.memory_bytes or 0) / GIB / ranks))
    return [one for figure, value in figures for one in _probed(figure, np.array([value]))]


def _products(probe: Probe, cluster: Cluster) -> list[ProbedFigure]:
    """Shares of peak, by precision, of products of at least `LARGE` of the largest's work; on a processor of all."""
    accelerator, out = cluster.accelerator, []
    for name, share in accelerator.efficiency.matrix_fraction.items():
        rows = [row for row in _timed(probe.products) if row.precision == name]
        if not rows or name not in accelerator.peak_flops:
            continue
        m, n, k, seconds = np.array([(r.rows, r.columns, r.depth, r.seconds) for r in rows], dtype=np.float64).T
        large = m * n * k >= (0.0 if probe.machine.device == "cpu" else LARGE) * (m * n * k).max()
        if probe.machine.device == "cpu":
            accelerator = replace(accelerator, num_compute_units=probe.machine.threads)
        device = Device.of(accelerator, np.full(len(rows), int(Precision[name.upper()])))
        ratio = (matmul_s(device, m, n, k) - device.latency_s) / np.maximum(seconds - device.latency_s, 1e-9)
        figure = _figure("efficiency", accelerator.efficiency.name, "matrix_fraction", share, (name,))
        out += _probed(figure, share * ratio[large])
    return out


def _attention(probe: Probe, cluster: Cluster) -> list[ProbedFigure]:
    """Shares of peak of causal attention, forward (two products) and backward (five), of the longest sequences."""
    e, out = cluster.accelerator.efficiency, []
    for kernel, name in KERNELS.items():
        for kind, field, times in (("forward", "flash_forward", 1.0), ("backward", "flash_backward", 2.5)):
            table: Mapping[str, float] = getattr(e, field)
            rows = [r for r in _timed(probe.attention) if r.kernel == kernel and r.kind == kind]
            rows = [r for r in rows if r.precision in cluster.accelerator.peak_flops]
            if not rows or name not in table:
                continue
            longest = max(r.length for r in rows)
            half = e.flash_half_tokens.get(name, 0.0)
            each = []
            for r in (r for r in rows if 2 * r.length >= longest):
                computed = 0.5 * (1.0 + key_block(e, r.length) / r.length) * (1.0 + half / r.length)
                flop = times * 4.0 * r.heads * r.length**2 * r.width * computed
                each.append(flop / r.seconds / cluster.accelerator.peak_flops[r.precision])
            out += _probed(_figure("efficiency", e.name, field, table[name], (name,)), np.array(each))
    return out


def _memory(probe: Probe, cluster: Cluster) -> list[ProbedFigure]:
    """Share of the memory's bandwidth of large passes; of all passes on a processor, whose caches hold activations.

    On a processor also the time of a call, unless a layer's calls were timed.
    """
    accelerator, on_processor = cluster.accelerator, probe.machine.device == "cpu"
    e, rows = accelerator.efficiency, [r for r in _timed(probe.memory) if r.kind != "layer_norm"]
    largest = 0 if on_processor else max((r.bytes for r in rows), default=0)
    rates = [r.bytes / r.seconds for r in rows if r.bytes >= LARGE * largest]
    share = np.array(rates) / accelerator.memory_bandwidth_bytes_per_s
    out = _probed(_figure("efficiency", e.name, "memory_fraction", e.memory_fraction), share)
    if on_processor:
        calls = np.array([1e-9 if probe.host else r.seconds for r in _timed(probe.launch)])
        called = _probed(_figure("efficiency", e.name, "kernel_latency_s", e.kernel_latency_s), calls)
        out += [replace(f, kernels=0) for f in called] if probe.host else called
    return out


def _host(probe: Probe, framework: Framework | None) -> list[ProbedFigure]:
    """Host seconds of a layer's passes; what tensor ranks and sharding add, half to each; what recomputing it adds."""
    rows = {r.kind: r for r in _timed(probe.host)}
    if framework is None:
        return []
    out = []
    for name, times in HOST.items():
        if set(times) <= set(rows):
            field = f"host_{name}_s"
            seconds = sum(n * rows[kind].seconds for kind, n in times.items())
            spread = float(np.hypot.reduce([n * rows[kind].seconds * rows[kind].spread for kind, n in times.items()]))
            figure = _figure("frameworks", framework.name, field, getattr(framework, field))
            out += [replace(f, spread=spread) for f in _probed(figure, np.array([seconds]))]
    return out


def _links(probe: Probe, cluster: Cluster) -> list[ProbedFigure]:
    """Shares of a link's bandwidth that rings and sends reach: of a node's link, or of the network over nodes.

    Seconds are fitted as bytes at a rate and so many starts, by the least relative errors. A start is told where
    processors talk; for GPUs the profile's stays, which has a protocol for small messages.
    """
    timed, out, passes_of = [r for r in _timed(probe.collectives) if r.ranks > 1], [], dict(RINGS)
    if probe.machine.device == "cpu":  # gloo copies what it gathers; it sums all on every rank, and keeps a part
        by_size, inside = {(r.kind, r.bytes): r.seconds for r in timed}, cluster.node_link
        for kind, field in GLOO.items():
            sizes = [n for one, n in by_size if one == kind and ("all_reduce", n) in by_size]
            each = np.array([2.0 * by_size[kind, n] / by_size["all_reduce", n] for n in sizes])
            figure = replace(_figure("links", inside.name, field, getattr(inside, field)), high=4.0)
            for found in _probed(figure, np.clip(each, 1.0, 4.0)):
                out.append(found)
                passes_of[kind] = found.value
    for field, kinds in (("fraction", passes_of), ("send_fraction", {"send and back": 2.0})):
        rows = [r for r in timed if r.kind in kinds]
        if len({r.bytes for r in rows}) < 2:
            continue
        n, local = rows[0].ranks, rows[0].local
        link: Link = cluster.node_link if n <= local else cluster.network
        bandwidth = link.bandwidth_bytes_per_s
        if n > local and field == "fraction":
            bandwidth *= cluster.nics_per_node / cluster.gpus_per_node * local
        share, members = ((n - 1) / n, local) if field == "fraction" else (1.0, 1)
        passes, size, seconds = np.array([(kinds[r.kind], r.bytes, r.seconds) for r in rows], dtype=np.float64).T
        terms = np.stack([passes * share * size / bandwidth, passes * members], axis=1) / seconds[:, None]
        (inverse, start_s), *_ = np.linalg.lstsq(terms, np.ones(len(rows)))
        largest = size == size.max()
        each = np.array([1.0 / max(inverse, 1e-30), *(terms[:, 0][largest])])
        value = _probed(_figure("links", link.name, field, getattr(link, field)), each[:1])
        out += [replace(f, spread=float(np.std(each)), kernels=len(rows)) for f in value]
        if probe.machine.device == "cpu" and field == "fraction" and n <= local:
            out += _probed(_figure("links", link.name, "latency_s", link.latency_s), np.array([start_s]))
    return out


def probe_record(found: Sequence[ProbedFigure], probe: Probe) -> dict[str, Any]:
    """A probe's figures, as plain values."""
    return {
        "machine": probe.machine.model_dump(),
        "figures": [
            {
                "figure": f.figure.label, "profile": f.figure.profile / f.figure.profile_unit,
                "probe": f.value / f.figure.profile_unit, "spread": f.spread / f.figure.profile_unit,
                "kernels": f.kernels, "unsteady": f.unsteady,
            }
            for f in found
        ],
        "slow_ranks": [row.model_dump(include={"rank", "host", "slower"}) for row in slow_ranks(probe)],
        "hidden_share": hidden_share(probe), "grouped_share": grouped_share(probe), "groups": group_rates(probe),
    }  # fmt: skip
