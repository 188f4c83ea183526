"""Bytes that modules of a layer keep and send to host memory. Array-first, shape (n,)."""

import numpy as np

from planner.base.arrays import Array
from planner.choices.offload import waits
from planner.costs.case import Case
from planner.costs.memory.saved_activations import attention_core_bytes, kept_tensors
from planner.layouts import Attention, Recompute
from planner.models import mix


def moved_bytes(case: Case, kept: Array) -> Array:
    """Bytes that an offloaded layer sends of what it keeps: all, or what `offload_modules` does."""
    modules = case.layouts.offload_modules
    return np.where(modules > 0, np.minimum(moved_module_bytes(case), kept), kept) if np.any(modules) else kept


def moved_module_bytes(case: Case) -> Array:
    """Bytes of the average layer that `offload_modules` sends, of what the layer keeps.

    A module's inputs, and what else its backward pass needs: attention's core sends queries, keys, values, its output
    and its sums. That output is the next product's input too, and stays unless that module sends it. What recomputation
    drops isn't sent.
    Source: Megatron-Core 0.16.1, transformer_config.py (offload_modules), fine_grained_activation_offload.py.
    """
    modules, model, part = case.layouts.offload_modules, case.model, mix.shares(case.model)
    tensors, e, m = kept_tensors(case), case.device.element_bytes, case.device.matrix_bytes
    stays = np.where(case.layouts.recompute == Recompute.FINE, 0.0, 1.0)
    hidden = case.local_tokens / case.token_shares * model.hidden
    # In fp8 the product keeps its input apart; else both hold one tensor.
    apart = (case.layouts.ulysses > 1) | (m < e)
    own = tensors.attended * np.where(apart, e / (e + m), 1.0)
    again = (case.layouts.recompute == Recompute.SELECTIVE) & (case.layouts.attention < Attention.FLASH1)
    core = np.where(again, 0.0, part.attention * attention_core_bytes(case))
    core = core + tensors.heads + stays * tensors.from_latents + np.where(apart | waits(modules, "attn_proj"), own, 0.0)
    made = np.where(model.gated, np.clip(case.framework.gate_tensors - 1.0, 0.0, 3.0), 1.0)
    to_experts = part.sparse * case.busiest_copies * model.moe_ffn
    sent = {
        "attn_norm": part.attention * hidden * e, "mlp_norm": (part.dense + part.sparse) * hidden * e,
        "qkv_linear": stays * part.attention * hidden * m, "core_attn": core,
        "attn_proj": tensors.attended - own,
        "expert_fc1": tensors.expert_inputs,
        "moe_act": case.local_tokens / case.layouts.tp * made * e * to_experts,
    }  # fmt: skip
    return np.asarray(sum(np.where(waits(modules, name), each, 0.0) for name, each in sent.items()))
