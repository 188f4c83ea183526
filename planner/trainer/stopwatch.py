"""Timing on a machine that others use too: seconds of a piece of work, and the share of them this process ran.

A process that was put aside while it was timed has used less processor time than time has passed. Such timings say
something about the others, so figures for predictions are made of the rest.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

LEAST_SHARE = 0.97


class Stopwatch:
    """Started when made; `stop` gives seconds and the processor's share of them (over 1 with several threads)."""

    def __init__(self) -> None:
        self._wall, self._own = time.perf_counter(), time.process_time()

    def stop(self) -> tuple[float, float]:
        """Seconds since the start, and how much of them this process ran."""
        wall, own = time.perf_counter() - self._wall, time.process_time() - self._own
        return wall, own / max(wall, 1e-9)


def undisturbed(shares: Sequence[float]) -> Any:
    """Whether each timing had a whole processor, or all had that the best of them had; boolean of shape (n,)."""
    values = np.asarray(shares)
    best = np.quantile(values, 0.9)
    whole = values >= LEAST_SHARE * max(best, 1.0)
    return whole if whole.any() else values >= LEAST_SHARE * best


def usual_s(times_s: Sequence[float], shares: Sequence[float]) -> float:
    """The median of the undisturbed timings' faster half: noise only ever adds."""
    kept = np.sort(np.asarray(times_s)[undisturbed(shares)])
    return float(np.median(kept[: max((len(kept) + 1) // 2, 1)]))
