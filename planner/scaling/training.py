"""Training time on top of a step time: steps, wall time, GPU-hours, money, energy. Array-first, knows no layouts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import UnknownNameError
from planner.base.units import HOUR
from planner.scaling.batch import BATCH_RULES, samples_factor
from planner.scaling.goodput import Reliability, checkpoint_interval_s, checkpoint_s, goodput


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
    """Bytes of a checkpoint; bytes/s at which a node writes; accelerators per node."""

    checkpoint_bytes: float
    bandwidth_bytes_per_s: float
    gpus_per_node: int


@dataclass(frozen=True, kw_only=True)
class TrainingTime:
    """A training run, or many: arrays of shape (n,).

    tokens: processed; steps: optimizer steps, whole; busy_s: steps times step time; goodput: busy over wall time;
    wall_s: with checkpoints, failures and restarts; interval_s: work between checkpoints.
    cost_usd: NaN where the price is unknown.
    """

    gpus: Array
    batch_tokens: Array
    step_time_s: Array
    tokens: Array
    steps: Array
    busy_s: Array
    checkpoint_s: Array
    interval_s: Array
    mtbf_s: Array
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
    delta = checkpoint_s(storage.checkpoint_bytes, nodes, storage.bandwidth_bytes_per_s)
    mtbf = reliability.mtbf_s / n
    share = goodput(delta, mtbf, reliability.restart_s)
    with np.errstate(divide="ignore"):
        wall = busy / share
    hours = n * wall / HOUR
    price = np.nan if prices.price_per_hour is None else prices.price_per_hour
    return TrainingTime(
        gpus=n,
        batch_tokens=batch,
        step_time_s=step,
        tokens=steps * batch,
        steps=steps,
        busy_s=busy,
        checkpoint_s=delta,
        interval_s=np.where(
            np.isfinite(mtbf), checkpoint_interval_s(delta, np.where(np.isfinite(mtbf), mtbf, 1.0)), np.inf
        ),
        mtbf_s=mtbf,
        goodput=share,
        wall_s=wall,
        gpu_hours=hours,
        cost_usd=hours * price,
        energy_j=n * wall * prices.power_w * prices.site_factor,
    )
