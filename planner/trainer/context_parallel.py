"""Attention over a sequence whose tokens lie on several ranks: ring, Ulysses, both at once (USP), or gathered keys.

A sequence of S tokens is cut into chunks. In zigzag order there are 2c of them on c ranks, and rank r has chunks r and
2c - 1 - r, so that causal attention is the same work for all (Brandon et al. 2023, arXiv 2311.09431). In plain order
there are c, and rank r has chunk r.

`ulysses` neighbours exchange heads for tokens in an all-to-all: each then has all of their tokens for its part of the
heads (Jacobs et al. 2023, arXiv 2309.14509). Across the c / ulysses groups of such neighbours keys and values pass
around a ring (Liu et al. 2023, arXiv 2310.01889), or are gathered whole (Llama 3, arXiv 2407.21783, section 3.3.2).
Ring and Ulysses at once are USP (Fang and Zhao 2024, arXiv 2405.07719).

Shapes: b sequences, g key and value heads, r query heads per key head, s tokens of this rank, d head size. Inside the
exchange g is a part of the heads and s the tokens of all neighbours.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.trainer.arrays import Array, wide
from planner.trainer.attention import attend, attend_gradient
from planner.trainer.communicator import Communicator, RankGroup

HEADS, TOKENS = 1, -2  # axes
KEYS, VALUES, KEY_GRADIENTS, VALUE_GRADIENTS = range(4)  # tags


@dataclass(frozen=True, kw_only=True)
class Context:
    """One rank's part of its sequences.

    neighbours: the ranks that exchange heads for tokens; ring: those across which keys and values travel, one of each
    group of neighbours; both in order, and of one rank where nothing is shared. member, place: this rank's index in
    them. gathered: keys and values are gathered, not passed around. zigzag: the order of the chunks.
    """

    xp: Any
    communicator: Communicator
    neighbours: RankGroup
    ring: RankGroup
    member: int
    place: int
    gathered: bool = False
    zigzag: bool = True

    @property
    def size(self) -> int:
        """Context ranks."""
        return len(self.neighbours) * len(self.ring)

    def positions(self, start: int, stop: int) -> Array:
        """The positions of this rank's tokens among those from start to stop - 1, shape (s,)."""
        if self.size == 1:
            return self.xp.arange(start, stop)
        n = (stop - start) // self._num_chunks
        mine = self._chunks(self.member + len(self.neighbours) * self.place)
        return self.xp.concatenate([self.xp.arange(start + i * n, start + (i + 1) * n) for i in mine])

    def exchange(self, x: Array) -> Array:
        """All heads of this rank's tokens to a part of the heads of all neighbours' tokens."""
        return self.communicator.all_to_all(x, self.neighbours, HEADS, x.ndim + TOKENS)

    def restore(self, x: Array) -> Array:
        """The inverse of `exchange`, which is also its gradient."""
        return self.communicator.all_to_all(x, self.neighbours, x.ndim + TOKENS, HEADS)

    def attend(self, q_bgrsd: Array, k_bgtd: Array, v_bgtd: Array) -> tuple[Array, Array]:
        """`planner.trainer.attention.attend` over the keys of all context ranks.

        With one context rank t may be more than s: the tokens of earlier slices.
        """
        if self.size == 1:
            return attend(self.xp, q_bgrsd, k_bgtd, v_bgtd)
        out = self.xp.zeros_like(q_bgrsd)
        log = wide(self.xp.full((*q_bgrsd.shape[:-1], 1), -self.xp.inf, dtype=q_bgrsd.dtype))
        for source, k, v in self._around(k_bgtd, v_bgtd):
            for rows, keys, same in self._pairs(source, q_bgrsd.shape[TOKENS]):
                parts = attend(self.xp, q_bgrsd[..., rows, :], k[..., keys, :], v[..., keys, :], causal=same)
                self._merge(out[..., rows, :], log[..., rows, :], *parts)
        return out, log

    def attend_gradient(
        self, dout: Array, q: Array, k: Array, v: Array, out: Array, log: Array, dk: Array, dv: Array
    ) -> Array:
        """`attention.attend_gradient`, where every rank's keys get the gradients of all queries."""
        if self.size == 1:
            return attend_gradient(self.xp, dout, q, k, v, out, log, dk, dv)
        dq = self.xp.zeros_like(q)
        travelling: list[Array] = []
        for source, k_now, v_now in self._around(k, v):
            came = [] if self.gathered or source == self.place else self._received(travelling)
            grads = came or [self.xp.zeros_like(k_now), self.xp.zeros_like(v_now)]
            for rows, keys, same in self._pairs(source, q.shape[TOKENS]):
                dq[..., rows, :] += attend_gradient(
                    self.xp, dout[..., rows, :], q[..., rows, :], k_now[..., keys, :], v_now[..., keys, :],
                    out[..., rows, :], log[..., rows, :], grads[0][..., keys, :], grads[1][..., keys, :], causal=same,
                )  # fmt: skip
            if self.gathered:
                travelling += grads
            elif source == self.place:
                dk += grads[0]
                dv += grads[1]
            else:
                self._send(grads[0], KEY_GRADIENTS)
                self._send(grads[1], VALUE_GRADIENTS)
                travelling = grads  # the next turn's have their shapes
        self._bring_home(travelling, dk, dv)
        return dq

    def _bring_home(self, travelling: list[Array], dk: Array, dv: Array) -> None:
        """Add what the other ranks found of the gradients by this rank's keys and values."""
        if self.gathered:
            for here, parts in ((dk, travelling[0::2]), (dv, travelling[1::2])):
                whole = self.xp.concatenate(parts, axis=here.ndim + TOKENS)
                here += self.communicator.reduce_scatter(whole, self.ring, here.ndim + TOKENS)
        elif home := self._received(travelling):
            dk += home[0]
            dv += home[1]

    def _around(self, k: Array, v: Array) -> Iterator[tuple[int, Array, Array]]:
        """The keys and values of every place of the ring, with the place: in order if gathered, else own first."""
        n, axis = len(self.ring), k.ndim + TOKENS
        if self.gathered:
            keys, values = (self.communicator.all_gather(x, self.ring, axis) for x in (k, v))
            yield from zip(
                range(n), self.xp.split(keys, n, axis=axis), self.xp.split(values, n, axis=axis), strict=True
            )
            return
        for turn in range(n):
            if turn + 1 < n:
                self._send(k, KEYS)
                self._send(v, VALUES)
            yield (self.place - turn) % n, k, v
            if turn + 1 < n:
                k, v = self._receive(k, KEYS), self._receive(v, VALUES)

    def _received(self, like: list[Array]) -> list[Array]:
        """Gradients from the rank before, where any were sent."""
        return [self._receive(x, KEY_GRADIENTS + i) for i, x in enumerate(like)]

    def _send(self, x: Array, tag: int) -> None:
        self.communicator.send(x, self.ring.ranks[(self.place + 1) % len(self.ring)], tag, "cp")

    def _receive(self, like: Array, tag: int) -> Array:
        return self.communicator.recv(self.ring.ranks[self.place - 1], tag, like.shape, like.dtype)

    @property
    def _num_chunks(self) -> int:
        return self.size * (2 if self.zigzag else 1)

    def _chunks(self, rank: int) -> tuple[int, ...]:
        """The chunks of a context rank, in its order."""
        return (rank, self._num_chunks - 1 - rank) if self.zigzag else (rank,)

    def _chunks_at(self, place: int) -> list[int]:
        """The chunks of all neighbours at a place of the ring, in the order of the exchange."""
        n = len(self.neighbours)
        return [i for member in range(n) for i in self._chunks(member + n * place)]

    def _pairs(self, source: int, tokens: int) -> Iterator[tuple[slice, slice, bool]]:
        """Queries here and keys of a place that they see, chunk by chunk, and whether it is the same chunk."""
        mine, theirs = self._chunks_at(self.place), self._chunks_at(source)
        n = tokens // len(mine)
        for a, i in enumerate(mine):
            for b, j in enumerate(theirs):
                if j <= i:
                    yield slice(a * n, (a + 1) * n), slice(b * n, (b + 1) * n), i == j

    def _merge(self, out: Array, log: Array, more: Array, more_log: Array) -> None:
        """Join attention over other keys to what there is, in place, by the logarithms of the rows' sums."""
        total = self.xp.logaddexp(log, more_log)
        out[...] = out * self.xp.exp(log - total) + more * self.xp.exp(more_log - total)
        log[...] = total
