"""Failures and checkpoints: the share of wall time that is training. Array-first, seconds and bytes.

Young 1974; Daly 2006, "A higher order estimate of the optimum checkpoint interval": with exponential failures of
mean time M, checkpoints of d seconds each tau seconds of work and restarts of R seconds, the wall time of T seconds of
work is T / tau M e^(R/M) (e^((tau + d)/M) - 1).

A checkpoint that is written behind the training stops it for its copy into host memory alone, d, and counts w seconds
later. k of them count where a failure is k (tau + d) + w after a restart, so all is as if restarts took R + w.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.base.arrays import Array, record

NEVER = 1e-3
"""Goodput of a job below which it is said never to end: a minute and a half of training a day, whatever its length."""


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Failures and restarts of a training.

    mtbf_s: mean time between failures of one accelerator with its share of node, network and host, may be infinite;
    restart_s: from a failure to the first new step: detection, rescheduling, loading from storage.
    repair_s: from a node's failure to its return, spares: nodes that wait to take its place. Stragglers: a GPU slows
    down every slow_mtbf_s, for slow_s, and all steps are longer by the share slow_by.
    """

    mtbf_s: float
    restart_s: float
    repair_s: float = 0.0
    spares: int = 0
    slow_mtbf_s: float = np.inf
    slow_s: float = 0.0
    slow_by: float = 0.0

    def slow_share(self, gpus: Any) -> Array:
        """The share of its work that a job does while one of its GPUs or more are slow: that of M/G/infinity."""
        return np.asarray(-np.expm1(-np.asarray(gpus) * self.slow_s / self.slow_mtbf_s))


@record
class Checkpoint:
    """What a checkpoint takes: seconds for which training stops, then seconds until it counts; seconds of a restart."""

    stall_s: Array
    behind_s: Array
    restart_s: Array


def checkpoint_interval_s(delta_s: Any, mtbf_s: Any, least_s: Any = 0.0) -> Array:
    """Work between checkpoints that wastes least: Daly's sqrt(2 d M)(1 + x/3 + x^2/9) - d, x = sqrt(d / 2M).

    M where d > 2M; least_s where that is more.

    delta_s: seconds of a checkpoint, above 0; mtbf_s: mean time between failures of the whole job.
    """
    d, M = np.asarray(delta_s, dtype=np.float64), np.asarray(mtbf_s, dtype=np.float64)
    x = np.sqrt(d / (2.0 * M))
    best = np.where(d < 2.0 * M, np.sqrt(2.0 * d * M) * (1.0 + x / 3.0 + x * x / 9.0) - d, M)
    return np.asarray(np.maximum(best, least_s))


def waiting_share(repair_s: Any, mtbf_s: Any, spares: int) -> Array:
    """The share of wall time in which a job waits for a node: all spares and one more are under repair.

    Nodes fail while the job has all it needs, so those under repair are calls in Erlang's loss system of spares + 1
    lines (Erlang 1917): only the mean of a repair matters. Spares that wait don't fail.
    """
    load = np.asarray(repair_s, dtype=np.float64) / np.asarray(mtbf_s, dtype=np.float64)
    blocked = np.ones_like(load)
    for lines in range(1, spares + 2):
        blocked = load * blocked / (lines + load * blocked)
    return np.asarray(blocked)


def goodput(delta_s: Any, mtbf_s: Any, restart_s: Any, interval_s: Any | None = None) -> Array:
    """The share of wall time that is training, 0 to 1, at Daly's interval or at a given one.

    mtbf_s may be infinite: then only the checkpoints cost, and with Daly's interval nothing does.
    """
    d, M = np.asarray(delta_s, dtype=np.float64), np.asarray(mtbf_s, dtype=np.float64)
    finite = np.isfinite(M)
    M = np.where(finite, M, 1.0)
    tau = checkpoint_interval_s(d, M) if interval_s is None else np.asarray(interval_s, dtype=np.float64)
    # In logarithms' reach: a job that hardly gets on between its failures has no goodput.
    lost = np.minimum((tau + d) / M, 700.0)
    share = tau / M * np.exp(-np.minimum(restart_s / M, 700.0)) / np.expm1(lost)
    alone = 1.0 if interval_s is None else 1.0 / (1.0 + d / tau)
    share = np.where(share < NEVER, 0.0, np.clip(share, 0.0, 1.0))
    return np.asarray(np.where(finite, share, alone))
