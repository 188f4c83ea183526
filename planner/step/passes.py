"""Seconds of one micro-batch's passes on a rank or a stage: its layers, its share of the ends, what it waits for."""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.memory.chosen_layers import first_layers, layers_not_recomputed, offloaded_layers
from planner.schedules import Loads
from planner.step.pipelines import between_share, by_chunk
from planner.step.splits import Share
from planner.step.step_costs import StepCosts


def rank_passes(costs: StepCosts) -> Loads:
    """Passes of every kind of rank. A shared head is left out, whose operations are no part of a layer's passes."""
    shared, v = between_share(costs.case.layouts), costs.case.layouts.virtual_stages
    first, early, late, last = (passes(costs, replace(x, last=x.last - shared), v) for x in costs.stages.kinds)
    return Loads(first=first, early=early, num_early=costs.stages.num_early, late=late, last=last)


def passes(costs: StepCosts, share: Share, stages: Any) -> tuple[Array, Array, Array]:
    """Forward, input-gradient and weight-gradient seconds of one micro-batch, on so many virtual stages together.

    They include exposed collectives and transfers. The first stage's forward and the last one's backward receive
    nothing.
    """
    layer, ends, head, embedding = costs.layer, costs.ends, share.last, share.first
    modules, dense = share.modules, share.dense
    collectives = _ends_collectives_s(costs)
    forward = share.layers * layer.forward_s + (stages - embedding) * costs.send_s
    backward = share.layers * layer.backward_s + (stages - head) * costs.send_s
    forward, backward = (_plus(x, embedding + head, collectives) for x in (forward, backward))
    if costs.layer_not_recomputed is not None:
        saves = layer.backward_s - costs.layer_not_recomputed.backward_s
        backward = backward - layers_not_recomputed(costs.case.layouts, share.layers, stages) * saves
    forward = _plus(_plus(forward, embedding, ends.embedding_forward_s), head, ends.head_forward_s)
    backward = _plus(_plus(backward, embedding, ends.embedding_backward_s), head, ends.head_backward_s)
    forward = _plus(_plus(forward, modules, ends.module_forward_s), dense, costs.dense_s[0])
    backward = _plus(_plus(backward, modules, ends.module_backward_s), dense, costs.dense_s[1])
    if costs.offload_layer_s is not None:
        forward, backward = _with_offload(costs, costs.offload_layer_s, share, stages, forward, backward)
    # The head's gradient is two equal products, one of them the weight's.
    weights = _plus(share.layers * costs.cost.weight_grad_s, head, ends.head_backward_s / 2.0)
    weights = _plus(_plus(weights, modules, ends.module_backward_s / 2.0), dense, costs.dense_s[2])
    return forward, backward - weights, weights


def forward_s(costs: StepCosts) -> Array:
    """Seconds of a step's forward passes on the slowest rank, without any bubble, shape (n,)."""
    layouts = costs.case.layouts
    return np.asarray(layouts.micro_batches * rank_passes(costs).known(layouts.pp).slowest(layouts.pp)[0])


def _ends_collectives_s(costs: StepCosts) -> Array:
    """Collectives of the embedding, or of the head, in one of the two passes.

    Half of the ends' collectives run with the embedding, half with the head, half of each in either pass.
    """
    t, chunks = costs.traffic, by_chunk(costs.case.layouts)
    return np.asarray((t.ends_s + np.where(chunks, 0.0, t.ends_sharding_s)) / 4.0)


def _plus(x: Any, share: Any, more: Any) -> Any:
    """`x + share * more`; a share of 0 that all have is no array, and costs nothing."""
    return x if isinstance(share, float) and share == 0.0 else x + share * more


def _with_offload(
    costs: StepCosts, offload_layer_s: Array, share: Share, stages: Any, forward_s: Array, backward_s: Array
) -> tuple[Array, Array]:
    """The passes that wait for layers' activations on their way to the host, or back.

    Activations leave layer by layer, from the end of the first layer that is moved to the end of the forward pass. They
    come back from the start of the backward pass on, before that layer goes backward; a layer's come when another
    layer's room is free. Layers that are recomputed lie before it. The two bounds here are the pass and the transfers
    (tested layer by layer).
    """
    layer, ends, layouts = costs.layer, costs.ends, costs.case.layouts
    moved = offloaded_layers(layouts, share.layers, stages)
    repeated = first_layers(layouts.recompute_layers, share.layers, stages)
    once = costs.layer_not_recomputed or layer
    collectives = share.first * _ends_collectives_s(costs)
    before = (stages + repeated) * layer.forward_s + (stages - share.first) * costs.send_s + collectives
    before = before + share.first * ends.embedding_forward_s
    after = stages * once.backward_s + repeated * layer.backward_s + collectives
    after = after + share.first * ends.embedding_backward_s
    out, back = (np.where(moved > 0, x + moved * offload_layer_s, 0.0) for x in (before, after))
    return np.maximum(forward_s, out), np.maximum(backward_s, back)
