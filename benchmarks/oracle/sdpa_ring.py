"""What PyTorch's ring of attention copies and adds up beside its kernels, traced on fake tensors.

    python benchmarks/oracle/sdpa_ring.py

Runs `_templated_ring_attention` and its backward (torch.distributed.tensor.experimental) on every rank of 2, 4 and 8
fake ones and prints, for each pass and on average over ranks, bytes that operations other than attention's kernels and
collectives read and write and how many there are, per element of a rank's queries. Needs torch 2.13.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HEADS, TOKENS, CHANNELS = 8, 4096, 128
# Collectives, and what moves nothing or a channel's part alone.
NOT_COUNTED = ("c10d", "device", "view", "slice", "split", "transpose", "unsqueeze", "squeeze", "alias", "sigmoid")


class Moved(TorchDispatchMode):
    """Bytes read and written by copies and sums, and how many of these there are."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.kernels = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not any(name in str(func) for name in NOT_COUNTED) and "empty" not in str(func):
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
            self.bytes += sum(t.numel() * t.element_size() for t in tensors)
            self.kernels += 1
        return out


def like(x: torch.Tensor) -> torch.Tensor:
    """A result as flash kernels lay it out: tokens before heads."""
    b, heads, tokens, channels = x.shape
    return torch.empty(b, tokens, heads, channels, dtype=x.dtype).transpose(1, 2)


def forward_kernel(q: Any, k: Any, v: Any, **choices: Any) -> Any:
    """Stands for attention's forward kernel."""
    return like(q), torch.empty(q.shape[:3])


def backward_kernel(*, query: Any, key: Any, value: Any, **others: Any) -> Any:
    """Stands for attention's backward kernel."""
    return like(query), like(key), like(value)


def of_rank(size: int, rank: int) -> list[tuple[float, int]]:
    """Bytes an element and operations of the forward and of the backward pass."""
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    found = []
    with FakeTensorMode():
        q, k, v, out, grad = (like(torch.empty(1, HEADS, TOKENS, CHANNELS, dtype=torch.bfloat16)) for _ in range(5))
        sums = torch.empty(1, HEADS, TOKENS)
        with Moved() as forward:
            ring._templated_ring_attention(dist.group.WORLD, 2, forward_kernel, q, k, v, is_causal=True)
        with Moved() as backward:
            ring._templated_ring_attention_backward(
                dist.group.WORLD, 2, backward_kernel, grad, "grad_out", q, k, v, out, sums, is_causal=True
            )
        found = [(x.bytes / math.prod(q.shape), x.kernels) for x in (forward, backward)]
    dist.destroy_process_group()
    return found


def main() -> None:
    """Print a line for each number of ranks."""
    print(f"{'ranks':>5s} {'forward bytes':>14s} {'kernels':>8s} {'backward bytes':>15s} {'kernels':>8s}")
    for size in (2, 4, 8):
        ranks = [of_rank(size, rank) for rank in range(size)]
        means = [sum(rank[p][i] for rank in ranks) / size for p in range(2) for i in range(2)]
        print(f"{size:5d} {means[0]:14.1f} {means[1]:8.1f} {means[2]:15.1f} {means[3]:8.1f}")


if __name__ == "__main__":
    main()
