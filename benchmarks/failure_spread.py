"""How far failures alone spread the days of a training: 2,000 drawn runs of each case beside the closed form's mean.

python benchmarks/failure_spread.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from planner.base.units import DAY, HOUR
from planner.scaling.goodput import checkpoint_interval_s, goodput

RUNS = 2000
CASES = {
    # days of work, hours between failures of the job, minutes of a restart, seconds of a checkpoint
    "16,384 H100 as LLaMA 3 405B (419 interruptions in 54 days)": (50.0, 54 * 24 / 419, 10.0, 10.0),
    "1,024 GPUs, 50,000 hours between failures of one": (30.0, 50_000 / 1024, 15.0, 20.0),
    "64 preemptible GPUs, stopped every 6 hours": (10.0, 6.0, 10.0, 30.0),
    "100,000 GPUs, a failure every half hour": (90.0, 0.5, 10.0, 10.0),
}


def drawn_days(rng: np.random.Generator, work_s: float, mtbf_s: float, restart_s: float, delta_s: float) -> float:
    """One run: work between checkpoints is lost with a failure; a failure while restarting begins the restart anew."""
    interval = float(checkpoint_interval_s(delta_s, mtbf_s))
    left, wall = int(np.ceil(work_s / interval)), 0.0
    while True:
        failure = rng.exponential(mtbf_s)
        done = int(failure // (interval + delta_s))
        if done >= left:
            return (wall + left * (interval + delta_s)) / DAY
        left, wall = left - done, wall + failure
        while (again := rng.exponential(mtbf_s)) < restart_s:
            wall += again
        wall += restart_s


def main() -> None:
    rng = np.random.default_rng(20261125)
    print(f"{'training':60s} {'closed form':>11s} {'mean':>8s} {'P50':>8s} {'P90':>8s} {'P90/P50':>8s}")
    for name, (days, hours, minutes, delta) in CASES.items():
        times = days * DAY, hours * HOUR, minutes * 60.0, delta
        runs = np.array([drawn_days(rng, *times) for _ in range(RUNS)])
        half, most = np.quantile(runs, [0.5, 0.9])
        mean = days / float(goodput(delta, times[1], times[2]))
        print(f"{name:60s} {mean:11.2f} {runs.mean():8.2f} {half:8.2f} {most:8.2f} {most / half - 1:8.1%}")


if __name__ == "__main__":
    main()
