"""A second, naive timeline: the engine's oracle. Ranks run their lists strictly in order, by dictionary."""

from planner.schedules import Operation


def needed(op: Operation, stages: int, slices: int, made: set[tuple]) -> list[tuple]:
    """(stage, kind, micro-batch, slice) of what an operation waits for."""
    s, kind, i, j = op[:4]
    back = "B" if (0, "B", 0, 0) in made else "I"
    if kind == "F":
        out = [(s - 1, "F", i, j)] if s else []
        return out + ([(s, "F", i, j - 1)] if j else [])
    if kind == "W":
        return [(s, "I", i, j)]
    if kind in "SU":
        return [(stages - 1, "F", i, 0)]
    if kind in "TV":
        return [x for r in range(stages) for x in [(r, {"T": "S", "V": "U"}[kind], i, 0)] if x in made]  # of each rank
    out = [(s, "F", i, j)]
    if s == stages - 1:  # of a head in parts on all ranks, what makes the input gradient
        out += [(r, k, i, 0) for r in range(stages) for k in "TU" if (r, k, i, 0) in made]
    out += [(s + 1, back, i, j)] if s < stages - 1 else []
    return out + ([(s, back, i, j + 1)] if j < slices - 1 else [])


def run(order: list[list[Operation]], seconds: dict[str, list[float]], transfer: float = 0.0) -> list[list[float]]:
    """End of every operation by rank, for durations by kind and stage. Raises AssertionError on a deadlock."""
    flat = [op for row in order for op in row]
    made = {op[:4] for op in flat}
    stages, slices = max(op.stage for op in flat) + 1, max(op.slice for op in flat) + 1
    done: dict[tuple, tuple[float, int]] = {}
    ends: list[list[float]] = [[] for _ in order]
    while any(len(e) < len(row) for e, row in zip(ends, order, strict=True)):
        moved = False
        for r, row in enumerate(order):
            while len(ends[r]) < len(row):
                op = row[len(ends[r])]
                before = needed(op, stages, slices, made)
                if any(b not in done for b in before):
                    break
                ready = [done[b][0] + (transfer if done[b][1] != r else 0.0) for b in before]
                end = max([ends[r][-1] if ends[r] else 0.0, *ready]) + seconds[op.kind][op.stage]
                done[op[:4]] = (end, r)
                ends[r].append(end)
                moved = True
        assert moved, "deadlock"
    return ends
