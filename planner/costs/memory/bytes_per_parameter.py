"""Bytes of a parameter, and of its gradient as a framework keeps it and as it sends it, by precision. Array-first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.costs.case import Case
from planner.costs.memory.parameters import RankParameters
from planner.layouts import Layouts, Precision

Array = NDArray[np.float64]


def _from_bf16(layouts: Layouts, others: float, bf16: float) -> Array:
    return np.asarray(np.where(layouts.precision >= Precision.BF16, bf16, others))


def parameter_bytes(layouts: Layouts) -> Array:
    """Of the parameter that products take and ranks gather: 16 bits in mixed precision."""
    return np.asarray(np.where(layouts.precision <= Precision.TF32, 4.0, 2.0))


def layer_parameter_bytes(case: Case) -> Array:
    """The same of a layer's parameter, which a framework may keep in fp8; embedding and head stay in 16 bits.

    Without ZeRO no rank has another copy of it to update, and it stays in 16 bits (Megatron-LM, arguments.py:
    fp8-param-gather needs the distributed optimizer).
    """
    return np.asarray(
        np.where(_kept_in_fp8(case.layouts), case.framework.fp8_parameter_bytes, parameter_bytes(case.layouts))
    )


def fp8_copy_bytes(case: Case) -> Array:
    """Of a layer's parameter in what products keep in fp8 beside it: its transpose, and its value unless that is it."""
    value = case.framework.fp8_parameter_bytes if case.framework.fp8_parameter_bytes < 2.0 else 0.0
    beside = case.framework.fp8_copy_bytes + np.where(_kept_in_fp8(case.layouts), 0.0, value)
    return np.asarray(np.where(case.layouts.precision == Precision.FP8, beside, 0.0))


def _kept_in_fp8(layouts: Layouts) -> Array:
    return np.asarray((layouts.precision == Precision.FP8) & (layouts.zero > 0))


def kept_bytes(own: RankParameters, case: Case) -> RankParameters:
    """Of a rank's parameters in all, before ZeRO's sharding: of its layers, experts and ends."""
    of_layer = layer_parameter_bytes(case)
    return RankParameters(
        layers=own.layers * of_layer, experts=own.experts * of_layer, ends=own.ends * parameter_bytes(case.layouts)
    )


def gradient_bytes(case: Case) -> Array:
    """Of the gradient that micro-batches add up in, mixed precision: bf16 and fp8 may add up in fp32."""
    return _from_bf16(case.layouts, case.framework.gradient_bytes, case.framework.bf16_gradient_bytes)


def reduced_bytes(case: Case) -> Any:
    """Of the gradient that data-parallel ranks sum."""
    mixed = _from_bf16(case.layouts, case.framework.grad_reduce_bytes, case.framework.bf16_grad_reduce_bytes)
    return np.where(case.layouts.precision <= Precision.TF32, 4.0, mixed)


def moment_bytes(layouts: Layouts) -> Any:
    """Of the optimizer's fp32 parameter and Adam's two moments; without mixed precision the parameter is not twice."""
    return np.where(layouts.precision <= Precision.TF32, 8.0, 12.0)


def accumulated_bytes(case: Case) -> Array:
    """That a parameter's gradient moves through memory when one micro-batch's is added to those before it.

    A sharded gradient (ZeRO-2 and 3) is a replica's part. The first micro-batch of a step has nothing to add to.
    """
    layouts = case.layouts
    moved = _from_bf16(layouts, case.framework.accumulate_bytes, case.framework.bf16_accumulate_bytes)
    shards = np.where(layouts.zero >= 2, layouts.shards, 1)
    return np.asarray(moved / shards * (1.0 - 1.0 / layouts.micro_batches))
