"""Data-parallel collectives of a step, and what of them hides under compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.step.layer_time import shown_s
from planner.step.pipelines import layer_at_a_time
from planner.step.step_costs import StepCosts


@dataclass(frozen=True, kw_only=True)
class DataComm:
    """Data-parallel collectives of a step in seconds, shape (n,): all of each, and the part that compute hides."""

    reduce_s: Array
    reduce_hidden_s: Array
    gather_s: Array
    gather_hidden_s: Array


def data_comm(costs: StepCosts, forward_s: Any, backward_s: Any) -> DataComm:
    """The gradient reduction and the parameter gather of a rank.

    forward_s, backward_s: the rank's passes of one micro-batch. The collectives hide under one micro-batch's passes,
    as far as the framework overlaps them. A layer-at-a-time schedule hides them under all micro-batches' passes of the
    other chunks; the last chunk's reduction and the first chunk's gather show.
    """
    framework, layouts = costs.case.framework, costs.case.layouts
    m, p, v = layouts.micro_batches, layouts.pp, layouts.virtual_stages
    in_turn = layer_at_a_time(layouts)
    window = np.where(in_turn, np.maximum(m, p) * (v - 1) / v, 1.0)
    most = np.where(in_turn, (v - 1) / v, 1.0)
    overlap = np.where((p > 1) & ~in_turn, framework.overlap_grad_reduce_pipelined, framework.overlap_grad_reduce)
    times = np.where((layouts.zero == 2) & ~in_turn, m, 1)
    reduce_hidden = np.minimum(overlap * window * backward_s, np.minimum(overlap, most) * costs.reduce_s)
    gather_shown = shown_s(framework, costs.gather_s, costs.gather_link_s, window * forward_s)
    return DataComm(
        reduce_s=times * costs.reduce_s,
        reduce_hidden_s=times * reduce_hidden,
        gather_s=costs.gather_s,
        gather_hidden_s=np.minimum(costs.gather_s - gather_shown, most * costs.gather_s),
    )
