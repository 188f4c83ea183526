"""Against networkx, which nobody here wrote: a timeline's end is the longest path of the graph of its operations."""

from __future__ import annotations

from itertools import product

import networkx as nx
import numpy as np
import pytest

from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.schedules.operations import KINDS, Order
from planner.step.timeline.timeline import durations, run

TRANSFER_S = 0.3


def pipes(name: str) -> list[Pipeline]:
    """Small pipelines that a schedule's rules allow."""
    schedule = SCHEDULES[name]
    found = []
    for p, m, v, k in ((2, 4, 1, 1), (4, 8, 1, 1), (2, 4, 2, 1), (4, 8, 2, 1), (2, 4, 1, 2), (4, 9, 1, 3)):
        pipe = Pipeline(p=p, m=m, v=v, k=k)
        if not any(np.any(rule.broken) for rule in schedule.rules(pipe)):
            found.append(pipe)
    return found


def graph(order: Order, seconds: np.ndarray) -> nx.DiGraph:
    """An edge from every operation to each that comes after it on its rank or takes what it gives, written anew from
    the pipeline's data flow; its length is the first one's seconds, and the transfer's between ranks."""
    drawn = nx.DiGraph()
    key = [(KINDS[o.kind], o.stage, o.micro_batch, o.slice) for o in _rows(order)]
    at, rank = {k: i for i, k in enumerate(key)}, [o.rank for o in _rows(order)]
    last = max(stage for _, stage, _, _ in key)
    drawn.add_nodes_from([*range(len(key)), "end"])

    def edge(before: tuple[str, int, int, int], after: int) -> None:
        for kind in (before[0], "I") if before[0] == "B" else (before[0],):
            i = at.get((kind, *before[1:]))
            if i is not None:
                between = TRANSFER_S if rank[i] != rank[after] and key[i][1] != key[after][1] else 0.0
                drawn.add_edge(i, after, weight=seconds[i] + between)

    for i, (kind, s, mb, j) in enumerate(key):
        if i and rank[i - 1] == rank[i]:
            drawn.add_edge(i - 1, i, weight=seconds[i - 1])
        if kind == "F" and s:
            edge(("F", s - 1, mb, j), i)
        if kind in "BI":
            edge(("F", s, mb, j), i)
            if s < last:
                edge(("B", s + 1, mb, j), i)
            edge(("B", s, mb, j + 1), i)
        if kind == "F":
            edge(("F", s, mb, j - 1), i)
        if kind == "W":
            edge(("I", s, mb, j), i)
        # Of a head in parts on all ranks, one of each kind a rank: all ranks' before, and the last stage's output.
        if kind in "SU":
            edge(("F", last, mb, j), i)
        ahead = {"T": "S", "V": "U"}.get(kind, "TU" if kind in "BI" and s == last else "")
        for part, stage in product(ahead, range(max(rank) + 1)):
            edge((part, stage, mb, j), i)
        drawn.add_edge(i, "end", weight=seconds[i])
    return drawn


def _rows(order: Order) -> list[np.record]:
    ranks = np.repeat(np.arange(order.ranks), np.diff(order.start))
    columns = (order.kind, order.stage, order.micro_batch, order.slice, ranks)
    return list(np.rec.fromarrays(columns, names="kind,stage,micro_batch,slice,rank"))


@pytest.mark.parametrize("name", [n for n, s in SCHEDULES.items() if s.synchronous and n != "layered"])
def test_a_timeline_ends_with_the_longest_path(name: str) -> None:
    checked = 0
    for number, pipe in enumerate(pipes(name)):
        order = SCHEDULES[name].order(pipe)
        if order.fused.any():  # two passes as one: no graph of single operations
            continue
        drawn = np.random.default_rng(number)
        stages = int(order.stage.max()) + 1
        passes = [drawn.uniform(0.5, 2.0, stages) for _ in range(3)]
        seconds = durations(order, *passes, drawn.uniform(0.5, 2.0, 4))
        want = nx.dag_longest_path_length(graph(order, seconds))
        assert run(order, seconds, TRANSFER_S).end_s.max() == pytest.approx(want, rel=1e-12)
        checked += 1
    if not checked:
        pytest.skip("every order of it weaves passes together, or none is so small")
