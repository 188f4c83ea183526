"""ChronosPipe (2025, arXiv 2503.03182), an approximation: the deep chunk's activations live shortly.

The paper's exact order was not to be had. This one follows its idea, temporal locality: two chunks per rank, and a
micro-batch never waits, so that the deep chunk's backward follows its forward at once and only the shallow chunk's
activations live long. A micro-batch's operations are a block of unit slots (B = 2F) that repeats every six; the
forwards move one rank a slot, the backwards one rank in two, and the slots' remainders by six keep the blocks apart.

rank 0  0F0 2F0 0F1 2B0 2F1 0F2 2B1 2F2 0B0 2B2 0B1 0B2     (p = 2, m = 3)
rank 1  1F0 3F0 3B0 1F1 3F1 3B1 1F2 1B0 3F2 3B2 1B1 1B2
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools, Ints
from planner.schedules.base import Pipeline
from planner.schedules.generated import Generated
from planner.schedules.one_f_one_b_rows import by_slot, units

_PERIOD = 6


class ChronosPipe(Generated):
    """Three quarters of 1F1B's activations and half a micro-batch, at its bubble where B = 2F; two chunks per rank."""

    name = "chronospipe"
    source = "arXiv 2503.03182 (2025): an approximation derived from its abstract, not the authors' order"
    chunks = 2
    several_ranks = True
    settles = False  # circles of different lengths compete

    def closed_form(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> tuple[Array, Bools]:
        """(p - 1)(F + B), as 1F1B, for 2F <= B <= (2 + 3/p) F. Found by simulation."""
        p, B = np.asarray(pipe.p), I + W
        return np.asarray((p - 1) * (F + B)), np.asarray((2 * F <= B) & (p * B <= (2 * p + 3) * F))

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """The order of operations by slot.

        Rank r has micro-batch i's F0 at 6i + r, F1 at 6i + a + r, deep B at 6i + b - 2r, shallow B at 6i + c - 2r. Here
        a is the first slot from p on that is 3 mod 6, b the first after the last F1 that is 1 mod 3, and c the first
        after the last deep B that is b + 3 mod 6. The four never meet on any rank.
        """
        p = pipe.p
        a = p + (3 - p) % _PERIOD
        b = a + p + 2 * (p - 1)
        b += (1 - b) % 3
        c = b + 2 * p
        c += (b + 3 - c) % _PERIOD
        i = np.arange(pipe.m)
        tables = [units(r, "F", i), units(p + r, "F", i), units(p + r, "B", i), units(r, "B", i)]
        return by_slot(tables, [_PERIOD * i + first for first in (r, a + r, b - 2 * r, c - 2 * r)])
