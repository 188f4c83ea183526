"""A small in-order timeline of a schedule: the oracle of the closed forms. Ranks run their lists strictly in order."""

from planner.schedules import Operation


def run(order: list[list[Operation]], forward: list[float], backward: list[float]) -> tuple[float, list[int]]:
    """Makespan, and each rank's peak of forwards whose backward is not done, for durations by stage.

    Raises AssertionError where no rank can go on.
    """
    stages = len(forward)
    done: dict[Operation, float] = {}
    clock, at = [0.0] * len(order), [0] * len(order)
    alive, peak = [0] * len(order), [0] * len(order)
    while any(i < len(row) for i, row in zip(at, order, strict=True)):
        moved = False
        for r, row in enumerate(order):
            while at[r] < len(row):
                op = row[at[r]]
                before = [op._replace(stage=op.stage - 1)] if op.kind == "F" and op.stage else []
                if op.kind == "B":
                    before = [op._replace(kind="F")]
                    before += [op._replace(stage=op.stage + 1)] if op.stage < stages - 1 else []
                if any(b not in done for b in before):
                    break
                start = max([clock[r], *(done[b] for b in before)])
                clock[r] = done[op] = start + (forward if op.kind == "F" else backward)[op.stage]
                alive[r] += 1 if op.kind == "F" else -1
                peak[r] = max(peak[r], alive[r])
                at[r] += 1
                moved = True
        assert moved, "deadlock"
    return max(clock), peak
