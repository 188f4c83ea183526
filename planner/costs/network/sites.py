"""Seconds that sites which train by data parallelism lose to their exchanges, and what links suffice. Array-first.

A step of one site lasts s seconds. Every H steps the sites sum what they have learnt, in F equal shares, one each H / F
steps (H = 1: gradients at every step; F = 1: DiLoCo, arXiv 2311.08105; F > 1: Streaming DiLoCo, 2501.18512). All sites
exchange directly, a reduce-scatter and an all-gather: each sends 2 (M - 1) / M of a share over its own link.
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, record
from planner.hardware import Framework
from planner.layouts import Precision

OUTER_BYTES = 8.0
"""Bytes per parameter of DiLoCo's outer optimizer: the last shared value and Nesterov's momentum, in 32 bits."""


@record
class SiteExchange:
    """How sites exchange; every figure a number or an array that broadcasts.

    every: H, steps of a site from one exchange of a share to its next; shares: F; bits: of a value that is sent;
    hidden_steps: steps, or a part of one, during which a share may travel while the site goes on, at most H / F;
    pieces: what is sent becomes ready in so many pieces, of which the last hides behind nothing; infinite: hides whole.
    gathered: each site gets all others' values, which no sum makes fewer; latencies: ways that a share goes, one after
    the other. Of a value, kept_bytes, in GPUs' memory from step to step; value_s, seconds of a GPU's arithmetic.
    """

    every: Any
    shares: Any = 1
    bits: Any = 32.0
    hidden_steps: Any = 0.0
    pieces: Any = np.inf
    gathered: bool = False
    latencies: float = 2.0
    kept_bytes: float = 0.0
    value_s: Any = 0.0

    @property
    def window_steps(self) -> Array:
        """Steps during which a share may travel unseen: the next one begins H / F steps later."""
        return np.asarray(np.minimum(self.hidden_steps, np.asarray(self.every) / self.shares))


BACKWARD = 2.0 / 3.0
"""The backward pass's fraction of a micro-batch's time; gradients exchanged at every step travel behind it."""


def every_step(framework: Framework, precision: Precision, micro_batches: Any, layers: Any) -> SiteExchange:
    """Gradients at every step, in the framework's format, behind the last micro-batch's backward pass."""
    bf16 = precision >= Precision.BF16
    size = framework.bf16_grad_reduce_bytes if bf16 else framework.grad_reduce_bytes
    return SiteExchange(every=1, bits=8.0 * size, hidden_steps=BACKWARD / micro_batches, pieces=float(layers))


def share_s(exchange: SiteExchange, parameters: Any, sites: Any, bytes_per_s: Any, latency_s: Any) -> Array:
    """Seconds that one share takes between the sites; nothing with one site.

    bytes_per_s: each way, of the slowest site's link. latency_s: one way, between the sites farthest apart.
    """
    size = sent_bytes(exchange, parameters, sites)
    ways = exchange.latencies * np.asarray(latency_s)
    return np.asarray(np.where(np.asarray(sites) > 1, size / bytes_per_s + ways, 0.0))


def sent_bytes(exchange: SiteExchange, parameters: Any, sites: Any) -> Array:
    """Bytes of one share that each site sends."""
    M = np.asarray(sites, dtype=np.float64)
    size = np.asarray(parameters, dtype=np.float64) * exchange.bits / 8.0 / exchange.shares
    return np.asarray((M - 1.0 if exchange.gathered else 2.0 * (M - 1.0) / M) * size)


def exposed_s(exchange: SiteExchange, travel_s: Any, step_s: Any) -> Array:
    """Seconds of a site's step, amortised, in which it waits for shares that travel so long."""
    t = np.asarray(travel_s, dtype=np.float64)
    waits = np.maximum(t - exchange.window_steps * step_s, t / exchange.pieces)
    return np.asarray(np.maximum(waits, 0.0) * exchange.shares / exchange.every)


def enough_bytes_per_s(
    exchange: SiteExchange, parameters: Any, sites: Any, latency_s: Any, step_s: Any, busy: Any
) -> Array:
    """The least bytes/s of a site's link with which it computes the share `busy` of its time; infinite where latency
    alone takes more."""
    at_most = step_s * (1.0 / np.asarray(busy) - 1.0) * exchange.every / exchange.shares
    allowed = np.minimum(at_most + exchange.window_steps * step_s, at_most * exchange.pieces)
    left = allowed - share_s(exchange, 0.0, sites, 1.0, latency_s)
    size_s = share_s(exchange, parameters, sites, 1.0, 0.0)  # at one byte a second
    return np.asarray(np.where(left > 0, size_s / np.where(left > 0, left, 1.0), np.inf))
