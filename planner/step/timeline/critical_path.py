"""The critical path of a timeline, named: which rank's and stage's operations the step waited for."""

import numpy as np

from planner.base.arrays import Ints, record
from planner.schedules.operations import KINDS, NAMES
from planner.step.timeline.timeline import Timeline


@record
class CriticalPath:
    """Operations on the path, first to last (flat indices), and seconds by (stage, kind), longest first.

    waiting_s: what of the path is transfers and starts, not operations.
    """

    operations: Ints
    parts: list[tuple[int, str, float]]
    waiting_s: float
    total_s: float

    def sentence(self, most: int = 3) -> str:
        """Its largest parts in words."""
        shown = [f"{s / self.total_s:.0%} stage {stage}'s {NAMES[kind]}" for stage, kind, s in self.parts[:most]]
        rest = len(self.parts) - most
        return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def critical_path(timeline: Timeline) -> CriticalPath:
    """Back from the last end: at each operation the one, on its rank or waited for, that ended when it could start."""
    order, start, end = timeline.order, timeline.start_s, timeline.end_s
    firsts = set(order.start[:-1].tolist())
    at = int(np.argmax(end))
    path, waiting = [], 0.0
    while True:
        while at not in firsts and order.fused[at - 1]:
            at -= 1
        group = [at]
        while order.fused[group[-1]]:
            group.append(group[-1] + 1)
        path += group[::-1]
        before = [
            (int(b), float(lag)) for g in group for b, lag in zip(timeline.waits[g], timeline.lag_s[g], strict=True)
        ]
        before = [(b, lag) for b, lag in before if b >= 0 and b not in group]
        if at not in firsts:
            before.append((at - 1, 0.0))
        if not before:
            waiting += float(start[at])
            break
        latest, _ = max(before, key=lambda x: end[x[0]] + x[1])
        waiting += float(start[at] - end[latest])
        at = latest
    operations = np.array(path[::-1])
    lasts = np.diff(np.concatenate([[0.0], end[operations]]))
    seconds = np.minimum(end[operations] - start[operations], np.maximum(lasts, 0.0))
    table: dict[tuple[int, str], float] = {}
    for i, s in zip(operations.tolist(), seconds.tolist(), strict=True):
        key = (int(order.stage[i]), KINDS[order.kind[i]])
        table[key] = table.get(key, 0.0) + s
    parts = sorted(((stage, kind, s) for (stage, kind), s in table.items()), key=lambda x: -x[2])
    return CriticalPath(operations=operations, parts=parts, waiting_s=waiting, total_s=float(end.max()))
