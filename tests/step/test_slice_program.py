"""Unequal slices of a sequence: TeraPipe's program against brute force, seconds that add up, cuts on the timeline."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from planner import Cluster, Model, simulate
from planner.base.errors import InputError
from planner.costs.layer.slices import causal_pairs
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts
from planner.models import load_model, with_seq_len
from planner.setup import Setup
from planner.step.slice_program import cut, program, slice_seconds, times
from planner.step.step_costs import step_costs

LONG = Setup(with_seq_len(load_model("gpt3-6.7b"), 32768), load_cluster("dgx-a100-80gb"), load_framework("megatron-lm"))


def layout(**choices) -> Layouts:
    default = {"tp": 8, "pp": 4, "global_batch": 16, "sequence_parallel": True, "sequence_slices": 4}
    return Layouts.of(**default | {"schedule": "terapipe"} | choices)


def compositions(units: int) -> list[list[int]]:
    """All ways to cut so many units into slices."""
    out = []
    for ends in product((False, True), repeat=units - 1):
        edges = [0, *(i + 1 for i, end in enumerate(ends) if end), units]
        out.append(np.diff(edges).tolist())
    return out


def cost(seconds: np.ndarray, slices: list[int], m: int, p: int) -> float:
    ends = np.cumsum(slices)
    each = [seconds[n - 1, end - n] for n, end in zip(slices, ends, strict=True)]
    return m * sum(each) + (p - 1) * max(each)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("count", [None, 1, 3, 7, 8])
def test_the_program_is_brute_force(seed, count):
    rng = np.random.default_rng(seed)
    units, m, p = 8, int(rng.integers(1, 6)), int(rng.integers(1, 12))
    length, before = np.arange(1, units + 1)[:, None], np.arange(units)
    seconds = rng.uniform(0, 2) + rng.uniform(0.1, 1) * length + rng.uniform(0, 0.5) * length * before
    seconds = seconds * rng.uniform(0.7, 1.3, seconds.shape)  # the program needs no order in them
    every = [x for x in compositions(units) if count in (None, len(x))]
    best = min(cost(seconds, x, m, p) for x in every)
    found = program(seconds, m, p, count)
    assert cost(seconds, found, m, p) == pytest.approx(best, rel=1e-12)
    assert sum(found) == units
    assert count in (None, len(found))


def test_a_long_pipeline_wants_short_slices_and_one_stage_none():
    length, before = np.arange(1, 33)[:, None], np.arange(32)
    seconds = 3.0 + length + 0.05 * length * (before + length / 2)
    numbers = [len(program(seconds, 1, p)) for p in (1, 2, 8, 64)]
    assert numbers[0] == 1
    assert numbers == sorted(numbers)
    assert numbers[-1] > 8
    # Later slices attend to more tokens: they are shorter.
    cuts = program(seconds, 1, 64)
    assert cuts[0] > cuts[-2]


def test_more_slices_than_units_are_refused():
    with pytest.raises(InputError, match="sequence_slices is 5; allowed: 1 to 3"):
        program(np.ones((3, 3)), 1, 2, 5)


def test_a_whole_sequence_takes_what_a_stage_takes():
    x = layout(sequence_slices=1, schedule="1f1b")
    costs = step_costs(LONG, x)
    whole = 8 * costs.layer.total_s + 2.0 * costs.send_s
    assert times(LONG, x, [32768]) == pytest.approx(whole)
    # Attention to all tokens before is the same work however the sequence is cut.
    alone, pair = slice_seconds(LONG, x, [8192] * 4)
    more = times(LONG, x, [8192] * 4).sum() - alone.sum()
    assert more == pytest.approx(pair * (causal_pairs(LONG.model, 32768) - 4 * causal_pairs(LONG.model, 8192)))


def test_equal_work_takes_about_equal_time_and_equal_tokens_do_not():
    x = layout(schedule="seq1f1b")
    assert cut(LONG, x, "auto") == cut(LONG, x, "work") == [11040, 8416, 7080, 6232]
    work, even = (times(LONG, x, cut(LONG, x, said)) for said in ("work", "even"))
    assert work.max() / work.min() < 1.1
    assert even.max() / even.min() > 1.4


def test_terapipes_program_is_the_fastest_cut_on_the_timeline():
    question = {
        "model": Model("gpt3-6.7b", seq_len=32768), "cluster": Cluster("dgx-a100-80gb"), "batch": 16, "tp": 8, "pp": 4,
        "sequence_parallel": True, "sequence_slices": 4, "schedule": "terapipe", "framework": "megatron-lm",
    }  # fmt: skip
    auto, work, even = (simulate(**question, slices=said) for said in ("auto", "work", "even"))
    assert auto.step_time_s < work.step_time_s < even.step_time_s
    assert sum(auto.slices) == 32768
    assert all(n % 8 == 0 for n in auto.slices)
    assert auto.to_dict()["slices"] == list(auto.slices)
    # Long slices hold more: all forwards run first, so that all ranks hold whole sequences in any case.
    assert auto.step.peak_bytes.max() == pytest.approx(even.step.peak_bytes.max(), rel=0.02)


@pytest.mark.parametrize(
    "said", ["11040,8416,7080", "16384,16384,0,0", "8190,8194,8192,8192", "thirds", "1,2,3,x", "9" * 5000]
)
def test_what_is_no_cut_is_refused(said):
    with pytest.raises(InputError, match=r"slices is .*; allowed: work, even, auto, or the tokens of 4 slices"):
        cut(LONG, layout(), said)
