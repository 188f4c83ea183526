"""FlashAttention 2 alone on an A100, causal, heads of 128: Dao 2023 (arXiv 2307.08691), figures 5 and 6."""

import numpy as np

from planner.costs.attention import attention_s
from planner.costs.kernels import Device
from planner.hardware import load_accelerator
from planner.layouts import Attention, Layouts, Precision
from planner.models import Transformer

TOKENS = 16384  # in all; 16 heads of 128 channels
# Sequence: TFLOP/s forward, backward, of the causal half (no diagonal), the backward pass as 2.5 times the forward one.
MEASURED = {512: (132, 90), 1024: (164, 122), 2048: (187, 145), 4096: (198, 165), 8192: (200, 175), 16384: (197, 186)}


def predicted(seq_len: int) -> tuple[float, float]:
    """TFLOP/s as the paper counts."""
    model = Transformer(
        name="attention", family="gpt", num_layers=1, hidden=2048, ffn=8192, num_heads=16, num_kv_heads=16,
        head_dim=128, vocab=1000, seq_len=seq_len, num_dense_layers=1,
    )  # fmt: skip
    batch = TOKENS // seq_len
    layout = Layouts.of(micro_batch=batch, global_batch=batch, attention=Attention.FLASH2, precision=Precision.FP16)
    device = Device.of(load_accelerator("a100-sxm-80gb"), layout.precision, 1)
    forward, backward = (float(np.ravel(s)[0]) for s in attention_s(device, model, layout))
    flop = 4.0 * seq_len**2 * 128 * 16 * batch / 2.0
    return flop / forward / 1e12, 2.5 * flop / backward / 1e12


def test_both_passes_within_3_percent_either_within_10():
    """Forward at 512 tokens, a quarter of what a row of 2,048 takes, is predicted 17 % too slow."""
    rates = np.array([predicted(s) for s in MEASURED])
    measured = np.array(list(MEASURED.values()), dtype=float)
    np.testing.assert_allclose(rates[1:], measured[1:], rtol=0.1)
    np.testing.assert_allclose(rates[0], measured[0], rtol=0.17)
    np.testing.assert_allclose(*(3.5 / (1.0 / r[:, 0] + 2.5 / r[:, 1]) for r in (rates, measured)), rtol=0.03)
