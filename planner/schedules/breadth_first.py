"""Breadth-first loops: all micro-batches through a chunk before the next one.

Breadth-first pipeline (Lamy-Poirier 2022, arXiv 2211.05953); layered gradient accumulation and modular pipeline
(Lamy-Poirier 2021, arXiv 2106.02679), which are the same order with one layer a chunk: layered on one rank, modular
on several with layer l on rank l mod p. A chunk's parameters are gathered once a pass and its gradients reduced once a
step, whatever the number of micro-batches, and the reduction of a chunk overlaps the backward of the next.

rank 0  0F0 0F1 2F0 2F1  .   .  2B0 2B1 0B0 0B1
rank 1   .  1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1  .
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.schedules.base import Pipeline, Schedule
from planner.schedules.one_f_one_b_rows import one_in_one_out, units


class BreadthFirst(Schedule):
    """Chunk by chunk all m forwards, then from the last chunk all m backwards."""

    name = "breadth-first"
    source = "Lamy-Poirier 2022, arXiv 2211.05953; order read in PyTorch's ScheduleLoopedBFS, which reverses backwards"
    chunks = None
    several_ranks = True
    layer_at_a_time = True

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """Rank r: chunk by chunk, micro-batches in order; backwards from the last chunk, micro-batches in order."""
        index = np.arange(pipe.m * pipe.v)
        chunk, i = index // pipe.m, index % pipe.m
        forward = units(chunk * pipe.p + r, "F", i)
        backward = units((pipe.v - 1 - chunk) * pipe.p + r, "B", i)
        return one_in_one_out(forward, backward, len(index))

    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """(p - 1)(F + B)/v; with fewer than p micro-batches per rank also waits p - m chunk passes between chunks."""
        p, m, v = pipe.p, pipe.m, pipe.v
        return np.asarray((p - 1 + (v - 1) * np.maximum(p - m, 0)) * (F + I + W) / v)


class Modular(BreadthFirst):
    """Modular pipeline: breadth-first with one layer a chunk, layer l on rank l mod p."""

    name = "modular"
    source = "Lamy-Poirier 2021, arXiv 2106.02679, sections 3 and 4; order recalled, closed form simulated"
    one_layer_chunks = True


class Layered(BreadthFirst):
    """Layered gradient accumulation without a pipeline: every micro-batch through a layer before the next layer."""

    name = "layered"
    source = "Lamy-Poirier 2021, arXiv 2106.02679, section 3; order recalled, closed form simulated"
    several_ranks = False
    one_layer_chunks = True

    def own_rules(self, pipe: Pipeline) -> list[tuple[str, Any]]:
        """One rank: with more it is the modular pipeline."""
        return [("has one pipeline rank; with more it is modular", pipe.p != 1)]
