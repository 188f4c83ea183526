"""FLOP and parameters beside what two other tools answered for the same shapes; nobody here wrote their formulas.

Calculon (github.com/calculon-ai/calculon at caa4b11): FLOP of all Linear and BatchMatMul layers of one block for one
sequence, tensor parallelism 1, of its own models. llm-analysis (github.com/cli99/llm-analysis at d841e40): FLOP of one
layer and of the model, parameters of a layer's attention and MLP without biases and norms. Both were run on
2026-11-25; the numbers are theirs.
"""

import pytest

from planner.models import from_shape
from planner.models.counts import attention_params, mlp_params
from planner.models.flops import forward_flops

CALCULON = {  # hidden, MLP, heads: FLOP of a block's products at 2,048 tokens
    (12288, 49152, 96): 7_627_861_917_696,
    (6144, 24576, 64): 1_958_505_086_976,
    (20480, 81920, 128): 20_959_440_404_480,
    (25600, 102400, 160): 32_641_751_449_600,
}
LLM_ANALYSIS = {  # family, layers, hidden, MLP, heads, groups, words, tokens: a layer, the model, attention, MLP
    ("llama", 80, 8192, 28672, 64, 8, 32000, 4096): (7559142440960, 606878878924800, 150994944, 704643072),
    ("llama", 32, 4096, 14336, 32, 8, 128256, 8192): (4672924418048, 158140695838720, 41943040, 176160768),
    ("gpt", 96, 12288, 49152, 96, 96, 51200, 2048): (7627861917696, 734851724476416, 603979776, 1207959552),
}


@pytest.mark.parametrize("shape", CALCULON, ids=lambda shape: str(shape[0]))
def test_a_blocks_products_are_calculons(shape: tuple[int, int, int]) -> None:
    hidden, ffn, heads = shape
    m = from_shape(
        family="gpt", layers=1, hidden=hidden, ffn=ffn, heads=heads, kv_heads=heads, vocab=1000, seq_len=2048
    )
    flop = sum(value for name, value in forward_flops(m).items() if name != "head")
    assert float(flop) == pytest.approx(CALCULON[shape], rel=1e-12)


@pytest.mark.parametrize("shape", LLM_ANALYSIS, ids=lambda shape: f"{shape[0]}-{shape[2]}")
def test_flop_and_parameters_are_llm_analysis_s(shape: tuple[str, int, int, int, int, int, int, int]) -> None:
    family, layers, hidden, ffn, heads, groups, vocab, tokens = shape
    m = from_shape(
        family=family, layers=layers, hidden=hidden, ffn=ffn, heads=heads, kv_heads=groups, vocab=vocab, seq_len=tokens
    )
    layer, model, attention, mlp = LLM_ANALYSIS[shape]
    flop = {name: float(value) for name, value in forward_flops(m).items()}
    assert sum(flop.values()) == pytest.approx(model, rel=1e-12)
    assert sum(value for name, value in flop.items() if name != "head") == pytest.approx(layers * layer, rel=1e-12)
    if family == "llama":  # GPT's have biases, which theirs leaves out
        assert float(attention_params(m)) == attention
        assert float(mlp_params(m)) == mlp
