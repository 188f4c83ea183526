"""The models that torchtitan registers, by their sizes, and its name for each: module, recipe, flavor.

Sizes read in torchtitan 0.3.0: `__init__.py` and `config_registry.py` of models/llama3, qwen3 and deepseek_v3.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.base.errors import LayoutError
from planner.models import Transformer


@dataclass(frozen=True)
class Registered:
    """torchtitan's module of models, the function of its `config_registry`, and the flavor that TOML files name."""

    module: str
    recipe: str
    flavor: str


# layers, hidden, heads, key-value heads, feed-forward (of an expert where there are any), vocabulary.
_BY_SIZES = {
    (32, 4096, 32, 8, 14336, 128256): Registered("llama3", "llama3_8b", "8B"),
    (80, 8192, 64, 8, 28672, 128256): Registered("llama3", "llama3_70b", "70B"),
    (126, 16384, 128, 8, 53248, 128256): Registered("llama3", "llama3_405b", "405B"),
    (28, 1024, 16, 8, 3072, 151936): Registered("qwen3", "qwen3_0_6b", "0.6B"),
    (28, 2048, 16, 8, 6144, 151936): Registered("qwen3", "qwen3_1_7b", "1.7B"),
    (40, 5120, 40, 8, 17408, 151936): Registered("qwen3", "qwen3_14b", "14B"),
    (64, 5120, 64, 8, 25600, 151936): Registered("qwen3", "qwen3_32b", "32B"),
    (48, 2048, 32, 4, 768, 151936): Registered("qwen3", "qwen3_30b_a3b", "30B-A3B"),
    (27, 2048, 16, 16, 1408, 102400): Registered("deepseek_v3", "deepseek_v3_16b", "16B"),
    (61, 7168, 128, 128, 2048, 129280): Registered("deepseek_v3", "deepseek_v3_671b", "671B"),
}


def registered(model: Transformer, remedy: str = "") -> Registered:
    """What torchtitan calls a model of these sizes. Raises LayoutError, with the remedy, if it registers none."""
    m = model
    sizes = (m.num_layers, m.hidden, m.num_heads, m.num_kv_heads, m.moe_ffn if m.num_experts else m.ffn, m.vocab)
    if sizes not in _BY_SIZES:
        has = f"torchtitan registers no model of the sizes of {m.name} (of its llama3, qwen3, deepseek_v3)"
        raise LayoutError(has + remedy)
    return _BY_SIZES[sizes]
