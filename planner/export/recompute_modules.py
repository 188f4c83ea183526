"""The modules of Megatron-Core that recomputation alone names: --recompute-modules, model.recompute_modules."""

from __future__ import annotations

from planner.models import Transformer

FINE = ("layernorm", "moe_act", "mla_up_proj")  # what "fine" repeats, where a model has it


def modules(mode: str, model: Transformer) -> list[str]:
    """Those of a mode, none for none and full."""
    if mode == "selective":
        return ["core_attn"]
    has = {"moe_act": model.num_experts > 0, "mla_up_proj": model.kv_lora_rank > 0}
    return [name for name in FINE if has.get(name, True)] if mode == "fine" else []
