"""Grids of a search: whatever their size, each legal layout stands once, under its own number."""

import numpy as np
import pytest

from planner.costs.deduplicate import Distinct
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision
from planner.models import load_model
from planner.search import grids
from planner.search.request import Fixed, Request
from planner.search.scan import _parts, wide_grids
from planner.search.space import space
from planner.setup import Setup

CLUSTER = load_cluster("dgx-a100-80gb")
SETUP = Setup(load_model("gpt2"), CLUSTER, load_framework(CLUSTER.framework))


def asked(**fixed):
    return Request(gpus=8, global_batch=16, precision=Precision.BF16, attention=Attention.FLASH2, fixed=Fixed(**fixed))


def every(grids):
    """Each legal layout's number and its columns."""
    rows = []
    for grid in grids:
        choice, row = np.nonzero(grid.legal.reshape(-1, grid.legal.shape[-1]))
        numbers = grid.numbers(choice, row)
        table = grid.layouts.at((*np.unravel_index(choice, grid.legal.shape[:-1]), row))
        rows += [(int(n), *map(str, table.row(i).values())) for i, n in enumerate(numbers)]
    return rows


@pytest.mark.parametrize("fixed", [{"tp": (1, 2)}, {"pp": (4, 8)}])
def test_the_chunk_changes_nothing_but_the_grids(fixed):
    whole = every(space(SETUP.model, CLUSTER, asked(**fixed)))
    assert len(whole) > 500
    assert len({number for number, *_ in whole}) == len(whole)
    assert len({tuple(columns) for _, *columns in whole}) == len(whole)
    for chunk in (64, 512, 4096):
        some = every(space(SETUP.model, CLUSTER, asked(**fixed), chunk))
        assert sorted(some) == sorted(whole)


def test_no_grid_is_larger_than_its_chunk(monkeypatch):
    """A chunk is what is worth the memory; rows that are left over are less than one, and joined only where few."""
    whole = list(space(SETUP.model, CLUSTER, asked()))
    monkeypatch.setattr(grids, "A_GRID", -1)
    for chunk in (512, 4096):
        parts = list(space(SETUP.model, CLUSTER, asked(), chunk))
        assert max(grid.legal.size for grid in parts) <= chunk
        assert len(parts) > len(whole)
        assert sum(np.count_nonzero(grid.legal) for grid in parts) == sum(np.count_nonzero(g.legal) for g in whole)


def test_parts_of_a_grid_are_all_of_it_once():
    whole = every(space(SETUP.model, CLUSTER, asked()))
    parts = list(_parts(SETUP, 32, wide_grids(SETUP, asked(), 32)))
    assert len(parts) > 20
    assert sorted(every(grid for grid, _ in parts)) == sorted(whole)


def test_some_rows_of_layouts_that_are_all_distinct_are_theirs():
    layouts = Layouts.of(tp=[1, 2, 4], dp=1, global_batch=8)
    own = Distinct(layouts=layouts, index=None)
    some = own.take([2, 0])
    assert own.spread(layouts).tp.tolist() == [1, 2, 4]
    assert some.spread(layouts).tp.tolist() == [4, 1]
    assert some.take([1]).spread(layouts).tp.tolist() == [1]
