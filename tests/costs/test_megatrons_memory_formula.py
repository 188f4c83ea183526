"""Weights, gradients and optimizer states against Megatron-LM's own formula.

megatron/training/theoretical_memory_usage.py, compute_weight_and_optimizer_memory (github.com/NVIDIA/Megatron-LM),
told in our words: the fullest rank has a tensor rank's share of a pipeline stage's even part of the layers, the
embedding, and without a pipeline the head too. A parameter takes 18 bytes, or 6 + 12 / dp with the distributed
optimizer. The formula has no expert parallelism and no further ZeRO. Its gradients are always fp32; with bf16 ones
(arguments.py) a parameter takes two bytes less.
"""

import pytest

from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, GradDtype, Layouts
from planner.models import load_model
from planner.setup import Setup
from planner.step.estimate import estimate

# Layers, hidden, MLP, heads, groups, channels of a head, vocabulary; gated and untied unless told otherwise.
SHAPES = {
    "llama3-8b": (32, 4096, 14336, 32, 8, 128, 128256),
    "llama3-70b": (80, 8192, 28672, 64, 8, 128, 128256),
    "llama3-405b": (126, 16384, 53248, 128, 8, 128, 128256),
    "llama2-7b": (32, 4096, 11008, 32, 32, 128, 32000),
}


def megatrons_bytes(model: str, *, dp: int, tp: int, pp: int, zero: int, bf16_gradients: bool) -> float:
    """The formula, for gated models with RMSNorm and an untied head."""
    layers, hidden, ffn, heads, groups, channels, vocab = SHAPES[model]
    attention = 2 * hidden * channels * (heads + groups)  # queries and output, keys and values
    block = layers * (attention + 3 * hidden * ffn + 2 * hidden) + hidden
    table = hidden * -(-vocab // (128 * tp)) * 128 * tp  # padded as Megatron-LM pads it
    held = (block / pp + table * (1 if pp > 1 else 2)) / tp
    each = (6 + 12 / dp if zero else 18) - 2 * bf16_gradients
    return held * each


@pytest.mark.parametrize(
    ("model", "dp", "tp", "pp", "zero", "bf16"),
    [
        ("llama3-8b", 64, 1, 1, 1, False), ("llama3-8b", 64, 1, 1, 1, True), ("llama3-8b", 8, 2, 1, 0, False),
        ("llama3-8b", 4, 2, 4, 0, True), ("llama3-70b", 8, 8, 4, 1, False), ("llama3-70b", 8, 8, 4, 1, True),
        ("llama3-70b", 4, 4, 8, 0, False), ("llama3-405b", 8, 8, 14, 1, False), ("llama3-405b", 32, 8, 9, 1, True),
        ("llama2-7b", 16, 4, 2, 1, False), ("llama2-7b", 2, 8, 1, 0, True), ("llama2-7b", 8, 1, 1, 1, True),
    ],
)  # fmt: skip
def test_states_are_within_one_per_cent_of_megatrons_own_formula(model, dp, tp, pp, zero, bf16):
    cluster = load_cluster("dgx-h100")
    layouts = Layouts.of(
        dp=dp, tp=tp, pp=pp, zero=zero, global_batch=dp * 16, attention=Attention.FLASH3, sequence_parallel=tp > 1,
        grad_dtype=GradDtype.BF16 if bf16 else GradDtype.FRAMEWORK,
    )  # fmt: skip
    memory = estimate(Setup(load_model(model), cluster, load_framework("megatron-core")), layouts).memory
    states = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    expected = megatrons_bytes(model, dp=dp, tp=tp, pp=pp, zero=zero, bf16_gradients=bf16)
    assert float(states[0]) == pytest.approx(expected, rel=0.01)
