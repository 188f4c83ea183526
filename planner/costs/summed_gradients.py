"""The number format in which a rank's gradients add up over micro-batches. Array-first, shape (n,)."""

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.case import Case
from planner.layouts import GradDtype, Layouts, Precision


def from_bf16(layouts: Layouts, others: float, bf16: Any) -> Array:
    """A figure of fp16 and wider formats, or that of bf16 and fewer bits, by each layout's precision."""
    return np.asarray(np.where(layouts.precision >= Precision.BF16, bf16, others))


def as_stated(dtype: Any, own: Any, fp32: float = 4.0, bf16: float = 2.0) -> Array:
    """The framework's own bytes; at least `fp32` or at most `bf16` where the user states that number format."""
    stated = np.where(dtype == GradDtype.FP32, np.maximum(own, fp32), np.minimum(own, bf16))
    return np.asarray(np.where(dtype == GradDtype.FRAMEWORK, own, stated))


def summed_in(layouts: Layouts) -> Any:
    """The number format that gradients add up in: the weights' own where these are in bf16, else as the user states."""
    return np.where(layouts.all_in_bf16, GradDtype.BF16, layouts.grad_dtype)


def summed_bytes(case: Case) -> Array:
    """Bytes of the number in which gradients add up in mixed precision, shape (n,)."""
    own = from_bf16(case.layouts, case.framework.gradient_bytes, case.framework.bf16_gradient_bytes)
    return as_stated(summed_in(case.layouts), own)


def product_bytes(case: Case) -> Array:
    """Bytes that the product of a weight's gradient moves per number: written, or read, added to and written back.

    Where no pass of its own adds a gradient to the sum, the product does (Megatron-LM, gradient accumulation fusion).
    """
    f, layouts = case.framework, case.layouts
    apart = from_bf16(layouts, f.accumulate_bytes, f.bf16_accumulate_bytes) > 0
    summed = np.where(layouts.precision <= Precision.TF32, 4.0, summed_bytes(case))
    return np.asarray(np.where(apart, case.device.element_bytes, 2.0 * summed))
