"""`estimate(setup, layouts)`: seconds and bytes of a training step, with what they are made of.

One closed form for all layouts at once. Parts are those of the average rank; `imbalance_s` is what the slowest
rank adds to it, `bubble_s` the filling and draining of the pipeline; the parts add up to the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from planner.base import records
from planner.base.arrays import Array, Bools, record
from planner.costs.memory.fit_chance import FIT_CHANCE, fit_chance, kinds_of, unmeasured
from planner.costs.memory.rank import Memory
from planner.costs.one_layer import OneLayer
from planner.layouts import Layouts, Precision
from planner.models.flops import step_flops, weight_gradient_flops
from planner.setup import Setup
from planner.step.pipelines import trait
from planner.step.ranks import rank_memories
from planner.step.splits import alike, without_equal
from planner.step.step_costs import StepCosts, layers_of_ends, step_costs, unsplit, with_stages
from planner.step.step_time import StepTime, step_time

ROUNDING = 1e-12  # of a step
FEW_LAYOUTS = 65_536  # of a grid, in two parts: their calls take as long as what these leave out


@record
class Estimate:
    """The estimates of a table of layouts; arrays of shape (n,).

    memory: of the fullest rank. first_rank_bytes: peak memory of the first pipeline rank, where some frameworks measure
    it. capacity_bytes: of one accelerator. usable_bytes: predicted memory up to which a layout fits. memory_unmeasured:
    whether the memory of few such runs is known (`planner.costs.memory.fit_chance`). model_flop: of a step, by PaLM's
    convention, without the weight gradients that adapters spare. tokens: of a step. peak_flops: of one accelerator, at
    the layout's precision. closed_form_s: the step by the closed form; simulated: where step and memory are the exact
    timeline's instead.
    """

    layouts: Layouts
    time: StepTime
    memory: Memory
    first_rank_bytes: Array
    capacity_bytes: float
    usable_bytes: float
    memory_unmeasured: Bools
    model_flop: Array
    tokens: Array
    peak_flops: Array
    closed_form_s: Array
    simulated: Bools

    @cached_property
    def step_time_s(self) -> Array:
        """Seconds of a step."""
        return self.time.total_s

    @cached_property
    def memory_bytes(self) -> Array:
        """Peak memory of the fullest rank."""
        return self.memory.total_bytes

    @property
    def fits(self) -> Bools:
        """Whether the fullest rank's peak memory is within what a layout may take."""
        return np.asarray(self.memory_bytes <= self.usable_bytes)

    @property
    def fit_chance(self) -> Array:
        """How likely the fullest rank's peak memory is within the accelerator's, 0 to 1."""
        return fit_chance(self.memory_bytes, self.capacity_bytes, self.memory_unmeasured)

    @property
    def surely_fits(self) -> Bools:
        """Whether that is as likely as of a layout that is advised, unless asked otherwise."""
        return self.fit_chance >= FIT_CHANCE

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
        wide = np.any(self.memory_unmeasured)
        return 1.0 if whole else float(fit_chance(self.usable_bytes, self.capacity_bytes, wide))

    def take(self, rows: Any) -> Estimate:
        """The estimate of the layouts at an index array, mask or slice."""
        return records.take(self, rows)

    @staticmethod
    def concatenate(estimates: Sequence[Estimate]) -> Estimate:
        """Estimates on the same accelerator, one after the other."""
        layouts = Layouts.concatenate([one.layouts for one in estimates])
        return replace(records.concatenate(estimates), layouts=layouts)

    def with_simulated(self, rows: Any, step_time_s: Any, peak_bytes: Any) -> Estimate:
        """The estimate with what the exact timeline says of some layouts, `rows` an index array.

        The difference of the step is of the bubble, that of the peak memory of the activations, and of the buffers
        beyond all of these, where the fullest rank keeps none. What makes a step shorter than without any bubble is of
        the imbalance: a rank that has a slow stage may have a quick one too. Of a pipeline that is never drained it is
        of the collectives, then the update: the closed form adds the largest of any rank to the slowest rank's work.
        """
        out = records.mapped(self, np.copy)
        left, steady = step_time_s - self.time.but_bubble_s[rows], trait(self.layouts, "steady")[rows]
        time, memory = out.time, out.memory
        for part, of in ((time.data_comm_s, steady), (time.optimizer_s, steady), (time.imbalance_s, ~steady)):
            less = np.clip(-left, 0.0, part[rows]) * of
            part[rows] -= less
            left += less
        time.bubble_s[rows] = np.where(np.abs(left) <= ROUNDING * step_time_s, 0.0, left)
        stays = memory.activations_bytes[rows] + peak_bytes - self.memory_bytes[rows]
        memory.activations_bytes[rows] = np.maximum(stays, 0.0)
        memory.buffers_bytes[rows] += np.minimum(stays, 0.0)
        out.simulated[rows] = True
        return out


@record
class Totals:
    """The figures that a search compares: step and peak memory, arrays of the layouts' shape, and the step's bubble."""

    step_time_s: Array
    bubble_s: Array
    memory_bytes: Array


def totals(setup: Setup, layouts: Layouts, one: OneLayer | None = None) -> Totals:
    """Step time and peak memory of a grid of layouts: the sums that `estimate` gives of a table, bit for bit.

    one: their `one_layer`, where it is known.
    """
    some = unsplit(setup, layouts, one)
    ends = layers_of_ends(some)
    least, apart = alike(layouts, ends)
    if apart.all() or not apart.any() or len(layouts) <= FEW_LAYOUTS:
        return _totals(with_stages(some, ends if apart.any() else least))
    rows = [np.flatnonzero(~apart), np.flatnonzero(apart)]
    own = [records.take(of, at, len(apart)) for at, of in zip(rows, (least, ends), strict=True)]
    own[1] = without_equal(own[1][0]), without_equal(own[1][1])
    parts = [_totals(with_stages(some.take(at), of)) for at, of in zip(rows, own, strict=True)]
    order = np.argsort(np.concatenate(rows))
    return records.combined(parts, lambda *own: np.concatenate(own, axis=-1).take(order, -1))


def _totals(costs: StepCosts) -> Totals:
    time, shape = step_time(costs), costs.case.layouts.shape
    step, bubble = (np.broadcast_to(x, shape) for x in (time.total_s, time.bubble_s))
    peak = reduce(np.maximum, [rank.total_bytes for rank in rank_memories(costs)])
    return Totals(step_time_s=step, bubble_s=bubble, memory_bytes=np.broadcast_to(peak, costs.case.layouts.shape))


def estimate(setup: Setup, layouts: Layouts, costs: StepCosts | None = None) -> Estimate:
    """Step time and peak memory of every layout, which must be legal (`planner.step.legality`).

    costs: their `step_costs`, where they are known.
    """
    model = setup.model
    costs = costs or step_costs(setup, layouts)
    time = step_time(costs)
    ranks = rank_memories(costs)
    kinds = np.array([bool(unmeasured(kinds_of(setup, p.name.lower()))) for p in Precision])
    flop = step_flops(model, layouts.global_batch, "palm")
    if (layouts.train > 0).any():
        flop = flop - (layouts.train > 0) * weight_gradient_flops(model, layouts.global_batch)
    peak = np.array([setup.cluster.accelerator.peak_flops.get(p.name.lower(), np.nan) for p in Precision])
    return Estimate(
        layouts=layouts,
        time=time,
        memory=records.largest(ranks, lambda rank: rank.total_bytes),
        first_rank_bytes=ranks[0].total_bytes,
        capacity_bytes=setup.cluster.accelerator.memory_bytes,
        usable_bytes=setup.cluster.accelerator.usable_bytes,
        memory_unmeasured=kinds[layouts.precision],
        model_flop=flop,
        tokens=np.asarray(layouts.global_batch * model.seq_len),
        peak_flops=peak[layouts.precision],
        closed_form_s=time.total_s,
        simulated=np.zeros(len(layouts), dtype=bool),
    )
