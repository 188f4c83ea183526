"""Bytes on one accelerator: parameters, gradients, optimizer state, activations, buffers. Array-first, shape (n,).

Activations follow Korthikanti et al. 2022 (arXiv 2205.05198, section 4), written per saved tensor so that other
shapes, kernels and norms count too; a GPT layer in 16 bits gives their s b h (10 + 24/t + 5 a s / (h t)).
"""

from dataclasses import fields
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from planner.base.arrays import Array, record
from planner.costs.adapters import frozen, trained
from planner.costs.case import Case
from planner.costs.layer.expert_routing import takes_turns
from planner.costs.layer.kept_operations import by_operation
from planner.costs.memory.bytes_per_parameter import (
    cast_bytes,
    fp8_copy_bytes,
    gradient_bytes,
    gradients_on_host,
    main_bytes,
    optimizer_bytes,
    parameter_bytes,
    parameters_on_host,
    rank_parameter_bytes,
    reduced_bytes,
)
from planner.costs.memory.chosen_layers import layers_not_recomputed, offloaded_layers
from planner.costs.memory.framework_buffers import (
    fused_gate_bytes,
    gather_copy_bytes,
    gathered_inputs_bytes,
    own_buffers_bytes,
)
from planner.costs.memory.freed_in_turn import gradients_in_turn, peaks_in_turn, summed_end_bytes
from planner.costs.memory.moved_modules import moved_bytes
from planner.costs.memory.saved_activations import kept_tensors, saved_bytes, score_gradient_bytes, weight_grad_share
from planner.costs.memory.whole_layers import whole_bytes
from planner.costs.parameters import RankParameters, state_parameters
from planner.costs.shapes import has_dropout
from planner.layouts import Precision, Recompute
from planner.models import mix


@record
class Memory:
    """Peak bytes of a rank by what they hold, arrays of shape (n,)."""

    parameters_bytes: Array
    gradients_bytes: Array
    optimizer_bytes: Array
    activations_bytes: Array
    logits_bytes: Array
    buffers_bytes: Array
    reserved_bytes: Array

    @property
    def total_bytes(self) -> Array:
        """Sum of the parts."""
        return np.asarray(reduce(add, (getattr(self, f.name) for f in fields(self))))


def embedding_bytes(case: Case) -> Array:
    """Bytes that the embedding saves for one micro-batch: its output, and the mask of its dropout."""
    hidden = case.local_tokens * case.model.hidden * case.device.element_bytes
    return np.asarray(hidden / case.token_shares * (1.0 + has_dropout(case.model, case.layouts) * 0.5))


@record
class Activations:
    """Bytes that one micro-batch makes a rank hold, arrays of shape (n,), before the allocator's fragmentation.

    layer: each layer's, until its backward pass. embedding: the embedding's.
    logits: those of the head, and of the multi-token prediction heads.
    loss: the part of `logits` that waits for the backward pass: the logits and their log-softmax.
    modules: those of the multi-token prediction layers and of what they project.
    working: held while one layer runs.
    keys_values: each layer's, where slices of a sequence add up the gradients of keys and values.
    weight_grad_share: bytes that a split backward keeps until the weight gradient, over `layer`.
    whole: bytes that a layer without recomputation keeps beyond `layer`. 0 where all layers are alike.
    again: the part of `working` that recomputation makes again. 0 where all layers are alike.
    moved: bytes that wait in host memory of a layer that is offloaded, which is one without recomputation if some are.
    """

    layer: Array
    embedding: Array
    logits: Array
    loss: Array
    modules: Array
    working: Array
    keys_values: Array
    weight_grad_share: Array
    whole: Array
    again: Array
    moved: Array


def keys_values_bytes(case: Case) -> Array:
    """Bytes of one micro-batch's keys and values in one layer, on one rank."""
    kv = np.maximum(case.model.num_kv_heads, case.layouts.tp) * case.model.head_dim / case.layouts.tp
    return np.asarray(2.0 * case.local_tokens * kv * case.device.element_bytes)


def kept_bytes_of_layer(case: Case) -> tuple[Array, Array]:
    """Bytes that the average layer keeps until its backward pass, and further bytes while one layer recomputes."""
    kept, again = saved_bytes(case)
    whole = case.layouts.recompute == Recompute.FULL
    full = whole | by_operation(case)
    if case.framework.cached_keys_values > 0:
        kept = kept + np.where(whole, case.framework.cached_keys_values * keys_values_bytes(case), 0.0)
    if case.framework.holds_router_loss:
        held = mix.shares(case.model).sparse * kept_tensors(case).before_experts_bytes
        kept = kept + np.where(whole, held, 0.0)
    if case.framework.gathered_inputs > 0:
        kept = kept + np.where(full | frozen(case), 0.0, gathered_inputs_bytes(case))
    if case.framework.gate_tensors != 4 or not case.framework.kept_expert_outputs:
        less = fused_gate_bytes(case)
        kept, again = kept - np.where(full, 0.0, less), again - np.where(full, less / case.layouts.sequence_slices, 0.0)
    return kept, again


def activations(case: Case) -> Activations:
    """Bytes that one micro-batch makes a rank hold."""
    device, model, layouts, framework = case.device, case.model, case.layouts, case.framework
    kept, again = kept_bytes_of_layer(case)
    together = case.over_layers
    if together is not case:
        kept, _ = kept_bytes_of_layer(together)
    at_once = case.pass_tokens
    # 16-bit logits and fp32 copies; softmax and then the gradient overwrite one copy. Several heads run one after
    # another, and those before the last keep the copies alone: no product needs its own output.
    columns = case.padded_vocab / (1 if framework.gathered_logits else layouts.tp)
    alone = np.where(layouts.pp > 1, framework.pipelined_logit_copies, framework.logit_copies)
    copies = np.where(layouts.tp > 1, np.maximum(framework.split_logit_copies, alone), alone)
    copies = model.output_heads * 4.0 * copies
    logits = at_once / framework.logit_chunks * columns * (device.element_bytes + copies)
    # One layer's backward works on gradients of the MLP's inner activations, then of attention's scores.
    inner = np.maximum(model.ffn, np.asarray(model.moe_ffn) * case.busiest_copies)
    hidden = at_once * model.hidden * device.element_bytes
    gradients = 2.0 * at_once * inner / layouts.tp * device.element_bytes
    working = again + np.maximum(gradients, score_gradient_bytes(case)) + 2.0 * hidden
    # The gathered input of sequence parallelism's products.
    working = working + np.where(layouts.sequence_parallel & (layouts.tp > 1), hidden, 0.0)
    # Of a multi-token prediction module: the embedding and the last hidden state, before their norms and behind them.
    shared = case.token_shares
    module = kept
    if np.any(mix.has_own_module(model)):
        module, _ = kept_bytes_of_layer(together.with_model(mix.module_layer(model)))
    joined = 4.0 * case.local_tokens * model.hidden * device.element_bytes / shared
    both = keys_values_bytes(case)
    keys_values = (layouts.sequence_slices > 1) * both
    # An inner ring's next keys and values, and gradients that go on, come while it still turns.
    working = working + (layouts.inner_ring > 1) * 2.0 * both
    some, whole, repeated = layouts.recompute_layers > 0, np.zeros_like(kept), np.zeros_like(kept)
    if np.any(some):
        plain, _ = kept_bytes_of_layer(together.with_recompute(np.where(some, Recompute.NONE, layouts.recompute)))
        whole, repeated = plain - kept, np.where(some, again, 0.0)
    return Activations(
        layer=kept,
        embedding=embedding_bytes(case),
        logits=logits,
        loss=at_once * columns * (device.element_bytes + 4.0),
        modules=np.asarray(model.num_mtp_layers) * (module + joined),
        working=working,
        keys_values=keys_values,
        weight_grad_share=weight_grad_share(case),
        whole=whole,
        again=repeated,
        moved=moved_bytes(case, kept + whole),
    )


def rank_memory(
    case: Case,
    *,
    layers: Any,
    in_flight: Any,
    first: Any,
    last: Any,
    modules: Any = None,
    dense: Any = 0.0,
    copies: Any = 1,
    versions: Any = 1,
    at_once: Any = 1.0,
    waiting: Any = False,
    held: Activations | None = None,
    own: RankParameters | None = None,
) -> Memory:
    """Peak bytes of a rank with `layers` layers and `in_flight` micro-batches' activations alive.

    first, last, modules, dense: what else the rank holds (`planner.costs.parameters.RankParts.rank`).
    copies: of all states, where micro-batches enter the pipeline from both ends.
    versions: of the parameters alone, in asynchronous schedules.
    at_once: layers that ZeRO-3 gathers, or whose gradients are scattered, together.
    waiting: whether all forward passes come first. held, own: `activations` and the rank's parameters, if known.

    Mixed precision keeps a 16-bit parameter, a gradient, and 12 bytes of fp32 parameter and Adam's moments (ZeRO,
    Rajbhandari et al. 2020, section 3.1). fp32 keeps no second copy. ZeRO shards over data x context.
    """
    framework, layouts = case.framework, case.layouts
    held, modules = held or activations(case), last if modules is None else modules
    own = own or case.ranks.rank(layers, first, last, modules, dense)
    alone = layers_not_recomputed(layouts, layers, layouts.virtual_stages)
    moved = offloaded_layers(layouts, layers, layouts.virtual_stages)
    away = held.moved * moved if np.any(moved) else 0.0
    freed = held.layer * layers - away + held.whole * alone + first * held.embedding
    kept = in_flight * (freed + modules * held.modules)
    slack, moves = 1.0 + framework.fragmentation, trained(case, own)
    gradients, logits = np.asarray(_gradients_bytes(case, moves) * copies), last * held.logits
    states = (state_parameters(optimizer_bytes(moves, case), layouts, 1) + cast_bytes(moves, case)) * copies
    working = (_working_bytes(case, held, alone, moved) + layers * held.keys_values) * slack
    whole = whole_bytes(case, own, moves, layers, modules, at_once, (first, last))
    buffers = working + whole.total
    if framework.freed_in_turn:
        working = np.maximum(working, summed_end_bytes(case, moves, (first, last), held.loss))
        buffers, logits = peaks_in_turn(layouts, working, logits, whole)
        logits = logits + waiting * np.maximum(in_flight - 1.0, 0.0) * last * held.loss
        gradients = gradients_in_turn(case, gradients, freed + logits / np.maximum(in_flight, 1.0), in_flight)
    buffers = buffers + own_buffers_bytes(case, moves.ends, first, last)
    if framework.pass_gradient_bytes > 0:
        buffers = buffers + _grown_bytes(case, moves, freed + last * held.logits)
    if framework.gather_copy_bytes > 0:
        buffers = buffers + gather_copy_bytes(case, moves.total, last)
    return Memory(
        parameters_bytes=np.asarray(_parameters_bytes(case, own, moves, copies, versions)),
        gradients_bytes=gradients,
        optimizer_bytes=(1.0 - layouts.host_share) * states,
        activations_bytes=np.asarray(kept * slack),
        logits_bytes=np.asarray(logits * slack),
        buffers_bytes=np.asarray(buffers),
        reserved_bytes=np.broadcast_to(np.float64(framework.reserved_bytes), layouts.shape),
    )


def _working_bytes(case: Case, held: Activations, alone: Any, moved: Any) -> Array:
    """Bytes that come and go with each layer; alone, moved: layers that are kept while others are recomputed, or moved.

    Of two micro-batches in turn one makes a layer before the other's, attention last, is freed. That is all that it
    adds: a rank runs one forward pass more before its first backward pass, and none more is alive at the peak
    (Megatron-Core, pipeline_parallel/schedules.py and models/common/model_chunk_schedule_plan.py).
    """
    # By the time that a layer is made again, those behind it that were kept are freed.
    one = held.working - np.where(alone > 0, held.again, 0.0) + np.where(moved > 0, held.moved, 0.0)
    return np.asarray(one + takes_turns(case) * held.layer)


def _is_mixed(case: Case) -> Any:
    """Whether training is in mixed precision: products of fewer than 32 bits."""
    return case.device.element_bytes < 4.0


def _gradients_bytes(case: Case, own: RankParameters) -> Array:
    """Bytes of the gradients that a rank keeps of one copy of its states.

    Whole ones of earlier micro-batches are on the accelerator even where their shards go to the host, and go as these
    come (PyTorch, _fsdp_param_group.py, post_backward).
    """
    kept = gradient_bytes(case)
    if case.framework.bucket_bytes > 0:
        kept = kept + (case.layouts.zero == 0) * case.framework.bucket_bytes
    kept = np.where(_is_mixed(case), kept, 4.0) * (1.0 - gradients_on_host(case))
    out = np.asarray(state_parameters(own, case.layouts, 2) * kept)
    if not case.framework.defers_scatter:
        return out
    return np.maximum(out, np.where(case.scattering < 1.0, own.total * reduced_bytes(case), 0.0))


def _parameters_bytes(case: Case, own: RankParameters, moves: RankParameters, copies: Any, versions: Any) -> Array:
    """Bytes of a rank's parameters, of their fp8 copies for products, and of adapters beside frozen parameters."""
    layouts = case.layouts
    stays = 1.0 - parameters_on_host(case)
    parameters = state_parameters(rank_parameter_bytes(own, case), layouts, 3) * copies * versions
    if case.framework.one_sharded_copy:
        copied = main_bytes(case) > 0
        parameters = np.where((layouts.zero == 3) & copied & ~frozen(case), 0.0, parameters)
        # Else the optimizer has no copy of its own: it updates the shard, from which others are gathered.
        gathered = ~copied & ((layouts.zero == 1) | (layouts.zero == 2))
        each, (shards, of_experts) = rank_parameter_bytes(own, case), layouts.state_shards[1]
        shard = np.where(shards > 1, each.dense / shards, 0.0) + np.where(
            of_experts > 1, each.experts / of_experts, 0.0
        )
        parameters = parameters + np.where(gathered, stays * shard * copies, 0.0)
    if np.any(frozen(case)):
        beside = state_parameters(moves, layouts, 3) * parameter_bytes(layouts)
        parameters = parameters + np.where(frozen(case), beside * copies * versions, 0.0)
    parameters = np.where(layouts.zero == 3, stays, 1.0) * parameters
    # What products keep in fp8 beside the parameters, which ZeRO-3 has of gathered layers only.
    whole = np.where(layouts.precision >= Precision.FP8, case.framework.sharded_fp8_copy_bytes, 0.0)
    fp8_copy = np.where(layouts.zero < 3, fp8_copy_bytes(case), whole * case.device.matrix_bytes)
    return np.asarray(parameters + fp8_copy * (own.layers + own.experts) * copies)


def _grown_bytes(case: Case, own: RankParameters, freed: Array) -> Array:
    """Bytes by which a pass's own gradient outgrows what its backward pass frees meanwhile."""
    grown = np.where(_is_mixed(case), case.framework.pass_gradient_bytes, 0.0) * own.total
    return np.asarray(np.maximum(grown - freed, 0.0))
