"""Bytes that one layer keeps of a micro-batch for its backward pass, tensor by tensor. Array-first, shape (n,)."""

from dataclasses import fields, replace

import numpy as np

from planner.base.arrays import Array, record
from planner.choices.training import adapts
from planner.costs.adapters import adapter_inputs, frozen, held_for_weights
from planner.costs.case import Case
from planner.costs.kernels.attention import score_elements
from planner.costs.kernels.state_space import ssm_bytes
from planner.costs.layer.kept_operations import by_operation, kept_operation_bytes
from planner.costs.layer.matmul_shapes import common_products, expert_products
from planner.costs.shapes import fuses_softmax, has_dropout, inner_width, is_latent
from planner.layouts import Attention, Recompute
from planner.models import mix


@record
class LayerTensors:
    """Bytes of the average layer's tensors on one rank when nothing is recomputed, but for attention's scores.

    norm_inputs: with masks of dropout; product_inputs: of the hidden state; latents: attention's and those back from
    experts; from_latents: queries, keys and values of latent attention; heads: those of others; attended: attention's
    output; inner: of MLPs and experts up to their down products' inputs, which are routed_inputs for the experts that a
    token is routed to and other_inputs; clamped: both halves of a gate again, once clamped; expert_inputs,
    expert_outputs: of the tokens' copies; scans: of state-spaces.
    """

    norm_inputs: Array
    product_inputs: Array
    latents: Array
    from_latents: Array
    heads: Array
    attended: Array
    inner: Array
    routed_inputs: Array
    other_inputs: Array
    clamped: Array
    expert_inputs: Array
    expert_outputs: Array
    scans: Array

    @property
    def total_bytes(self) -> Array:
        """Sum of the tensors."""
        return np.asarray(sum(getattr(self, f.name) for f in fields(self)))

    @property
    def before_experts_bytes(self) -> Array:
        """Bytes of what a layer with experts has before its router, and of that one's input."""
        own = self.heads + self.attended + self.latents + self.from_latents
        return np.asarray(self.norm_inputs + self.product_inputs + own)

    @property
    def fine_bytes(self) -> Array:
        """Bytes that fine recomputation drops: outputs of norms and experts' activation, all up from the latents."""
        return np.asarray(self.product_inputs + self.from_latents + self.routed_inputs + self.clamped)


def layer_tensors(case: Case) -> LayerTensors:
    """A layer's tensors, kept from forward to backward pass (Korthikanti et al. 2022, section 4.1, for GPT).

    An fp8 product keeps its input in fp8 (Transformer Engine, github.com/NVIDIA/TransformerEngine issue 1764); what
    others keep too, such as attention's output, is kept twice then.
    """
    model, layouts = case.model, case.layouts
    tokens = case.local_tokens
    e, m, t = case.device.element_bytes, case.device.matrix_bytes, layouts.tp
    held = tokens / case.token_shares
    hidden = held * model.hidden
    dropout = has_dropout(model, layouts) * 1.0
    eager = ~layouts.fused_norm & np.asarray(model.rms_norm)
    part, mla = mix.shares(model), is_latent(model)
    # What blocks add to is the next ones' input; an eager RMSNorm keeps its fp32 input and product as well. Blocks of
    # one norm share its output. The router's input stays in 16 bits; latent attention has two products on one input.
    cast = np.where(mla, 0.0, part.attention) + part.ssm + part.dense - (part.blocks - part.norms)
    v_dim = model.value_channels
    kv_heads = np.where(mla, model.num_heads, np.maximum(model.num_kv_heads, t))
    out = model.num_heads * v_dim
    # Context ranks that gather all keys and values keep them, PyTorch's its own ones for every query head; a norm of
    # queries and keys keeps what it is of.
    ring = np.where(case.framework.gathered_context, layouts.cp / layouts.ulysses, 1)
    beyond = np.where(eager, case.framework.eager_norm_bytes, 0.0)
    normed = np.asarray(model.qk_norm) * (model.num_heads + kv_heads) * model.head_dim * (1.0 + beyond / e)
    repeated = case.framework.sdpa_context & (layouts.cp > layouts.ulysses)
    kept_heads = ring * np.where(repeated, model.num_heads, kv_heads)
    each = model.num_heads * model.head_dim + kept_heads * (model.head_dim + v_dim) + normed
    heads = part.attention * tokens / t * e * each
    # Inner elements: two (activation's input and output), or four when gated (gate, up, silu, product); the last is
    # the next product's input.
    width, routed = inner_width(model, case.busiest_copies), part.sparse * case.busiest_copies
    to_experts = routed * model.moe_ffn
    copies = held * mix.expert_width(model) * routed / case.pickers
    # Tensor ranks that cut an expert gather the copies that come to it (Megatron-Core, token_dispatcher.py). Its summed
    # outputs are scattered before they are weighted, unless tokens were gathered first.
    cut = np.where(layouts.sequence_parallel, layouts.etp, 1)
    weighted = np.where(case.framework.gathered_tokens, cut, 1)
    combined = held * part.sparse * np.asarray(model.moe_latent) * m
    scans = ssm_bytes(case) if np.any(model.num_ssm_layers) else np.asarray(0.0)
    return LayerTensors(
        norm_inputs=hidden * (part.sums * e + part.norms * beyond + part.blocks * dropout),
        product_inputs=hidden * (part.norms * e - (e - m) * cast),
        latents=combined + part.attention * tokens * e * (np.asarray(model.q_lora_rank) + model.kv_lora_rank),
        from_latents=np.where(mla, heads, 0.0),
        heads=np.where(mla, 0.0, heads),
        # Attention keeps its output for its own heads; where these were exchanged the product keeps its tokens' apart.
        attended=part.attention * tokens / t * out * (e + np.where(layouts.ulysses > 1, m, np.where(m < e, m, 0.0))),
        inner=tokens / t * np.where(model.gated, 3.0, 1.0) * e * width,
        routed_inputs=tokens / t * m * to_experts,
        other_inputs=tokens / t * m * (width - to_experts),
        clamped=tokens / t * 2.0 * e * width * np.asarray(model.clamped),
        expert_inputs=copies * cut * m,
        expert_outputs=copies * weighted * np.where(case.framework.fp32_expert_outputs, 4.0, e),
        scans=scans,
    )


def _beside_frozen(case: Case, tensors: LayerTensors) -> LayerTensors:
    """The tensors where matrices are frozen: of products' inputs those alone that adapters need, in 16 bits.

    Norms and activations still keep what their own gradients need, and attention its output.
    """
    still, x = frozen(case), case.layouts
    wider = case.device.element_bytes / case.device.matrix_bytes
    hidden, low = adapter_inputs(case)
    into, out = (adapts(x.train, target) * wider for target in ("fc1", "fc2"))
    twice = np.where(x.ulysses > 1, 1.0, 0.0)
    own = tensors.attended / (1.0 + np.where((twice > 0) | (wider > 1.0), 1.0 / wider, 0.0))
    kept = {
        "product_inputs": hidden + low,
        "attended": own * (1.0 + twice * adapts(x.train, "proj")),
        "routed_inputs": out * tensors.routed_inputs,
        "other_inputs": out * tensors.other_inputs,
        "expert_inputs": into * tensors.expert_inputs,
    }
    return replace(tensors, **{name: np.where(still, kept[name], getattr(tensors, name)) for name in kept})


def kept_tensors(case: Case) -> LayerTensors:
    """A layer's tensors as its framework keeps them: beside frozen matrices fewer; a kernel of the gate clamps too."""
    tensors = layer_tensors(case)
    if np.any(frozen(case)):
        tensors = _beside_frozen(case, tensors)
    if case.framework.fused_experts or case.framework.gate_tensors < 4:  # Megatron-Core, fused_bias_geglu.py
        tensors = replace(tensors, clamped=np.zeros_like(tensors.clamped))
    return tensors


def saved_bytes(case: Case) -> tuple[Array, Array]:
    """Bytes that one layer keeps until its backward pass, and the transient extra while one layer recomputes.

    A layer that is made again starts from the input that was kept, and saves that same tensor (a detached view in
    torch.utils.checkpoint, Megatron-LM's and DeepSpeed's): it is no extra.
    Experts' outputs stay only where a framework weighs them by the router's probabilities (NVIDIA 2026, arXiv
    2603.07685, section 4.1.2: memory-efficient permutation weighs their inner activation).
    """
    layouts = case.layouts
    core = mix.shares(case.model).attention * attention_core_bytes(case)
    tensors = kept_tensors(case)
    layer = tensors.total_bytes - (0.0 if case.framework.kept_expert_outputs else tensors.expert_outputs)
    shared = case.token_shares
    boundary = case.local_tokens * case.model.hidden * case.device.element_bytes / shared
    mode, flash = layouts.recompute, layouts.attention >= Attention.FLASH1
    repeats = (mode == Recompute.SELECTIVE) & ~flash  # flash kernels repeat their scores anyway
    kept = layer + np.where(repeats, 0.0, core)
    kept = np.where(mode == Recompute.FULL, boundary, kept - np.where(mode == Recompute.FINE, tensors.fine_bytes, 0.0))
    again = np.where(mode == Recompute.FULL, layer + core - boundary, np.where(repeats, core, 0.0))
    again = again + np.where(mode == Recompute.FINE, tensors.fine_bytes, 0.0)
    operations = by_operation(case)
    if np.any(operations):
        stays = kept_operation_bytes(case) + (0.0 if case.framework.repeats_attention else core)
        kept, again = np.where(operations, stays, kept), np.where(operations, layer + core - stays, again)
    return np.asarray(kept), np.asarray(again / layouts.sequence_slices)


def attention_core_bytes(case: Case) -> Array:
    """Bytes that the attention core saves besides inputs: softmax and dropout of b a s^2 scores, or flash's sums."""
    scores = score_elements(case)
    e = case.device.element_bytes
    dropout = has_dropout(case.model, case.layouts) * 1.0
    fused = scores * (e + dropout * (e + 1.0))
    # Eager softmax keeps its fp32 output beside the cast copy; the masked scores' mask is a byte each.
    unfused = scores * (e + 4.0 + 1.0 + dropout * (e + 1.0))
    sums = case.local_tokens * case.model.num_heads / case.layouts.tp * 4.0
    flash = case.layouts.attention >= Attention.FLASH1
    return np.asarray(np.where(flash, sums, np.where(fuses_softmax(case.model, case.layouts), fused, unfused)))


def score_gradient_bytes(case: Case) -> Array:
    """Gradients of b a s^2 scores while one layer's attention core runs backward; flash keeps its own in registers.

    A fused softmax overwrites the gradient of its output (Megatron-LM, scaled_masked_softmax). An eager one makes those
    of its fp32 output and input beside that of the cast copy.
    """
    scores = score_elements(case) / case.layouts.sequence_slices
    eager = ~fuses_softmax(case.model, case.layouts)
    flash = case.layouts.attention >= Attention.FLASH1
    return np.asarray(np.where(flash, 0.0, scores * (case.device.element_bytes + np.where(eager, 8.0, 0.0))))


def weight_grad_share(case: Case) -> Array:
    """Bytes that a split backward keeps from input to weight gradient, over those that a forward saved; shape (n,).

    It keeps inputs and output gradients of all linear products: for GPT 32 s b h bytes per layer (Qi et al. 2023,
    arXiv 2401.10241, section 2.2). Sequence parallelism keeps the operand of hidden size in shards; the products up
    from the latents have none, those to and from experts' latents have the shard alone.
    """
    model = case.model
    common, routed = common_products(case), expert_products(case)
    per_token = sum(rows * (columns + depth) * n for rows, columns, depth, n in common + routed)
    shared = case.token_shares
    from_latent = mix.shares(model).attention * is_latent(model) * (1.0 + (np.asarray(model.q_lora_rank) > 0))
    from_latent = from_latent + 2.0 * mix.latent_share(model) / shared
    of_hidden = (sum(rows * n for rows, _, _, n in common) - from_latent) * model.hidden
    of_hidden = of_hidden + sum(rows * n for rows, _, _, n in routed) * mix.expert_width(model)
    per_token = per_token - of_hidden * (1.0 - 1.0 / shared)
    kept = case.local_tokens * per_token * case.device.matrix_bytes
    if np.any(frozen(case)):
        kept = np.where(frozen(case), held_for_weights(case), kept)
    return np.asarray(kept / saved_bytes(case)[0])
