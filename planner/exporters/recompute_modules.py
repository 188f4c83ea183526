"""What of recomputation Megatron-Core names: modules (--recompute-modules), and methods (--recompute-method)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.models import Transformer

FINE = ("layernorm", "moe_act", "mla_up_proj")  # what "fine" repeats, where a model has it


def modules(mode: str, model: Transformer) -> list[str]:
    """Those of a mode, none for none and full."""
    if mode == "selective":
        return ["core_attn"]
    has = {"moe_act": model.num_experts > 0, "mla_up_proj": model.kv_lora_rank > 0}
    return [name for name in FINE if has.get(name, True)] if mode == "fine" else []


def recompute_method(row: Mapping[str, Any]) -> tuple[str, int]:
    """The method and number of layers of full recomputation: block, the first ones of each virtual stage; or uniform, a
    layer at a time."""
    layers = row["recompute_layers"]
    return ("block", layers) if layers else ("uniform", 1)
