"""Lamy-Poirier 2021 (arXiv 2106.02679): the paper's own cost model of the family X_x, and a search of its space.

Letters as in the paper: n_b data-parallel replicas, n_l pipeline stages, n_a tensor ranks, b_mu sequences a
micro-batch, n_mu micro-batches per step and replica, d_l layers, d_m width, s sequence, n_I the MLP's factor 4. The
formulas are derived (`shared/reference/papers.md`), not read: three passes of matrix products of 8 p FLOP per token,
recomputed forward included, at full peak; bandwidths in plus out; a network's traffic hides under the compute beside it
where its arithmetic intensity is above the link's threshold, FLOP/s over bytes/s.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from planner.base import records
from planner.base.arrays import Array, Bools
from planner.base.errors import InputError
from planner.base.units import GBIT, GIGA, TERA
from planner.hardware import Cluster

INFINIBAND = 50.0 * GIGA
"""200 Gb/s per GPU, in plus out, bytes/s."""
ETHERNET = 2.0 * 25.0 * GBIT
"""25 Gb/s per GPU, in plus out, bytes/s."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Peak FLOP/s; bytes/s in plus out per accelerator of node link, network and host link; accelerators per node."""

    flops: float = 312.0 * TERA
    node_bytes_per_s: float = 600.0 * GIGA
    network_bytes_per_s: float = INFINIBAND
    host_bytes_per_s: float = 63.0 * GIGA
    gpus_per_node: int = 16

    @staticmethod
    def of(cluster: Cluster) -> Hardware:
        """A cluster's figures as its makers state them: the paper takes full peaks and full bandwidths."""
        nics = cluster.nics_per_node / cluster.gpus_per_node
        return Hardware(
            flops=cluster.accelerator.peak_flops["bf16"],
            node_bytes_per_s=2.0 * cluster.node_link.bandwidth_bytes_per_s,
            network_bytes_per_s=2.0 * cluster.network.bandwidth_bytes_per_s * nics,
            host_bytes_per_s=2.0 * cluster.host_link.bandwidth_bytes_per_s,
            gpus_per_node=cluster.gpus_per_node,
        )

    @property
    def thresholds(self) -> dict[str, float]:
        """FLOP per byte at which each link takes as long as the compute."""
        rates = {"network": self.network_bytes_per_s, "node": self.node_bytes_per_s, "host": self.host_bytes_per_s}
        return {name: self.flops / rate for name, rate in rates.items()}

    def threshold_of(self, gpus: Any) -> Array:
        """FLOP per byte of the link between replicas and stages: the node's own where all accelerators share a node."""
        return np.where(np.asarray(gpus) <= self.gpus_per_node, self.thresholds["node"], self.thresholds["network"])


@dataclass(frozen=True, kw_only=True)
class PaperTask:
    """X_x: layers d_l = x, width d_m = x^2, heads x / 2, sequence s = 16 x, p = 12 x^5; steps at the critical batch."""

    x: int = 160
    steps: float = 1e5
    mlp_factor: int = 4
    all_reduces: int = 6
    """In a layer, between its tensor ranks."""

    @property
    def parameters(self) -> float:
        """p, embeddings left out."""
        return 12.0 * float(self.x) ** 5

    @property
    def sequence(self) -> int:
        """s, tokens."""
        return 16 * self.x

    @property
    def width(self) -> int:
        """d_m."""
        return self.x**2


def critical_batch(x: Any) -> Array:
    """b_c = 82.0 x^(2/3) sequences: GPT-3's 3.2M tokens scaled with p^(1/3) (Kaplan et al. 2020, table 6)."""
    return np.asarray(82.0 * np.asarray(x, dtype=np.float64) ** (2.0 / 3.0))


@dataclass(frozen=True, kw_only=True)
class PaperStrategy:
    """A strategy of the paper; improved: by layered accumulation, modular pipeline, partition.

    Partition splits parameters, gradients and optimizer state over the replicas; only layered accumulation can afford
    it with many micro-batches, for it gathers each layer once a step.
    """

    name: str
    pipeline: bool
    tensor: bool
    improved: bool


KINDS = {"data": (False, False), "data + pipeline": (True, False), "data + tensor": (False, True), "3d": (True, True)}
"""Kinds of strategies: whether each has pipeline, and tensor parallelism."""
STRATEGIES = {
    name: PaperStrategy(name=name, pipeline=pipeline, tensor=tensor, improved=improved)
    for kind, (pipeline, tensor) in KINDS.items()
    for name, improved in ((f"{kind}, baseline", False), (f"{kind}, improved", True))
}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Degrees and micro-batches, integers or arrays that broadcast."""

    n_b: Any
    n_l: Any
    n_a: Any
    b_mu: Any
    n_mu: Any

    @property
    def gpus(self) -> Any:
        """n_b n_l n_a."""
        return self.n_b * self.n_l * self.n_a

    @property
    def batch(self) -> Any:
        """Sequences per step, n_b n_mu b_mu."""
        return self.n_b * self.n_mu * self.b_mu


@dataclass(frozen=True, kw_only=True)
class Intensities:
    """FLOP of compute for each byte of a kind of traffic; infinite where there is none.

    data: gradients, and parameters if partitioned, against the passes that they can hide under; gather: the forward
    half of a partitioned step alone; pipeline: activations between stages; tensor: all-reduces in a layer.
    """

    data: Array
    gather: Array
    pipeline: Array
    tensor: Array


def intensities(task: PaperTask, strategy: PaperStrategy, c: Configuration) -> Intensities:
    """Arithmetic intensities of a configuration's traffic.

    data, replicated: 8 bytes per parameter against the backward's 6 FLOP per token and parameter: 3/4 of the tokens of
    one micro-batch, or of all n_mu where layered. Partitioned: 12 bytes against all 8 FLOP, 2/3; forward 4 against 2,
    1/2. pipeline: (4 + 2 n_I) d_m d_l / n_l, one layer a chunk where modular. tensor: (4 + 2 n_I) / r d_m / (n_a - 1)
    with r all-reduces per layer.
    """
    s, d_m, d_l, n_I = task.sequence, task.width, task.x, task.mlp_factor
    tokens = np.asarray(c.b_mu * s * 1.0) * (c.n_mu if strategy.improved else 1)
    chunk = 1.0 if strategy.improved else d_l / np.asarray(c.n_l, dtype=np.float64)
    pipeline = np.where(np.asarray(c.n_l) > 1, (4 + 2 * n_I) * d_m * chunk, np.inf)
    ranks = np.maximum(np.asarray(c.n_a, dtype=np.float64) - 1.0, 1e-300)
    tensor = np.where(np.asarray(c.n_a) > 1, (4 + 2 * n_I) / task.all_reduces * d_m / ranks, np.inf)
    return Intensities(
        data=np.where(np.asarray(c.n_b) > 1, (2 / 3 if strategy.improved else 3 / 4) * tokens, np.inf),
        gather=0.5 * tokens if strategy.improved else np.full_like(tokens, np.inf),
        pipeline=pipeline,
        tensor=tensor,
    )


def overheads(task: PaperTask, strategy: PaperStrategy, hardware: Hardware, c: Configuration) -> dict[str, Array]:
    """Time beyond the compute, each over the compute.

    bubble: (n_l - 1)/n_mu, times n_l/d_l where modular. data: of the baseline with pipeline stages, whose gradients
    have only the last micro-batch's backward to hide under, the whole traffic is counted; else it hides (a condition
    of the search). tensor: never hides.
    """
    n_l, n_mu = np.asarray(c.n_l, dtype=np.float64), np.asarray(c.n_mu, dtype=np.float64)
    intensity = intensities(task, strategy, c)
    loops = n_l / task.x if strategy.improved else 1.0
    shown = 0.75 if strategy.pipeline and not strategy.improved else 0.0
    return {
        "bubble": (n_l - 1.0) / n_mu * loops,
        "data": np.asarray(shown * hardware.threshold_of(c.gpus) / intensity.data / n_mu),
        "tensor": np.asarray(hardware.thresholds["node"] / intensity.tensor + 0.0 * n_mu),
    }


def efficiency(task: PaperTask, strategy: PaperStrategy, hardware: Hardware, c: Configuration) -> Array:
    """Compute over compute plus overheads."""
    return np.asarray(1.0 / (1.0 + sum(overheads(task, strategy, hardware, c).values())))


def time_s(task: PaperTask, strategy: PaperStrategy, hardware: Hardware, c: Configuration) -> Array:
    """Seconds of training: 8 FLOP per parameter and token of `steps` critical batches, on all GPUs together."""
    flop = 8.0 * task.parameters * task.sequence * float(critical_batch(task.x)) * task.steps
    share = efficiency(task, strategy, hardware, c)
    return np.asarray(flop / (hardware.flops * np.asarray(c.gpus, dtype=np.float64) * share))


def memory_bytes(task: PaperTask, strategy: PaperStrategy, c: Configuration) -> dict[str, Array]:
    """Bytes per GPU: state, 12 a parameter over n_l n_a GPUs (all, if partitioned); checkpoints 2 b s d_m d_l over all;
    buffers of a layer, 6 bytes per parameter over n_a.
    """
    gpus = np.asarray(c.gpus, dtype=np.float64)
    sharers = gpus if strategy.improved else np.asarray(c.n_l * c.n_a, dtype=np.float64)
    batch = np.asarray(c.batch, dtype=np.float64)
    return {
        "state": 12.0 * task.parameters / sharers,
        "checkpoints": 2.0 * batch * task.sequence * task.width * task.x / gpus,
        "buffers": 6.0 * task.parameters / task.x / np.asarray(c.n_a, dtype=np.float64) + 0.0 * gpus,
    }


def offload_intensities(task: PaperTask, strategy: PaperStrategy, c: Configuration) -> dict[str, Array]:
    """FLOP of compute for each byte between an accelerator and its host, were state or checkpoints kept there.

    state: 6 bytes per parameter (read for forward and for backward, a gradient written) against 8 FLOP per token, of
    one micro-batch or of all n_mu where layered; partitioned, each replica moves its own n_b-th. checkpoints: a
    layer's input written and read, 4 d_m bytes, against 8 (4 + 2 n_I) d_m^2 FLOP per token. Derived, as above.
    """
    tokens = np.asarray(c.b_mu * task.sequence * 1.0) * (c.n_mu if strategy.improved else 1)
    sharers = np.asarray(c.n_b * 1.0) if strategy.improved else 1.0
    return {
        "state": 8.0 / 6.0 * tokens * sharers,
        "checkpoints": 2.0 * (4 + 2 * task.mlp_factor) * task.width + 0.0 * tokens,
    }


def _space(task: PaperTask, strategy: PaperStrategy, hardware: Hardware, max_gpus: int | None) -> Configuration:
    """Every (n_l, n_a, b_mu, n_mu) of the strategy, n_b the most replicas whose batch is at most critical.

    Stages divide the layers; tensor ranks divide the heads and fit a node. max_gpus: fewer replicas, to keep it.
    """
    b_c = float(critical_batch(task.x))
    stages = [n for n in range(1, task.x + 1) if task.x % n == 0] if strategy.pipeline else [1]
    heads = max(task.x // 2, 1)
    ranks = [a for a in range(1, min(hardware.gpus_per_node, heads) + 1) if heads % a == 0] if strategy.tensor else [1]
    most = max(int(b_c), 1)
    micro, many = (v.ravel() for v in np.meshgrid(np.arange(1, min(most, 64) + 1), np.arange(1, most + 1)))
    pairs = np.flatnonzero(micro * many <= b_c)
    n_l, n_a, pair = (v.ravel() for v in np.meshgrid(stages, ranks, pairs))
    b_mu, n_mu = micro[pair], many[pair]
    n_b = (b_c / (b_mu * n_mu)).astype(np.int64)
    if max_gpus is not None:
        n_b = np.minimum(n_b, max_gpus // (n_l * n_a))
    return records.take(Configuration(n_b=n_b, n_l=n_l, n_a=n_a, b_mu=b_mu, n_mu=n_mu), n_b > 0)


def allowed(
    task: PaperTask, strategy: PaperStrategy, hardware: Hardware, c: Configuration, *, least_efficiency: float
) -> Bools:
    """Whether the rules hold: data and pipeline traffic hide, and at least half of the time is compute.

    A modular pipeline needs a micro-batch a stage. The least efficiency counts every overhead. The paper's own rule is
    not known: its fastest 3d baseline, as recalled, has an efficiency just under one half, so the search takes another.
    """
    x = intensities(task, strategy, c)
    least = hardware.threshold_of(c.gpus)
    ok = np.asarray((x.pipeline >= least) & (efficiency(task, strategy, hardware, c) >= least_efficiency))
    if strategy.improved:
        ok &= np.asarray(c.n_mu >= c.n_l)
    if not strategy.pipeline or strategy.improved:
        ok &= (x.data >= least) & (x.gather >= least)
    return ok


def fastest(
    task: PaperTask, strategy: PaperStrategy, hardware: Hardware, *, least_efficiency: float = 0.5,
    max_gpus: int | None = None,
) -> Configuration:  # fmt: skip
    """The configuration of the strategy that trains in the least time under the paper's rules; fewest GPUs on a tie.

    Raises InputError if no configuration keeps the rules.
    """
    space = _space(task, strategy, hardware, max_gpus)
    ok = allowed(task, strategy, hardware, space, least_efficiency=least_efficiency)
    if not ok.any():
        raise InputError(
            f"no configuration of x-{task.x}, {strategy.name}, hides its traffic on a network of "
            f"{hardware.network_bytes_per_s / GIGA:g} GB/s; allowed: a faster network, a larger model, or more GPUs"
        )
    kept = records.take(space, ok)
    i = np.lexsort((kept.gpus, time_s(task, strategy, hardware, kept)))[0]
    return Configuration(**{f.name: int(getattr(kept, f.name)[i]) for f in fields(kept)})
