"""What frameworks do that planner's formulas leave out, each with its reason and its size from the configuration.

Sizes are of one layer on one rank, in the unit of the figure that they belong to: what theirs has more than ours.
"""

from __future__ import annotations

from typing import Any

import ours

E = 2.0
"""Bytes of an activation: bf16."""


def as_asked(framework: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The configuration as planner is asked for it: transformers' norms are its own, operation by operation.

    DeepSpeed reduces gradients in their own 16 bits, others' records in fp32.
    """
    own = {"fused_norm": False} if framework in ("transformers", "deepspeed") else {}
    return asked | own | ({"grad_reduce_dtype": "bf16"} if framework == "deepspeed" else {})


def named(framework: str, asked: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By figure: reason and size of what a framework's figure has beyond planner's."""
    return {"torchtitan": _torchtitan, "megatron-core": _megatron}.get(framework, lambda _: {})(asked)


def _torchtitan(asked: dict[str, Any]) -> dict[str, dict[str, float]]:
    model, tokens = ours.one_layer_model(asked), _tokens(asked)
    kept: dict[str, float] = {}
    if asked.get("tp", 1) > 1:
        # DTensor's slice of the table is a copy, which no checkpoint drops: a fp32 complex number for two channels, or
        # Qwen's cosine and sine for each.
        kept["a copy of the rotary table (DTensor)"] = (
            asked["seq_len"] * model.head_dim * (8.0 if model.qk_norm else 4.0)
        )
    if asked.get("recompute", "none") == "none":
        if model.kv_lora_rank:
            width = model.head_dim - model.qk_rope_head_dim
            kept["keys copied out of the product that makes keys and values"] = tokens * model.num_heads * width * E
            kept["latents before their norm, and the rotary key"] = (
                tokens * (model.kv_lora_rank + model.qk_rope_head_dim) * E
            )
        if model.num_experts:
            # argsort, its quotient and remainder, the chosen experts: whole numbers of 64 bits a copy; weights.
            kept["routing: indices and weights"] = tokens * (model.top_k * (4 * 8 + 2 * E) + model.num_experts * E)
        if model.clamped:
            copies = tokens * model.top_k
            kept["the sigmoid of the clamped gate, kept apart"] = copies * model.moe_ffn * E
    return {"kept bytes": kept}


def _megatron(asked: dict[str, Any]) -> dict[str, dict[str, float]]:
    model, tokens, t = ours.one_layer_model(asked), _tokens(asked), asked.get("tp", 1)
    found: dict[str, dict[str, float]] = {"kept bytes": {}, "backward tensor bytes": {}}
    kept = found["kept bytes"]
    if t > 1 and asked.get("sequence_parallel", True):
        again = 2.0 * tokens * model.hidden * E * (t - 1) / t
        found["backward tensor bytes"]["inputs gathered again, beside the weight gradients' products"] = again
    if model.num_experts and (ep := asked.get("ep", 1)) > 1:
        probabilities = tokens * model.top_k * E * (ep - 1) / ep
        times = 2.0 if asked.get("recompute") == "full" else 1.0
        found["forward expert bytes"] = {"the router's probabilities, sent with the tokens": probabilities}
        found["backward expert bytes"] = {"the router's probabilities, sent with the tokens": times * probabilities}
    if model.num_experts:
        kept["the map of tokens to experts, and their probabilities"] = tokens * model.num_experts * (E + 1.0)
        kept["the order of tokens by expert"] = tokens * model.top_k * 8.0
    if asked.get("recompute") == "full":
        return found
    kept["cosines and sines, cast for queries and for keys"] = 4.0 * asked["seq_len"] * model.head_dim * E
    heads, kv = model.num_heads / t, model.num_kv_heads / t
    if asked.get("attention") == "unfused" and asked.get("recompute", "none") == "none":
        kept["keys and values repeated for each query's head"] = 2.0 * (heads - kv) * model.head_dim * tokens * E
        kept["one mask for all heads, not a byte a score"] = -heads * tokens * asked["seq_len"]
    else:
        # Values are a view of the product that makes all three.
        kept["queries and keys as made, beside the turned ones"] = (heads + kv) * model.head_dim * tokens * E
    return found


def _tokens(asked: dict[str, Any]) -> float:
    return float(asked.get("micro_batch", 1) * asked["seq_len"] / asked.get("cp", 1))
