"""Data-parallel collectives of a step, and what of them hides under compute."""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools, record
from planner.layouts import Layouts, OptimizerKind
from planner.step.layer_time import shown_s
from planner.step.pipelines import layer_at_a_time
from planner.step.step_costs import StepCosts


@record
class DataComm:
    """Data-parallel collectives of a step in seconds, shape (n,): all of each, and the part that compute hides."""

    reduce_s: Array
    reduce_hidden_s: Array
    gather_s: Array
    gather_hidden_s: Array


def beside_passes(layouts: Layouts) -> Bools:
    """Where gradients may be reduced, and parameters gathered, beside the passes: not where Muon updates them."""
    return np.asarray(layouts.optimizer != OptimizerKind.MUON)


def data_comm(costs: StepCosts, forward_s: Any, backward_s: Any, layers: Any) -> DataComm:
    """The gradient reduction and the parameter gather of a rank.

    forward_s, backward_s: the rank's passes of one micro-batch; layers: that it has. The collectives hide under one
    micro-batch's passes, as far as the framework overlaps them. Of a reduction after every micro-batch, what outlasts
    the backward pass holds the device up, not the host, which launches the next one's passes meanwhile: all but the
    last take the place of waits for launches. A layer-at-a-time schedule hides them under all micro-batches' passes of
    the other chunks; the last chunk's reduction and the first chunk's gather show. Beside Muon nothing overlaps
    (Megatron-Core 0.16.1, arguments.py).
    """
    framework, layouts = costs.case.framework, costs.case.layouts
    m, p, v = layouts.micro_batches, layouts.pp, layouts.virtual_stages
    in_turn = layer_at_a_time(layouts)
    window = np.where(in_turn, np.maximum(m, p) * (v - 1) / v, 1.0)
    most = np.where(in_turn, (v - 1) / v, 1.0)
    beside = beside_passes(layouts)
    overlap = beside * np.where(
        (p > 1) & ~in_turn, framework.overlap_grad_reduce_pipelined, framework.overlap_grad_reduce
    )
    times = np.where((layouts.zero == 2) & ~in_turn, m, 1)
    at_most = np.minimum(overlap, most) * costs.reduce_s
    reduce_hidden = np.minimum(overlap * window * backward_s, at_most)
    if np.any(times > 1):
        layer, _ = costs.mean_layer()
        idle_f, idle_b = layers * layer.idle_forward_s, layers * layer.idle_backward_s
        earlier = np.minimum(overlap * (backward_s - idle_b), at_most) + idle_f + idle_b
        reduce_hidden = reduce_hidden + (times - 1) * np.minimum(earlier, costs.reduce_s)
    gather_shown = shown_s(framework, costs.gather_s, costs.gather_taken_s, beside * window * forward_s)
    return DataComm(
        reduce_s=times * costs.reduce_s,
        reduce_hidden_s=reduce_hidden,
        gather_s=costs.gather_s,
        gather_hidden_s=np.minimum(costs.gather_s - gather_shown, most * costs.gather_s),
    )
