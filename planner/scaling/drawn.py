"""Trainings drawn at random: what chance adds to the expected time of `planner.scaling.training`. Many runs at once."""

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.scaling.goodput import Reliability, goodput
from planner.scaling.training import TrainingTime

MOST = 20_000
"""Failures, or stragglers, up to which a training is drawn: more spread its time by less than a percent."""


def drawn_wall_s(time: TrainingTime, reliability: Reliability, runs: int = 2000, seed: int = 0) -> Array | None:
    """Wall seconds of drawn runs of the first training; None where it never ends, or `MOST` is not enough.

    A run loses what no checkpoint holds that counts at a failure. A failure during a restart begins it anew, and takes
    a node too. Each repair lasts as long. A run ends with a checkpoint.
    """
    busy, tau, stall, behind, restart = _first(time)
    mtbf, wall = float(time.mtbf_s[0]), float(time.wall_s[0])
    slow_mtbf = reliability.slow_mtbf_s / float(time.gpus[0])
    if not np.isfinite(wall) or wall / mtbf > MOST or (busy + reliability.slow_s) / slow_mtbf > MOST:
        return None
    rng = np.random.default_rng(seed)
    left = busy + reliability.slow_by * _slow_s(rng, runs, busy, slow_mtbf, reliability.slow_s)
    if not np.isfinite(mtbf):
        return np.asarray(left)
    out, running, clock = np.empty(runs), np.arange(runs), np.zeros(runs)
    failed = np.full((reliability.spares + 1, runs), -np.inf)  # when the last spares + 1 nodes failed, in turn
    k, begin = 0, 0.0
    while True:
        works = rng.exponential(mtbf, len(running)) - begin
        needs = left + stall * np.ceil(left / tau * (1.0 - 1e-12))
        ends = works >= needs
        out[running[ends]] = (clock + begin + needs)[ends]
        if ends.all():
            return out
        left = left - tau * np.floor(np.maximum(works - behind, 0.0) / (tau + stall))
        clock = clock + begin + works
        failed[k % len(failed)] = clock
        clock = np.maximum(clock, failed[(k + 1) % len(failed)] + reliability.repair_s)
        running, clock, left, failed = running[~ends], clock[~ends], left[~ends], failed[:, ~ends]
        k, begin = k + 1, restart


def _first(time: TrainingTime) -> list[float]:
    """Of the first training the seconds of work, between checkpoints, of a stop for one and until it counts, and of a
    restart."""
    return [float(x[0]) for x in (time.busy_s, time.interval_s, time.checkpoint_s, time.behind_s, time.restart_s)]


def _slow_s(rng: np.random.Generator, runs: int, busy: float, mtbf: float, lasts: float) -> Any:
    """Seconds of each run's work that it does while a straggler, or several, hold it up for so long."""
    slow, at, until = np.zeros(runs), np.full(runs, -lasts), np.zeros(runs)
    while lasts and np.isfinite(mtbf) and (at < busy).any():
        at = at + rng.exponential(mtbf, runs)
        slow += np.maximum(np.minimum(at + lasts, busy) - np.maximum(at, until), 0.0)
        until = np.maximum(until, at + lasts)
    return slow


def elastic_wall_s(
    time: TrainingTime, reliability: Reliability, nodes: float, replicas: int, runs: int = 1000, seed: int = 0
) -> tuple[Array, Array] | None:
    """Wall seconds of drawn runs that go on with whole replicas on the nodes left, and node-seconds at hand, (runs,).

    Fewer replicas share the batch, and a step takes longer in proportion. A node that is back joins at the next
    restart, or at one of its own, for which nothing is lost, where it adds more than that until the next failure.
    Without stragglers; None where few runs would end, or too much would have to be drawn.
    """
    busy, tau, stall, behind, restart = _first(time)
    mtbf, lasts = float(time.mtbf_s[0]), reliability.repair_s
    away = lasts / mtbf  # nodes under repair, at most and on average
    rows = int(min(nodes + reliability.spares, np.ceil(away + 10.0 * np.sqrt(away) + 10.0)))
    if (
        not np.isfinite(mtbf)
        or max(rows, 50) * busy / mtbf > 5 * MOST
        or not goodput(stall, mtbf, restart + behind, tau)
    ):
        return None
    rng = np.random.default_rng(seed)
    left, clock, begin, had = np.full(runs, busy), np.zeros(runs), np.zeros(runs), np.zeros(runs)
    back, running = np.zeros((rows, runs)), np.arange(runs)  # when nodes return
    walls, hands = np.empty(runs), np.empty(runs)
    for _ in range(MOST):
        away = (back > clock).sum(axis=0)
        short = np.maximum(away - reliability.spares, 0)
        speed, more = (
            np.floor(replicas * (1.0 - n / nodes) + 1e-9) / replicas for n in (short, np.maximum(short - 1, 0))
        )
        each = mtbf * nodes / np.maximum(nodes - short, 1.0)
        gain = more / np.maximum(speed, 1e-12) - 1.0
        until = np.where(gain * each > restart, np.where(back > clock, back, np.inf).min(axis=0) - clock, np.inf)
        fails = np.where(speed > 0.0, rng.exponential(each), np.inf)
        ran = np.minimum(fails, until)
        works, pace = ran - begin, np.maximum(speed, 1e-12)
        needs = left / pace + stall * np.ceil(left / pace / tau * (1.0 - 1e-12))
        ends = works >= needs
        took = np.where(ends, begin + needs, ran)
        clock, had = clock + took, had + took * (nodes + reliability.spares - away)
        walls[running[ends]], hands[running[ends]] = clock[ends], had[ends]
        if ends.all():
            return walls, hands
        segments = np.floor(np.maximum(works - behind, 0.0) / (tau + stall))
        kept = np.where(until < fails, np.maximum(works, 0.0) / (tau + stall), segments) * tau * speed
        failed = fails <= until
        back[back.argmin(axis=0)[failed], np.flatnonzero(failed)] = clock[failed] + lasts
        left, begin = left - kept, np.full(len(left), restart)
        state: Any = left, clock, begin, had, running, back
        left, clock, begin, had, running, back = (x[..., ~ends] for x in state)
    return None
