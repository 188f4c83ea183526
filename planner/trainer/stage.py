"""A pipeline stage: layers in a row, run forward, backward, or backward in two parts, for one slice of a micro-batch.

Shapes: b sequences, s tokens of this rank, h hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.base.errors import LayoutError
from planner.layouts import Recompute
from planner.trainer.arrays import Array
from planner.trainer.block import Block, has_experts
from planner.trainer.embedding_head import Embedding, Head, Projection
from planner.trainer.experts import SparseBlock
from planner.trainer.host_arena import HostArena
from planner.trainer.layer import Layer, Setting, SliceOf
from planner.trainer.moved_parts import Moved, joined, parted
from planner.trainer.multi_token import PredictionModule
from planner.trainer.parallel_block import ParallelBlock
from planner.trainer.parameters import Unit, Views
from planner.trainer.store import Store


def split_evenly(num_layers: int, num_stages: int) -> list[int]:
    """Layers of each stage: the same count, the remainder one each to the first."""
    return [num_layers // num_stages + (i < num_layers % num_stages) for i in range(num_stages)]


@dataclass(frozen=True)
class Stage:
    """Layers that run together; the model's first stage has the embedding, its last the head and modules beside it.

    moved: the places of those whose activations wait in host memory, last first; modules: those of what modules alone,
    by Megatron-Core's names; none means all.
    """

    layers: tuple[Layer, ...]
    moved: tuple[int, ...] = ()
    modules: tuple[str, ...] = ()

    @property
    def units(self) -> list[Unit]:
        """Parameters of all layers."""
        return [unit for layer in self.layers for unit in layer.units]

    def forward(
        self, store: Store, x_bsh: Array, part: SliceOf, keep: bool, arena: HostArena
    ) -> tuple[Array, list[Any]]:
        """The output and what each layer saved; `keep`: gathered parameters stay for the next operation."""
        saved: list[Any] = []
        for i, layer in enumerate(self.layers):
            x_bsh, kept = layer.forward(_parameters(store, layer), x_bsh, part)
            saved.append(self._sent(kept, layer, part, arena) if i in self.moved else kept)
            del kept
            if not keep:
                store.release(layer.units)
        arena.settle()
        return x_bsh, saved

    def _sent(self, kept: Any, layer: Layer, part: SliceOf, arena: HostArena) -> Moved:
        """What a layer kept, or of it what its modules did, on its way to the host."""
        keys_values = part.keys_values.pop(layer.index, None)
        if not self.modules:
            return Moved(None, arena.leave((kept, keys_values)))
        stays, here, sent = parted(kept, keys_values, self.modules)
        part.keys_values |= {} if here is None else {layer.index: here}
        return Moved(stays, arena.leave(sent))

    def _back(self, moved: Moved, layer: Layer, part: SliceOf, arena: HostArena) -> Any:
        """The same, when it is back."""
        came = arena.back(moved.away)
        kept, keys_values = joined(moved.stays, came) if self.modules else came
        part.keys_values |= {} if keys_values is None else {layer.index: keys_values}
        return kept

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

    def backward(
        self, store: Store, dy_bsh: Array, saved: list[Any], part: SliceOf, keep: bool, arena: HostArena
    ) -> Array:
        """Both gradients, layer by layer, so that nothing waits.

        Room for one layer's activations more than the stage keeps is enough for all that come back: one at first, and
        the next as each layer is done.
        """
        coming = iter(self.moved)
        room = max((saved[i].away.size_bytes for i in self.moved), default=0)
        arena.live(0, 0, room)
        for i, layer in reversed(list(enumerate(self.layers))):
            if (next_one := next(coming, None)) is not None:
                arena.come(saved[next_one].away)
            kept = saved.pop()
            if i in self.moved:
                kept = self._back(kept, layer, part, arena)
            dy_bsh, waiting = layer.input_gradient(_parameters(store, layer), dy_bsh, kept, part)
            add_gradients(store, layer.units, waiting, keep)
            if not keep:
                store.release(layer.units)
        arena.live(0, 0, -room)
        return dy_bsh


def add_gradients(store: Store, units: Sequence[Unit], waiting: list[Any], keep: bool) -> None:
    """Add waiting weight gradients of some units; `keep`: they stay here whole for the next operation."""
    gradients: Views = {}
    for unit in units:
        gradients |= store.gradients(unit)
    for gradient in waiting:
        gradient.add_to(gradients)
    if not keep:
        store.scatter(units)


def _parameters(store: Store, layer: Layer) -> Views:
    views: Views = {}
    for unit in layer.units:
        views |= store.parameters(unit)
    return views


def _block(setting: Setting, index: int) -> Layer:
    of_model = ParallelBlock if setting.model.parallel_block else Block
    kind = SparseBlock if has_experts(setting.model, index) else of_model
    return kind(setting, index)


def make_stages(
    setting: Setting, layers_per_stage: Sequence[int], recompute_layers: int = 0, offload_layers: int = 0,
    shared_ends: bool = False, offload_modules: tuple[str, ...] = (), output_width: int = 0,
) -> list[Stage]:  # fmt: skip
    """The whole model as stages of so many layers each.

    recompute_layers: the first ones of each stage that are recomputed as the setting says, the others not; 0 all.
    offload_layers: the first ones behind those, but for a stage's last, whose activations wait in host memory.
    shared_ends: the tables are all pipeline ranks'. offload_modules: those of each layer but a stage's last that do.
    output_width: of a tower, which ends in a norm and a product, not in a loss.

    Raises LayoutError if the counts don't add up to the model's layers.
    """
    L = setting.model.num_layers
    if sum(layers_per_stage) != L or min(layers_per_stage) < 0:
        raise LayoutError(f"layers per stage are {list(layers_per_stage)}; allowed: counts that add up to {L}")
    blocks = iter(range(L))
    kept = replace(setting, recompute=Recompute.NONE) if recompute_layers else setting
    stages: list[list[Layer]] = [
        [_block(setting if i < recompute_layers else kept, next(blocks)) for i in range(n)] for n in layers_per_stage
    ]
    stages[0].insert(0, Embedding(setting, shared_ends))
    further = range(setting.model.num_mtp_layers)
    stages[-1] += [PredictionModule(kept, _block(kept, L + k), k) for k in further]
    stages[-1].append(Head(setting, shared_ends or output_width > 0))
    stages[-1] += [Projection(setting, output_width)] if output_width else []
    out = []
    for n, layers in zip(layers_per_stage, stages, strict=True):
        first = int(isinstance(layers[0], Embedding)) if layers else 0
        start, number = (0, n) if offload_modules else (recompute_layers, offload_layers)
        moved = range(first + start, first + min(start + number, n - 1))
        out.append(Stage(tuple(layers), tuple(reversed(moved)), offload_modules))
    return out
