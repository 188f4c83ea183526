"""The enumerations among a layout's choices: recomputation, kernels, number formats, optimizer, split of the layers."""

from enum import IntEnum
from typing import TypeVar

from planner.base.errors import UnknownNameError


class Number(IntEnum):
    """An enumeration whose members are numbers of a column (`planner.layouts` says how numpy compares them)."""


class Recompute(Number):
    """Activations recomputed in the backward pass: none, the attention core, or every layer from its input.

    FINE: what is cheap in mixtures and latent attention: norms, the experts' activation function and the products up
    from the latents (Megatron-Core's layernorm, moe_act and mla_up_proj; NVIDIA 2026, arXiv 2603.07685, 4.1.4).
    """

    NONE = 0
    SELECTIVE = 1
    FULL = 2
    FINE = 3


class Attention(Number):
    """The attention kernel; `fused` is a fused scale-mask-softmax that still keeps O(s^2) activations."""

    UNFUSED = 0
    FUSED = 1
    FLASH1 = 2
    FLASH2 = 3
    FLASH3 = 4


class Precision(Number):
    """Number format of the matrix products."""

    FP32 = 0
    TF32 = 1
    FP16 = 2
    BF16 = 3
    FP8 = 4
    NVFP4 = 5


class Split(Number):
    """How layers go to pipeline stages: an even count, or with embedding and head balanced by cost or by parameters.

    BALANCED: with virtual stages each of them is filled, but in a V, whose ranks share out what they are given.
    ENDS: embedding and head count as a layer each, so that first and last stage have one fewer (Megatron-LM's
    --account-for-embedding-in-pipeline-split and its like for the loss); with virtual stages too, and with multi-token
    prediction each of its modules one more (DeepSeek-V3's 61 layers as 1, 30 times 2 and none). LAST: the same count,
    rounded up, and on the last virtual stage what is left (DeepSeek-V3's 61 layers as 15 times 4 and 1). PRODUCTS: a
    stage takes layers until those up to it have more than its share of the layers' and the head's products (nanotron).
    """

    EVEN = 0
    BALANCED = 1
    PARAMETERS = 2
    ENDS = 3
    LAST = 4
    PRODUCTS = 5


class GradDtype(Number):
    """Number format of gradients: what the framework does unless told, or one of two."""

    FRAMEWORK = 0
    FP32 = 1
    BF16 = 2


class MainDtype(Number):
    """Number format of the weights that the optimizer updates in mixed precision.

    FP32: a copy beside 16-bit weights, or the parameters themselves. BF16: then gradients and moments are in bf16 too
    (torchtitan's training.dtype, DeepSpeed's bf16_master_weights_and_grads with bf16_optimizer_states).
    """

    FP32 = 0
    BF16 = 1


class Dispatcher(Number):
    """How tokens get to the ranks of their experts and back: as the framework does unless told, or one of four.

    PPMOE: not at all: tensor ranks, which have the same tokens, each have whole experts, pick the tokens of these and
    sum what comes of them (Chen et al. 2023, arXiv 2304.11414). ALLTOALL: a copy of a token to each of its experts.
    DEEPEP, HYBRIDEP: one to each rank, and between nodes one to each node, by Megatron-Core's flex dispatcher
    (DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.2).
    """

    FRAMEWORK = 0
    PPMOE = 1
    ALLTOALL = 2
    DEEPEP = 3
    HYBRIDEP = 4


class OptimizerKind(Number):
    """The optimizer: Adam by the format of its two moments, Muon, or SGD with momentum.

    ADAM_BF16: both in bf16 (Megatron-Core's precision-aware optimizer). ADAM_8BIT: both in blocks of 8 bits
    (bitsandbytes, torchao). MUON: momentum alone for the layers' matrices, Adam for all else (Jordan 2024).
    """

    ADAM = 0
    ADAM_BF16 = 1
    ADAM_8BIT = 2
    MUON = 3
    SGD = 4


E = TypeVar("E", bound=IntEnum)


def choice(kind: type[E], name: str, field: str = "") -> E:
    """The member of an enumeration by its lower-case name; a dash stands for an underscore.

    field: what the message calls it; empty for the enumeration's own name.

    Raises UnknownNameError if no member has that name.
    """
    try:
        return kind[name.upper().replace("-", "_")]
    except KeyError:
        raise UnknownNameError(field or kind.__name__.lower(), name, [m.name.lower() for m in kind]) from None


def names(kind: type[IntEnum]) -> list[str]:
    """The members' lower-case names, as users write them."""
    return [member.name.lower() for member in kind]
