"""Data-parallel collectives of a step: how long they take, and how much of that hides under the passes."""

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
    """Data-parallel collectives of a step, seconds of shape (n,): in all, and of that what hides under compute."""

    reduce_s: Array
    reduce_hidden_s: Array
    gather_s: Array
    gather_hidden_s: Array


def data_comm(costs: StepCosts, forward_s: Any, backward_s: Any) -> DataComm:
    """The gradient reduction and parameter gather of a rank whose passes of one micro-batch take so many seconds.

    They hide under one micro-batch's pass as far as the framework overlaps; layer at a time under all micro-batches'
    passes of the other chunks, which leaves the last chunk's reduction and the first one's gather.
    """
    framework, layouts = costs.case.framework, costs.case.layouts
    m, p, v = layouts.micro_batches, layouts.pp, layouts.virtual_stages
    by_layer = layer_at_a_time(layouts)
    window = np.where(by_layer, np.maximum(m, p) * (v - 1) / v, 1.0)
    most = np.where(by_layer, (v - 1) / v, 1.0)
    overlap = np.where((p > 1) & ~by_layer, framework.overlap_grad_reduce_pipelined, framework.overlap_grad_reduce)
    times = np.where((layouts.zero == 2) & ~by_layer, m, 1)
    reduce_hidden = np.minimum(overlap * window * backward_s, np.minimum(overlap, most) * costs.reduce_s)
    gather_shown = shown_s(framework, costs.gather_s, costs.gather_link_s, window * forward_s)
    return DataComm(
        reduce_s=times * costs.reduce_s,
        reduce_hidden_s=times * reduce_hidden,
        gather_s=costs.gather_s,
        gather_hidden_s=np.minimum(costs.gather_s - gather_shown, most * costs.gather_s),
    )
