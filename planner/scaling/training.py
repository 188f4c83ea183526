"""Training time on top of a step time: steps, wall time, GPU-hours, money, energy. Array-first, knows no layouts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import UnknownNameError
from planner.base.units import HOUR
from planner.scaling.batch import BATCH_RULES, samples_factor
from planner.scaling.goodput import NEVER, Checkpoint, Reliability, checkpoint_interval_s, goodput, waiting_share


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Cost of an accelerator-hour, in dollars, None where unknown; power of one accelerator in watts as it trains,
    and the factor from it to the whole site: hosts, network, cooling.
    """

    price_per_hour: float | None
    power_w: float
    site_factor: float


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Bytes of a checkpoint; bytes/s at which a node writes; accelerators per node.

    host_copies: in hosts' memory; 0, training waits for storage; 1, it is written behind; 2, it is sent to a neighbour,
    from which a restart reads. Bytes/s at which a node copies into host memory, and sends to its neighbour.
    """

    checkpoint_bytes: float
    bandwidth_bytes_per_s: float
    gpus_per_node: int
    host_copies: int = 0
    copy_bytes_per_s: float = np.inf
    neighbour_bytes_per_s: float = np.inf

    def host_bytes(self, nodes: Any) -> Array:
        """A node's host memory for checkpoints: one; or its own and a neighbour's, each until the next is whole."""
        each = np.where((np.asarray(nodes) > 1) & (self.host_copies == 2), 4, min(self.host_copies, 1))
        return np.asarray(each * self.checkpoint_bytes / np.asarray(nodes, dtype=np.float64))

    def checkpoint(self, nodes: Any, restart_s: float) -> Checkpoint:
        """Each node's share of a checkpoint; a restart from storage reads it as long as it is written.

        One node has no neighbour: there two copies are one.
        """
        share = self.checkpoint_bytes / np.asarray(nodes, dtype=np.float64)
        stored, copied = share / self.bandwidth_bytes_per_s, share / self.copy_bytes_per_s
        if not self.host_copies:
            return Checkpoint(stall_s=stored, behind_s=0.0 * share, restart_s=restart_s + 0.0 * share)
        near = (np.asarray(nodes) > 1) & (self.host_copies == 2)
        sent = share / self.neighbour_bytes_per_s
        return Checkpoint(
            stall_s=copied, behind_s=np.where(near, sent, stored),
            restart_s=np.where(near, np.maximum(restart_s - stored, 0.0) + sent, restart_s),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainingTime:
    """A training run, or many: arrays of shape (n,).

    tokens: processed; steps: optimizer steps, whole; busy_s: steps times step time; goodput: busy over wall time;
    wall_s: with checkpoints, failures and restarts; interval_s: work between checkpoints. checkpoint_s, behind_s: for
    which a checkpoint stops the training, and until it counts after that; waiting_share, of wall time, for a node;
    slow_share, of the work, beside a straggler. gpu_hours: spares' too; cost_usd: NaN where the price is unknown.
    """

    gpus: Array
    batch_tokens: Array
    step_time_s: Array
    tokens: Array
    steps: Array
    busy_s: Array
    checkpoint_s: Array
    behind_s: Array
    restart_s: Array
    interval_s: Array
    mtbf_s: Array
    waiting_share: Array
    slow_share: Array
    goodput: Array
    wall_s: Array
    gpu_hours: Array
    cost_usd: Array
    energy_j: Array


def tokens_at_batch(tokens: Any, batch: Any, scale: Any, rule: str) -> Array:
    """Tokens that a batch takes to what `tokens` reach at small ones.

    rule: overhead, McCandlish et al.'s E_min (1 + B / B_c); cap, just as many (the caller keeps batches under B_c).

    Raises UnknownNameError for an unknown rule.
    """
    if rule not in BATCH_RULES:
        raise UnknownNameError("batch rule", rule, BATCH_RULES)
    factor = samples_factor(batch, scale) if rule == "overhead" else 1.0
    return np.asarray(np.asarray(tokens, dtype=np.float64) * factor + 0.0 * np.asarray(batch))


def training_time(
    step_time_s: Any,
    gpus: Any,
    batch_tokens: Any,
    tokens: Any,
    *,
    reliability: Reliability,
    storage: Storage,
    prices: Prices,
) -> TrainingTime:
    """Wall time, GPU-hours, money and energy of runs that process `tokens` in batches of `batch_tokens`.

    step_time_s, gpus, batch_tokens, tokens: numbers or arrays (n,) that broadcast.
    """
    values = (np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in (step_time_s, gpus, batch_tokens, tokens))
    step, n, batch, processed = np.broadcast_arrays(*values)
    steps = np.ceil(processed / batch * (1.0 - 1e-12))
    busy = steps * step
    nodes = np.ceil(n / storage.gpus_per_node)
    one = storage.checkpoint(nodes, reliability.restart_s)
    mtbf = reliability.mtbf_s / n
    failing = np.isfinite(mtbf)
    least = np.maximum(one.behind_s, step)
    tau = np.where(failing, checkpoint_interval_s(one.stall_s, np.where(failing, mtbf, 1.0), least), np.inf)
    waiting, slow = waiting_share(reliability.repair_s, mtbf, reliability.spares), reliability.slow_share(n)
    share = goodput(one.stall_s, mtbf, one.restart_s + one.behind_s, tau)
    share = share * (1.0 - waiting) / (1.0 + reliability.slow_by * slow)
    with np.errstate(divide="ignore"):
        wall = busy / np.where(share < NEVER, 0.0, share)
    hours = (n + reliability.spares * storage.gpus_per_node) * wall / HOUR
    price = np.nan if prices.price_per_hour is None else prices.price_per_hour
    return TrainingTime(
        gpus=n, batch_tokens=batch, step_time_s=step, tokens=steps * batch, steps=steps, busy_s=busy,
        checkpoint_s=one.stall_s, behind_s=one.behind_s, restart_s=one.restart_s, interval_s=tau, mtbf_s=mtbf,
        waiting_share=waiting, slow_share=slow, goodput=share, wall_s=wall, gpu_hours=hours, cost_usd=hours * price,
        energy_j=n * wall * prices.power_w * prices.site_factor,
    )  # fmt: skip
