"""The finalists again, on the exact timeline: where the closed form only bounds uneven stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.estimate import Estimate
from planner.hardware import Cluster, Framework
from planner.models import Transformer
from planner.schedules import get_schedule
from planner.simulation.step import simulate

__all__ = ["refine"]

MOST_LAYOUTS = 24
MOST_OPERATIONS = 200_000  # in all: about half a second of Python


def refine(
    model: Transformer, cluster: Cluster, framework: Framework, result: Estimate, order: Any, top: int
) -> tuple[Estimate, NDArray[np.int64]]:
    """The estimate with the step times of likely winners simulated, and which were.

    order: fitting layouts, best first. A layout is run again if its schedule's closed form is not exact for uneven
    ranks and its step without any bubble would be among the first `top`. At most `MOST_LAYOUTS`, best first.
    """
    layouts, step = result.layouts, result.step_time_s.copy()
    inexact = np.array([not get_schedule(name).exact_uneven for name in layouts.schedule_names])[layouts.schedule]
    least = step - result.time.bubble_s
    worst_shown = step[order[min(top, len(order)) - 1]] if len(order) else 0.0
    candidates = [i for i in order if inexact[i] and layouts.pp[i] > 1 and least[i] <= worst_shown]
    bubble, fits = result.time.bubble_s.copy(), result.fits.copy()
    ran: list[int] = []
    operations = 0
    for i in candidates[:MOST_LAYOUTS]:
        work = layouts.pp[i] * layouts.virtual_stages[i] * layouts.micro_batches[i] * layouts.sequence_slices[i]
        operations += 3 * int(work)
        if operations > MOST_OPERATIONS and ran:
            break
        exact = simulate(model, cluster, framework, layouts.take([i]))
        bubble[i] += exact.step_time_s - step[i]
        step[i] = exact.step_time_s
        fits[i] = bool(exact.peak_bytes.max() <= cluster.accelerator.memory_bytes)
        ran.append(i)
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
