"""Attention over a sequence whose tokens lie on several ranks: ring, Ulysses, both at once (USP), or gathered keys.

A sequence of S tokens is cut into chunks. In zigzag order there are 2c of them on c ranks, and rank r has chunks r and
2c - 1 - r, so that causal attention is the same work for all (Brandon et al. 2023, arXiv 2311.09431). In plain order
there are c, and rank r has chunk r.

`ulysses` neighbours exchange heads for tokens in an all-to-all: each then has all of their tokens for its part of the
heads (Jacobs et al. 2023, arXiv 2309.14509). Across the c / ulysses groups of such neighbours keys and values pass
around a ring (Liu et al. 2023, arXiv 2310.01889), or are gathered whole (Llama 3, arXiv 2407.21783, section 3.3.2).
Ring and Ulysses at once are USP (Fang and Zhao 2024, arXiv 2405.07719). A ring may be one of rings: neighbours pass
keys and values around an inner ring, and each sends its own on to its like in the next one meanwhile (double ring
attention, Gu et al. 2024, arXiv 2406.18485).

Shapes: b sequences, g key and value heads, r query heads per key head, s tokens of this rank, d head size. Inside the
exchange g is a part of the heads and s the tokens of all neighbours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.trainer.arrays import Array, wide
from planner.trainer.attention import attend, attend_gradient
from planner.trainer.communicator import Communicator, RankGroup

HEADS, TOKENS = 1, -2  # axes
KEYS, GRADIENTS = 0, 2  # tags, of values one more
Turn = tuple[int, Array, Array, Sequence[Array]]


@dataclass(frozen=True, kw_only=True)
class Context:
    """One rank's part of its sequences.

    neighbours: the ranks that exchange heads for tokens; ring: those across which keys and values travel, one of each
    group of neighbours; both in order, and of one rank where nothing is shared. member, place: this rank's index in
    them. inner: places of an inner ring, beside each other. gathered: keys and values are gathered, not passed around.
    zigzag: the order of the chunks. causal: whether a token sees none after it; always so on more ranks than one.
    """

    xp: Any
    communicator: Communicator
    neighbours: RankGroup
    ring: RankGroup
    member: int
    place: int
    inner: int = 1
    gathered: bool = False
    zigzag: bool = True
    causal: bool = True

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

    def attend(self, q_bgrsd: Array, k_bgtd: Array, v_bgtd: Array, window: int) -> tuple[Array, Array]:
        """`planner.trainer.attention.attend` over the keys of all context ranks, or those of a window.

        With one context rank t may be more than s: the tokens of earlier slices.
        """
        if self.size == 1:
            return attend(self.xp, q_bgrsd, k_bgtd, v_bgtd, window=window, ahead=self._ahead(k_bgtd))
        out = self.xp.zeros((*q_bgrsd.shape[:-1], v_bgtd.shape[-1]), dtype=q_bgrsd.dtype)
        log = wide(self.xp.full((*q_bgrsd.shape[:-1], 1), -self.xp.inf, dtype=q_bgrsd.dtype))
        for source, k, v, _ in self._around(k_bgtd, v_bgtd, ()):
            for rows, keys, ahead in self._pairs(source, q_bgrsd.shape[TOKENS], window):
                of = {"window": window, "ahead": ahead}
                parts = attend(self.xp, q_bgrsd[..., rows, :], k[..., keys, :], v[..., keys, :], **of)
                self._merge(out[..., rows, :], log[..., rows, :], *parts)
        return out, log

    def attend_gradient(
        self, dout: Array, q: Array, k: Array, v: Array, out: Array, log: Array, dk: Array, dv: Array, window: int
    ) -> Array:
        """`attention.attend_gradient`, where every rank's keys get the gradients of all queries."""
        if self.size == 1:
            return attend_gradient(self.xp, dout, q, k, v, out, log, dk, dv, window=window, ahead=self._ahead(k))
        dq = self.xp.zeros_like(q)
        for source, k_now, v_now, grads in self._around(k, v, (dk, dv)):
            for rows, keys, ahead in self._pairs(source, q.shape[TOKENS], window):
                dq[..., rows, :] += attend_gradient(
                    self.xp, dout[..., rows, :], q[..., rows, :], k_now[..., keys, :], v_now[..., keys, :],
                    out[..., rows, :], log[..., rows, :], grads[0][..., keys, :], grads[1][..., keys, :],
                    window=window, ahead=ahead,
                )  # fmt: skip
        return dq

    def _ahead(self, k_bgtd: Array) -> int | None:
        """Of the first key the first query is so many tokens ahead: of all keys, where there is no causal mask."""
        return None if self.causal else k_bgtd.shape[TOKENS]

    def _around(self, k: Array, v: Array, grads: Sequence[Array]) -> Iterator[Turn]:
        """The keys and values of every place of the ring, with the place: in order if gathered, else own first.

        grads: where the gradients by this rank's own add up; each turn has the arrays for its keys and values. Of
        gathered keys they are summed at the end, else they travel along.
        """
        if not self.gathered:
            levels = ((len(self.ring) // self.inner, self.inner), (self.inner, 1))
            yield from self._turns(levels, self.place, k, v, grads)
            return
        n, axis = len(self.ring), k.ndim + TOKENS
        whole = [self.communicator.all_gather(x, self.ring, axis) for x in (k, v)]
        sums = [self.xp.zeros_like(x) for x, _ in zip(whole, grads, strict=False)]
        keys, values, *parts = (self.xp.split(x, n, axis=axis) for x in (*whole, *sums))
        for place in range(n):
            yield place, keys[place], values[place], [part[place] for part in parts]
        for here, x in zip(grads, sums, strict=True):
            here += self.communicator.reduce_scatter(x, self.ring, axis)

    def _turns(self, levels: Sequence[Any], source: int, k: Array, v: Array, grads: Sequence[Array]) -> Iterator[Turn]:
        """The turns of a ring, and within each those of the rings inside it: levels, of (ranks, places apart).

        A ring's transfer runs beside a whole turn of those inside it. Gradients follow the keys that they are of: at
        the end of a turn this rank's part is added to what came, and at the end of all its own come home.
        """
        if not levels:
            yield source, k, v, grads
            return
        size, apart = levels[0]
        after, before = (self._along(self.place, size, apart, step) for step in (1, -1))
        for turn in range(size):
            if turn + 1 < size:
                self._send((k, v), after, KEYS)
            here = [self.xp.zeros_like(x) for x in grads] if turn else grads
            yield from self._turns(levels[1:], self._along(source, size, apart, -turn), k, v, here)
            if turn > 1:
                self._add(here, before)
            if turn:
                self._send(here, after, GRADIENTS)
            if turn + 1 < size:
                k, v = self._receive((k, v), before, KEYS)
        if size > 1:
            self._add(grads, before)

    def _along(self, place: int, size: int, apart: int, steps: int) -> int:
        """The place so many steps further along a ring of so many ranks, that lie so far apart."""
        at = place // apart % size
        return place + ((at + steps) % size - at) * apart

    def _send(self, arrays: Sequence[Array], place: int, tag: int) -> None:
        for i, x in enumerate(arrays):
            self.communicator.send(x, self.ring.ranks[place], tag + i, "cp")

    def _receive(self, like: Sequence[Array], place: int, tag: int) -> list[Array]:
        source = self.ring.ranks[place]
        return [self.communicator.recv(source, tag + i, x.shape, x.dtype) for i, x in enumerate(like)]

    def _add(self, sums: Sequence[Array], place: int) -> None:
        for here, x in zip(sums, self._receive(sums, place, GRADIENTS), strict=True):
            here += x

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

    def _pairs(self, source: int, tokens: int, window: int) -> Iterator[tuple[slice, slice, int]]:
        """Queries here and keys of a place of which each sees some, chunk by chunk, and how far ahead the first is."""
        mine, theirs = self._chunks_at(self.place), self._chunks_at(source)
        n = tokens // len(mine)
        for a, i in enumerate(mine):
            for b, j in enumerate(theirs):
                ahead = (i - j) * n
                seen = min(n, n + window - 1 - ahead)
                if j <= i and seen > 0:
                    yield slice(a * n, a * n + seen), slice(b * n, (b + 1) * n), ahead

    def _merge(self, out: Array, log: Array, more: Array, more_log: Array) -> None:
        """Join attention over other keys to what there is, in place, by the logarithms of the rows' sums."""
        total = self.xp.logaddexp(log, more_log)
        out[...] = out * self.xp.exp(log - total) + more * self.xp.exp(more_log - total)
        log[...] = total
