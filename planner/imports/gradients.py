"""Gradients' number formats as a run's configuration states them."""

from __future__ import annotations

from planner.hardware import Framework

FP32_BYTES = 4.0


def stated_gradients(f: Framework, precision: str, kept: str, sent: str) -> dict[str, str]:
    """The choices of a layout for gradients kept and sent in fp32 or bf16; none where the framework does the same.

    kept, sent: "fp32" or "bf16", which in fp16 training stands for its 16 bits.
    """
    if precision in ("bf16", "fp8"):
        sizes = (f.bf16_gradient_bytes, f.bf16_grad_reduce_bytes)
    elif precision == "fp16":
        sizes = (f.gradient_bytes, f.grad_reduce_bytes)
    else:
        return {}
    own = tuple("fp32" if size >= FP32_BYTES else "bf16" for size in sizes)
    if own == (kept, sent) or (precision == "fp16" and "bf16" in (kept, sent)):
        return {}
    return {"grad_dtype": kept} | ({"grad_reduce_dtype": sent} if sent != kept else {})
