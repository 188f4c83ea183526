"""What an answer names beside its best, on four layouts whose seconds and bytes are given."""

from types import SimpleNamespace

import numpy as np
import pytest

from planner.layouts import Attention, Precision
from planner.question import load_setup, one_layout
from planner.search import Fixed, recommend
from planner.search.found import Recommendation, largest_part
from planner.search.ranking import NEAR, _distinct, _ranked
from planner.search.scan import estimate_all
from planner.step.estimate import estimate
from tests.search.every_layout import enumerate_layouts


def found(step, memory, fits, front, best, fastest=0):
    table = SimpleNamespace(
        step_time_s=np.array(step, dtype=float), memory_bytes=np.array(memory, dtype=float), fits=np.array(fits)
    )
    return Recommendation(
        request=None, estimate=table, legal=9, fitting=4, best=np.array(best), fastest=fastest, front=np.array(front),
        ties=0,
    )  # fmt: skip


#             fastest, 4 % slower, 8 % slower; over memory: 1 % faster, 3 % faster with 95, 30 % faster with 99
STEP = [100, 104, 108, 99, 97, 70]
MEMORY = [80, 70, 60, 90, 95, 99]
FITS = [True, True, True, False, False, False]


def test_layouts_that_may_be_the_one_to_run():
    some = found(STEP, MEMORY, FITS, front=[0, 1, 2], best=[2])
    assert some.nearly_fastest.tolist() == [0, 1, 2]  # 0 and 1 by the front, 2 because it is listed
    assert found(STEP, MEMORY, FITS, front=[0, 1, 2], best=[0]).nearly_fastest.tolist() == [0, 1]
    assert found(STEP, MEMORY, FITS, front=[0, 1], best=[1], fastest=None).nearly_fastest.tolist() == [1]


def test_layouts_over_memory():
    some = found(STEP, MEMORY, FITS, front=[0, 1, 2], best=[0])
    assert some.nearest_miss == 3
    assert some.faster_over_memory == 4  # 1 % is not worth it, and 99 is more than 95
    assert found(STEP, MEMORY, [True] * 6, front=[0], best=[0]).nearest_miss is None
    assert found(STEP, MEMORY, [True] * 6, front=[0], best=[0]).faster_over_memory is None
    assert found(STEP, MEMORY, FITS, front=[0], best=[0], fastest=None).faster_over_memory is None


def test_the_roomiest_and_all_that_is_named():
    some = found(STEP, MEMORY, FITS, front=[0, 1, 2], best=[0])
    assert some.roomiest == 1
    assert found(STEP, [80, 73, *MEMORY[2:]], FITS, front=[0, 1, 2], best=[0]).roomiest is None  # not a tenth less
    assert some.named.tolist() == [0, 1, 2, 3, 4]
    assert found(STEP, MEMORY, FITS, front=np.array([], dtype=int), best=[], fastest=None).roomiest is None


def test_equal_layouts_are_listed_once_and_ties_in_time_by_memory():
    step, memory, fits = [3, 2, 2, 2, 1], [5, 7, 6, 6, 9], [True, True, True, True, False]
    table = found(step, memory, fits, front=[], best=[]).estimate
    assert _ranked(table, "time").tolist() == [2, 1, 0]
    assert _ranked(table, "memory").tolist() == [0, 2, 1]
    assert _distinct(np.array([], dtype=int), table.step_time_s, table.memory_bytes).tolist() == []


@pytest.mark.parametrize(("objective", "sizes"), [("time", {"gpus": 4}), ("memory", {"gpus": 8})])
def test_ties_are_those_within_a_percent_by_the_objective(objective, sizes):
    """Layouts that take as long and need as much as another (a choice that changes nothing) count once."""
    setup = load_setup("gpt2", "dgx-a100-80gb")
    asked = sizes | {"global_batch": 16, "precision": Precision.BF16, "attention": Attention.FLASH2}
    fixed = Fixed(pp=(1,), recompute=(0,))
    some = recommend(setup, objective=objective, fixed=fixed, **asked)
    every = estimate_all(setup, enumerate_layouts(setup.model, setup.cluster, fixed=fixed, **asked))
    values = every.memory_bytes if objective == "memory" else every.step_time_s
    near = every.fits & (values <= (1.0 + NEAR) * values[every.fits].min())
    apart = set(zip(every.step_time_s[near].tolist(), every.memory_bytes[near].tolist(), strict=True))
    assert 4 < len(apart) < len(values)
    assert some.ties == len(apart) - 1
    assert (some.legal, some.fitting) == (len(values), every.fits.sum())


def test_the_largest_part_besides_products():
    setup = load_setup("gpt2", "dgx-a100-80gb")
    one = estimate(setup, one_layout(setup.cluster, dp=2, global_batch=8))
    name, share = largest_part(one, 0)
    parts = {k.removesuffix("_s"): float(v[0]) for k, v in vars(one.time).items() if k.endswith("_s")}
    parts.pop("matmul")
    assert name == max(parts, key=parts.get)
    assert share == pytest.approx(parts[name] / float(one.step_time_s[0]))
