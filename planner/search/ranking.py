"""Rank every layout: the best, the front of time against memory, and why the rest lost."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import UnknownNameError
from planner.estimate import Estimate, estimate
from planner.hardware import Cluster, Framework
from planner.layouts import Attention, Layouts, Precision
from planner.models import Transformer
from planner.search.other_schedules import join, try_others
from planner.search.refine import refine
from planner.search.space import Fixed, enumerate_layouts

__all__ = ["OBJECTIVES", "Recommendation", "largest_part", "pareto_front", "recommend"]

Indices = NDArray[np.int64]
CHUNK = 4096  # layouts estimated at once: small enough for a core's cache
WORTH_IT = 0.02  # a gain below this is not worth more memory
OBJECTIVES = ("time", "throughput", "cost", "memory")


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What a search found. Indices point into `estimate`'s table, best first.

    legal: layouts estimated; fitting: those within memory; best: the first k by the objective.
    front: fastest layout for each amount of memory, ascending in time.
    nearest_miss: the layout over memory that exceeds it least, None where all fit.
    faster_over_memory: of those over memory and at least 2 % faster the one that needs least, or None.
    ties: how many more fitting layouts are within 1 % of the best's time.
    simulated: those whose step time is of the exact timeline, not of the closed form.
    """

    estimate: Estimate
    legal: int
    fitting: int
    best: Indices
    front: Indices
    nearest_miss: int | None
    faster_over_memory: int | None
    ties: int
    simulated: Indices


def estimate_all(model: Transformer, cluster: Cluster, framework: Framework, layouts: Layouts) -> Estimate:
    """`estimate` in chunks that stay in cache; the result does not depend on the chunk."""
    n = len(layouts)
    parts = [estimate(model, cluster, framework, layouts.take(slice(i, i + CHUNK))) for i in range(0, n, CHUNK)]
    return parts[0] if len(parts) == 1 else join(layouts, parts)


def pareto_front(time_s: Any, memory_bytes: Any) -> Indices:
    """Indices of the points that none beats in both, ascending in time."""
    order = np.lexsort((memory_bytes, time_s))
    least = np.minimum.accumulate(memory_bytes[order])
    new = np.r_[True, memory_bytes[order][1:] < least[:-1]]
    return np.asarray(order[new])


def _distinct(order: Indices, step: Any, memory: Any) -> Indices:
    """Sorted indices without layouts that equal the one before in time and memory (a split that changes nothing)."""
    same = (step[order][1:] == step[order][:-1]) & (memory[order][1:] == memory[order][:-1])
    return np.asarray(order[np.r_[True, ~same]] if len(order) else order)


def _with_one_more(
    result: Estimate, more: Estimate, order: Indices, simulated: Indices
) -> tuple[Estimate, Indices, Indices]:
    """The estimate with one layout more, which leads the order."""
    names = (*result.layouts.schedule_names, more.layouts.schedule_names[0])
    code = np.array([len(names) - 1])
    added = replace(more.layouts, schedule_names=names, schedule=code)
    table = Layouts.concatenate([replace(result.layouts, schedule_names=names), added])
    last = np.array([len(table) - 1])
    return join(table, [result, more]), np.concatenate([last, order]), np.concatenate([simulated, last])


def _ranked(result: Estimate, objective: str) -> Indices:
    """The fitting layouts, distinct, best first."""
    rows = np.flatnonzero(result.fits)
    keys = (result.memory_bytes[rows], result.step_time_s[rows])
    order = rows[np.lexsort(keys if objective != "memory" else keys[::-1])]
    return _distinct(order, result.step_time_s, result.memory_bytes)


def largest_part(result: Estimate, i: int) -> tuple[str, float]:
    """The largest part of a layout's step besides the products themselves, and its share of the step."""
    parts = {f.name: float(getattr(result.time, f.name)[i]) for f in fields(result.time) if f.name != "matmul_s"}
    name = max(parts, key=lambda k: parts[k])
    return name.removesuffix("_s"), parts[name] / float(result.step_time_s[i])


def recommend(
    model: Transformer,
    cluster: Cluster,
    framework: Framework,
    *,
    gpus: int,
    global_batch: int,
    precision: Precision,
    attention: Attention,
    fixed: Fixed | None = None,
    top: int = 5,
    objective: str = "time",
) -> Recommendation:
    """Search all legal layouts.

    objective: memory, or time, throughput, cost, which give the same order on a given number of accelerators.

    Raises:
        LayoutError, InputError: nothing legal, numbers out of range.
        UnknownNameError: no such objective.
    """
    if objective not in OBJECTIVES:
        raise UnknownNameError("objective", objective, OBJECTIVES)
    layouts = enumerate_layouts(
        model,
        cluster,
        gpus=gpus,
        global_batch=global_batch,
        precision=precision,
        attention=attention,
        fixed=fixed or Fixed(),
    )
    result = estimate_all(model, cluster, framework, layouts)
    order = _ranked(result, objective)
    simulated = np.zeros(0, dtype=np.int64)
    if objective != "memory":
        result, simulated = refine(model, cluster, framework, result, order, top)
        order = order[np.argsort(result.step_time_s[order], kind="stable")]
        order = order[result.fits[order]]
    if objective != "memory" and (fixed is None or fixed.schedule is None):
        more = try_others(model, cluster, framework, result, order, fixed is not None and fixed.allow_async)
        if more is not None:
            result, order, simulated = _with_one_more(result, more, order, simulated)
    step, memory, fits = result.step_time_s, result.memory_bytes, result.fits
    over = np.flatnonzero(~fits)
    miss = int(over[np.argmin(memory[over])]) if len(over) else None
    faster = None
    if len(over) and len(order):
        better = over[step[over] < (1.0 - WORTH_IT) * step[order[0]]]
        faster = int(better[np.argmin(memory[better])]) if len(better) else None
    ties = int(np.sum(step[order] <= 1.01 * step[order[0]])) - 1 if len(order) else 0
    return Recommendation(
        estimate=result,
        legal=len(result.layouts),
        fitting=int(fits.sum()),
        best=order[:top],
        front=order[pareto_front(step[order], memory[order])] if len(order) else order,
        nearest_miss=miss,
        faster_over_memory=faster,
        ties=ties,
        simulated=simulated,
    )
