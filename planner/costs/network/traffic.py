"""Communication of one step by kind of parallelism, in seconds. Array-first, shape (n,)."""

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from planner.base.arrays import Array, Bools, record
from planner.costs.adapters import adapters_gathers, frozen, trained
from planner.costs.case import Case
from planner.costs.kernels.device import stream_s
from planner.costs.layer.kept_operations import by_operation
from planner.costs.memory.bytes_per_parameter import fetched_bytes, parameter_bytes, parameters_on_host, reduced_bytes
from planner.costs.network.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    rank_send_s,
    reduce_scatter_s,
    ring_s,
    rings_s,
    send_s,
    shift_s,
)
from planner.costs.network.data_parallel import DataCollectives, flat_copies_s
from planner.costs.network.expert_exchange import expert_s
from planner.costs.network.groups import OF_LAYERS, RINGS, Group, groups, with_startup
from planner.costs.parameters import RankParameters
from planner.costs.shapes import is_latent
from planner.layouts import Precision, Recompute
from planner.models import mix


@record
class LayerTraffic:
    """Seconds on the wire of one micro-batch, before any overlap, arrays of shape (n,).

    layer_forward_s, layer_backward_s: tensor-parallel collectives of one layer. ends_s: of embedding, head and loss;
    logits_s: gathering the head's logits, where a framework does.
    context_*: keys and values around the context ring; context_gather_*: what a gather of the same would take;
    exchange_*: heads for tokens (Ulysses); expert_*: all-to-alls, and gathers of copies for cut experts.
    """

    layer_forward_s: Array
    layer_backward_s: Array
    context_forward_s: Array
    context_backward_s: Array
    context_gather_forward_s: Array
    context_gather_backward_s: Array
    exchange_forward_s: Array
    exchange_backward_s: Array
    expert_forward_s: Array
    expert_backward_s: Array
    ends_s: Array
    logits_s: Array


@record
class ShardedLayer:
    """Seconds of ZeRO's collectives where layers have their own, arrays of shape (n,); 0 elsewhere.

    layer_gather_s, layer_reduce_s: one layer's parameters are gathered, its gradients scattered.
    layer_gather_taken_s, layer_reduce_taken_s: what they take from compute beside them (`DataCollectives.taken`).
    layer_copy_out_s, layer_copy_in_s: the layer's copies (`flat_copies_s`).
    ends_sharding_s: gather and scatter of embedding and head, once; their parameters stay gathered between the passes.
    ends_reduce_s: of that, the scatter.
    """

    layer_gather_s: Array
    layer_reduce_s: Array
    layer_gather_taken_s: Array
    layer_reduce_taken_s: Array
    layer_copy_out_s: Array
    layer_copy_in_s: Array
    ends_sharding_s: Array
    ends_reduce_s: Array


@record
class Traffic(LayerTraffic, ShardedLayer):
    """All communication but the step's data-parallel collectives (`data_parallel` beside it), arrays of shape (n,).

    send_s: one micro-batch's activations go to the next stage.
    tied_s: the first and the last stage sum the gradient of an embedding that both hold.
    """

    send_s: Array
    tied_s: Array


def tensor_s(case: Case, group: Group) -> tuple[Array, Array]:
    """Seconds of the average layer's tensor-parallel collectives in one micro-batch, forward and backward.

    Each mixer and each MLP takes one all-reduce per direction (Megatron-LM). With sequence parallelism a reduce-scatter
    and an all-gather take its place; fp8 products then gather fp8 operands (Transformer Engine, layernorm_linear.py:
    cast first). Full recomputation repeats the forward pass's. With sequence parallelism the backward pass gathers the
    saved inputs again, under the weight-gradient product (Korthikanti et al. 2022, section 4.2.2). Where several
    sequences lie one after another, a library may have to copy by tokens what is gathered or scattered.

    A plan of one's own may gather an input for each product that has it (`apart_inputs`), and sum its gradients one by
    one; of equal gathers a compiled layer keeps one (PyTorch, _functorch/compile_utils.py, fx_graph_cse). Without
    sequence parallelism a framework may all-reduce the input gradients of the gate and up products separately
    (`gate_reduces`). Routed experts take an all-reduce only then, where the tensor group shares each of them, or its
    ranks pick the tokens of their own (PPMoE); else `expert_s` moves copies of tokens.

    A mixer and an MLP that are added at once share the sum, and its gradient's gather; those of one norm share its
    gather, and the sum of its gradient (Chowdhery et al. 2022, arXiv 2204.02311, section 2: parallel layers).
    """
    model, layouts = case.model, case.layouts
    size = case.pass_tokens * model.hidden * case.device.element_bytes
    operand = np.where(layouts.sequence_parallel, case.device.matrix_bytes / case.device.element_bytes, 1.0)
    slices = layouts.sequence_slices
    gather, scatter = slices * all_gather_s(group, operand * size), slices * reduce_scatter_s(group, size)
    if case.framework.copied_sequences:
        copied = layouts.sequence_parallel & (layouts.tp > 1) & (layouts.micro_batch > 1)
        gather = gather + copied * stream_s(case.device, 2.0 * operand * size)
        scatter = scatter + copied * stream_s(case.device, 2.0 * size)
    one = np.where(layouts.sequence_parallel, gather + scatter, slices * all_reduce_s(group, size))
    part = mix.shares(model)
    routed = np.where(layouts.sequence_parallel | ((layouts.etp < layouts.tp) & (case.pickers == 1)), 0.0, 1.0)
    shared = part.sparse * (routed + (np.asarray(model.num_shared_experts) > 0) - 1.0)
    into, out = part.norms + shared, part.sums + shared
    apart = case.framework.apart_inputs * (2.0 * part.attention + np.asarray(model.gated) * part.dense)
    gathered, summed = into + apart * (not case.framework.compiled_layers), into + apart
    more, more_back = adapters_gathers(case)
    whole = slices * all_gather_s(group, size)
    # In nvfp4 a gradient's rows and its columns are quantized apart, and both are gathered (TE, distributed.py).
    twice = layouts.sequence_parallel & (layouts.precision == Precision.NVFP4) & ~frozen(case)
    columns = np.where(twice, out * slices * all_gather_s(group, operand * size), 0.0)
    forward = np.where(layouts.sequence_parallel, gathered * gather + out * scatter, out * one)
    backward = np.where(layouts.sequence_parallel, out * gather + summed * scatter, summed * one)
    again = np.where(layouts.recompute == Recompute.FULL, forward, 0.0)
    # By operation, what reduce-scatters end with stays: the gathers alone run again.
    again = np.where(by_operation(case), np.where(layouts.sequence_parallel, gathered * one / 2.0, forward), again)
    if case.framework.gate_reduces > 0:
        gates = np.asarray(model.gated) * (part.dense + part.sparse)
        again = again + case.framework.gate_reduces * np.where(layouts.sequence_parallel, 0.0, gates) * one
    repeated = np.where(layouts.recompute == Recompute.FULL, more, 0.0)
    return forward + more * whole, backward + again + (more_back + repeated) * whole + columns


def context_s(case: Case, by: Mapping[str, Group], sends: bool = True) -> tuple[Array, Array]:
    """Ring attention: keys and values forward; keys, values and their gradients backward, of the average layer.

    Ranks that exchanged heads for tokens have a part of the heads: theirs alone pass around.

    sends: each rank to the next, as rings do; else as long as a gather by the same groups.

    Ranks that gather all keys and values keep them, and send their gradients alone backward.

    Attention that is recomputed, alone or with its layer, passes keys and values round once more.

    PyTorch's scaled_dot_product_attention repeats keys and values for every query head before they are gathered, and
    sends the fp32 gradients of those on once for each rank (torch/distributed/tensor/experimental/_attention.py,
    _templated_ring_attention_backward: allgather and all_to_all rotaters).
    """
    model, layouts, repeated = case.model, case.layouts, case.framework.sdpa_context
    kv_heads = np.where(repeated, model.num_heads, model.num_kv_heads)
    heads = np.where(is_latent(model), model.num_heads, np.maximum(kv_heads, layouts.tp))
    channels = model.head_dim + model.value_channels
    size = layouts.micro_batch * model.seq_len * heads * channels / (layouts.tp * layouts.ulysses)
    size = size * case.device.element_bytes
    group = by["context"]
    if case.framework.gathered_context or repeated or not sends:
        once = all_gather_s(group, size)
    else:
        once = rings_s(by["inner"], by["outer"], size) if "outer" in by else ring_s(group, size)
    once = mix.shares(model).attention * once
    attends = _attends_again(case)
    if repeated:
        attends = attends & ~by_operation(case)
        gradients = size / group.ranks * 4.0 / case.device.element_bytes
        round_s = mix.shares(model).attention * group.ranks * shift_s(group, gradients)
        return once, np.where(attends, 2.0, 1.0) * once + round_s
    passes = np.where(attends, 3.0, 2.0) - case.framework.gathered_context
    return once, passes * once


def _attends_again(case: Case) -> Bools:
    """Whether attention is recomputed, alone or with its layer."""
    mode = case.layouts.recompute
    return np.asarray((mode == Recompute.SELECTIVE) | (mode == Recompute.FULL))


def exchange_s(case: Case, group: Group) -> tuple[Array, Array]:
    """Queries, keys and values before attention and its output after it, each in an all-to-all, of the average layer.

    Backward the same of their gradients (Jacobs et al. 2023, arXiv 2309.14509, section 3.2), and once more of what is
    recomputed. Nothing runs beside them: attention waits for all heads' tokens.
    """
    model, layouts = case.model, case.layouts
    if np.all(layouts.ulysses == 1):
        nothing = np.zeros(1)
        return nothing, nothing
    keys = np.where(is_latent(model), model.num_heads, np.maximum(model.num_kv_heads, layouts.tp))
    channels = (model.num_heads + keys) * (model.head_dim + model.value_channels)
    each = case.local_tokens / layouts.tp * case.device.element_bytes
    # Four all-to-alls, each with its own start.
    start = 3.0 * all_to_all_s(group, 0.0)
    once = mix.shares(model).attention * (start + all_to_all_s(group, each * channels))
    return once, np.where(_attends_again(case), 2.0, 1.0) * once


def layer_traffic(case: Case) -> LayerTraffic:
    """The collectives of one layer, embedding and head for one micro-batch."""
    names = OF_LAYERS + (RINGS if np.any(case.layouts.inner_ring > 1) else ())
    by = groups(with_startup(case.cluster, case.framework.network_startup_s), case.layouts, names)
    tokens, k = case.pass_tokens, case.layouts.sequence_slices
    forward, backward = tensor_s(case, by["tensor"])
    context, context_back = gather, gather_back = context_s(case, by)
    ring = by["context"]
    if "outer" in by or np.any(ring.ranks > ring.local) or np.any(ring.gather_passes != 1.0):
        gather, gather_back = context_s(case, by, sends=False)
    exchange, exchange_back = exchange_s(case, by["ulysses"])
    expert, expert_back = expert_s(case, by["expert"], by["tensor"])
    hidden_bytes = tokens * case.model.hidden * case.device.element_bytes
    # Embedding output and head input gradient, summed over the tensor group, and the loss's three scalars a token.
    # Once more for every further token predicted.
    heads = case.model.output_heads
    ends = heads * (2.0 * all_reduce_s(by["tensor"], hidden_bytes) + 3.0 * all_reduce_s(by["tensor"], tokens * 4.0))
    logits = np.zeros_like(ends)
    if case.framework.gathered_logits:
        logits = heads * all_gather_s(by["tensor"], tokens * case.padded_vocab * case.device.element_bytes)
    return LayerTraffic(
        layer_forward_s=forward,
        layer_backward_s=backward,
        context_forward_s=context,
        context_backward_s=context_back,
        context_gather_forward_s=gather,
        context_gather_backward_s=gather_back,
        exchange_forward_s=exchange,
        exchange_backward_s=exchange_back,
        expert_forward_s=expert,
        expert_backward_s=expert_back,
        ends_s=k * ends,
        logits_s=k * logits,
    )


def micro_batch_send_s(case: Case) -> Array:
    """Seconds in which one micro-batch's activations go to the next stage, or their gradients back: a mean of both."""
    cluster = with_startup(case.cluster, case.framework.network_startup_s)
    hidden_bytes = case.pass_tokens * case.model.hidden * case.device.element_bytes
    f = case.framework
    mask = f.sent_mask_bytes / 2.0 * case.model.seq_len**2  # forward alone: half of it, as a mean of both ways
    sent = send_s(cluster, case.layouts, hidden_bytes, whole=f.whole_sends, beside_bytes=mask)
    return np.asarray(f.send_turns * case.layouts.sequence_slices * sent)


def exposed_send_s(case: Case, sent_s: Array) -> Array:
    """The seconds of a send to the next stage that no pass hides."""
    return sent_s * (1.0 - case.framework.overlap_pipeline)


def traffic(case: Case, layer: LayerTraffic, params: RankParameters) -> Traffic:
    """All communication but the step's data-parallel collectives (`planner.costs.network.data_parallel`).

    params: of one layer on one rank before ZeRO shards them, of which the trained ones' gradients are scattered.
    """
    model, layouts = case.model, case.layouts
    cluster = with_startup(case.cluster, case.framework.network_startup_s)
    summed = (np.asarray(model.tied) | (np.asarray(model.num_mtp_layers) > 0)) & (layouts.pp > 1) & ~frozen(case)
    table_bytes = case.padded_vocab / layouts.tp * model.hidden * reduced_bytes(case)
    sharded = _sharded(case, params)
    ends_s = sharded.ends_sharding_s - (1.0 - case.scattering) * sharded.ends_reduce_s
    return Traffic(
        **{f.name: getattr(layer, f.name) for f in fields(LayerTraffic)},
        **(vars(sharded) | {"ends_sharding_s": ends_s}),
        send_s=micro_batch_send_s(case),
        tied_s=np.where(summed, 2.0 * rank_send_s(cluster, layouts, table_bytes / 2.0), 0.0),
    )


def _sharded(case: Case, params: RankParameters) -> ShardedLayer:
    """`_sharded_layer`, of layouts whose ranks differ alone."""
    each = case.ranks.distinct
    return each.spread(_sharded_layer(replace(each.of_each(case), layouts=each.layouts), each.of_each(params)))


def _sharded_layer(case: Case, params: RankParameters) -> ShardedLayer:
    """ZeRO's collectives of a layer, and of the ends; arguments as in `traffic`."""
    model, layouts, whole = case.model, case.layouts, case.by_layer
    if not np.any(whole):
        return ShardedLayer(**{f.name: np.zeros_like(params.total) for f in fields(ShardedLayer)})
    moves = trained(case, params)
    data = DataCollectives.of(case, params.expert_share)
    trained_data = replace(data, expert_share=moves.expert_share)
    copy_out, copy_in = flat_copies_s(case)
    table = case.padded_vocab / layouts.tp * model.hidden
    ends = table * np.where(np.asarray(model.tied) & (layouts.pp == 1), 1.0, 2.0)
    dense = replace(data, expert_share=np.zeros(1))
    times = np.where(case.framework.ends_gathered_twice & (layouts.zero == 3), 2.0, 1.0)
    ends_s = times * dense.sharded_s(all_gather_s, ends, parameter_bytes(layouts))
    moved = ends * (1.0 - frozen(case))
    ends_reduce_s = dense.reduced_s(reduce_scatter_s, moved) + moved * copy_in
    ends_s = ends_s + ends_reduce_s + ends * times * copy_out
    # Shards in host memory come over the host link first, on the stream that then gathers them (DeepSpeed,
    # partition_parameters.py, all_gather_coalesced; FSDP2, _fsdp_collectives.py, all_gather_copy_in).
    mine = params.dense / layouts.shards + params.experts / layouts.expert_shards
    mine_s, ends_come_s = (
        parameters_on_host(case) * held * fetched_bytes(case, each) / case.cluster.host_link.reached_bytes_per_s
        for held, each in ((mine, data.param_bytes), (ends / layouts.shards, parameter_bytes(layouts)))
    )
    ends_s = ends_s + times * ends_come_s

    def gathered(of: DataCollectives) -> Array:
        return np.where(whole, of.sharded_s(all_gather_s, params.total, data.param_bytes), 0.0)

    def reduced(of: DataCollectives) -> Array:
        return np.where(whole, of.reduced_s(reduce_scatter_s, moves.total), 0.0)

    share = 1.0 - case.framework.overlap_param_gather
    return ShardedLayer(
        layer_gather_s=gathered(data) + np.where(whole, mine_s, 0.0),
        layer_reduce_s=reduced(trained_data),
        layer_gather_taken_s=gathered(data.taken(share)),
        layer_reduce_taken_s=reduced(trained_data.taken(share)),
        layer_copy_out_s=params.total * copy_out,
        layer_copy_in_s=moves.total * copy_in,
        ends_sharding_s=np.where(whole, ends_s, 0.0),
        ends_reduce_s=np.where(whole, ends_reduce_s, 0.0),
    )
