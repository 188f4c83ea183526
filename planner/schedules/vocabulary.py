"""Vocabulary parallelism in the pipeline (Yeung et al. 2024, arXiv 2411.05288): all ranks share embedding and head.

Every rank has a p-th of both tables' rows. A micro-batch's last hidden states go to all ranks; each does its part of
the head, and the input gradient is their sum. What ranks tell one another, the softmax's largest logit and sum, is a
barrier, which a forward or a backward pass hides. Algorithm 1 has two, before the gradients (T) and before the last
stage's backward pass; algorithm 2 has one, for its logits pass (U) makes the input gradient beforehand. Each barrier
keeps one more micro-batch alive.

rank 0  F0 F1 F2 .  U0 .  V0 U1 .  B0 V1 U2 F3 B1 V2 U3 B2 V3 B3     (vocab-2, p = 2, m = 4)
rank 1  .  F0 F1 .  U0 B0 V0 U1 F2 B1 V1 U2 F3 B2 V2 U3 B3 V3

The interlaced pipeline (Lin et al. 2024, nnScaler) hides nothing: all ranks do S and T of a micro-batch at once.
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools, Ints
from planner.schedules.base import Order, Pipeline
from planner.schedules.controllable_memory import PERIOD, VHalf, place_weight_gradients, squeeze
from planner.schedules.generated import Generated
from planner.schedules.one_f_one_b_rows import F1, I1, by_slot, units


def _exchanged(pipe: Pipeline) -> Any:
    """Each rank's part of four hidden states to or from all others, half of it each way, as `Schedule.messages`."""
    return 2.0 * (pipe.p - 1.0) / pipe.p


class Vocabulary1(Generated):
    """1F1B whose ranks share embedding and head, with two barriers: two micro-batches more than 1F1B."""

    name = "vocab-1"
    source = "Yeung et al. 2024, arXiv 2411.05288, algorithm 1; order derived from its rules, S and T read in its code"
    barriers = 2
    several_ranks = True  # to share with
    parts = "ST"
    settles = False  # where backwards don't take twice the forwards, circles of ranks of different lengths compete

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """Order by the slots of a pipeline without end, F one and B two long, where the head takes none.

        Of barriers d and w = p - 1 - r + d: F of micro-batch j in slot r + j, for j > w behind the backward pass of
        j - w - 1; B of i in slot p + d + 3 i + 2 (p - 1 - r); on every rank the logits half a slot after the last
        stage's forward, which leaves time for what is sent, the rest right before the next micro-batch's.
        """
        p, d, i = pipe.p, self.barriers, np.arange(pipe.m)
        ends = p + np.minimum(i, d) + 3 * np.maximum(i - d, 0)
        next_ends = ends + np.where(i < d, 1, 3)
        w, back = p - 1 - r + d, p + d + 2 * (p - 1 - r)
        forward = np.where(i <= w, r + i, back + 3 * (i - w) - 1)
        slots = [forward, back + 3 * i, ends + 0.5, next_ends + 0.4]
        return by_slot([units(r, kind, i) for kind in ("F", "B", *self.parts)], slots)

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """p - r and one for each barrier, at most m."""
        return np.asarray(np.minimum(pipe.p - rank + self.barriers, pipe.m), dtype=np.float64)

    def messages(self, pipe: Pipeline) -> Array:
        """1F1B's, and what ranks that share the ends exchange."""
        return np.asarray(1.0 + _exchanged(pipe))


class Vocabulary2(Vocabulary1):
    """1F1B whose ranks share embedding and head, with one barrier: one micro-batch more than 1F1B."""

    name = "vocab-2"
    source = "Yeung et al. 2024, arXiv 2411.05288, algorithm 2; order derived from its rules, U and V read in its code"
    barriers = 1
    parts = "UV"


class Interlaced(Vocabulary1):
    """1F1B whose ranks do the embedding and the head of a micro-batch at once: half as many micro-batches more."""

    name = "interlaced"
    source = "Lin et al. 2024 (nnScaler); order read in Yeung et al.'s repository, interlaced_schedule.py"
    waits_show = True

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """Forwards, S and T of p - r micro-batches, then S and T, each behind a B, and an F before or after that."""
        p, m, i = pipe.p, pipe.m, np.arange(pipe.m)
        first, heads = min(3 * p // 2 - r, m), min(p - r, m)
        alone = max(first - heads - (p - r - 1) // 2, 0)  # backwards without a forward
        side = 0.1 if (p - r) % 2 else -0.1
        forward = np.where(i < first, -1, i - first + alone + heads - 0.5 + side)
        return by_slot([units(r, kind, i) for kind in "FBST"], [forward, i + heads - 0.5, i, i])

    def closed_form(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> tuple[Array, Bools]:
        """1F1B's (p - 1)(F + I + W) where forwards take no longer than backwards. Found by simulation."""
        return np.asarray((pipe.p - 1) * (F + I + W)), np.asarray(F <= I + W)

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """3 p / 2 - r, at most m."""
        return np.asarray(np.minimum(3 * np.asarray(pipe.p) // 2 - rank, pipe.m), dtype=np.float64)


class VHalfVocabulary1(VHalf):
    """V-Half whose ranks share embedding and head, with two barriers: two micro-batches more than V-Half."""

    name = "v-half-vocab-1"
    source = "Yeung et al. 2024, arXiv 2411.05288; order read in zero-bubble-pipeline-parallelism, branch v-half-vocab"
    barriers = 2
    several_ranks = True
    parts = "ST"

    def equal_slots(self, p: Any) -> Array:
        """(7 p + 8) / 4 for an even p, with one barrier 3 / 2 less; 3 / 4 less for an odd p."""
        return np.asarray((7 * p - 3 * (p % 2) + 6 * self.barriers - 4) / 4)

    def order(self, pipe: Pipeline) -> Order:
        """V-Half's block, a period longer for each barrier, as it repeats; every operation as early as it can.

        By those slots the logits come one after the last stage's forward, which leaves time for what is sent, the rest
        right before the next micro-batch's. With few micro-batches what the last stage's backward waits for comes
        before that.
        """
        i = np.arange(pipe.m)
        slots = [[(t + PERIOD * i).tolist() for t in self.block(pipe.p, r)] for r in range(pipe.p)]
        for row in slots:
            place_weight_gradients(row, split=True)
        squeeze(slots)
        back = np.array(slots[0][I1])
        logits = np.minimum(np.array(slots[0][F1]) + 2.5, back - 0.2)
        rest = np.minimum(np.append(logits[1:], logits[-1] + 4.0), back if self.barriers > 1 else np.inf) - 0.1
        tables = []
        for r, row in enumerate(slots):
            deep = 2 * pipe.p - 1 - r
            kinds = zip((r, deep, deep, r, deep, r, r, r), "FFIIWW" + self.parts, strict=True)
            tables.append(by_slot([units(stage, kind, i) for stage, kind in kinds], [*row, logits, rest]))
        return Order.of_tables(tables)

    def messages(self, pipe: Pipeline) -> Array:
        """V-Half's, and what ranks that share the ends exchange."""
        return np.asarray(2.0 + _exchanged(pipe))


class VHalfVocabulary2(VHalfVocabulary1):
    """V-Half whose ranks share embedding and head, with one barrier: one micro-batch more than V-Half."""

    name = "v-half-vocab-2"
    barriers = 1
    parts = "UV"
