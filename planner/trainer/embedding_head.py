"""The two ends of the model: the embedding of tokens and positions, and the last norm with the loss.

The vocabulary is split over tensor-parallel ranks at both ends (Megatron-LM, Shoeybi et al. 2019).
Shapes: b sequences, s tokens of this rank, S tokens of the slice, h hidden, v this rank's part of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.models import Transformer
from planner.trainer.arrays import Array
from planner.trainer.block import EPS, norm_parameters
from planner.trainer.cross_entropy import cross_entropy
from planner.trainer.functions import norm, norm_input_gradient, normalized, product, product_input_gradient
from planner.trainer.layer import Layer, NormWeights, Product, Setting, SliceOf
from planner.trainer.parameters import Parameter, Unit, Views


def tokens_unit(model: Transformer) -> Unit:
    """The table of tokens, which a tied head uses again."""
    return Unit("tokens", (Parameter(name="tokens", shape=(model.vocab, model.hidden), tp_axis=0),))


@dataclass(frozen=True)
class _Rows:
    """Gradient of a table from the rows that were looked up; rows are those of this rank, the others are dropped."""

    name: str
    rows_n: Array
    dy_nh: Array
    xp: Any

    def add_to(self, gradients: Views) -> None:
        """Add it; a row may occur many times."""
        self.xp.add.at(gradients[self.name], self.rows_n, self.dy_nh)


class Embedding(Layer):
    """Rows of the token table, and of the position table where positions are learned."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        units = [tokens_unit(setting.model)]
        if setting.model.max_positions:
            shape = (setting.model.max_positions, setting.model.hidden)
            units.append(Unit("positions", (Parameter(name="positions", shape=shape),)))
        self.units = tuple(units)

    def _local(self, tokens_bs: Array, num_rows: int) -> tuple[Array, Array]:
        local_bs = tokens_bs - self.setting.region.index * num_rows
        return local_bs, (local_bs >= 0) & (local_bs < num_rows)

    def forward(self, parameters: Views, x_bsh: Array, part: SliceOf) -> tuple[Array, Any]:
        """See `Layer`; takes the slice's tokens, not an input."""
        xp, table = self.setting.xp, parameters["tokens"]
        local_bs, mine_bs = self._local(part.tokens_bs, table.shape[0])
        y_bSh = table[xp.where(mine_bs, local_bs, 0)]
        y_bSh *= mine_bs[..., None]
        y_bsh = self.setting.region.leave(y_bSh)
        if "positions" in parameters:
            y_bsh += parameters["positions"][self._positions(part)]
        return y_bsh, ()

    def _positions(self, part: SliceOf) -> Array:
        return part.positions_s[self.setting.region.my_tokens(part.stop - part.start)]

    def input_gradient(self, parameters: Views, dy_bsh: Array, saved: Any, part: SliceOf) -> tuple[Array, list[Any]]:
        """See `Layer`; there is no input, so no gradient by it."""
        xp, num_rows = self.setting.xp, parameters["tokens"].shape[0]
        dy_bSh = self.setting.region.leave_gradient(dy_bsh)
        local_bs, mine_bs = self._local(part.tokens_bs, num_rows)
        waiting: list[Any] = [_Rows("tokens", local_bs[mine_bs], dy_bSh[mine_bs], xp)]
        if "positions" in parameters:
            waiting.append(_Rows("positions", self._positions(part), dy_bsh.sum(axis=0), xp))
        return None, waiting


class Head(Layer):
    """The last norm, the product with the head's table (the tokens' own where tied), and the loss."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        model = setting.model
        last = Unit("norm", tuple(norm_parameters("norm", model)))
        table = Parameter(name="head", shape=(model.vocab, model.hidden), tp_axis=0)
        self.table = "tokens" if model.tied else "head"
        self.units = (last, tokens_unit(model) if model.tied else Unit("head", (table,)))

    def forward(self, parameters: Views, x_bsh: Array, part: SliceOf) -> tuple[Array, Any]:
        """See `Layer`; the output is the loss, kept with the gradient by the logits."""
        s, region = self.setting, self.setting.region
        unit_bsh, scale_bs1 = norm(s.xp, x_bsh, s.model.rms_norm, EPS)
        x_bSh = region.enter(self._normalized(parameters, unit_bsh))
        logits_bsv = product(x_bSh, parameters[self.table].T)
        part.loss, dlogits_bsv = cross_entropy(
            s.xp, logits_bsv, part.targets_bs, region, part.loss_weight, part.loss_scale
        )
        return None, (unit_bsh, scale_bs1, dlogits_bsv)

    def _normalized(self, p: Views, unit_bsh: Array) -> Array:
        return normalized(unit_bsh, p["norm.gain"], p.get("norm.shift"))

    def input_gradient(self, parameters: Views, dy_bsh: Array, saved: Any, part: SliceOf) -> tuple[Array, list[Any]]:
        """See `Layer`; it starts from the loss, so takes no gradient."""
        s, region = self.setting, self.setting.region
        unit_bsh, scale_bs1, dlogits_bsv = saved
        x_bSh = region.enter(self._normalized(parameters, unit_bsh))
        waiting: list[Any] = [Product(self.table, dlogits_bsv, x_bSh)]
        dn_bsh = region.enter_gradient(product_input_gradient(dlogits_bsv, parameters[self.table].T))
        waiting.append(NormWeights("norm", dn_bsh, unit_bsh))
        return norm_input_gradient(dn_bsh, unit_bsh, scale_bs1, parameters["norm.gain"], s.model.rms_norm), waiting
