"""1F1B on the V (Qi et al. 2024, arXiv 2405.15362): two thirds of 1F1B's activations, backwards unsplit.

Rank r holds stages r and 2p - 1 - r. A micro-batch's operations are a block of unit slots (B = 2F) that repeats every
six: forwards follow one another slot by slot down the V and up again; backwards too, but pause three slots after
every third, which keeps them off the forwards of other micro-batches on every rank.

rank 0  0F0 3F0 3B0 0F1 3F1 3B1 0F2 0B0 3F2 3B2 0B1 0B2     (p = 2, m = 3)
rank 1  1F0 2F0 1F1 2F1 2B0 1B0 1F2 2F2 2B1 1B1 2B2 1B2
"""

from functools import cache
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools, Ints
from planner.schedules.base import Pipeline, largest_sum
from planner.schedules.generated import Generated
from planner.schedules.one_f_one_b_rows import by_slot, units

_PERIOD = 6


class OneFOneBV(Generated):
    """Two thirds of 1F1B's activations for about its bubble (where B = 2F) and twice its messages."""

    name = "1f1b-v"
    source = "Qi et al. 2024, arXiv 2405.15362; block read in its repository, without its reordering of the warm-up"
    looped_placement = False
    chunks = 2

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """The order of operations by slot: the block of micro-batch i, shifted by 6i."""
        i, last = np.arange(pipe.m), 2 * pipe.p - 1 - r
        deep, shallow = _backwards(pipe.p)
        tables = [units(r, "F", i), units(last, "F", i), units(last, "B", i), units(r, "B", i)]
        return by_slot(tables, [_PERIOD * i + first for first in (r, last, deep[r], shallow[r])])

    def closed_form(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> tuple[Array, Bools]:
        """Half the largest of two or three sums, by p mod 3, with B = I + W, if p >= 3 and m > p:

        2 (p - 1) (F + B), less an F where p is 2 mod 3; what an order made for B = 2F waits for longer forwards,
        (4m + 2p - 6) F + (2p - 2m) B; and between them one more where p isn't 1 mod 3. Found by simulation.
        """
        p, m, B = np.asarray(pipe.p), np.asarray(pipe.m), I + W
        long, back = 4 * m + 2 * p - 6, 2 * (p - m)
        sums = (
            largest_sum((F, B), (2 * p - 2, 2 * p - 2), (2 * p + 2, 2 * p - 3), (long, back + 1)),
            largest_sum((F, B), (2 * p - 2, 2 * p - 2), (long, back)),
            largest_sum((F, B), (2 * p - 1, 2 * p - 2), (long - 1, back + 1), (long, back)),
        )
        out = np.where(p % 3 == 0, sums[0], np.where(p % 3 == 1, sums[1], sums[2])) / 2
        return np.where(p > 1, out, 0.0), (p == 1) | (p >= 3) & (m > p)


@cache
def _backwards(p: int) -> tuple[list[int], list[int]]:
    """Slots of the first micro-batch's deep and shallow backward on every rank."""
    slot = 2 * p + (3 if p % 3 == 0 else 0)
    count = (1 - p) % 3
    slots = []
    for _ in range(2 * p):
        slots.append(slot)
        count += 1
        slot += 2 + (3 if count % 3 == 0 else 0)
    return slots[:p], slots[p:][::-1]
