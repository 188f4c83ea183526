"""Records of arrays: what is an array changes, what isn't stays."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.base import records


@dataclass(frozen=True)
class Inner:
    x: Any
    name: str = "inner"


@dataclass(frozen=True)
class Outer:
    inner: Inner
    pair: tuple[Any, ...]
    y: Any
    names: tuple[str, ...] = ("a", "b")


def outer(start: float) -> Outer:
    row = start + np.arange(3.0)
    return Outer(inner=Inner(x=row), pair=(row + 10, row + 20), y=np.array([start]))


def test_take_goes_through_inner_records_and_tuples():
    taken = records.take(outer(1.0), np.array([True, False, True]), 3)
    assert taken.inner.x.tolist() == [1.0, 3.0]
    assert taken.inner.name == "inner"
    assert [x.tolist() for x in taken.pair] == [[11.0, 13.0], [21.0, 23.0]]
    assert taken.y.tolist() == [1.0]  # broadcast: not of the length that was named
    assert taken.names == ("a", "b")


def test_concatenate_is_the_reverse_of_take():
    whole = records.concatenate([outer(1.0), outer(5.0)])
    assert whole.inner.x.tolist() == [1.0, 2.0, 3.0, 5.0, 6.0, 7.0]
    back = records.take(whole, slice(3, 6), 6)
    assert back.pair[1].tolist() == outer(5.0).pair[1].tolist()


def test_largest_picks_element_by_element_and_the_first_of_equals():
    a, b = Inner(x=np.array([1.0, 5.0, 2.0])), Inner(x=np.array([3.0, 4.0, 2.0]))
    names = records.largest([a, b], lambda record: record.x)
    assert names.x.tolist() == [3.0, 5.0, 2.0]


def test_a_record_without_arrays_is_itself():
    plain = Inner(x=3)
    assert records.mapped(plain, lambda x: x + 1) is plain


def test_parts_are_named_without_their_unit():
    @dataclass(frozen=True)
    class Sizes:
        weights_bytes: Any
        other_bytes: Any

    sizes = Sizes(weights_bytes=np.array([1.0, 4.0]), other_bytes=np.array([2.0, 6.0]))
    assert records.parts(sizes, 1, "_bytes", 2.0) == {"weights": 2.0, "other": 3.0}


def test_rows_taken_by_number_stay_innermost_in_memory():
    """Else what is computed from a grid's rows goes along its short axes (x[..., numbers] puts the last axis first)."""
    grid = (np.arange(24.0).reshape(2, 3, 4),)
    taken = records.take(grid, np.array([3, 0, 0, 2, 1]), 4)[0]
    assert taken.flags.c_contiguous
    np.testing.assert_array_equal(taken, grid[0][..., [3, 0, 0, 2, 1]])
