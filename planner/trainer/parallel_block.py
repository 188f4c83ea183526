"""A transformer layer whose attention and MLP stand side by side: x + attention(norm x) + mlp(norm x).

Shapes: as in `planner.trainer.block`.
"""

from typing import Any

from planner.layouts import Recompute
from planner.trainer.arrays import Array
from planner.trainer.block import Block, Saved
from planner.trainer.functions import EPS, activated, activated_gradient, norm, product, product_input_gradient
from planner.trainer.layer import Bias, Product, Setting, SliceOf
from planner.trainer.parameters import Views


class ParallelBlock(Block):
    """Layer `index` of a model with parallel blocks (Chowdhery et al. 2022, arXiv 2204.02311, section 2).

    Both begin with one norm, or each with its own. A rank adds their parts before the tensor group sums them.
    """

    def __init__(self, setting: Setting, index: int) -> None:
        super().__init__(setting, index)
        self.norms = ("norm1", "norm2") if setting.model.parallel_norms else ("norm1",)

    def _forward(self, parameters: Views, x_bsh: Array, part: SliceOf, with_output: bool = True) -> tuple[Array, Saved]:
        xp, model, region, p = self.setting.xp, self.setting.model, self.setting.region, parameters
        both_norms = norm(xp, x_bsh, model.rms_norm, EPS)
        entered = self._entered(p, both_norms[0])
        out_bSo, attention = self._attend(self.heads.of_entered(p, entered[0], part), part)
        up = self._bias(p, "up", product(entered[-1], p["up"]))
        saved = Saved(both_norms, *attention, both_norms, up)
        if not with_output:
            return x_bsh, saved
        both = product(out_bSo, p["out"]) + product(activated(xp, model.gated, up), p["down"])
        return x_bsh + self._bias(p, "down", self._bias(p, "out", region.leave(both))), saved

    def _entered(self, p: Views, unit_bsh: Array) -> list[Array]:
        """The input of the products behind each norm, shape (b, S, h)."""
        return [self.setting.region.enter(self._normalized(p, name, unit_bsh)) for name in self.norms]

    def input_gradient(self, parameters: Views, dy_bsh: Array, saved: Any, part: SliceOf) -> tuple[Array, list[Any]]:
        """See `Block`."""
        xp, model, region = self.setting.xp, self.setting.model, self.setting.region
        p = parameters
        if self.setting.recompute == Recompute.FULL:
            _, saved = self._forward(p, saved, part, with_output=False)
        dy_bSh, entered = region.leave_gradient(dy_bsh), self._entered(p, saved.norm1[0])
        out_bSo, grads = self._attended_gradient(product_input_gradient(dy_bSh, p["out"]), saved, part)
        dqkv = self.heads.joined(grads, part)
        dup = activated_gradient(xp, model.gated, product_input_gradient(dy_bSh, p["down"]), saved.mlp)
        waiting: list[Any] = [
            Product("out", out_bSo, dy_bSh),
            Product("qkv", entered[0], dqkv),
            Product("down", activated(xp, model.gated, saved.mlp), dy_bSh),
            Product("up", entered[-1], dup),
        ]
        biases = {"out.bias": dy_bsh, "down.bias": dy_bsh, "qkv.bias": dqkv, "up.bias": dup}
        waiting += [Bias(name, dy) for name, dy in biases.items() if name in p]
        dn = [product_input_gradient(dy, p[name]) for name, dy in (("qkv", dqkv), ("up", dup))]
        dx_bsh = dy_bsh
        for name, part_bSh in zip(self.norms, dn if len(self.norms) > 1 else [dn[0] + dn[1]], strict=True):
            dn_bsh = region.enter_gradient(part_bSh)
            dx_bsh = dx_bsh + self._norm_gradient(p, name, dn_bsh, saved.norm1, waiting)
        return dx_bsh, waiting
