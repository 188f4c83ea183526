"""Which ranks of a pipeline may be the fullest, beside the same told for one layout in plain numbers."""

import numpy as np
import pytest

from planner.layouts import Layouts
from planner.schedules import SCHEDULES, get_schedule
from planner.step.given_stages import with_ends
from planner.step.ranks import key_ranks
from planner.step.splits import Share, Stages


def told(x: dict, held: dict) -> list[tuple[float, ...]]:
    """Number, layers and dense layers of the ranks that may be fullest; held: of four kinds, and how many are early."""
    pp, (first, early, late, last) = x["pp"], zip(held["layers"], held["dense"], strict=True)
    ends = [(0, *first), (pp - 1, *last)]
    both_ends = get_schedule(x["schedule"]).copies > 1
    heavier = held["num_early"] < pp - 2 and late[0] > early[0]
    second = pp // 2 - 1 if both_ends else 1
    if held["num_early"] == 0 or (heavier and both_ends):
        return [ends[0], (second, *late), ends[1]]
    between = [(second, *early)]
    if heavier:
        between.append((1 + held["num_early"], *late))
    return [ends[0], *between, ends[1]]


@pytest.mark.parametrize("seed", range(20))
def test_the_ranks_that_may_be_fullest_are_those_with_most(seed):
    rng, n = np.random.default_rng(seed), 30
    names = [name for name, s in SCHEDULES.items() if not s.barriers]
    rows = [{"pp": int(rng.choice([4, 6, 8])), "schedule": str(rng.choice(names))} for _ in range(n)]
    layouts = Layouts.of(**{name: [row[name] for row in rows] for name in rows[0]}, dp=1, global_batch=8)
    held = [
        {"layers": rng.integers(1, 9, 4).astype(float).tolist(), "dense": rng.uniform(-1, 3, 4).tolist(),
         "num_early": int(rng.integers(0, row["pp"] - 1))} for row in rows
    ]  # fmt: skip
    layers, dense = (np.array([one[name] for one in held]).T for name in ("layers", "dense"))
    first, early, late, last = (Share(layers=x, dense=more) for x, more in zip(layers, dense, strict=True))
    num_early = np.array([one["num_early"] for one in held])
    stages = Stages(first=first, early=early, late=late, last=last, num_early=num_early)
    found = key_ranks(layouts, with_ends(stages, layouts))
    for i, (row, one) in enumerate(zip(rows, held, strict=True)):
        ranks = [tuple(float(np.broadcast_to(x, n)[i]) for x in (r, s.layers, s.dense)) for r, s in found]
        want = [tuple(map(float, rank)) for rank in told(row, one)]
        assert set(ranks) == set(want), (row, one)
