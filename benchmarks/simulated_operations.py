"""How fast the simulator is: operations a second on one core, and how time and memory grow with the operations.

    python benchmarks/simulated_operations.py

The engine alone is the event loop; the timeline adds finding what waits for what. The last column compares with the
line before it: twice the operations should take no more than about twice the time.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import resource
from time import perf_counter

import numpy as np

from planner.schedules import Pipeline, get_schedule
from planner.schedules.dependencies import dependencies
from planner.step.timeline.engine import run_lanes
from planner.step.timeline.timeline import durations, run

SIZES = ((8, 64, 2), (16, 128, 4), (32, 256, 4), (64, 512, 4), (64, 512, 8), (64, 1024, 8))


def best_of(call, times: int = 5) -> float:
    """The least of several runs' seconds."""
    out = np.inf
    for _ in range(times):
        begin = perf_counter()
        call()
        out = min(out, perf_counter() - begin)
    return out


def main() -> None:
    schedule = get_schedule("interleaved")
    begin = perf_counter()
    small = schedule.order(Pipeline(p=4, m=8, v=2))
    run(small, durations(small, 1.0, 1.0, 1.0), compiled=True)
    print(f"compiler imported, loop compiled or read from its cache: {perf_counter() - begin:.2f} s")
    print(
        "ranks micro-batches v  operations  order s  timeline s  op/s (timeline)  op/s (engine)  peak MiB   x ops  x s"
    )
    last = None
    for p, m, v in SIZES:
        pipe = Pipeline(p=p, m=m, v=v)
        order = schedule.order(pipe)
        lasting = durations(order, 1.0 / v, 1.0 / v, 1.0 / v)
        waits = dependencies(order)
        lag = np.zeros_like(waits, dtype=float)
        make = best_of(lambda pipe=pipe: schedule.order(pipe), 2)
        whole = best_of(lambda o=order, d=lasting: run(o, d, compiled=True))
        engine = best_of(lambda o=order, w=waits, g=lag, d=lasting: run_lanes(o.start, w, g, d, o.fused, compiled=True))
        n = len(order)
        grown = f"{n / last[0]:7.2f} {whole / last[1]:5.2f}" if last else ""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{p:5d} {m:13d} {v:1d} {n:11,d} {make:8.3f} {whole:11.3f} {n / whole:16,.0f} {n / engine:14,.0f} "
              f"{peak:9.0f} {grown}")  # fmt: skip
        last = (n, whole)


if __name__ == "__main__":
    main()
