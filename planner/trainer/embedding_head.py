"""The two ends of the model: the embedding of tokens and positions, and the last norm with the loss.

The vocabulary is split over tensor-parallel ranks at both ends (Megatron-LM, Shoeybi et al. 2019).
Shapes: b sequences, s tokens of this rank, S tokens of the slice, h hidden, v this rank's part of the vocabulary.
"""

from dataclasses import dataclass
from typing import Any

from planner.models import Transformer
from planner.trainer.arrays import Array
from planner.trainer.block import norm_parameters
from planner.trainer.cross_entropy import cross_entropy
from planner.trainer.functions import EPS, norm, norm_input_gradient, normalized, product, product_input_gradient
from planner.trainer.layer import Layer, NormWeights, Product, Setting, SliceOf
from planner.trainer.parameters import Parameter, Unit, Views
from planner.trainer.tensor_parallel import Region


def table_unit(model: Transformer, name: str, shared: bool = False) -> Unit:
    """A row a word: the table of `tokens`, which a tied head uses again, or of a `head` that is not tied."""
    return Unit(name, (Parameter(name=name, shape=(model.vocab, model.hidden), tp_axis=0),), shared=shared)


@dataclass(frozen=True)
class Rows:
    """Gradient of a table from the rows that were looked up; rows are those of this rank, the others are dropped."""

    name: str
    rows_n: Array
    dy_nh: Array
    xp: Any

    def add_to(self, gradients: Views) -> None:
        """Add it; a row may occur many times."""
        self.xp.add.at(gradients[self.name], self.rows_n, self.dy_nh)


def _mine(tokens_bs: Array, first: int, num_rows: int) -> tuple[Array, Array]:
    """Tokens counted from a rank's first row, and which of them are its."""
    local_bs = tokens_bs - first
    return local_bs, (local_bs >= 0) & (local_bs < num_rows)


def look_up(xp: Any, table: Array, tokens_bs: Array, first: int, region: Region) -> Array:
    """The tokens' rows of a table, as far as it has them, summed over the region; first: its first row of the whole."""
    local_bs, mine_bs = _mine(tokens_bs, first, table.shape[0])
    y_bSh = table[xp.where(mine_bs, local_bs, 0)]
    y_bSh *= mine_bs[..., None]
    return region.leave(y_bSh)


def looked_up(xp: Any, num_rows: int, tokens_bs: Array, first: int, region: Region, dy_bsh: Array) -> Rows:
    """The gradient of such a table."""
    dy_bSh = region.leave_gradient(dy_bsh)
    local_bs, mine_bs = _mine(tokens_bs, first, num_rows)
    return Rows("tokens", local_bs[mine_bs], dy_bSh[mine_bs], xp)


class Embedding(Layer):
    """Rows of the token table, and of the position table where positions are learned.

    shared: the table is all pipeline ranks' (`planner.trainer.shared_ends`), so its rows are handed in, summed.
    """

    def __init__(self, setting: Setting, shared: bool = False) -> None:
        self.setting, self.shared = setting, shared
        units = [] if shared else [table_unit(setting.model, "tokens")]
        if setting.model.max_positions:
            shape = (setting.model.max_positions, setting.model.hidden)
            units.append(Unit("positions", (Parameter(name="positions", shape=shape),)))
        self.units = tuple(units)

    def forward(self, parameters: Views, x_bsh: Array, part: SliceOf) -> tuple[Array, Any]:
        """See `Layer`; takes the slice's tokens, not an input, unless it is shared."""
        region = self.setting.region
        if not self.shared:
            table = parameters["tokens"]
            x_bsh = look_up(self.setting.xp, table, part.tokens_bs, region.index * table.shape[0], region)
        if part.images:
            part.images.put(x_bsh, self._positions(part))
        if "positions" in parameters:
            x_bsh = x_bsh + parameters["positions"][self._positions(part)]
        return x_bsh, ()

    def _positions(self, part: SliceOf) -> Array:
        return part.positions_s[self.setting.region.my_tokens(part.stop - part.start)]

    def input_gradient(self, parameters: Views, dy_bsh: Array, saved: Any, part: SliceOf) -> tuple[Array, list[Any]]:
        """See `Layer`; there is no input, so no gradient by it, unless it is shared."""
        xp, region = self.setting.xp, self.setting.region
        waiting: list[Any] = []
        if part.images:
            part.images.keep_gradient(dy_bsh, self._positions(part))
        if not self.shared:
            rows = parameters["tokens"].shape[0]
            waiting.append(looked_up(xp, rows, part.tokens_bs, region.index * rows, region, dy_bsh))
        if "positions" in parameters:
            waiting.append(Rows("positions", self._positions(part), dy_bsh.sum(axis=0), xp))
        return (dy_bsh if self.shared else None), waiting


class Head(Layer):
    """The last norm, the product with the head's table (the tokens' own where tied), and the loss.

    shared: the table is all pipeline ranks', so the norm's output is handed on, and its gradient in. name: of the norm.
    """

    def __init__(self, setting: Setting, shared: bool = False, name: str = "norm") -> None:
        self.setting, self.shared = setting, shared
        model = setting.model
        last = Unit(name, tuple(norm_parameters("norm", model)))
        self.table = "tokens" if model.tied else "head"
        self.units = (last,) if shared else (last, table_unit(model, self.table))

    def forward(self, parameters: Views, x_bsh: Array, part: SliceOf) -> tuple[Array, Any]:
        """See `Layer`; the output is the loss, kept with the gradient by the logits, unless the head is shared."""
        s, region = self.setting, self.setting.region
        unit_bsh, scale_bs1 = norm(s.xp, x_bsh, s.model.rms_norm, EPS)
        y_bsh = self._normalized(parameters, unit_bsh)
        if self.shared:
            return y_bsh, (unit_bsh, scale_bs1, None)
        logits_bsv = product(region.enter(y_bsh), parameters[self.table].T)
        part.loss, dlogits_bsv = cross_entropy(
            s.xp, logits_bsv, part.targets_bs, region, part.loss_weight, part.loss_scale
        )
        return None, (unit_bsh, scale_bs1, dlogits_bsv)

    def _normalized(self, p: Views, unit_bsh: Array) -> Array:
        return normalized(unit_bsh, p["norm.gain"], p.get("norm.shift"))

    def input_gradient(self, parameters: Views, dy_bsh: Array, saved: Any, part: SliceOf) -> tuple[Array, list[Any]]:
        """See `Layer`; it starts from the loss, so takes no gradient, unless the head is shared."""
        s, region = self.setting, self.setting.region
        waiting: list[Any] = []
        unit_bsh, scale_bs1, dlogits_bsv = saved
        if not self.shared:
            x_bSh = region.enter(self._normalized(parameters, unit_bsh))
            waiting.append(Product(self.table, dlogits_bsv, x_bSh))
            dy_bsh = region.enter_gradient(product_input_gradient(dlogits_bsv, parameters[self.table].T))
        waiting.append(NormWeights("norm", dy_bsh, unit_bsh))
        return norm_input_gradient(dy_bsh, unit_bsh, scale_bs1, parameters["norm.gain"], s.model.rms_norm), waiting


class Projection(Layer):
    """The end of a tower: a product to the width of the model that its outputs go to, on each tensor rank whole."""

    def __init__(self, setting: Setting, width: int) -> None:
        self.units = (Unit("projection", (Parameter(name="projection", shape=(setting.model.hidden, width)),)),)

    def forward(self, parameters: Views, x_bsh: Array, part: SliceOf) -> tuple[Array, Any]:
        """See `Layer`."""
        return product(x_bsh, parameters["projection"]), x_bsh

    def input_gradient(self, parameters: Views, dy_bsh: Array, saved: Any, part: SliceOf) -> tuple[Array, list[Any]]:
        """See `Layer`."""
        dx_bsh = product_input_gradient(dy_bsh, parameters["projection"])
        return dx_bsh, [Product("projection", saved, dy_bsh)]
