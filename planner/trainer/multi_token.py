"""Multi-token prediction: modules beside the head that each predict one token further.

DeepSeek-V3's (DeepSeek-AI 2024, arXiv 2412.19437, section 2.2): norms of the hidden state and of the embedding of the
next token, both projected together, a transformer layer of the model's last kind, and the model's own head behind a
norm of its own. The first module's hidden state is what goes into the head's norm, a further one's the output of the
module before. Embedding and head are the model's; a pipeline's last rank has a copy of the embedding for that.

The mean loss of the D modules counts `mtp_weight`. As the experts' balance loss it adds to gradients, not to the loss
that is reported. A token beyond the sequence has no loss, and zeros for its embedding.

Shapes: b sequences, s tokens of this rank, h hidden.
"""

from dataclasses import replace
from typing import Any

from planner.trainer.arrays import Array
from planner.trainer.block import norm_parameters
from planner.trainer.embedding_head import Head, look_up, looked_up, table_unit
from planner.trainer.functions import EPS, norm, norm_input_gradient, normalized, product, product_input_gradient
from planner.trainer.layer import Layer, NormWeights, Product, Setting, SliceOf
from planner.trainer.parameters import Parameter, Unit, Views

NORMS = ("state", "token")


class PredictionModule(Layer):
    """Module k of a model, from 0 on, before its head in a stage: the head's input passes through it unchanged."""

    def __init__(self, setting: Setting, block: Layer, k: int) -> None:
        self.setting, self.block, self.k = setting, block, k
        model, self.last = setting.model, k == setting.model.num_mtp_layers - 1
        self.head = Head(setting, name=f"module{k}.norm")
        norms = [p for name in NORMS for p in norm_parameters(name, model)]
        own = Unit(f"module{k}", (*norms, Parameter(name="join", shape=(2 * model.hidden, model.hidden))))
        units = (own, *block.units, *self.head.units, table_unit(model, "tokens"))
        self.units = tuple({unit.name: unit for unit in units}.values())

    def forward(self, parameters: Views, x_bsh: Array, part: SliceOf) -> tuple[Array, Any]:
        """See `Layer`. The slice carries hidden states from module to module."""
        p, s, table = parameters, self.setting, parameters["tokens"]
        region = s.region
        token_bsh = look_up(s.xp, table, part.ahead[self.k], region.index * table.shape[0], region)
        norms = [norm(s.xp, y, s.model.rms_norm, EPS) for y in (part.state if self.k else x_bsh, token_bsh)]
        y_bsh, kept = self.block.forward(p, product(self._joined(p, norms), p["join"]), part)
        part.state = None if self.last else y_bsh
        targets_bs = part.ahead[self.k + 1]
        weight = part.loss_weight * s.mtp_weight / s.model.num_mtp_layers
        _, of_head = self.head.forward(p, y_bsh, replace(part, targets_bs=targets_bs, loss_weight=weight))
        of_head[-1][targets_bs < 0] = 0.0  # gradient by the logits
        return x_bsh, (norms, kept, of_head)

    def _joined(self, p: Views, norms: list[tuple[Array, Array]]) -> Array:
        """Both norms' outputs beside each other, shape (b, s, 2 h)."""
        both = zip(NORMS, norms, strict=True)
        ys = [normalized(unit_bsh, p[f"{name}.gain"], p.get(f"{name}.shift")) for name, (unit_bsh, _) in both]
        return self.setting.xp.concatenate(ys, axis=-1)

    def input_gradient(self, parameters: Views, dy_bsh: Array, saved: Any, part: SliceOf) -> tuple[Array, list[Any]]:
        """See `Layer`. The slice carries hidden states' gradients back from module to module."""
        p, s, (norms, kept, of_head) = parameters, self.setting, saved
        region, rows = s.region, p["tokens"].shape[0]
        dmine_bsh, waiting = self.head.input_gradient(p, None, of_head, part)
        dmine_bsh = dmine_bsh if self.last else dmine_bsh + part.state
        djoin_bsh, more = self.block.input_gradient(p, dmine_bsh, kept, part)
        waiting += [*more, Product("join", self._joined(p, norms), djoin_bsh)]
        halves = s.xp.split(product_input_gradient(djoin_bsh, p["join"]), 2, axis=-1)
        back = []
        for name, dn_bsh, (unit_bsh, scale_bs1) in zip(NORMS, halves, norms, strict=True):
            waiting.append(NormWeights(name, dn_bsh, unit_bsh))
            back.append(norm_input_gradient(dn_bsh, unit_bsh, scale_bs1, p[f"{name}.gain"], s.model.rms_norm))
        waiting.append(looked_up(s.xp, rows, part.ahead[self.k], region.index * rows, region, back[1]))
        part.state = back[0] if self.k else None
        return (dy_bsh if self.k else dy_bsh + back[0]), waiting
