"""Precision and attention kernel: what an accelerator can run, and what is chosen where nothing is asked."""

from __future__ import annotations

from planner.hardware import Cluster
from planner.layouts import Attention, Precision, choice


def default_precision(cluster: Cluster) -> Precision:
    """bf16 where the accelerator has it, else fp16, else fp32."""
    for p in (Precision.BF16, Precision.FP16):
        if p.name.lower() in cluster.accelerator.peak_flops:
            return p
    return Precision.FP32


def attention_kernels(cluster: Cluster) -> tuple[Attention, ...]:
    """The kernels that the accelerator's architecture runs, oldest first."""
    return tuple(sorted(choice(Attention, name) for name in cluster.accelerator.efficiency.attention_kernels))


def default_attention(cluster: Cluster) -> Attention:
    """flash3 where the accelerator runs it, and faster than flash2; else flash2; the fused softmax before Turing."""
    kernels = attention_kernels(cluster)
    rate = cluster.accelerator.efficiency.flash_forward
    if Attention.FLASH3 in kernels and rate.get("flash3", 0.0) > rate.get("flash2", 0.0):
        return Attention.FLASH3
    return min(kernels[-1], Attention.FLASH2)
