"""What an import makes of a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from planner.hardware import Framework
from planner.layouts import Layouts
from planner.setup import Setup

FP32_BYTES = 4.0


@dataclass(frozen=True, kw_only=True, eq=False)
class ExistingRun:
    """A run that exists, as planner sees it.

    question: the model, the cluster, and the framework's profile with what the run has turned off.
    layouts: a table of one. profile: the framework with everything on. switches: what would turn on each thing that is
    off, by the fields of the profile. notes: what was assumed, or can't be seen by the model. unknown: arguments that
    were not understood. ignored: how many were understood to change neither time nor memory.
    """

    title: str
    setup: Setup
    layouts: Layouts
    profile: Setup
    switches: dict[str, tuple[str, ...]]
    notes: tuple[str, ...]
    unknown: tuple[str, ...]
    ignored: int


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
