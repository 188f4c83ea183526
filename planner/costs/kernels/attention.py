"""Seconds of the attention core (scores, softmax, values) by kernel. Array-first, shape (n,).

Flash kernels compute causal attention, half of the score matrix plus the diagonal blocks (Dao et al. 2022,
arXiv 2205.14135; Dao 2023, arXiv 2307.08691), and of sliding windows the band; the others compute all of it and move it
through memory, each product at the slower of its arithmetic and its scores' traffic.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.case import Case
from planner.costs.kernels.device import aligned_share, stream_s
from planner.costs.shapes import fuses_softmax, has_dropout
from planner.hardware import Efficiency
from planner.layouts import Attention
from planner.models import Transformer, mix

FLASH_BLOCK = 128  # rows of a flash attention block: the diagonal blocks are computed whole
# Bytes per score element that kernels move between the products, forward and backward, in 16 bits. Megatron-LM's fused
# causal softmax reads the kept half of each row and writes the whole; its backward reads halves of two.
FUSED_BYTES = (3.0, 4.0)
# Of whole rows (`masked_softmax`); the mask, one for all heads, stays in the cache. Every forward pass makes it anew,
# of a query and a key: difference in 32 bits 4, less and plus the window 16, two comparisons 10, logic 7
# (Transformer Engine's get_full_mask).
MASKED_BYTES, MASK_BYTES, MASK_KERNELS = (4.0, 6.0), 37.0, 9.0
UNFUSED_BYTES = (29.0, 33.0)  # scale 4, mask 5, cast to fp32 6, softmax 8, cast back 6; backward 6, 12, 6, 5, 4
DROPOUT_BYTES = (5.0, 5.0)
PRODUCT_BYTES = 2.0  # the scores that a product writes or reads


def score_elements(case: Case) -> Array:
    """Elements of the score matrices b a s^2 / (t c) of one micro-batch on one rank, shape (n,)."""
    model, layouts = case.model, case.layouts
    scores = layouts.micro_batch * model.num_heads / layouts.tp * model.seq_len * (model.seq_len / layouts.cp)
    return np.asarray(scores)


def row_loads_s(case: Case, scores: Any, operands: float, share: Any) -> Any:
    """Seconds in which a fused softmax that reads so many operands waits for memory, of so many scores; shape (n,).

    share: of each row, what is read. 32 threads hold a row in registers, in fp32, and load four of its numbers each at
    a time; the next load waits for the last, for a branch lies between (Transformer Engine's scaled_masked_softmax,
    compiled for sm_90 and sm_100: 47 to 53, 86 to 91, 163 to 168 and 255 registers forward for 1,024 to 8,192 keys).
    So the more registers a row takes, the fewer rows a compute unit has under way.
    """
    keys, units = np.asarray(case.model.seq_len), case.device.accelerator.num_compute_units
    registers = np.minimum(operands * keys / 32.0 + 32.0, 255.0)  # of a thread, the most that it can have
    warps = 4.0 * np.floor(65536.0 / 128.0 / registers)  # a unit's registers, in blocks of 128 threads
    loads = scores / keys * np.ceil(keys / 128.0) * share
    return loads * case.device.accelerator.efficiency.memory_latency_s / (units * warps)


def key_block(e: Efficiency, seq_len: Any) -> Any:
    """Keys of a flash kernel's block: those that a profile says, of a sequence at most; else `FLASH_BLOCK`, padded."""
    return FLASH_BLOCK if e.flash_keys is None else np.minimum(e.flash_keys, seq_len)


def computed_share(model: Transformer, half_tokens: Any, block: Any = FLASH_BLOCK) -> Any:
    """Share of the score matrix that flash kernels compute, in the average layer with attention, as time at full rate.

    The causal half, or the band of a sliding window, and half a block at each of their edges; rows of few keys, those
    of a window's second edge among them, are slower (`flash_half_tokens`). Of a bidirectional model all of it, or all
    within a window, in whole blocks.
    """
    s = np.asarray(model.seq_len)
    within = np.where(np.asarray(model.window) > 0, np.minimum(model.window, s), s)

    def of(keys: Any, edges: Any) -> Any:
        band = keys / s * (1.0 - keys / (2.0 * s)) + 0.5 * edges * block / s
        band = np.where(model.bidirectional, np.maximum(keys, block) / s, band)
        return band * (1.0 + half_tokens / (keys + (edges - 1.0) * block))

    whole = of(s, 1.0)
    return whole + mix.window_share(model) * (np.minimum(of(within, np.where(within < s, 2.0, 1.0)), whole) - whole)


def flash_blocks(case: Case) -> Any:
    """Blocks of rows that a flash kernel deals to compute units: of all heads and sequences of a pass."""
    layouts = case.layouts
    ring = layouts.cp / layouts.ulysses
    rows = np.ceil(np.asarray(case.model.seq_len) / (ring * layouts.sequence_slices * FLASH_BLOCK))
    return layouts.micro_batch * np.asarray(case.model.num_heads) / (layouts.tp * layouts.ulysses) * rows


def idle_share(case: Case, tail: Any) -> Any:
    """Time that the end of a flash kernel adds, over its time with all compute units busy.

    The last causal blocks are the longest ones of the last heads, `tail` waves (`flash_tail_waves`) until all are done;
    of slices of a sequence the later ones have blocks of about one length, which lose half as much.
    """
    slices = case.layouts.sequence_slices
    waves = flash_blocks(case) / case.device.accelerator.num_compute_units
    return tail * (1.0 + 1.0 / slices) / 2.0 / waves


def attention_s(case: Case, *, fp8: bool = False) -> tuple[Array, Array]:
    """Forward and backward seconds of the attention core for one pass of a layer: slices on average, one by one.

    fp8: it runs in fp8 where products do. Its backward pass computes a sliding window's rows whole then: in cuDNN 9.19
    to 9.26 it takes as much longer on longer sequences as without one (NVIDIA/cudnn-frontend, benchmark/
    attention_training, results of gpt_oss on GB200).
    """
    device, model = case.device, case.model
    e = device.accelerator.efficiency
    kernel = case.layouts.attention
    flash = kernel >= Attention.FLASH1
    names = [k.name.lower() for k in Attention]
    scores = score_elements(case) / case.layouts.sequence_slices
    heads = (model.head_dim, model.value_channels)
    flop = 2.0 * scores * (heads[0] + heads[1])
    flop_blocks = 2.0 * scores * sum(e.flash_head_step * np.ceil(np.asarray(d) / e.flash_head_step) for d in heads)
    forward_rate = np.array([e.flash_forward.get(n, np.nan) for n in names])[kernel]
    backward_rate = np.array([e.flash_backward.get(n, np.nan) for n in names])[kernel]
    # The backward kernel recomputes the scores: five products to the forward pass's two.
    half_tokens = np.array([e.flash_half_tokens.get(n, 0.0) for n in names])[kernel]
    tail = np.array([e.flash_tail_waves.get(n, 0.0) for n in names])[kernel]
    block = key_block(e, model.seq_len)
    share = share_back = computed_share(model, half_tokens, block)
    if fp8 and np.any(model.window):
        whole = computed_share(replace(model, window=0, num_window_layers=0), half_tokens, block)
        share_back = np.where(device.matrix_bytes < device.element_bytes, whole, share)
    occupied = 1.0 + idle_share(case, tail)
    flop_flash, flop_back = (flop_blocks * computed * occupied for computed in (share, share_back))
    flash_forward = flop_flash / (forward_rate * device.attention_rate) + device.latency_s
    flash_backward = 2.5 * flop_back / (backward_rate * device.attention_rate) + 3 * device.latency_s

    forward = np.where(flash, flash_forward, in_memory_s(case, scores, flop, backward=False))
    backward = np.where(flash, flash_backward, in_memory_s(case, scores, flop, backward=True))
    return forward, backward


def in_memory_s(case: Case, scores: Any, flop: Any, *, backward: bool) -> Array:
    """Seconds of one pass of attention that moves so many scores through memory, of so many FLOP forward."""
    device, model = case.device, case.model
    pass_, products, kernels = (1, 4.0, 7.0) if backward else (0, 2.0, 4.0)
    size = scores * device.element_bytes / 2.0
    fused, masked = fuses_softmax(model, case.layouts), case.framework.masked_softmax
    softmax_s = size * np.where(fused, (MASKED_BYTES if masked else FUSED_BYTES)[pass_], UNFUSED_BYTES[pass_])
    softmax_s = softmax_s / device.memory_rate
    if np.any(fused):
        softmax_s = np.maximum(softmax_s, fused * row_loads_s(case, scores, pass_ + 1.0, 1.0 if masked else 0.5))
        if masked and not backward:
            pairs = scores / (case.layouts.micro_batch * model.num_heads / case.layouts.tp)
            softmax_s = softmax_s + fused * stream_s(device, pairs * MASK_BYTES, MASK_KERNELS)
    dropped_s = size * has_dropout(model, case.layouts) * DROPOUT_BYTES[pass_] / device.memory_rate
    # Every product computes with d of a head and crosses the scores once: whichever takes longer.
    along = aligned_share(device, device.element_bytes, model.head_dim, model.value_channels)
    compute_s = flop / 2.0 / (device.scores_share * device.attention_rate * along)
    product_s = products * np.maximum(compute_s, size * PRODUCT_BYTES / device.memory_rate)
    launches = kernels + np.where(fused, 0.0, 4.0)
    return np.asarray(product_s + softmax_s + dropped_s + launches * device.latency_s)
