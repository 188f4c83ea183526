"""A transformer layer: norm, attention, residual; norm, MLP, residual.

Shapes: b sequences, s tokens of this rank (a tp-th of the slice under sequence parallelism), S tokens of the slice,
t tokens so far, h hidden, g this rank's key heads, r query heads a key head, d head size, f this rank's inner size.
"""

import math
from dataclasses import dataclass
from typing import Any

from planner.layouts import Recompute
from planner.models import Transformer
from planner.trainer.arrays import Array
from planner.trainer.attention import ALL, KeysValues
from planner.trainer.functions import (
    EPS,
    activated,
    activated_gradient,
    norm,
    norm_input_gradient,
    normalized,
    product,
    product_input_gradient,
)
from planner.trainer.heads import Heads, LatentHeads, Made, as_tokens, attention_parameters
from planner.trainer.layer import Bias, Layer, NormWeights, Product, Setting, SliceOf
from planner.trainer.parameters import Parameter, Unit, Views


def norm_parameters(name: str, model: Transformer) -> list[Parameter]:
    """Gain and, unless RMSNorm, shift."""
    gain = Parameter(name=f"{name}.gain", shape=(model.hidden,), start="ones", decays=False)
    shift = Parameter(name=f"{name}.shift", shape=(model.hidden,), start="zeros", decays=False)
    return [gain] if model.rms_norm else [gain, shift]


def has_experts(model: Transformer, index: int) -> bool:
    """Whether layer `index` has experts; a module of multi-token prediction is a layer behind the model's last."""
    return bool(model.num_experts and index >= model.num_dense_layers)


def block_unit(model: Transformer, index: int) -> Unit:
    """The parameters of layer `index`.

    The products that end a residual branch start smaller by sqrt(2 L) (GPT-2). A layer with experts has their router,
    and its shared experts as one MLP; the others have a unit of their own.
    """
    m, small, sparse = model, 0.02 / math.sqrt(2 * model.num_layers), has_experts(model, index)
    g, r, d, h = m.num_kv_heads, m.num_heads // m.num_kv_heads, m.head_dim, m.hidden
    f = int(m.shared_ffn) if sparse else m.ffn
    up = (2, f) if m.gated else (f,)

    def bias(name: str, shape: tuple[int, ...], tp_axis: int | None) -> Parameter:
        return Parameter(name=name, shape=shape, tp_axis=tp_axis, start="zeros", decays=False)

    parameters = [
        *norm_parameters("norm1", m),
        *attention_parameters(m),
        Parameter(name="out", shape=(g, r * int(m.value_channels), h), tp_axis=0, std=small),
        *(norm_parameters("norm2", m) if m.parallel_norms or not m.parallel_block else []),
    ]
    if sparse:
        parameters.append(Parameter(name="router", shape=(h, m.num_experts)))
    if f:
        parameters.append(Parameter(name="up", shape=(h, *up), tp_axis=len(up)))
        parameters.append(Parameter(name="down", shape=(f, h), tp_axis=0, std=small))
    if m.qkv_bias:
        parameters.append(bias("qkv.bias", (g, (r + 2) * d), 0))
    if m.output_bias:
        parameters.append(bias("out.bias", (h,), None))
    if m.mlp_bias and not sparse:
        parameters += [bias("up.bias", up, len(up) - 1), bias("down.bias", (h,), None)]
    return Unit(f"layer{index}", tuple(parameters))


def window_of(model: Transformer, index: int) -> int:
    """Tokens that a query of layer `index` sees. A model says how many layers have windows, not which.

    Those without are spread evenly, each at the end of its part, as Gemma's and GPT-OSS's are.
    """
    whole, layers = model.num_layers - model.num_window_layers, model.num_layers
    index = min(index, layers - 1)
    return ALL if (index + 1) * whole // layers > index * whole // layers else model.window


@dataclass(frozen=True)
class Saved:
    """Arrays that a pass keeps for its backward pass; `attended` and `out` are dropped under selective recomputation.

    norm1, norm2: unit and scale; queries: (b, g, r, S, d); latents: what `LatentHeads` keeps; mlp: what the MLP kept,
    its first product (b, S, f).
    out: attention's output of this rank's own tokens (b, S, g r d), kept only where ranks exchange heads for tokens.
    """

    norm1: tuple[Array, Array]
    queries: Array
    attended: tuple[Array, Array] | None
    out: Array | None
    latents: Any
    norm2: tuple[Array, Array]
    mlp: Any


class Block(Layer):
    """Layer `index` of the model."""

    def __init__(self, setting: Setting, index: int) -> None:
        self.index = index
        self.setting = setting
        self.units = (block_unit(setting.model, index),)
        self.window = window_of(setting.model, index)
        self.heads = LatentHeads(setting) if setting.model.kv_lora_rank else Heads(setting)

    def forward(self, parameters: Views, x_bsh: Array, part: SliceOf) -> tuple[Array, Any]:
        """See `Layer`. Under full recomputation only the input is kept, and over slices the keys and values."""
        if self.setting.recompute != Recompute.FULL:
            return self._forward(parameters, x_bsh, part)
        y_bsh, _ = self._forward(parameters, x_bsh, part)
        if part.is_only:
            part.keys_values.pop(self.index)
        return y_bsh, x_bsh

    def _forward(self, parameters: Views, x_bsh: Array, part: SliceOf, with_output: bool = True) -> tuple[Array, Saved]:
        xp, rms, region, p = self.setting.xp, self.setting.model.rms_norm, self.setting.region, parameters
        norm1 = norm(xp, x_bsh, rms, EPS)
        out_bSo, attention = self._attend(self.heads.of(p, self._normalized(p, "norm1", norm1[0]), part), part)
        x_bsh = x_bsh + self._bias(p, "out", region.leave(product(out_bSo, p["out"])))
        norm2 = norm(xp, x_bsh, rms, EPS)
        y_bsh, mlp = self._mlp(p, self._normalized(p, "norm2", norm2[0]), with_output)
        return x_bsh + y_bsh if with_output else x_bsh, Saved(norm1, *attention, norm2, mlp)

    def _attend(self, made: Made, part: SliceOf) -> tuple[Array, tuple[Any, Any, Any, Any]]:
        """Attention's output as rows of tokens, and what is kept of it: in `Saved` queries to latents."""
        context, latents = self.setting.context, made[3]
        q, k, v = (context.exchange(x) for x in made[:3])
        num_tokens = part.num_tokens * len(context.neighbours)
        kept = part.keys_values.setdefault(self.index, KeysValues(num_tokens=num_tokens))
        k, v = kept.write(self.setting.xp, k, v, self._exchanged(part)[0])
        attended = context.attend(q, k, v, self.window)
        out_bSo = as_tokens(context.restore(attended[0]))
        if self.setting.recompute == Recompute.SELECTIVE:
            return out_bSo, (q, None, None, latents)
        return out_bSo, (q, attended, out_bSo if len(context.neighbours) > 1 else None, latents)

    def _mlp(self, p: Views, x_bsh: Array, with_output: bool) -> tuple[Array, Any]:
        """The MLP of the normalized x, and what its backward pass needs besides x; without output the latter alone."""
        region = self.setting.region
        up = self._bias(p, "up", product(region.enter(x_bsh), p["up"]))
        if not with_output:
            return None, up
        return self._bias(
            p, "down", region.leave(product(activated(self.setting.xp, self.setting.model.gated, up), p["down"]))
        ), up

    def input_gradient(self, parameters: Views, dy_bsh: Array, saved: Any, part: SliceOf) -> tuple[Array, list[Any]]:
        """See `Layer`. The inputs of products are made again from the norms, and gathered again where tokens are split.

        A recomputed pass leaves out the last product and its reduction: nothing in the backward pass needs them.
        """
        if self.setting.recompute == Recompute.FULL:
            _, saved = self._forward(parameters, saved, part, with_output=False)
        dx_bsh, waiting = self._mlp_gradient(parameters, dy_bsh, saved, part)
        dx_bsh, more = self._attention_gradient(parameters, dx_bsh, saved, part)
        return dx_bsh, waiting + more

    def _mlp_gradient(self, p: Views, dy_bsh: Array, saved: Saved, part: SliceOf) -> tuple[Array, list[Any]]:
        x_bsh = self._normalized(p, "norm2", saved.norm2[0])
        dn_bsh, waiting = self._mlp_input_gradient(p, x_bsh, dy_bsh, saved.mlp, part)
        return dy_bsh + self._norm_gradient(p, "norm2", dn_bsh, saved.norm2, waiting), waiting

    def _norm_gradient(self, p: Views, name: str, dn_bsh: Array, kept: Any, waiting: list[Any]) -> Array:
        """The gradient by a norm's input, whose weight gradients join those that wait. kept: its unit and scale."""
        unit_bsh, scale_bs1 = kept
        waiting.append(NormWeights(name, dn_bsh, unit_bsh))
        return norm_input_gradient(dn_bsh, unit_bsh, scale_bs1, p[f"{name}.gain"], self.setting.model.rms_norm)

    def _mlp_input_gradient(
        self, p: Views, x_bsh: Array, dy_bsh: Array, saved: Any, part: SliceOf
    ) -> tuple[Array, list[Any]]:
        """The gradient by the normalized x, and the weight gradients that wait."""
        region = self.setting.region
        dy_bSh = region.leave_gradient(dy_bsh)
        waiting: list[Any] = [Product("down", activated(self.setting.xp, self.setting.model.gated, saved), dy_bSh)]
        dup = activated_gradient(
            self.setting.xp, self.setting.model.gated, product_input_gradient(dy_bSh, p["down"]), saved
        )
        waiting.append(Product("up", region.enter(x_bsh), dup))
        if "down.bias" in p:
            waiting += [Bias("down.bias", dy_bsh), Bias("up.bias", dup)]
        return region.enter_gradient(product_input_gradient(dup, p["up"])), waiting

    def _attention_gradient(self, p: Views, dy_bsh: Array, saved: Saved, part: SliceOf) -> tuple[Array, list[Any]]:
        model, region = self.setting.model, self.setting.region
        dy_bSh = region.leave_gradient(dy_bsh)
        dout = product_input_gradient(dy_bSh, p["out"])
        out_bSo, grads = self._attended_gradient(dout, saved, part)
        x_bsh = self._normalized(p, "norm1", saved.norm1[0])
        dn_bsh, waiting = self.heads.gradient(p, x_bsh, grads, saved.latents, part)
        waiting.append(Product("out", out_bSo, dy_bSh))
        if model.output_bias:
            waiting.append(Bias("out.bias", dy_bsh))
        return dy_bsh + self._norm_gradient(p, "norm1", dn_bsh, saved.norm1, waiting), waiting

    def _attended_gradient(self, dout_bSo: Array, saved: Saved, part: SliceOf) -> tuple[Array, list[Array]]:
        """Attention's output as rows of tokens, and the gradients by queries, keys and values."""
        xp, context = self.setting.xp, self.setting.context
        kept = part.keys_values[self.index]
        start, stop = self._exchanged(part)
        k, v = kept.until(stop)
        dk, dv = kept.gradients_until(xp, stop)
        q = saved.queries
        out, log = saved.attended or context.attend(q, k, v, self.window)
        rows = (*dout_bSo.shape[:2], -1, q.shape[2], out.shape[-1])
        dout = xp.ascontiguousarray(dout_bSo.reshape(rows).transpose(0, 2, 3, 1, 4))
        dq = context.attend_gradient(context.exchange(dout), q, k, v, out, log, dk, dv, self.window)
        grads = [context.restore(x) for x in (dq, dk[:, :, start:stop], dv[:, :, start:stop])]
        if part.start == 0:
            part.keys_values.pop(self.index)
        out_bSo = as_tokens(context.restore(out)) if saved.out is None else saved.out
        return out_bSo, grads

    def _exchanged(self, part: SliceOf) -> tuple[int, int]:
        """The slice's first token and the one after its last, with those of all neighbours that exchange heads."""
        n = len(self.setting.context.neighbours)
        return part.start * n, part.stop * n

    def _normalized(self, p: Views, name: str, unit_bsh: Array) -> Array:
        return normalized(unit_bsh, p[f"{name}.gain"], p.get(f"{name}.shift"))

    def _bias(self, p: Views, name: str, y_bso: Array) -> Array:
        """Add the bias in place, where there is one."""
        bias = p.get(f"{name}.bias")
        if bias is not None:
            y_bso += bias.reshape(-1)
        return y_bso
