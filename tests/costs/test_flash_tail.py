"""The last blocks of a causal flash kernel leave compute units idle: about a wave, whatever the heads and tokens."""

import heapq
from dataclasses import replace

import numpy as np
import pytest

from planner.costs.kernels.attention import FLASH_BLOCK, attention_s, flash_blocks, idle_share
from planner.layouts import Attention
from tests.costs.toy import LLAMA, accelerator, case, device, layout

UNITS = 108


def idle_waves(heads: int, rows: int, slices: int = 1) -> float:
    """Waves lost by dealing blocks, head after head, each to the unit that is free first."""
    took = work = 0.0
    for slice_ in range(slices):
        free = [0.0] * UNITS
        for _ in range(heads):
            for row in range(rows):
                length = slice_ * rows + row + 1
                heapq.heappush(free, heapq.heappop(free) + length)
                work += length / UNITS
        took += max(free)
    return heads * rows / UNITS * (took / work - 1.0)


SIZES = [(4, 64), (4, 128), (4, 256), (40, 16), (20, 16), (24, 16), (32, 32), (16, 128), (512, 4)]


@pytest.mark.parametrize(("heads", "rows"), SIZES)
def test_blocks_dealt_in_order_lose_about_a_wave(heads, rows):
    assert 1.0 < idle_waves(heads, rows) < 1.3


@pytest.mark.parametrize("slices", [2, 4])
def test_blocks_of_slices_lose_less(slices):
    """On average over the sizes within a sixth of a wave of what is taken."""
    lost = np.mean([idle_waves(heads, rows, slices) for heads, rows in SIZES])
    assert lost == pytest.approx((1 + 1 / slices) / 2, abs=1 / 6)


def test_a_pass_takes_so_many_waves_more():
    """Two heads of a block each for three sequences, on the toy's one compute unit: six waves, and one more."""
    chosen = layout(attention=Attention.FLASH2)
    assert LLAMA.seq_len <= FLASH_BLOCK
    assert float(flash_blocks(case(model=LLAMA, layouts=chosen))[0]) == 3 * 2
    seconds = []
    for tail in ({}, {"flash2": 1.0}):
        of = device(accelerator(flops=1.0, flash_tail_waves=tail), chosen)
        seconds.append(np.array([float(np.ravel(s)[0]) for s in attention_s(case(of, LLAMA, chosen))]))
    np.testing.assert_allclose(seconds[1], seconds[0] * (1 + 1 / 6))
    halves = layout(attention=Attention.FLASH2, tp=2)
    assert float(flash_blocks(case(model=LLAMA, layouts=halves))[0]) == 3
    long, slices = replace(LLAMA, seq_len=1024), layout(sequence_slices=4)
    assert float(np.ravel(flash_blocks(case(model=long, layouts=slices)))[0]) == 3 * 2 * 2
    share = idle_share(case(accelerator(), long, slices), 1.0)
    assert float(np.ravel(share)[0]) == pytest.approx((1 + 1 / 4) / 2 / 12)
