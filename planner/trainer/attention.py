"""Causal attention over blocks of queries, so that memory grows with s, not s^2; grouped queries; slices; windows.

Shapes: b sequences, g key and value heads, r query heads a key head, s query tokens, t key tokens so far (t >= s),
d head size, q queries of one block.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.trainer.arrays import Array, wide

BLOCK = 128
ALL = 2**62  # tokens of a window that hides nothing


def _blocks(s: int, t: int, block: int, ahead: int | None, window: int) -> Iterator[tuple[slice, slice, int]]:
    """Query ranges, the keys that some of each see, and how far ahead of these the queries begin.

    A key that none sees is never multiplied at all.
    """
    ahead = t - s if ahead is None else ahead
    for start in range(0, s, block):
        stop = min(start + block, s)
        first = max(ahead + start - window + 1, 0)
        yield slice(start, stop), slice(first, min(ahead + stop, t)), ahead + start - first


def _scores(xp: Any, q_bgrqd: Array, k_bgtd: Array, ahead: int, window: int) -> Array:
    """Scaled scores, shape (b, g, r, q, t), masked where a key is later than its query or a window or more before."""
    q, t = q_bgrqd.shape[-2], k_bgtd.shape[-2]
    scores = wide((q_bgrqd / math.sqrt(q_bgrqd.shape[-1])) @ k_bgtd[:, :, None].swapaxes(-1, -2))
    for keys in (slice(max(ahead + q - window, 0)), slice(ahead + 1, t)):  # those that some query does not see
        some = scores[..., keys]
        behind = ahead + xp.arange(q)[:, None] - xp.arange(t)[None, keys]
        some[...] = xp.where((behind < 0) | (behind >= window), -xp.inf, some)
    return scores


def attend(
    xp: Any, q_bgrsd: Array, k_bgtd: Array, v_bgtd: Array, block: int = BLOCK, window: int = ALL,
    ahead: int | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """softmax(q k^T / sqrt(d)) v, and the logarithm of each row's sum, shapes (b, g, r, s, d) and (b, g, r, s, 1).

    A query sees its own token and those before, of a window the last so many. ahead: of the first key the first query
    is so many tokens; by default the queries are the last s of the t positions. Each must see one key at least.
    """
    out_bgrsd = xp.empty((*q_bgrsd.shape[:-1], v_bgtd.shape[-1]), dtype=q_bgrsd.dtype)
    log_bgrs1 = wide(xp.empty((*q_bgrsd.shape[:-1], 1), dtype=q_bgrsd.dtype))
    for rows, keys, near in _blocks(q_bgrsd.shape[-2], k_bgtd.shape[-2], block, ahead, window):
        p = _scores(xp, q_bgrsd[..., rows, :], k_bgtd[..., keys, :], near, window)
        top = p.max(axis=-1, keepdims=True)
        p -= top
        xp.exp(p, out=p)
        total = p.sum(axis=-1, keepdims=True)
        out_bgrsd[..., rows, :] = (p.astype(v_bgtd.dtype, copy=False) @ v_bgtd[:, :, None, keys]) / total
        log_bgrs1[..., rows, :] = top + xp.log(total)
    return out_bgrsd, log_bgrs1


def attend_gradient(
    xp: Any, dout_bgrsd: Array, q_bgrsd: Array, k_bgtd: Array, v_bgtd: Array, out_bgrsd: Array, log_bgrs1: Array,
    dk_bgtd: Array, dv_bgtd: Array, block: int = BLOCK, window: int = ALL, ahead: int | None = None,
) -> Array:  # fmt: skip
    """The gradient by q; those by k and v are added to dk and dv.

    Probabilities come again from scores and `log` (FlashAttention, Dao et al. 2022, algorithm 4).
    """
    scale = 1.0 / math.sqrt(q_bgrsd.shape[-1])
    dq_bgrsd = xp.empty_like(q_bgrsd)
    half, delta_bgrs1 = q_bgrsd.dtype, (wide(dout_bgrsd) * wide(out_bgrsd)).sum(axis=-1, keepdims=True)
    for rows, keys, near in _blocks(q_bgrsd.shape[-2], k_bgtd.shape[-2], block, ahead, window):
        q, dout = q_bgrsd[..., rows, :], dout_bgrsd[..., rows, :]
        p = _scores(xp, q, k_bgtd[..., keys, :], near, window)
        p -= log_bgrs1[..., rows, :]
        xp.exp(p, out=p)
        dv_bgtd[..., keys, :] += (p.astype(half, copy=False).swapaxes(-1, -2) @ dout).sum(axis=2)
        ds = wide(dout @ v_bgtd[:, :, None, keys].swapaxes(-1, -2))
        ds -= delta_bgrs1[..., rows, :]
        ds *= p
        ds *= scale
        ds = ds.astype(half, copy=False)
        dq_bgrsd[..., rows, :] = ds @ k_bgtd[:, :, None, keys]
        dk_bgtd[..., keys, :] += (ds.swapaxes(-1, -2) @ q).sum(axis=2)
    return dq_bgrsd


@dataclass(kw_only=True)
class KeysValues:
    """Keys and values of one micro-batch in one layer over its slices, and their gradients, arrays (b, g, t, d).

    Slices write theirs from the first to the last and read all before; backward passes run from the last slice to
    the first, each adds to the gradients of all before, so a slice's own are complete when its turn comes.
    """

    num_tokens: int
    k_bgtd: Array = None
    v_bgtd: Array = None
    dk_bgtd: Array = None
    dv_bgtd: Array = None

    def write(self, xp: Any, k_bgsd: Array, v_bgsd: Array, start: int) -> tuple[Array, Array]:
        """Keep a slice's keys and values; return those of all positions so far."""
        b, g, s, d = k_bgsd.shape
        if self.k_bgtd is None:
            self.k_bgtd = xp.empty((b, g, self.num_tokens, d), dtype=k_bgsd.dtype)
            self.v_bgtd = xp.empty((b, g, self.num_tokens, v_bgsd.shape[-1]), dtype=v_bgsd.dtype)
        self.k_bgtd[:, :, start : start + s] = k_bgsd
        self.v_bgtd[:, :, start : start + s] = v_bgsd
        return self.until(start + s)

    def until(self, stop: int) -> tuple[Array, Array]:
        """Keys and values of the positions before `stop`."""
        return self.k_bgtd[:, :, :stop], self.v_bgtd[:, :, :stop]

    def gradients_until(self, xp: Any, stop: int) -> tuple[Array, Array]:
        """The array in which gradients of the positions before `stop` add up."""
        if self.dk_bgtd is None:
            self.dk_bgtd = xp.zeros_like(self.k_bgtd)
            self.dv_bgtd = xp.zeros_like(self.v_bgtd)
        return self.dk_bgtd[:, :, :stop], self.dv_bgtd[:, :, :stop]

    def clear(self) -> None:
        """Give the memory back."""
        self.k_bgtd = self.v_bgtd = self.dk_bgtd = self.dv_bgtd = None
