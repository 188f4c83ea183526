"""Seconds of one kernel: a matrix product by its shape, a memory-bound pass by its bytes. Array-first.

Legend: products are (rows x depth) @ (depth x columns); every argument broadcasts to shape (n,).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, reduce
from statistics import NormalDist
from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints, record
from planner.hardware import Accelerator
from planner.layouts import Precision

NVFP4_BYTES = 0.5 + 1.0 / 16.0
"""An element of 4 bits and its part of a block's scale, 8 bits for 16 elements (NVIDIA 2025, arXiv 2509.25149)."""

# Smaller output tiles fill a GPU with small products, at less reuse of what is loaded: the sides of a tile
# relative to the largest one, and the rate relative to it (CUTLASS profiles; library kernels choose the best).
TILE_SHRINK = ((1.0, 1.0, 1.0), (0.5, 1.0, 0.93), (0.5, 0.5, 0.75), (0.25, 0.5, 0.55))


def slowest_of(n: Any) -> Array:
    """Standard deviations by which the slowest of n normal draws is expected to lie off their mean; 0 for one.

    Source: Blom 1958, Statistical Estimates and Transformed Beta Variables: the quantile (n - 3/8) / (n + 1/4).
    """
    numbers, inverse = np.unique(np.asarray(n, dtype=np.float64), return_inverse=True)
    quantile = np.array([NormalDist().inv_cdf((k - 0.375) / (k + 0.25)) for k in numbers])
    return quantile[inverse].reshape(np.shape(n))


@record
class Device:
    """One accelerator as the costs of a table of layouts see it.

    matrix_rate: achieved FLOP/s of a large product at each layout's precision, shape (n,).
    wide_rate: the same of products that stay in 16 bits where the layers' are in fp8 or nvfp4, shape (n,).
    attention_rate: peak FLOP/s of the 16-bit (or wider) type that attention runs in, shape (n,).
    scores_share: of that peak, what unfused attention's products reach. A profile's share is of 16 bits; wider types
    reach as many FLOP/s, up to what their own linear products do.
    element_bytes: bytes of an activation, shape (n,); matrix_bytes: bytes of a product's operand.
    """

    accelerator: Accelerator
    matrix_rate: Array
    wide_rate: Array
    attention_rate: Array
    scores_share: Array
    element_bytes: Array
    matrix_bytes: Array

    @staticmethod
    def of(accelerator: Accelerator, precision: Ints, gpus: Any = 1) -> Device:
        """The device at each layout's precision; NaN rates where the accelerator lacks it.

        Every step waits for the slowest of its `gpus`, so that one's matrix rate counts. A part with less power than
        the one that was measured clocks lower under load.
        """
        e = accelerator.efficiency
        pace = 1.0 / (1.0 + e.rate_spread * slowest_of(gpus))
        if e.unit_power_w and e.power_exponent:
            given = accelerator.power_w / accelerator.num_compute_units
            pace = pace * min(given / e.unit_power_w, 1.0) ** e.power_exponent
        peak = {p: accelerator.peak_flops.get(p.name.lower(), np.nan) for p in Precision}
        fraction = accelerator.efficiency.matrix_fraction
        rate = np.array([peak[p] * fraction.get(p.name.lower(), np.nan) for p in Precision])
        # Attention scores and logits stay in 16 bits when the linear layers are in fewer.
        wide = [min(p, Precision.BF16) for p in Precision]
        size = np.array([4.0, 4.0, 2.0, 2.0, 2.0, 2.0])
        operand = np.array([4.0, 4.0, 2.0, 2.0, 1.0, NVFP4_BYTES])
        of_peak, scores = np.array([peak[p] for p in wide]), e.attention_matrix_fraction
        most = np.array([fraction.get(p.name.lower(), np.nan) for p in wide])
        with np.errstate(invalid="ignore"):  # a toy's peaks may be infinite
            in_16_bits = scores * np.fmax(peak[Precision.FP16], peak[Precision.BF16]) / of_peak
        return Device(
            accelerator=accelerator,
            matrix_rate=rate[precision] * pace,
            wide_rate=rate[wide][precision] * pace,
            attention_rate=of_peak[precision] * pace,
            scores_share=np.fmax(scores, np.minimum(most, in_16_bits))[precision],
            element_bytes=size[precision],
            matrix_bytes=operand[precision],
        )

    @property
    def wide(self) -> Device:
        """This device for products that stay in 16 bits where the layers' products have fewer."""
        return replace(self, matrix_rate=self.wide_rate, matrix_bytes=self.element_bytes)

    @cached_property
    def memory_rate(self) -> float:
        """Achieved bytes/s of a streaming kernel."""
        return self.accelerator.memory_bandwidth_bytes_per_s * self.accelerator.efficiency.memory_fraction

    @property
    def latency_s(self) -> float:
        """Fixed GPU seconds of one kernel."""
        return self.accelerator.efficiency.kernel_latency_s


def aligned_share(device: Device, element_bytes: Any, *row_sizes: Any) -> Any:
    """Fraction of the peak rate that a product reaches, given how its operands' rows are aligned in memory; shape (n,).

    row_sizes: elements of a row of each operand. element_bytes: bytes of an element.

    A GPU loads 16 bytes at once where rows begin at multiples of 16; kernels for other rows load 4 or 2.
    Source: NVIDIA, "Matrix Multiplication Background" (alignment); shares measured: `benchmarks/aligned_products.py`.
    """
    share = device.accelerator.efficiency.aligned_fraction
    if not share:
        return 1.0
    sizes = [np.rint(np.asarray(size, dtype=np.float64)).astype(np.int64) for size in row_sizes]
    lowest = reduce(np.minimum, [size & -size for size in sizes])
    aligned = lowest * element_bytes
    below = np.where(aligned >= 4, share["bytes_4"], share["bytes_2"])
    return np.where(aligned >= 32, 1.0, np.where(aligned >= 16, share["bytes_16"], below))


def matmul_s(
    device: Device, rows: Any, columns: Any, depth: Any, aligned: Any = 1.0, together: Any = 1.0,
    *, out_bytes: Any = None, beside_bytes: Any = None,
) -> Array:  # fmt: skip
    """Seconds of a matrix product, or of `together` products in one kernel: tile and wave quantization, depth, bytes.

    An output of rows x columns is cut in tiles; tiles run in waves over the compute units. A partly filled last wave
    counts as if half of its idle units were busy; a single partly filled wave counts as full. The best of a few tile
    sizes counts, as libraries choose. A depth of K reaches K / (K + depth_half) of the rate, times `aligned`
    (`aligned_share`). No product is faster than its operands cross memory.

    out_bytes: moved per number of the output; None: it is written once. beside_bytes: those that compute hides in part,
    so that the root of the sum of both squares counts.
    Source: NVIDIA, "Matrix Multiplication Background" (tile and wave quantization); roofline, Williams 2009.
    """
    e = device.accelerator.efficiency
    units = device.accelerator.num_compute_units
    best = np.inf
    # One size at a time: all in one array take half as long again for a grid's thousands of rows.
    for shrink_rows, shrink_columns, relative_rate in TILE_SHRINK:
        tile_rows, tile_columns = e.tile_rows * shrink_rows, e.tile_columns * shrink_columns
        waves = together * (np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns)) / units
        whole = np.ceil(waves)
        waves = np.maximum(waves + 0.5 * (whole - waves), np.minimum(whole, 1.0))
        best = np.minimum(best, waves * (units * (tile_rows * tile_columns) / relative_rate))
    flop_s = 2.0 * best * (depth + e.depth_half) / (device.matrix_rate * aligned)
    written = device.element_bytes if out_bytes is None else out_bytes
    operands = (rows * depth + depth * columns) * device.matrix_bytes + rows * columns * written
    if beside_bytes is not None:
        flop_s = np.hypot(flop_s, beside_bytes / device.memory_rate)
    return np.asarray(np.maximum(flop_s, together * operands / device.memory_rate) + device.latency_s)


def group_s(
    device: Device, rows: Any, columns: Any, depth: Any, aligned: Any, together: Any, in_one_kernel: bool,
    out_bytes: Any = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Seconds of a rank's expert products, and the part of them in which the GPU waits for launches. Both shape (n,).

    In one kernel the GPU waits for no launch. On several streams the products share the compute units as in one kernel,
    but the host launches them one by one. A launch is the least that each product costs (`expert_product_s`; in 16 bits
    `wide_expert_product_s`): the host waited for the count of tokens that each expert gets, and is never far ahead.
    Source: Transformer Engine, nvte_multi_stream_cublas_gemm.

    out_bytes: what a weight's gradient moves per number; None: the product is of a weight. One by one each product
    begins with a weight, or a sum of gradients, that no other has touched. No figure was chosen for what that costs
    (measured groups: benchmarks/kernels.py).
    """
    several = np.asarray(together) > 1.0
    own = columns * depth * device.matrix_bytes if out_bytes is None else rows * columns * out_bytes
    beside = None if in_one_kernel else np.where(several, together * own, 0.0)
    group = matmul_s(device, rows, columns, depth, aligned, together, out_bytes=out_bytes, beside_bytes=beside)
    e = device.accelerator.efficiency
    least = np.where(device.matrix_bytes < 2.0, e.expert_product_s, e.wide_expert_product_s)
    one_by_one = 0.0 if in_one_kernel else least
    launches = np.where(several, together, 0.0) * one_by_one
    seconds = np.maximum(group, launches)
    return seconds, seconds - group


def stream_s(device: Device, size_bytes: Any, kernels: Any = 1.0) -> Array:
    """Seconds for memory-bound kernels that move `size_bytes` in all, in `kernels` launches."""
    return np.asarray(size_bytes / device.memory_rate + kernels * device.latency_s)
