"""Which choices a framework can run, and which a measured run of it is taken to have made."""

from dataclasses import dataclass
from typing import Literal


def of_allocator(memory: str) -> bool:
    """Whether a peak so named (`Unstated.memory`) is of PyTorch's allocator, without context and communicators."""
    return "alloc" in memory


@dataclass(frozen=True, kw_only=True)
class Unstated:
    """Choices that a framework's measured run is taken to have made where it doesn't say.

    attention: the kernel; amd_attention: that on AMD's GPUs, empty: the same. sequence_parallel: whether tensor ranks
    share what lies between products. zero: ZeRO stages without pipeline stages, of which the first that fits counts.
    recompute: what is recomputed where the framework recomputes unless told, empty: what fits. fused_norm: whether
    norms are one kernel. cuda_graphs: GPU architectures on which its own recipes replay layers as CUDA graphs. memory:
    whose peak its log prints: a whole device's, what PyTorch's allocator holds on the fullest or the first rank,
    or what tensors have of it at one time (allocated).
    states: bf16 where weights, gradients and moments are in bf16 alone, in mixed precision.
    reduction, tensor: whether gradients (below ZeRO 3) and tensor ranks' collectives travel beside compute. loss: the
    framework whose cross-entropy runs, empty: its own. routing: whether experts are met evenly, as benchmarks force it,
    or as the model's own router has it.
    """

    attention: Literal["unfused", "fused", "flash1", "flash2", "flash3"] = "flash3"
    amd_attention: Literal["", "flash1", "flash2", "flash3"] = ""
    sequence_parallel: bool = True
    zero: tuple[Literal[0, 1, 2, 3], ...] = (1,)
    recompute: Literal["", "none", "selective", "full"] = ""
    states: Literal["fp32", "bf16"] = "fp32"
    fused_norm: bool = True
    cuda_graphs: tuple[str, ...] = ()
    memory: Literal["device", "allocator", "allocated", "first-rank", "first-rank-allocator"] = "allocator"
    reduction: Literal["hidden", "exposed"] = "hidden"
    tensor: Literal["hidden", "exposed"] = "hidden"
    loss: str = ""
    routing: Literal["even", "own"] = "even"


@dataclass(frozen=True, kw_only=True)
class Runs:
    """A layout's choices that a framework can run; nothing stated, or an empty list: all of them.

    schedule: the pipeline schedules that it has. pp, cp: numbers of pipeline stages and of context ranks. zero: what
    its plain data parallelism shards. sequence_parallel: whether tensor ranks share what lies between products.
    """

    schedule: tuple[str, ...] = ()
    pp: tuple[int, ...] = ()
    cp: tuple[int, ...] = ()
    zero: tuple[int, ...] = ()
    sequence_parallel: tuple[bool, ...] = ()
