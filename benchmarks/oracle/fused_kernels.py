"""A causal attention of fake tensors that keeps what flash attention keeps: its inputs, output, and a sum a row.

PyTorch's own on a CPU wants keys as wide as values, and its flex attention a compiler; CUDA's kernels need neither.
"""

from __future__ import annotations

from typing import Any

import torch


@torch.library.custom_op("oracle::attention", mutates_args=())
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and sums of queries, keys and values of (batch, length, heads, width)."""
    raise NotImplementedError("fake tensors alone")


@attention.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    batch, length, heads, _ = q.shape
    sums = q.new_empty((batch, heads, length), dtype=torch.float32)
    return q.new_empty((batch, length, heads, v.shape[-1])), sums


@torch.library.custom_op("oracle::attention_backward", mutates_args=())
def attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of queries, keys and values."""
    raise NotImplementedError("fake tensors alone")


@attention_backward.register_fake
def _(grad: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
    q, k, v, _, _ = ctx.saved_tensors
    return attention_backward(grad, q, k, v)


attention.register_autograd(_backward, setup_context=_keep)


class FusedNorm(torch.autograd.Function):
    """A norm that keeps what ATen's kernel for CUDA keeps: input, weight, and the root of each row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Shapes alone: the values are fake."""
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of the input and the weight."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def fused_norm(x: torch.Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> torch.Tensor:
    """`torch.nn.functional.rms_norm`, by FusedNorm; on DTensors by their own parts."""
    from torch.distributed.tensor import DTensor

    if not isinstance(x, DTensor):
        return FusedNorm.apply(x, weight)
    local = weight.to_local(grad_placements=weight.placements) if isinstance(weight, DTensor) else weight
    out = FusedNorm.apply(x.to_local(), local)
    return DTensor.from_local(out, x.device_mesh, x.placements, run_check=False)
