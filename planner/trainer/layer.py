"""The interface of a layer: forward, and a backward pass in two parts that can run apart.

Shapes: b sequences, s tokens of this rank, h hidden.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from planner.layouts import Recompute
from planner.models import Transformer
from planner.trainer.arrays import Array
from planner.trainer.attention import KeysValues
from planner.trainer.context_parallel import Context
from planner.trainer.functions import add_product, norm_weight_gradient
from planner.trainer.parameters import Unit, Views
from planner.trainer.tensor_parallel import Region


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Shared by all layers of a rank: array library, number format, model, its shares, what is recomputed."""

    xp: Any
    dtype: Any
    model: Transformer
    region: Region
    context: Context
    experts: Any = None
    mtp_weight: float = 0.0
    recompute: Recompute = Recompute.NONE


@dataclass(kw_only=True)
class SliceOf:
    """The tokens of one pass: those from start to stop - 1 of the num_tokens that this context rank has of a sequence.

    positions_s: where they lie in the whole sequence.
    keys_values: by layer, kept from slice to slice; is_only: whether the slice is the whole sequence.
    tokens_bs, targets_bs: where the first and the last stage need them, all of the slice's tokens. ahead: targets_bs,
    and those of so many tokens further as the model predicts, -1 beyond the sequence. state: the hidden state that
    modules of multi-token prediction hand on, or its gradient. images: of the sequences, if a tower makes embeddings.
    loss_weight: what a token's loss counts in the step's mean; loss_scale: what gradients are multiplied by on top.
    """

    start: int
    stop: int
    num_tokens: int
    positions_s: Array
    keys_values: dict[int, KeysValues]
    tokens_bs: Array = None
    targets_bs: Array = None
    ahead: tuple[Array, ...] = ()
    state: Array = None
    images: Any = None
    loss_weight: float = 1.0
    loss_scale: float = 1.0
    loss: Any = 0.0

    @property
    def is_only(self) -> bool:
        """Whether the slice is the whole sequence."""
        return self.stop - self.start == self.num_tokens


@dataclass(frozen=True)
class Product:
    """Gradient of a product's weights from its input and its output's gradient."""

    name: str
    x_bsi: Array
    dy_bso: Array

    def add_to(self, gradients: Views) -> None:
        """Add it; the weights may have more axes than the matrix that they are used as."""
        i, o = self.x_bsi.shape[-1], self.dy_bso.shape[-1]
        add_product(self.x_bsi, self.dy_bso, gradients[self.name].reshape(i, o))


@dataclass(frozen=True)
class Bias:
    """Gradient of a bias: its output's, summed over tokens."""

    name: str
    dy_bso: Array

    def add_to(self, gradients: Views) -> None:
        """Add it."""
        gradients[self.name] += self.dy_bso.sum(axis=(0, 1)).reshape(gradients[self.name].shape)


@dataclass(frozen=True)
class NormWeights:
    """Gradient of a norm's gain and shift."""

    name: str
    dy_bsh: Array
    unit_bsh: Array

    def add_to(self, gradients: Views) -> None:
        """Add it."""
        shift = gradients.get(f"{self.name}.shift")
        norm_weight_gradient(self.dy_bsh, self.unit_bsh, gradients[f"{self.name}.gain"], shift)


class Layer(ABC):
    """A layer of the model on one rank. It holds no arrays: parameters and what a pass saved are handed in."""

    units: tuple[Unit, ...]
    index = -1
    """Number of a transformer layer in the model."""

    @abstractmethod
    def forward(self, parameters: Views, x_bsh: Array, part: SliceOf) -> tuple[Array, Any]:
        """The output, and what the backward pass needs."""

    @abstractmethod
    def input_gradient(self, parameters: Views, dy_bsh: Array, saved: Any, part: SliceOf) -> tuple[Array, list[Any]]:
        """The gradient by the input, and the weight gradients that wait."""
