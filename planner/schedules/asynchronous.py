"""Pipelines that are never drained: PipeDream, PipeDream-2BW, XPipe and SpecTrain. They change the training.

All run 1F1B's order without a flush, so micro-batch i of the run follows i - 1 whatever step it belongs to, and the
steady state has no bubble. They differ in the weights that a forward and its backward use:

rank 0  F0 F1 .  .  B0 F2 B1 F3 B2 F4 B3 ...     (p = 2; one step of m = 2 is F0 F1 | F2 F3 | ...)
rank 1  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 ...
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.schedules.base import Loads, Order, Pipeline, Schedule
from planner.schedules.one_f_one_b import OneFOneB


class PipeDream(OneFOneB):
    """Every micro-batch is a mini-batch of its own; each backward uses the weights of its own forward."""

    name = "pipedream"
    source = "Narayanan et al. 2019 (PipeDream); as Li and Hoefler 2021, Table 2, quote it; versions simulated"
    synchronous = False
    staleness = "a gradient on rank r is taken at weights pp - 1 - r updates old, the same forward and backward"
    steady = True
    exact_uneven = False  # what of its collectives and update a quick rank hides is the timeline's

    def steps_order(self, pipe: Pipeline, steps: int) -> Order:
        """1F1B over the micro-batches of all steps; step t's are t m to t m + m - 1."""
        return OneFOneB.order(self, Pipeline(p=pipe.p, m=pipe.m * steps))

    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """None: the steady state's period is m (F + B)."""
        return np.asarray(0.0 * (pipe.p + pipe.m + F + I + W))

    def makespan(self, pipe: Pipeline, loads: Loads) -> Array:
        """m times the slowest rank."""
        return Schedule.makespan(self, pipe, loads)

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """p - r, though it be of several steps."""
        return np.asarray(1.0 * (pipe.p - rank) + 0.0 * np.asarray(pipe.m))

    def weight_versions(self, pipe: Pipeline, rank: Any) -> Array:
        """p - r: one for every micro-batch in flight."""
        return np.asarray(1.0 * pipe.p - rank)

    def updates_behind(self, pipe: Pipeline, rank: Any, micro_batch: Any) -> Ints:
        """p - 1 - r: the micro-batches between a forward and its backward each update the weights."""
        return np.asarray(np.minimum(np.asarray(pipe.p) - 1 - rank, micro_batch), dtype=np.int64)


class _TwoVersions(PipeDream):
    def weight_versions(self, pipe: Pipeline, rank: Any) -> Array:
        """2, on every rank: two that updates made, or the newest and its prediction."""
        return np.asarray(2.0 + 0.0 * (pipe.p + rank))


class TwoBufferedWeights(_TwoVersions):
    """PipeDream-2BW: gradients of m >= p micro-batches make one update, and two versions of the weights suffice."""

    name = "2bw"
    source = "Narayanan et al. 2021, arXiv 2006.09503; order and versions read"
    staleness = "every gradient is taken at weights one update old: W(t + 1) = W(t) - lr grad f(W(t - 1)), on all ranks"

    def own_rules(self, pipe: Pipeline) -> list[tuple[str, Any]]:
        """With fewer than p micro-batches a third version would be in flight."""
        return [("needs at least pp micro-batches", pipe.m < pipe.p)]

    def updates_behind(self, pipe: Pipeline, rank: Any, micro_batch: Any) -> Ints:
        """1 on every rank: micro-batch i uses version max(i // m - 1, 0), forward and backward."""
        since = np.minimum(np.asarray(micro_batch) // pipe.m, 1)
        return np.asarray(since + 0 * (np.asarray(rank) + pipe.p), dtype=np.int64)


class XPipe(_TwoVersions):
    """Mini-batches of m micro-batches; a mini-batch runs on weights predicted for it from Adam's moments."""

    name = "xpipe"
    source = "Guan et al. 2019, arXiv 1911.04610; recalled; the versions between are counted in the simulated order"
    staleness = (
        "a mini-batch on rank r runs on weights predicted ceil((pp - 1 - r)/micro-batches) updates ahead from "
        "Adam's moments: stale by the error of the prediction"
    )

    def updates_behind(self, pipe: Pipeline, rank: Any, micro_batch: Any) -> Ints:
        """i // m - (i - (p - 1 - r)) // m: ceil((p - 1 - r)/m) for the first of a mini-batch; predicted away."""
        i, m = np.asarray(micro_batch), np.asarray(pipe.m)
        done = np.maximum(i - (np.asarray(pipe.p) - 1 - rank), 0)
        return np.asarray(i // m - done // m, dtype=np.int64)


class SpecTrain(_TwoVersions):
    """Every micro-batch runs on weights predicted for its own update from the momentum."""

    name = "spectrain"
    source = "Chen et al. 2018, arXiv 1809.02839; recalled; its order is taken to be 1F1B's without a flush"
    staleness = (
        "a forward on rank r runs on weights predicted pp - 1 - r updates ahead from the momentum, W - s lr v: "
        "stale by the error of the prediction"
    )
