"""`Case`: layouts of a setup, with what every cost formula asks of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools, Ints, record
from planner.costs.kernels.device import Device
from planner.costs.parameters import RankParts
from planner.costs.shapes import padded_vocab
from planner.hardware import Cluster, Framework
from planner.layouts import Dispatcher, Layouts
from planner.models import Transformer
from planner.setup import Setup


@record
class Case:
    """A table or grid of layouts of a setup, and one of its accelerators as these layouts use it."""

    device: Device
    model: Transformer
    cluster: Cluster
    framework: Framework
    layouts: Layouts

    @staticmethod
    def of(setup: Setup, layouts: Layouts) -> Case:
        """The case of a setup's layouts."""
        device = Device.of(setup.cluster.accelerator, layouts.precision, layouts.gpus)
        return Case(device=device, model=setup.model, cluster=setup.cluster, framework=setup.framework, layouts=layouts)

    def with_model(self, model: Transformer) -> Case:
        """The same layouts of another model."""
        return replace(self, model=model)

    def with_recompute(self, recompute: Any) -> Case:
        """The same layouts with other recomputation, an array that broadcasts with them."""
        return replace(self, layouts=replace(self.layouts, recompute=recompute))

    @cached_property
    def local_tokens(self) -> Array:
        """Tokens of one micro-batch on one context rank, shape (n,)."""
        return np.asarray(self.layouts.micro_batch * self.model.seq_len / self.layouts.cp)

    @cached_property
    def pass_tokens(self) -> Array:
        """Tokens of one pass through a layer: a slice of the sequence where there are slices, shape (n,)."""
        return np.asarray(self.local_tokens / self.layouts.sequence_slices)

    @cached_property
    def boundary_bytes(self) -> Array:
        """Bytes of the hidden state that a micro-batch takes from stage to stage, of one context rank, shape (n,)."""
        return np.asarray(self.local_tokens * self.model.hidden * self.device.element_bytes)

    @cached_property
    def token_shares(self) -> Ints:
        """Ranks among which sequence parallelism shares the hidden state's tokens; 1 without it. Shape (n,)."""
        return np.asarray(np.where(self.layouts.sequence_parallel, self.layouts.tp, 1))

    @cached_property
    def pickers(self) -> Ints:
        """Tensor ranks that have the same tokens, each to pick those of its own experts (PPMoE); else 1. Shape (n,)."""
        return np.asarray(np.where(self.layouts.dispatcher == Dispatcher.PPMOE, self.layouts.tp, 1))

    @cached_property
    def busiest(self) -> Array:
        """Tokens of the rank with the busiest experts over the mean, with those that a capacity drops gone; (n,).

        Where masks bring them, an expert has its capacity, places that stay empty too.
        """
        factor = self.layouts.capacity_factor
        least = np.minimum(self.layouts.expert_imbalance, np.where(factor > 0.0, factor, np.inf))
        return np.asarray(np.where(self.masked, factor, least))

    @cached_property
    def masked(self) -> Bools:
        """Whether products with masks bring tokens to experts and back, boolean of shape (n,)."""
        return np.asarray((self.layouts.capacity_factor > 0.0) & self.framework.masked_dispatch)

    @cached_property
    def busiest_copies(self) -> Array:
        """Copies of tokens that come to the rank with the busiest experts, for each token of its own, shape (n,)."""
        return np.asarray(self.model.top_k * self.busiest)

    @cached_property
    def over_layers(self) -> Case:
        """The same with the imbalance of a rank's layers together, of which each has another rank as its busiest.

        The deviation of a sum of independent loads over its mean falls as the root of their number.
        """
        if np.all(self.layouts.expert_imbalance == 1.0):
            return self
        layers = np.where(self.busiest > 1.0, self.model.num_layers / self.layouts.pp, 1.0)
        off = (self.busiest - 1.0) / np.sqrt(layers)
        return replace(self, layouts=replace(self.layouts, expert_imbalance=1.0 + off))

    @cached_property
    def by_layer(self) -> Bools:
        """Whether parameters are gathered and gradients scattered layer by layer, boolean of shape (n,)."""
        zero = self.layouts.zero
        return np.asarray((zero == 3) | ((zero == 2) & self.framework.zero2_by_layer))

    @cached_property
    def stops_early(self) -> Bools:
        """Whether recomputation of a layer ends with the last tensor that its backward pass needs, of shape (n,)."""
        f = self.framework
        return np.asarray((self.layouts.zero < f.whole_repeats_zero) & f.recompute_stops_early)

    @cached_property
    def scattering(self) -> Array:
        """Of a step's backward passes, the share that scatters a layer's gradients: all, or the last one; (n,)."""
        layouts = self.layouts
        if not self.framework.defers_scatter:
            return np.ones(1)
        last = self.by_layer & (layouts.shards > 1) & (layouts.pp == 1)
        return np.asarray(np.where(last, 1.0 / layouts.micro_batches, 1.0))

    @cached_property
    def padded_vocab(self) -> Array:
        """Vocabulary rows as stored (`planner.costs.shapes.padded_vocab`), shape (n,)."""
        return padded_vocab(self.model, self.layouts)

    @cached_property
    def ranks(self) -> RankParts:
        """The parts of the layouts' ranks."""
        return RankParts(model=self.model, layouts=self.layouts, whole_embedding=self.framework.whole_embedding)

    @cached_property
    def local_experts(self) -> Array:
        """Routed experts of a rank; 1 where there are none. Shape (n,)."""
        return np.asarray(np.maximum(self.model.num_experts, 1) / self.layouts.ep)
