"""A pipeline stage: layers in a row, run forward, backward, or backward in two parts, for one slice of a micro-batch.

Shapes: b sequences, s tokens of this rank, h hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.base.errors import LayoutError
from planner.layouts import Recompute
from planner.trainer.arrays import Array
from planner.trainer.block import Block
from planner.trainer.ends import Embedding, Head
from planner.trainer.layer import Layer, Setting, SliceOf
from planner.trainer.parameters import Unit, Views
from planner.trainer.sparse_block import SparseBlock
from planner.trainer.store import Store


def split_evenly(num_layers: int, num_stages: int) -> list[int]:
    """Layers of each stage: the same count, the remainder one each to the first."""
    return [num_layers // num_stages + (i < num_layers % num_stages) for i in range(num_stages)]


@dataclass(frozen=True)
class Stage:
    """Layers that run together; the first stage of the model has the embedding, the last the head."""

    layers: tuple[Layer, ...]

    @property
    def units(self) -> list[Unit]:
        """Parameters of all layers."""
        return [unit for layer in self.layers for unit in layer.units]

    def forward(self, store: Store, x_bsh: Array, part: SliceOf, keep: bool) -> tuple[Array, list[Any]]:
        """The output and what each layer saved; `keep`: gathered parameters stay for the next operation."""
        saved = []
        for layer in self.layers:
            x_bsh, kept = layer.forward(_parameters(store, layer), x_bsh, part)
            saved.append(kept)
            if not keep:
                store.release(layer.units)
        return x_bsh, saved

    def input_gradient(
        self, store: Store, dy_bsh: Array, saved: list[Any], part: SliceOf, keep: bool
    ) -> tuple[Array, list[tuple[Layer, list[Any]]]]:
        """The gradient by the input, and of each layer the weight gradients that wait; empties `saved`."""
        waiting = []
        for layer in reversed(self.layers):
            dy_bsh, more = layer.input_gradient(_parameters(store, layer), dy_bsh, saved.pop(), part)
            waiting.append((layer, more))
            if not keep:
                store.release(layer.units)
        return dy_bsh, waiting

    def backward(self, store: Store, dy_bsh: Array, saved: list[Any], part: SliceOf, keep: bool) -> Array:
        """Both gradients, layer by layer, so that nothing waits."""
        for layer in reversed(self.layers):
            dy_bsh, waiting = layer.input_gradient(_parameters(store, layer), dy_bsh, saved.pop(), part)
            add_gradients(store, layer, waiting, keep)
            if not keep:
                store.release(layer.units)
        return dy_bsh


def add_gradients(store: Store, layer: Layer, waiting: list[Any], keep: bool) -> None:
    """Add a layer's waiting weight gradients; `keep`: they stay here whole for the next operation."""
    gradients: Views = {}
    for unit in layer.units:
        gradients |= store.gradients(unit)
    for gradient in waiting:
        gradient.add_to(gradients)
    if not keep:
        store.scatter(layer.units)


def _parameters(store: Store, layer: Layer) -> Views:
    views: Views = {}
    for unit in layer.units:
        views |= store.parameters(unit)
    return views


def _block(setting: Setting, index: int) -> Layer:
    kind = SparseBlock if index >= setting.model.num_dense_layers else Block
    return kind(setting, index)


def make_stages(setting: Setting, layers_per_stage: Sequence[int], recompute_layers: int = 0) -> list[Stage]:
    """The whole model as stages of so many layers each.

    recompute_layers: the first ones of each stage that are recomputed as the setting says, the others not; 0 all.

    Raises:
        LayoutError: the counts don't add up to the model's layers.
    """
    L = setting.model.num_layers
    if sum(layers_per_stage) != L or min(layers_per_stage) < 0:
        raise LayoutError(f"layers per stage are {list(layers_per_stage)}; allowed: counts that add up to {L}")
    blocks = iter(range(L))
    kept = replace(setting, recompute=Recompute.NONE) if recompute_layers else setting
    stages: list[list[Layer]] = [
        [_block(setting if i < recompute_layers else kept, next(blocks)) for i in range(n)] for n in layers_per_stage
    ]
    stages[0].insert(0, Embedding(setting))
    stages[-1].append(Head(setting))
    return [Stage(tuple(layers)) for layers in stages]
