"""Bytes of layers and ends that a rank of ZeRO 2 or 3 holds whole for a while. Array-first, shape (n,)."""

from dataclasses import fields
from typing import Any

import numpy as np

from planner.base.arrays import Array, record
from planner.costs.case import Case
from planner.costs.memory.bytes_per_parameter import (
    fp8_copy_bytes,
    layer_parameter_bytes,
    parameter_bytes,
    parameters_on_host,
    reduced_bytes,
)
from planner.costs.parameters import RankParameters
from planner.layouts import Recompute
from planner.models import Transformer


@record
class WholeBytes:
    """Bytes of whole layers and ends on a rank that shards them (ZeRO-2 and 3), arrays of shape (n,).

    gradients: of the layers at work before their scatter. layers: gathered, or come from the host (ZeRO-3).
    ends: gathered embedding and head. end, copies: the larger of both, gathered, and what its gradients are copied to
    as they are scattered.
    """

    gradients: Array
    layers: Array
    ends: Array
    end_gradients: Array
    end: Array
    copies: Array

    @property
    def total(self) -> Array:
        """All at once: the larger gradients, all that is gathered."""
        return np.asarray(np.maximum(self.gradients, self.end_gradients) + self.layers + self.ends)


def share_of_larger(model: Transformer, first: Any, last: Any) -> Array:
    """What one matrix of a rank's embedding and head is of both."""
    return np.where(np.asarray(model.tied), 1.0, np.maximum(first, last) / np.maximum(1.0 * first + last, 1e-9))


def whole_bytes(
    case: Case,
    own: RankParameters,
    moves: RankParameters,
    layers: Any,
    modules: Any,
    at_once: Any,
    ends: tuple[Any, Any],
) -> WholeBytes:
    """Bytes of gradients before their scatter (ZeRO-2 and 3), and of gathered parameters (ZeRO-3).

    Gradients are those of the `at_once` layers at work. Parameters are those of twice as many layers, the ones at work
    and the next ones. A framework that takes matrix after matrix (DeepSpeed) holds no more than its limits say, or the
    largest matrix; nor more gradients than one matrix's, or one table's, beside buffers (`reduce_buffers_bytes`).
    """
    framework, model = case.framework, case.model
    if np.all(case.layouts.zero < 2):
        return WholeBytes(**{field.name: np.zeros(1) for field in fields(WholeBytes)})
    matrix = model.hidden * np.maximum(model.ffn, model.moe_ffn) / case.layouts.tp

    def of_one_layer(some: RankParameters) -> Any:
        return (some.layers + some.experts) / np.maximum(layers + modules * model.num_mtp_modules, 1)

    def at_most(count: Any, limit: float) -> Any:
        return np.minimum(count, np.maximum(matrix, limit or np.inf))

    most = 1.0 if framework.reduce_buffers else framework.reduce_bucket_parameters
    scattered = at_most(np.minimum(at_once, layers) * of_one_layer(moves), most)
    gathered = at_most(np.minimum(2.0 * at_once, layers) * of_one_layer(own), framework.live_parameters)
    if framework.keeps_gathered:
        gathered = np.where(case.layouts.recompute == Recompute.FULL, gathered, own.layers + own.experts)
    larger = share_of_larger(model, *ends)
    shared = case.layouts.shards > 1  # one rank shards nothing
    scatters = (case.layouts.zero >= 2) & shared
    gathers = (case.layouts.zero == 3) & (shared | (parameters_on_host(case) > 0))
    sent, parameter = reduced_bytes(case), parameter_bytes(case.layouts)
    return WholeBytes(
        gradients=np.where(scatters, scattered * sent, 0.0),
        layers=np.where(gathers, gathered * (layer_parameter_bytes(case) + fp8_copy_bytes(case)), 0.0),
        ends=np.where(gathers, own.ends * parameter, 0.0),
        end_gradients=np.where(scatters, (larger if framework.reduce_buffers else 1.0) * moves.ends * sent, 0.0),
        end=np.where(scatters | gathers, larger * own.ends * parameter, 0.0),
        copies=np.where(scatters, larger * moves.ends * (framework.scatter_bytes + sent / case.layouts.shards), 0.0),
    )
