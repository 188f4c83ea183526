"""Failures and checkpoints: the share of wall time that is training. Array-first, seconds and bytes.

Young 1974; Daly 2006, "A higher order estimate of the optimum checkpoint interval": with exponential failures of
mean time M, checkpoints of d seconds each tau seconds of work and restarts of R seconds, the wall time of T seconds of
work is T / tau M e^(R/M) (e^((tau + d)/M) - 1).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.base.arrays import Array

NEVER = 1e-3
"""Goodput of a job below which it is said never to end: a minute and a half of training a day, whatever its length."""


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Failures and restarts of a training.

    mtbf_s: mean time between failures of one accelerator with its share of node, network and host, may be infinite;
    restart_s: from a failure to the first new step: detection, rescheduling, loading.
    """

    mtbf_s: float
    restart_s: float


def checkpoint_s(size_bytes: Any, nodes: Any, bandwidth_bytes_per_s: float) -> Array:
    """Seconds to write a checkpoint while training waits: each node writes its share at the storage's bandwidth."""
    return np.asarray(np.asarray(size_bytes, dtype=np.float64) / (np.asarray(nodes) * bandwidth_bytes_per_s))


def checkpoint_interval_s(delta_s: Any, mtbf_s: Any) -> Array:
    """Work between checkpoints that wastes least: Daly's sqrt(2 d M)(1 + x/3 + x^2/9) - d, x = sqrt(d / 2M).

    M where d > 2M.

    delta_s: seconds of a checkpoint, above 0; mtbf_s: mean time between failures of the whole job.
    """
    d, M = np.asarray(delta_s, dtype=np.float64), np.asarray(mtbf_s, dtype=np.float64)
    x = np.sqrt(d / (2.0 * M))
    return np.asarray(np.where(d < 2.0 * M, np.sqrt(2.0 * d * M) * (1.0 + x / 3.0 + x * x / 9.0) - d, M))


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
    alone = 1.0 if interval_s is None else tau / (tau + d)
    share = np.where(share < NEVER, 0.0, np.clip(share, 0.0, 1.0))
    return np.asarray(np.where(finite, share, alone))
