"""A transformer layer with experts in place of the MLP; its attention is that of `planner.trainer.block`."""

from __future__ import annotations

import math
from typing import Any

from planner.trainer.arrays import Array
from planner.trainer.block import Block
from planner.trainer.experts import experts_forward, experts_gradient, experts_unit
from planner.trainer.layer import Setting, SliceOf
from planner.trainer.parameters import Views


class SparseBlock(Block):
    """Layer `index` of the model. Under sequence parallelism each tensor rank routes its own tokens."""

    def __init__(self, setting: Setting, index: int) -> None:
        super().__init__(setting, index)
        small = 0.02 / math.sqrt(2 * setting.model.num_layers)
        self.units = (*self.units, experts_unit(setting.model, index, small))

    def _mlp(self, p: Views, x_bsh: Array, with_output: bool) -> tuple[Array, Any]:
        """See `Block`. A recomputed pass needs the outputs too: the gates' gradients are taken of them."""
        return experts_forward(self.setting.experts, self.setting.model, p, x_bsh)

    def _mlp_input_gradient(
        self, p: Views, x_bsh: Array, dy_bsh: Array, saved: Any, part: SliceOf
    ) -> tuple[Array, list[Any]]:
        return experts_gradient(self.setting.experts, self.setting.model, p, x_bsh, dy_bsh, saved, part)
