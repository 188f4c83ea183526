"""`estimate(setup, layouts)`: seconds and bytes of a training step, with what they are made of.

One closed form for all layouts at once. Parts are those of the average rank; `imbalance_s` is what the slowest
rank adds to it, `bubble_s` the filling and draining of the pipeline; the parts add up to the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.base import records
from planner.costs.memory.fit_chance import fit_chance
from planner.costs.memory.rank import Memory, rank_memory
from planner.costs.one_layer import OneLayer
from planner.layouts import Layouts, Precision
from planner.models.flops import step_flops
from planner.schedules import Loads
from planner.setup import Setup
from planner.step.pipelines import by_schedule, end_shares, key_ranks, layers_at_once, pipeline
from planner.step.step_costs import StepCosts, data_comm, step_costs

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step by cause, arrays of shape (n,); the total is their sum."""

    matmul_s: Array
    attention_s: Array
    scan_s: Array
    pointwise_s: Array
    recompute_s: Array
    embedding_head_s: Array
    host_s: Array
    tensor_comm_s: Array
    context_comm_s: Array
    expert_comm_s: Array
    sharding_comm_s: Array
    pipeline_comm_s: Array
    imbalance_s: Array
    bubble_s: Array
    data_comm_s: Array
    optimizer_s: Array

    @property
    def but_bubble_s(self) -> Array:
        """Seconds of the step without its bubble."""
        return np.asarray(sum(getattr(self, f.name) for f in fields(self) if f.name != "bubble_s"))

    @property
    def total_s(self) -> Array:
        """Seconds of the step."""
        return np.asarray(self.but_bubble_s + self.bubble_s)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What `estimate` says of a table of layouts; arrays of shape (n,).

    memory: of the fullest rank. first_rank_bytes: peak memory of the first pipeline rank, where some frameworks measure
    it. capacity_bytes: of one accelerator. usable_bytes: predicted memory up to which a layout fits. model_flop: of a
    step, by PaLM's convention. tokens: of a step. peak_flops: of one accelerator, at the layout's precision.
    """

    layouts: Layouts
    time: StepTime
    memory: Memory
    first_rank_bytes: Array
    capacity_bytes: float
    usable_bytes: float
    model_flop: Array
    tokens: Array
    peak_flops: Array

    @cached_property
    def step_time_s(self) -> Array:
        """Seconds of a step."""
        return self.time.total_s

    @cached_property
    def memory_bytes(self) -> Array:
        """Peak memory of the fullest rank."""
        return self.memory.total_bytes

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Where the fullest rank's peak memory is within what a layout may take."""
        return np.asarray(self.memory_bytes <= self.usable_bytes)

    @property
    def fit_chance(self) -> Array:
        """How likely the fullest rank's peak memory is within the accelerator's, 0 to 1."""
        return fit_chance(self.memory_bytes, self.capacity_bytes)

    @property
    def mfu(self) -> Array:
        """Model FLOP per second over the accelerators' peak, 0 to 1."""
        return self.model_flop / (self.step_time_s * self.layouts.gpus * self.peak_flops)

    @property
    def tokens_per_s_per_gpu(self) -> Array:
        """Tokens per second and GPU."""
        return self.tokens / self.step_time_s / self.layouts.gpus

    @property
    def least_chance(self) -> float:
        """The chance of what just fits; 1 where a layout may take all of the memory."""
        whole = self.usable_bytes >= self.capacity_bytes
        return 1.0 if whole else float(fit_chance(self.usable_bytes, self.capacity_bytes))

    def take(self, rows: Any) -> Estimate:
        """That of the layouts at an index array, mask or slice."""
        return records.take(self, rows)

    @staticmethod
    def concatenate(estimates: Sequence[Estimate]) -> Estimate:
        """Estimates on the same accelerator, one after the other."""
        layouts = Layouts.concatenate([one.layouts for one in estimates])
        return replace(records.concatenate(estimates), layouts=layouts)

    def with_simulated(self, rows: Any, step_time_s: Any, peak_bytes: Any) -> Estimate:
        """The estimate with what the exact timeline says of some layouts, `rows` an index array.

        The difference of the step is of the bubble. Where the timeline's peak memory fits and the closed form's
        doesn't, or the reverse, it is the timeline's; the difference is of the activations.
        """
        bubble, activations = self.time.bubble_s.copy(), self.memory.activations_bytes.copy()
        bubble[rows] = step_time_s - self.time.but_bubble_s[rows]
        closed = self.memory_bytes[rows]
        otherwise = (closed <= self.usable_bytes) != (peak_bytes <= self.usable_bytes)
        activations[rows] += np.where(otherwise, peak_bytes - closed, 0.0)
        return replace(
            self,
            time=replace(self.time, bubble_s=bubble),
            memory=replace(self.memory, activations_bytes=activations),
        )


def _rank_memories(costs: StepCosts) -> list[Memory]:
    """Of the ranks that may be fullest: the first, one between the ends, and the last with its logits."""
    layouts = costs.case.layouts
    share, n = costs.activations.weight_grad_share, layouts.shape[-1]
    ranks = []
    for rank in key_ranks(layouts, costs.stages):
        number = np.broadcast_to(rank.number, (*np.shape(rank.number)[:-1], n))
        flight, copies = np.zeros(np.broadcast_shapes(share.shape, number.shape)), np.ones(n)
        versions = np.ones(number.shape)
        for schedule, rows in by_schedule(layouts):
            pipe, at = pipeline(layouts, rows), number[..., rows]
            flight[..., rows] = schedule.in_flight(pipe, at, share[..., rows])
            copies[rows], versions[..., rows] = schedule.copies, schedule.weight_versions(pipe, at)
        ranks.append(
            rank_memory(
                costs.case,
                layers=rank.layers,
                in_flight=flight,
                first=rank.first,
                last=rank.last,
                copies=copies,
                versions=versions,
                at_once=layers_at_once(layouts, rank.layers),
                held=costs.activations,
            )
        )
    return ranks


def passes(costs: StepCosts, layers: Any, first: Any, last: Any, stages: Any) -> tuple[Array, Array, Array]:
    """F, I, W of one micro-batch through so many layers and stages, and shares of embedding and head.

    With their collectives and the exposed transfers; the first stage's forward and the last one's backward receive
    nothing.
    """
    layer, ends, send = costs.layer, costs.ends, costs.send_s
    # Collectives of the ends: half with the embedding, half with the head, half of each in either pass.
    quarter = (costs.traffic.ends_s + costs.traffic.ends_sharding_s) / 4.0
    forward = layers * layer.forward_s + (stages - first) * send + (first + last) * quarter
    backward = layers * layer.backward_s + (stages - last) * send + (first + last) * quarter
    forward = forward + first * ends.embedding_forward_s + last * ends.head_forward_s
    backward = backward + first * ends.embedding_backward_s + last * ends.head_backward_s
    # The head's gradient is two equal products, one of them the weight's.
    weights = layers * costs.cost.weight_grad_s + last * ends.head_backward_s / 2.0
    return forward, backward - weights, weights


def _loads(costs: StepCosts) -> Loads:
    """What every kind of rank does."""
    layouts, stages = costs.case.layouts, costs.stages
    shares, v = end_shares(layouts), layouts.virtual_stages
    return Loads(
        first=passes(costs, stages.first, shares[0], shares[1], v),
        early=passes(costs, stages.early, 0.0, 0.0, v),
        num_early=stages.num_early,
        late=passes(costs, stages.late, 0.0, 0.0, v),
        last=passes(costs, stages.last, shares[2], shares[3], v),
    )


def _makespan(layouts: Layouts, loads: Loads) -> Array:
    """Seconds of each layout's schedule."""
    out = np.empty(np.broadcast_shapes(*(x.shape for x in (*loads.first, *loads.last))))
    for schedule, rows in by_schedule(layouts):
        out[..., rows] = schedule.makespan(pipeline(layouts, rows), loads.take(rows))
    return out


def _step_time(costs: StepCosts, bubble: bool = True) -> StepTime:
    """The step from its parts; where it is not asked for, without its bubble."""
    cost, layer, ends, t = costs.cost, costs.layer, costs.ends, costs.traffic
    layouts = costs.case.layouts
    m, p = layouts.micro_batches, layouts.pp
    ends_s = ends.embedding_forward_s + ends.embedding_backward_s
    ends_s = ends_s + ends.head_forward_s + ends.head_backward_s
    loads = _loads(costs)
    forward, input_grad, weight_grad = loads.slowest(p)
    slowest = forward + input_grad + weight_grad
    span = _makespan(layouts, loads) if bubble else m * slowest
    mean = sum(loads.total(p)) / p
    work = m * costs.case.model.num_layers / p
    data = data_comm(costs, forward, input_grad + weight_grad)
    return StepTime(
        matmul_s=work * (cost.forward_matmul_s + cost.backward_matmul_s - cost.launch_s),
        attention_s=work * (cost.forward_attention_s + cost.backward_attention_s),
        scan_s=work * (cost.forward_scan_s + cost.backward_scan_s),
        pointwise_s=work * (cost.forward_pointwise_s + cost.backward_pointwise_s),
        recompute_s=work * cost.recompute_s,
        embedding_head_s=m * ends_s / p,
        host_s=work * (layer.host_s + cost.launch_s),
        tensor_comm_s=work * layer.tensor_s + m * t.ends_s / p,
        context_comm_s=work * layer.context_s,
        expert_comm_s=work * layer.expert_s,
        sharding_comm_s=work * layer.sharding_s + m * t.ends_sharding_s / p,
        pipeline_comm_s=m * 2.0 * (layouts.virtual_stages - 1.0 / p) * costs.send_s,
        imbalance_s=m * (slowest - mean),
        bubble_s=span - m * slowest,
        data_comm_s=data.reduce_s - data.reduce_hidden_s + data.gather_s - data.gather_hidden_s + t.tied_s,
        optimizer_s=costs.update_s,
    )


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What a search compares: step and peak memory, arrays of the layouts' shape, and what of the step is bubble."""

    step_time_s: Array
    bubble_s: Array
    memory_bytes: Array


def totals(setup: Setup, layouts: Layouts, one: OneLayer | None = None) -> Totals:
    """Step time and peak memory of a grid of layouts: the sums that `estimate` gives of a table, bit for bit.

    one: their `one_layer`, where it is known.
    """
    costs = step_costs(setup, layouts, one)
    time = _step_time(costs)
    return Totals(
        step_time_s=np.broadcast_to(time.total_s, layouts.shape),
        bubble_s=time.bubble_s,
        memory_bytes=_peak_bytes(costs),
    )


def peak_bytes(setup: Setup, layouts: Layouts, one: OneLayer | None = None) -> Array:
    """The peak memory alone of what `totals` takes, of the layouts' shape."""
    return _peak_bytes(step_costs(setup, layouts, one))


def _peak_bytes(costs: StepCosts) -> Array:
    memory = [rank.total_bytes for rank in _rank_memories(costs)]
    return np.broadcast_to(reduce(np.maximum, memory), costs.case.layouts.shape)


def least_step_s(setup: Setup, layouts: Layouts) -> Array:
    """Seconds of every layout's step without any bubble, shape (n,): what no order of its operations can go below."""
    return _step_time(step_costs(setup, layouts), bubble=False).total_s


def estimate(setup: Setup, layouts: Layouts) -> Estimate:
    """Step time and peak memory of every layout, which must be legal (`planner.step.legality`)."""
    model = setup.model
    costs = step_costs(setup, layouts)
    time = _step_time(costs)
    ranks = _rank_memories(costs)
    peak = np.array([setup.cluster.accelerator.peak_flops.get(p.name.lower(), np.nan) for p in Precision])
    return Estimate(
        layouts=layouts,
        time=time,
        memory=records.largest(ranks, lambda rank: rank.total_bytes),
        first_rank_bytes=ranks[0].total_bytes,
        capacity_bytes=setup.cluster.accelerator.memory_bytes,
        usable_bytes=setup.cluster.accelerator.usable_bytes,
        model_flop=np.asarray(step_flops(model, layouts.global_batch, "palm")),
        tokens=np.asarray(layouts.global_batch * model.seq_len),
        peak_flops=peak[layouts.precision],
    )
