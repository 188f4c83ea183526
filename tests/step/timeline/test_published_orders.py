"""What papers measured of schedules against each other, on the exact timeline of their models and clusters.

Only orders and fits are asserted here; how far the absolute throughput is off is printed by benchmarks.
"""

from itertools import product

import pytest

from planner.base.units import GIB
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Layouts, Recompute, Split
from planner.models import Transformer
from planner.setup import Setup
from planner.step.timeline.step import StepSimulation, simulate


def gpt(layers: int, hidden: int, heads: int, seq_len: int, vocab: int) -> Transformer:
    return Transformer(
        name=f"gpt-{layers}x{hidden}", family="gpt", num_layers=layers, hidden=hidden, ffn=4 * hidden, num_heads=heads,
        num_kv_heads=heads, head_dim=hidden // heads, vocab=vocab, seq_len=seq_len, max_positions=seq_len, tied=True,
        qkv_bias=True, output_bias=True, mlp_bias=True, num_dense_layers=layers,
    )  # fmt: skip


def run(cluster_name: str, model: Transformer, schedule: str, **choices) -> StepSimulation:
    cluster = load_cluster(cluster_name)
    layouts = Layouts.of(schedule=schedule, zero=0, **choices)
    return simulate(Setup(model, cluster, load_framework(cluster.framework)), layouts)


def test_seq1f1b_fits_30b_at_64k_tokens_without_recomputation_and_1f1b_does_not():
    """Sun et al. 2024 (arXiv 2406.03488), memory figure: 30B, 64 A100-80GB, tp 8, pp 8, k = 4: 67.5 GB, 1F1B none."""
    model = gpt(64, 6144, 64, 65536, 32768)
    common = {"tp": 8, "pp": 8, "global_batch": 16, "sequence_parallel": True}
    peak = {
        name: run("dgx-a100-80gb", model, name, sequence_slices=k, **common).peak_bytes.max() / GIB
        for name, k in (("1f1b", 1), ("seq1f1b", 4))
    }
    assert peak["seq1f1b"] < 80.0 < peak["1f1b"]


@pytest.mark.parametrize("tokens", [32768, 65536, 131072])
@pytest.mark.parametrize("micro_batches", [8, 16])
def test_seq1f1b_is_faster_than_1f1b_at_every_published_length(tokens, micro_batches):
    """Sun et al. 2024, 7B on 32 A100, tp 8, pp 4, k = 4; at 131,072 tokens 1F1B runs out of memory."""
    model = gpt(32, 4096, 32, tokens, 32768)
    common = {"tp": 8, "pp": 4, "global_batch": micro_batches, "sequence_parallel": True}
    plain = run("dgx-a100-80gb", model, "1f1b", **common)
    sliced = run("dgx-a100-80gb", model, "seq1f1b", sequence_slices=4, **common)
    assert sliced.step_time_s < plain.step_time_s
    assert (plain.peak_bytes.max() > 80 * GIB) == (tokens == 131072)
    assert sliced.peak_bytes.max() < 80 * GIB


# Qi et al. 2023 (arXiv 2401.10241), Table 4: layers, hidden, heads, ranks, micro-batch, micro-batches.
ZERO_BUBBLE = [
    (22, 2304, 24, 8, 6, (24, 32, 64)),
    (30, 4096, 32, 8, 3, (24, 32, 64)),
    (46, 5120, 40, 16, 1, (48, 64, 128)),
    (62, 6144, 48, 32, 1, (96, 128, 256)),
]


@pytest.mark.parametrize(("layers", "hidden", "heads", "ranks", "micro", "counts"), ZERO_BUBBLE)
def test_zero_bubble_orders(layers, hidden, heads, ranks, micro, counts):
    """Table 4: ZB-2p above ZB-1p above 1F1B at every size, and ZB-2p above 1F1B-I; ours: H2, H1.

    The first and last stage have a layer less there, which virtual stages can't have: 1F1B-I takes two layers more.
    """
    model = gpt(layers, hidden, heads, 1024, 50304)
    even = gpt(layers + 2, hidden, heads, 1024, 50304)
    for m in counts:
        common = {"pp": ranks, "micro_batch": micro, "global_batch": micro * m}
        rate = {
            name: 1.0 / run("dgx-a100-80gb", model, name, layer_split=Split.BALANCED, **common).step_time_s
            for name in ("1f1b", "zb-h1", "zb-h2")
        }
        chunks = (layers + 2) // ranks
        interleaved = run("dgx-a100-80gb", even, "interleaved", virtual_stages=chunks, **common)
        assert rate["1f1b"] < rate["zb-h1"] < rate["zb-h2"]
        # The same work a layer, so that two layers more don't decide it.
        assert rate["zb-h2"] * layers > (layers + 2) / interleaved.step_time_s


@pytest.mark.parametrize("batch", [64, 256])
def test_2bw_orders(batch):
    """Narayanan et al. 2021 (arXiv 2006.09503), Figure 6a: GPT-2.2B on 8 V100-16GB, depth 8.

    2BW above Flush above GPipe above plain model parallelism, each at its best micro-batch, with recomputation or
    without, that fits. Figure 7: 2BW needs more memory than Flush, for its second version of the weights.
    """
    model = gpt(32, 2304, 32, 512, 50304)
    rate, fixed = {}, {}
    for name in ("gpipe", "1f1b", "2bw"):
        for micro, mode in product((1, 2, 4, 8, 16), (Recompute.NONE, Recompute.FULL)):
            if name == "2bw" and batch // micro < 8:
                continue
            common = {"pp": 8, "micro_batch": micro, "recompute": mode, "attention": Attention.FUSED, "precision": 2}
            step = run("dgx-1-v100", model, name, global_batch=batch, **common)
            fixed[name, micro, mode] = step.peak_bytes.max()
            if step.peak_bytes.max() < 16 * GIB:
                rate[name] = max(rate.get(name, 0.0), batch / step.step_time_s)
                alone = run("dgx-1-v100", model, "gpipe", **common, global_batch=micro)
                rate["model parallel"] = max(rate.get("model parallel", 0.0), micro / alone.step_time_s)
    assert rate["2bw"] > rate["1f1b"] > rate["gpipe"] > rate["model parallel"]
    assert fixed["1f1b", 2, Recompute.FULL] < fixed["2bw", 2, Recompute.FULL]
    common = {"pp": 8, "micro_batch": 2, "recompute": Recompute.FULL, "attention": Attention.FUSED, "precision": 2}
    stashing = run("dgx-1-v100", model, "pipedream", global_batch=batch, **common)
    assert fixed["2bw", 2, Recompute.FULL] < stashing.peak_bytes.max()
