"""Queries, keys and values that a layer makes of its input, and the gradient by that.

Shapes: as in `planner.trainer.block`; a heads of this rank, l a latent's channels.
"""

from collections.abc import Sequence
from typing import Any

from planner.models import Transformer
from planner.trainer.arrays import Array
from planner.trainer.functions import (
    EPS,
    norm,
    norm_input_gradient,
    normalized,
    product,
    product_input_gradient,
    rotary_table,
    rotate,
)
from planner.trainer.layer import Bias, NormWeights, Product, Setting, SliceOf
from planner.trainer.parameters import Parameter, Views

Made = tuple[Array, Array, Array, Any]
"""Queries (b, g, r, S, d), keys and values (b, g, S, d) of a slice, and what their gradient needs besides the input."""


class Heads:
    """One product makes them all. Query, key and value weights of a key head lie together, so tp splits heads."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.turned = setting.model.head_dim

    def of(self, p: Views, x_bsh: Array, part: SliceOf) -> Made:
        """Those of a norm's output."""
        return self.of_entered(p, self.setting.region.enter(x_bsh), part)

    def of_entered(self, p: Views, x_bSh: Array, part: SliceOf) -> Made:
        """Those of all the slice's tokens."""
        xp, model = self.setting.xp, self.setting.model
        b, s, _ = x_bSh.shape
        qkv = product(x_bSh, p["qkv"])
        if "qkv.bias" in p:
            qkv += p["qkv.bias"].reshape(-1)
        qkv = qkv.reshape(b, s, p["qkv"].shape[1], -1, model.head_dim).transpose(0, 2, 3, 1, 4)
        qkv = xp.ascontiguousarray(qkv)
        q, k, v = qkv[:, :, :-2], qkv[:, :, -2], qkv[:, :, -1]
        if model.rotary:
            table = self.table(part)
            return rotate(xp, q, table), rotate(xp, k, table), v, None
        return xp.ascontiguousarray(q), k, v, None

    def gradient(
        self, p: Views, x_bsh: Array, grads: Sequence[Array], kept: Any, part: SliceOf
    ) -> tuple[Array, list[Any]]:
        """The gradient by the norm's output, and the weight gradients that wait."""
        region, dqkv = self.setting.region, self.joined(grads, part)
        waiting: list[Any] = [Product("qkv", region.enter(x_bsh), dqkv)]
        if "qkv.bias" in p:
            waiting.append(Bias("qkv.bias", dqkv))
        return region.enter_gradient(product_input_gradient(dqkv, p["qkv"])), waiting

    def joined(self, grads: Sequence[Array], part: SliceOf) -> Array:
        """The gradient by the product's output, as rows of tokens, from those by queries, keys and values."""
        xp, (dq, dk, dv) = self.setting.xp, grads
        if self.setting.model.rotary:
            table = self.table(part)
            dq, dk = rotate(xp, dq, table, inverse=True), rotate(xp, dk, table, inverse=True)
        return as_tokens(xp.concatenate([dq, dk[:, :, None], dv[:, :, None]], axis=2))

    def table(self, part: SliceOf) -> tuple[Array, Array]:
        """Angles of the channels that positions turn."""
        return rotary_table(self.setting.xp, part.positions_s, self.turned, self.setting.dtype)


class LatentHeads(Heads):
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1).

    Keys and values of all heads are a product of one latent; one key that positions turn is all heads'. Queries may be
    of a latent too. Tensor ranks have heads: latents are each rank's own, and enter the region in place of the input.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.turned = setting.model.qk_rope_head_dim
        self.still = setting.model.head_dim - self.turned

    def of(self, p: Views, x_bsh: Array, part: SliceOf) -> Made:
        """See `Heads`."""
        xp, table = self.setting.xp, self.table(part)
        queries, kept_q = self._up(p, "q", x_bsh)
        both, kept_kv = self._up(p, "kv", x_bsh)
        q = xp.concatenate([queries[..., : self.still], rotate(xp, queries[..., self.still :], table)], axis=-1)
        one = rotate(xp, kept_kv[-1], table)[:, None]
        one = xp.broadcast_to(one, (*both.shape[:-1], self.turned))
        k = xp.concatenate([both[..., : self.still], one], axis=-1)
        return q[:, :, None], k, xp.ascontiguousarray(both[..., self.still :]), (kept_q[:-1], kept_kv[:-1])

    def gradient(
        self, p: Views, x_bsh: Array, grads: Sequence[Array], kept: Any, part: SliceOf
    ) -> tuple[Array, list[Any]]:
        """See `Heads`."""
        xp, table, (dq, dk, dv) = self.setting.xp, self.table(part), grads
        still, turned = dq[..., : self.still], dq[..., self.still :]
        queries = as_tokens(xp.concatenate([still, rotate(xp, turned, table, inverse=True)], axis=-1))
        one = rotate(xp, dk[..., self.still :].sum(axis=1), table, inverse=True)
        both = as_tokens(xp.concatenate([dk[..., : self.still], dv], axis=-1)[:, :, None])
        dx_bsh, waiting = self._up_gradient(p, "q", x_bsh, kept[0], queries, one[..., :0])
        more_bsh, more = self._up_gradient(p, "kv", x_bsh, kept[1], both, one)
        return dx_bsh + more_bsh, waiting + more

    def _up(self, p: Views, name: str, x_bsh: Array) -> tuple[Array, list[Any]]:
        """Heads (b, a, S, d) of a latent, whose unit and scale are kept; last what else came down, of all tokens."""
        kept: list[Any] = []
        low_bsl = x_bsh
        if f"{name}_down" in p:
            low_bsl, rank = product(x_bsh, p[f"{name}_down"]), p[f"{name}_norm.gain"].size
            kept = [*norm(self.setting.xp, low_bsl[..., :rank], True, EPS), low_bsl[..., rank:]]
        inner_bSl, beside = self._entered(p, name, x_bsh, kept)
        up = product(inner_bSl, p[f"{name}_up"])
        return up.reshape(*up.shape[:2], *p[f"{name}_up"].shape[1:]).transpose(0, 2, 1, 3), [*kept, beside]

    def _entered(self, p: Views, name: str, x_bsh: Array, kept: Sequence[Array]) -> tuple[Array, Array]:
        """The latent behind its norm, or the input where there is none, and what came down beside it, of all tokens."""
        if not kept:
            return self.setting.region.enter(x_bsh), None
        latent = normalized(kept[0], p[f"{name}_norm.gain"], None)
        both = self.setting.region.enter(self.setting.xp.concatenate([latent, kept[2]], axis=-1))
        return both[..., : latent.shape[-1]], both[..., latent.shape[-1] :]

    def _up_gradient(
        self, p: Views, name: str, x_bsh: Array, kept: Sequence[Array], dup_bSo: Array, beside: Array
    ) -> tuple[Array, list[Any]]:
        """The gradient by x of `_up`, from those by its heads as rows of tokens and by what came down beside."""
        xp, region, rank = self.setting.xp, self.setting.region, p[f"{name}_up"].shape[0]
        inner_bSl, _ = self._entered(p, name, x_bsh, kept)
        waiting: list[Any] = [Product(f"{name}_up", inner_bSl, dup_bSo)]
        dlow = product_input_gradient(dup_bSo, p[f"{name}_up"])
        if not kept:
            return region.enter_gradient(dlow), waiting
        dlow = region.enter_gradient(xp.concatenate([dlow, beside], axis=-1))
        waiting.append(NormWeights(f"{name}_norm", dlow[..., :rank], kept[0]))
        latent = norm_input_gradient(dlow[..., :rank], kept[0], kept[1], p[f"{name}_norm.gain"], True)
        dlow = xp.concatenate([latent, dlow[..., rank:]], axis=-1)
        waiting.append(Product(f"{name}_down", x_bsh, dlow))
        return product_input_gradient(dlow, p[f"{name}_down"]), waiting


def attention_parameters(m: Transformer) -> list[Parameter]:
    """The weights that make queries, keys and values, biases apart."""
    if not m.kv_lora_rank:
        per_key_head = (m.num_heads // m.num_kv_heads + 2) * m.head_dim
        return [Parameter(name="qkv", shape=(m.hidden, m.num_kv_heads, per_key_head), tp_axis=1)]
    turned = m.qk_rope_head_dim
    out = []
    for name, rank, width, beside in (
        ("q", m.q_lora_rank, m.head_dim, 0),
        ("kv", m.kv_lora_rank, m.head_dim - turned + m.v_head_dim, turned),
    ):
        out.append(Parameter(name=f"{name}_up", shape=(rank or m.hidden, m.num_heads, width), tp_axis=1))
        if rank:
            out.append(Parameter(name=f"{name}_down", shape=(m.hidden, rank + beside)))
            out.append(Parameter(name=f"{name}_norm.gain", shape=(rank,), start="ones", decays=False))
    return out


def as_tokens(x_bgrSd: Array) -> Array:
    """Heads back beside each other, shape (b, S, g r d)."""
    b, _, _, s, _ = x_bgrSd.shape
    return x_bgrSd.transpose(0, 3, 1, 2, 4).reshape(b, s, -1)
