"""Changes that would help, and how much: elasticities of step and training time, network operations against links.

An elasticity is d ln(time) / d ln(quantity), by a central difference of one per cent on either side: -0.6 says that one
per cent more of the quantity shortens the step by 0.6 %.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.costs.network.collectives import by_sends, hop
from planner.costs.network.data_parallel import gathered_twice
from planner.costs.network.groups import groups
from planner.hardware import Accelerator, Cluster
from planner.hardware.machines import UNLIMITED
from planner.layouts import Layouts, Precision
from planner.models.flops import forward_flops
from planner.search import Recommendation
from planner.search.scan import estimate_all
from planner.setup import Setup
from planner.step.legality import legal
from planner.step.pipelines import layer_at_a_time
from planner.step.step_costs import step_costs
from planner.training_time.training import TrainingCase

STEP = 0.01
RIVALS = 400  # layouts that may overtake the best once a quantity changes


def _accelerator(change: Callable[[Accelerator, float], Accelerator]) -> Callable[[Cluster, float], Cluster]:
    return lambda c, f: replace(c, accelerator=change(c.accelerator, f))


QUANTITIES: Mapping[str, Callable[[Cluster, float], Cluster]] = {
    "matrix peak": _accelerator(
        lambda a, f: replace(a, peak_flops={name: value * f for name, value in a.peak_flops.items()})
    ),
    "memory bandwidth": _accelerator(
        lambda a, f: replace(a, memory_bandwidth_bytes_per_s=a.memory_bandwidth_bytes_per_s * f)
    ),
    "memory size": _accelerator(
        lambda a, f: replace(a, memory_bytes=a.memory_bytes * f, room_bytes=a.usable_bytes * f)
    ),
    "kernel latency": _accelerator(
        lambda a, f: replace(a, efficiency=replace(a.efficiency, kernel_latency_s=a.efficiency.kernel_latency_s * f))
    ),
    "node link bandwidth": lambda c, f: replace(c, node_link=c.node_link.faster(f)),
    "node link latency": lambda c, f: replace(c, node_link=c.node_link.later(f)),
    "network bandwidth": lambda c, f: replace(c, network=c.network.faster(f)),
    "network latency": lambda c, f: replace(c, network=c.network.later(f)),
    "host link bandwidth": lambda c, f: replace(c, host_link=c.host_link.faster(f)),
    "host memory bandwidth": lambda c, f: replace(
        c, host_memory_bandwidth_bytes_per_s=c.host_memory_bandwidth_bytes_per_s * f
    ),
}
"""Hardware quantities by name, each with the cluster in which it is multiplied."""
FAILURES: Mapping[str, str] = {
    "time between failures": "mtbf_hours",
    "restart time": "restart_minutes",
    "storage bandwidth": "storage_gbyte_per_s",
}
"""Quantities that bear on the training and not on its step, each with its assumption."""
COSTS = {"kernel latency", "node link latency", "network latency", "restart time"}
"""Quantities of which less is better: twofold help is half of them."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of a quantity on the time.

    elasticity: of the layout's step time, training: of the training's, failures and checkpoints counted; both NaN for
    quantities that only change in whole steps, and where the training never ends. twofold: the share by which twice as
    much (half of a latency or restart) shortens the training, the layout as it is; replanned: the same of the fastest
    among the search's rivals, then and now, or of the layout as it is where that gains more. Training counts steps,
    too: a larger batch takes fewer, and more samples.
    """

    name: str
    elasticity: float
    training: float
    twofold: float
    replanned: float | None


@dataclass(frozen=True, kw_only=True)
class NetworkOperation:
    """A kind of traffic of a layout: intensity, in FLOP of the work that it can hide under for each byte that a GPU
    sends, against the FLOP for each byte of its link at peak. Latency left out.

    exposed_s: seconds per step that show in our models, after the framework's overlap.
    """

    name: str
    link: str
    intensity: float
    threshold: float
    exposed_s: float


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Effects of hardware and layout quantities on one layout, and its network operations."""

    effects: tuple[Effect, ...]
    operations: tuple[NetworkOperation, ...]


def _rivals(found: Recommendation, cluster: Cluster) -> Layouts:
    """The best layout first, then the fastest that fit, and of those that would in twice the memory."""
    result = found.estimate
    order = np.argsort(result.step_time_s, kind="stable")
    fits = result.fits[order]
    soon = ~fits & (result.memory_bytes[order] <= 2.0 * cluster.accelerator.usable_bytes)
    return result.layouts.take(np.r_[found.best[:1], order[fits][:RIVALS], order[soon][:RIVALS]])


def _slope(up: float, down: float) -> float:
    """The central difference of the logarithm of a time, its quantity a step more and less; NaN if it never ends."""
    if not np.isfinite([up, down]).all():
        return float("nan")
    return float((np.log(up) - np.log(down)) / (2.0 * np.log1p(STEP))) + 0.0


def _saved(then: float, now: float) -> float:
    """The share of the time now that is saved; all of an endless one that then ends, NaN where it doesn't."""
    if now == np.inf:
        return 1.0 if then < np.inf else np.nan
    return 1.0 - then / now


def _hardware(q: TrainingCase, found: Recommendation) -> list[Effect]:
    """Elasticities and twofold changes of every hardware quantity, and of the node's size."""
    rivals = _rivals(found, q.setup.cluster)
    one = rivals.take(slice(0, 1))

    def step(c: Cluster, layouts: Layouts) -> Any:
        return estimate_all(replace(q.setup, cluster=c), layouts)

    def wall(step_time_s: Any, layouts: Layouts) -> Any:
        return q.runs(step_time_s, layouts).wall_s

    def best_and_fastest(c: Cluster) -> tuple[float, float]:
        """The training's time by the best layout, and by the fastest of the rivals."""
        result = step(c, rivals)
        times = wall(result.step_time_s, rivals)
        return float(times[0]), float(np.min(times[result.fits], initial=np.inf))

    base, quickest = best_and_fastest(q.setup.cluster)
    changes = dict(QUANTITIES) | {
        "node size": lambda c, f: c.with_node_size(min(round(c.gpus_per_node * f), UNLIMITED))
    }
    out = []
    for name, change in changes.items():
        up, down = (step(change(q.setup.cluster, f), one).step_time_s for f in (1 + STEP, 1 / (1 + STEP)))
        whole = name == "node size"
        kept, replanned = best_and_fastest(change(q.setup.cluster, 0.5 if name in COSTS else 2.0))
        twofold = _saved(kept, base)
        out.append(
            Effect(
                name=name,
                elasticity=np.nan if whole else _slope(float(up[0]), float(down[0])),
                training=np.nan if whole else _slope(float(wall(up, one)[0]), float(wall(down, one)[0])),
                twofold=twofold,
                replanned=max(twofold, _saved(replanned, quickest)),
            )
        )
    return out


def _failures(q: TrainingCase, found: Recommendation) -> list[Effect]:
    """Effects of failures, restarts and checkpoints on the training."""
    best = found.chosen.layouts
    step = found.chosen.step_time_s

    def wall(name: str, factor: float) -> float:
        return float(q.with_assumption(name, factor).runs(step, best).wall_s[0])

    out = []
    for name, figure in FAILURES.items():
        twice = wall(figure, 0.5 if name in COSTS else 2.0)
        slope = _slope(wall(figure, 1 + STEP), wall(figure, 1 / (1 + STEP)))
        saved = _saved(twice, wall(figure, 1.0))
        out.append(Effect(name=name, elasticity=0.0, training=slope, twofold=saved, replanned=None))
    return out


def _layout(q: TrainingCase, found: Recommendation) -> list[Effect]:
    """Twice the batch and twice the replicas, the rest of the layout as it is; NaN where that is not legal."""
    best = found.chosen.layouts
    base = float(q.runs(found.chosen.step_time_s, best).wall_s[0])
    double = 2 * best.global_batch
    out = []
    for name, layouts in (
        ("batch", replace(best, global_batch=double)),
        ("GPUs, by replicas", replace(best, dp=2 * best.dp)),
        ("GPUs and batch, by replicas", replace(best, dp=2 * best.dp, global_batch=double)),
    ):
        saved = np.nan
        if legal(q.setup.model, q.setup.cluster, layouts)[0]:
            result = estimate_all(q.setup, layouts)
            saved = _saved(float(q.runs(result.step_time_s, layouts).wall_s[0]), base) if result.fits[0] else np.nan
        out.append(Effect(name=name, elasticity=np.nan, training=np.nan, twofold=saved, replanned=None))
    return out


def network_operations(setup: Setup, layouts: Layouts) -> tuple[NetworkOperation, ...]:
    """The traffic of a table of one layout, most exposed to its link first.

    Transfers are those of the cost models without latency; intensity over threshold is the ratio of the time of the
    work beside a transfer, at peak, to the transfer's. Work beside: tensor, a layer's passes of a micro-batch;
    pipeline, a rank's; context, a layer's attention; data, the backward (with a parameter gather, both passes) of one
    micro-batch, or of all where they pass a layer together; ZeRO-3's parameters and gradients, a layer's passes.
    """
    cluster = setup.cluster
    quiet = replace(cluster, node_link=cluster.node_link.later(0.0), network=cluster.network.later(0.0))
    costs = step_costs(replace(setup, cluster=quiet), layouts)
    t, by, x = costs.traffic, groups(cluster, layouts), layouts
    flop = {k: float(v) for k, v in forward_flops(setup.model, causal=True).items() if k != "head"}
    share = 3.0 * float(x.micro_batch[0]) / float(x.tp[0] * x.cp[0]) / float(setup.model.num_layers)
    layer = share * sum(flop.values())
    core = share * (flop["attention_scores"] + flop["attention_values"])
    rank = layer * float(setup.model.num_layers) / float(x.pp[0])
    together = float(x.micro_batches[0]) if layer_at_a_time(x)[0] else 1.0
    v = float(x.virtual_stages[0])
    peak = cluster.accelerator.peak_flops[Precision(int(x.precision[0])).name.lower()]
    time = estimate_all(setup, layouts).time
    between = hop(cluster, layouts)
    link = {name: (g.ranks > g.local, float(g.bandwidth_bytes_per_s[0])) for name, g in by.items()}
    if not (setup.framework.gathered_context or setup.framework.sdpa_context):
        link["context"] = (link["context"][0], float(by_sends(by["context"]).bandwidth_bytes_per_s[0]))
    if x.dp_replicate[0] > 1:  # of what goes inside a copy and then over all, the latter takes the slower link
        link["data"] = link["replica"]
    link["pipeline"] = (between.crosses, float(between.bandwidth_bytes_per_s[0]))
    gathers = float(costs.gather_s[0]) > 0.0
    rows = (
        ("tensor-parallel collectives", "tensor", t.layer_forward_s + t.layer_backward_s, layer, time.tensor_comm_s),
        ("context-parallel ring", "context", t.context_forward_s + t.context_backward_s, core, time.context_comm_s),
        ("expert all-to-all", "expert", t.expert_forward_s + t.expert_backward_s, layer, time.expert_comm_s),
        ("sends between stages", "pipeline", 2.0 * v * t.send_s, rank, time.pipeline_comm_s),
        ("gradient reduction and parameter gather" if gathers else "gradient reduction", "data",
         costs.reduce_s + costs.gather_s, (1.0 if gathers else 2 / 3) * rank * together, time.data_comm_s),
        ("parameters and gradients by layer", "data",
         t.layer_gather_s * (1 + gathered_twice(x)) + costs.case.scattering * t.layer_reduce_s,
         layer * together, time.sharding_comm_s),
    )  # fmt: skip
    out = []
    for name, group, seconds, work, shown in rows:
        s = float(seconds[0])
        if s <= 0.0:
            continue
        outside, bandwidth = link[group]
        used = cluster.network.name if bool(np.ravel(outside)[0]) else cluster.node_link.name
        out.append(
            NetworkOperation(
                name=name, link=used, intensity=work / (s * bandwidth), threshold=peak / bandwidth,
                exposed_s=float(shown[0]),
            )
        )  # fmt: skip
    return tuple(sorted(out, key=lambda o: o.intensity / o.threshold))


def sensitivity(q: TrainingCase, found: Recommendation) -> Sensitivity:
    """Effects and network operations of a search's best layout, which must exist; of a search with `RIVALS` rivals."""
    best = found.chosen.layouts
    hardware = sorted([*_hardware(q, found), *_failures(q, found)], key=lambda e: -e.twofold)
    return Sensitivity(effects=(*hardware, *_layout(q, found)), operations=network_operations(q.setup, best))
