"""A pipeline schedule: an order of operations per rank, and its closed forms.

Letters, as the papers use them: p pipeline ranks, r a rank from 0; m micro-batches per step; v virtual stages (model
chunks) a rank; k sequence slices a micro-batch; F, I, W seconds of one micro-batch's forward, input gradient and
weight gradient through all the layers of one rank; B = I + W.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from planner.base import records
from planner.base.arrays import Array, Bools, Ints, record
from planner.schedules.operations import Operation, Order

__all__ = ["Array", "Loads", "Operation", "Order", "Pipeline", "Rule", "Schedule"]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The size of a pipeline: ranks p, micro-batches m, virtual stages v, sequence slices k. Integers or arrays."""

    p: Any
    m: Any
    v: Any = 1
    k: Any = 1


Passes = tuple[Any, Any, Any]
"""Seconds F, I, W of one micro-batch through a rank."""


@record
class Loads:
    """Work of uneven ranks, arrays: the first rank, `num_early` ranks behind it, the other middle ones, the last.

    Without a second rank all is in `first`. known_slowest, known_total: `slowest` and `total`, where
    they are known.
    """

    first: Passes
    early: Passes
    num_early: Any
    late: Passes
    last: Passes
    known_slowest: Passes | None = None
    known_total: Passes | None = None

    @staticmethod
    def equal(F: Any, I: Any, W: Any) -> Loads:
        """Ranks that all do the same."""
        return Loads(first=(F, I, W), early=(F, I, W), num_early=0, late=(F, I, W), last=(F, I, W))

    def take(self, index: Any) -> Loads:
        """The loads at an index array, mask or slice along the last axis; every field must be an array."""
        return records.take(self, index)

    def blocks(self, p: Any) -> list[tuple[Passes, Any]]:
        """The four kinds of rank in order, each with how many there are."""
        p = np.asarray(p)
        middle = np.maximum(p - 2, 0)
        early = np.minimum(self.num_early, middle)
        return [(self.first, 1), (self.early, early), (self.late, middle - early), (self.last, (p > 1) * 1)]

    def known(self, p: Any) -> Loads:
        """The same with the slowest rank and the total, which are then computed once for all schedules."""
        return replace(self, known_slowest=self.slowest(p), known_total=self.total(p))

    def total(self, p: Any) -> Passes:
        """Through all ranks."""
        if self.known_total is not None:
            return self.known_total
        (first, _), *others = self.blocks(p)
        F, I, W = (reduce(add, (number * passes[i] for passes, number in others), first[i]) for i in range(3))
        return F, I, W

    def slowest(self, p: Any) -> Passes:
        """Through the rank that takes longest."""
        if self.known_slowest is not None:
            return self.known_slowest
        most = (*self.first, sum(self.first))
        for passes, number in self.blocks(p)[1:]:
            own = (*passes, sum(passes))
            slower = (number > 0) & (own[3] > most[3])
            most = tuple(np.where(slower, new, old) for new, old in zip(own, most, strict=True))
        return most[:3]


WHOLE_ROUNDS = "needs a number of micro-batches divisible by pp"


@record
class Rule:
    """A rule of legality: its text for a person, and where it is broken, boolean of shape (n,)."""

    text: str
    broken: Bools


class Schedule(ABC):
    """A pipeline schedule. `order` makes one pipeline's operations; closed forms broadcast over arrays.

    Closed forms are for equal stages and slices of equal time, without communication. Each says where it holds;
    there it equals the simulated timeline of `order` (tested).
    """

    name: str
    source: str
    """The paper, and how its order is known."""
    synchronous: bool = True
    """Every gradient is taken at the weights it updates. False changes the training: only with --allow-async."""
    staleness: str = "none: gradients are taken at the weights that they update"
    """At which weights a gradient is taken, in words."""
    steady: bool = False
    """Never drained: a step is the period of the steady state, as `steps_order` of several steps shows it."""
    splits_backward: bool = False
    """I and W are operations of their own."""
    sliced: bool = False
    """Runs on slices of the sequence (k > 1)."""
    chunks: int | None = 1
    """Virtual stages a rank: a number, or None where the user chooses them (at least 2)."""
    copies: int = 1
    """Copies of the weights a rank holds because micro-batches enter the pipeline from both ends."""
    unsynchronised_end: bool = False
    """Ranks start the next step without waiting for one another (optimizer post-validation, Qi et al. 2023)."""
    looped_placement: bool = True
    """Stage s lies on rank s mod p; False: the V, on rank s mod 2p or, above p, 2p - 1 - s mod 2p."""
    quick: bool = True
    """Bubble and peak have closed forms; False: one is read from the order itself, seconds for a large pipeline."""
    exact_uneven: bool = False
    """`makespan` follows uneven ranks closely (tested); False: finalists of a search are simulated."""
    losses_wait: bool = False
    """All forward passes come before the first backward one: every micro-batch's logits wait for theirs."""
    one_layer_chunks: bool = False
    """A virtual stage is one layer."""
    barriers: int = 0
    """Times a micro-batch that all ranks, which share embedding and head in equal parts, wait for one another; 0: each
    lies on one."""
    waits_show: bool = False
    """Ranks that share embedding and head do them at once: no pass hides what they send one another."""
    layer_at_a_time: bool = False
    """All micro-batches pass a chunk before the next: one parameter gather and one gradient reduction a chunk."""

    several_ranks: bool = False
    """Needs two pipeline ranks."""
    even_ranks: bool = False
    """Two directions must not meet: needs an even number of ranks."""
    whole_rounds: bool = False
    """Micro-batches run in groups of p."""

    def rules(self, pipe: Pipeline) -> list[Rule]:
        """The rules that a pipeline must keep, each with where it is broken."""
        if self.chunks is None:
            table: list[tuple[str, Any]] = [("needs at least 2 virtual stages", pipe.v < 2)]
        else:
            number = "one virtual stage" if self.chunks == 1 else f"exactly {self.chunks} virtual stages"
            table = [(f"has {number} per rank", pipe.v != self.chunks)]
        if self.sliced:
            table.append(("needs at least 2 sequence slices", pipe.k < 2))
        else:
            table.append(("does not slice the sequence", pipe.k != 1))
        if self.several_ranks:
            table.append(("needs at least 2 pipeline ranks", pipe.p < 2))
        if self.even_ranks:
            table.append(("needs an even pp", pipe.p % 2 != 0))
        if self.whole_rounds:
            table.append((WHOLE_ROUNDS, pipe.m % pipe.p != 0))
        table += self.own_rules(pipe)
        return [Rule(text=f"{self.name} {text}", broken=np.asarray(broken)) for text, broken in table]

    def own_rules(self, pipe: Pipeline) -> list[tuple[str, Any]]:
        """Rules beyond those of chunks and slices: behind the schedule's name, and where each is broken."""
        return []

    def order(self, pipe: Pipeline) -> Order:
        """The operations of every rank, in order, of one step; integers in `pipe`, its rules kept."""
        return Order.of_tables([self.row(pipe, r) for r in range(pipe.p)])

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """Rank r's operations, a table as `Order.of_tables` takes it: what a schedule without its own `order` gives."""
        raise NotImplementedError

    def rank_of(self, pipe: Pipeline, stage: Any, micro_batch: Any) -> Ints:
        """The rank that runs a stage for a micro-batch; arrays broadcast.

        Of two copies, odd micro-batches run on the one that is entered from the last rank.
        """
        p, i = np.asarray(pipe.p), np.asarray(micro_batch)
        s = np.asarray(stage) + 0 * i
        down = s % (2 * p)
        rank = s % p if self.looped_placement else np.where(down < p, down, 2 * p - 1 - down)
        return np.asarray(np.where((self.copies > 1) & (i % 2 == 1), p - 1 - rank, rank), dtype=np.int64)

    @property
    def least_size(self) -> dict[str, int]:
        """The fewest virtual stages and sequence slices that a layout has under it."""
        chunks = 2 if self.chunks is None else self.chunks
        return {"virtual_stages": chunks, "sequence_slices": 2 if self.sliced else 1}

    @property
    def has_ends(self) -> bool:
        """Whether the embedding lies on the first rank alone, and the head on the last."""
        return self.end_shares() == ((1.0, 0.0), (0.0, 1.0))

    def end_shares(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """How much of the embedding and of the head lies on the first rank, and on the last one.

        A V brings both to the first rank; entered from both ends, each end has half the micro-batches of each.
        """
        if self.copies > 1:
            return (0.5, 0.5), (0.5, 0.5)
        return ((1.0, 0.0), (0.0, 1.0)) if self.looped_placement else ((1.0, 1.0), (0.0, 0.0))

    def fitted(self, pipe: Pipeline, seconds: Passes, transfer_s: float = 0.0, kept: float = 1.0) -> Order:
        """The order for seconds F, I and W of one operation and of a transfer, where the schedule can fit it to them.

        kept: the share of a micro-batch's activations that the weight gradient still needs. Else it is `order`.
        """
        return self.order(pipe)

    def steps_order(self, pipe: Pipeline, steps: int) -> Order:
        """The operations of several steps on end; step t's micro-batches are t m to t m + m - 1."""
        one = self.order(pipe)
        flat = np.stack([one.stage, one.kind, one.micro_batch, one.slice, one.fused], axis=1)
        rows = np.split(flat, one.start[1:-1])
        later = np.array([0, 0, pipe.m, 0, 0])
        return Order.of_tables([np.concatenate([row + t * later for t in range(steps)]) for row in rows])

    @abstractmethod
    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """Idle seconds of a rank in a step."""

    def closed_form(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> tuple[Array, Bools]:
        """The bubble as a formula, and where that is exact; elsewhere `bubble_s` is the longest path of the order."""
        return self.bubble_s(pipe, F, I, W), np.ones((), dtype=bool)

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """Peak activations that a rank holds, in micro-batches of all its layers; all m where a schedule says nothing.

        kept: the share of a micro-batch's activations that lives on from its input gradient to its weight gradient.
        """
        return np.asarray(pipe.m + 0.0 * (pipe.p + rank))

    def weight_versions(self, pipe: Pipeline, rank: Any) -> Array:
        """Versions of its weights that a rank holds at once."""
        return np.asarray(1.0 + 0.0 * (pipe.p + rank))

    def messages(self, pipe: Pipeline) -> Array:
        """Transfers to a neighbour, of a whole micro-batch's boundary, each way, a micro-batch and rank."""
        return np.asarray(pipe.v * 1.0)

    def updates_behind(self, pipe: Pipeline, rank: Any, micro_batch: Any) -> Ints:
        """Updates between the weights of a micro-batch's forward and those that its gradient updates.

        micro_batch: counted through all steps from the first, whose weights nothing has updated.
        """
        return np.asarray(0, dtype=np.int64)

    def bubble_fraction(self, pipe: Pipeline, F: Any = 1.0, I: Any = 1.0, W: Any = 1.0) -> Array:
        """Idle share of the step: bubble / (m (F + I + W) + bubble)."""
        idle = self.bubble_s(pipe, F, I, W)
        return np.asarray(idle / (pipe.m * (F + I + W) + idle))

    def makespan(self, pipe: Pipeline, loads: Loads) -> Array:
        """Seconds of a step whose ranks may be uneven: m times the slowest rank, and the others' bubble.

        The bubble is that of equal ranks that take the mean of the others: exact for equal ranks.
        """
        slowest, total = loads.slowest(pipe.p), loads.total(pipe.p)
        others = np.maximum(np.asarray(pipe.p) - 1, 1)
        rest = [np.where(np.asarray(pipe.p) > 1, (t - s) / others, s) for t, s in zip(total, slowest, strict=True)]
        return np.asarray(pipe.m * (slowest[0] + slowest[1] + slowest[2]) + self.bubble_s(pipe, *rest))


def largest_sum(times: tuple[Any, ...], *sums: tuple[Any, ...]) -> Array:
    """The largest a F + b I + c W, of times (F, I, W), of the sums (a, b, c), and at least zero; arrays broadcast.

    A step is a longest path through operations in order, so its length is the largest of such sums; where F, I and W
    differ, different paths are the longest. Families found by simulation list theirs.
    """
    each = (sum(n * time for n, time in zip(one, times, strict=True)) for one in sums)
    return np.asarray(reduce(np.maximum, each, 0.0))
