"""The finalists again, on the exact timeline: for the closed form only bounds uneven stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.estimate import Estimate
from planner.hardware import Cluster, Framework
from planner.models import Transformer
from planner.search.kept import ALTERED
from planner.simulation.step import simulate
from planner.step_costs import exact_uneven

__all__ = ["refine"]

MOST_LAYOUTS = 32
MOST_OPERATIONS = 250_000  # in all: about half a second of Python


def refine(
    model: Transformer, cluster: Cluster, framework: Framework, result: Estimate, order: Any, top: int
) -> tuple[Estimate, NDArray[np.int64]]:
    """The estimate with the step times of likely winners simulated, and which were.

    order: fitting layouts, best first. Pipelines among the first `top` are run, until all of these are; then those
    that might belong there: by their step without any bubble, where the closed form does not follow uneven ranks.
    Best first; at most `ALTERED` of the first kind, `MOST_LAYOUTS` with the second, `MOST_OPERATIONS` in all.
    """
    layouts, step, bubble, fits = (
        result.layouts,
        result.step_time_s.copy(),
        result.time.bubble_s.copy(),
        result.fits.copy(),
    )
    least = np.where(exact_uneven(layouts), step, step - bubble)
    size = layouts.pp * layouts.virtual_stages * layouts.micro_batches * layouts.sequence_slices
    waiting = [int(i) for i in order if layouts.pp[i] > 1]
    ran: list[int] = []
    left = MOST_OPERATIONS
    while len(ran) < ALTERED:
        ranked = order[np.argsort(np.where(fits[order], step[order], np.inf), kind="stable")][:top]
        shown = set(ranked.tolist())
        worst = float(step[ranked[-1]]) if len(ranked) else 0.0
        due = next((i for i in waiting if i in shown), None)
        if due is None and len(ran) < MOST_LAYOUTS:
            due = next((i for i in waiting if least[i] <= worst), None)
        if due is None or (left < 3 * size[due] and ran):
            break
        exact = simulate(model, cluster, framework, layouts.take([due]))
        bubble[due] += exact.step_time_s - step[due]
        step[due] = exact.step_time_s
        fits[due] = bool(exact.peak_bytes.max() <= cluster.accelerator.memory_bytes)
        left -= 3 * int(size[due])
        waiting.remove(due)
        ran.append(due)
    speed = result.step_time_s / step
    refined = replace(
        result,
        time=replace(result.time, bubble_s=bubble),
        step_time_s=step,
        fits=fits,
        mfu=result.mfu * speed,
        tokens_per_s_per_gpu=result.tokens_per_s_per_gpu * speed,
    )
    return refined, np.array(ran, dtype=np.int64)
