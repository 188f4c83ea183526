"""Embedding and head that all pipeline ranks share: vocabulary parallelism (Yeung et al. 2024, arXiv 2411.05288).

Rank r of p has the r-th part of both tables' rows. What a micro-batch needs of them:

- Every rank looks up the tokens in its part, ahead of time; the first stage sums what all send it. It sends its input's
  gradient back to all.
- The last stage sends its output, behind the last norm, to all. Each makes its part of the logits and tells all others
  the softmax's numbers (S, U). Once it has theirs it makes its part of the gradients: S is followed by T, which makes
  both; U has made the input gradient but for a factor, so it goes out before the rank's next operation, and V makes the
  weight gradient. The last stage sums the input gradient.

Every message has a tag of its own and no one waits to send. Ranks have the passes of all micro-batches in one order, so
one that waits for another's logits doesn't wait for ever.

Shapes: b sequences, s tokens of this rank, S tokens of the slice, h hidden, v this rank's part of the vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.models import Transformer
from planner.trainer.arrays import Array, num_bytes, wide
from planner.trainer.communicator import Communicator
from planner.trainer.cross_entropy import Softmax, logits_gradient, of_all, softmax
from planner.trainer.embedding_head import look_up, looked_up, table_unit
from planner.trainer.functions import product, product_input_gradient
from planner.trainer.layer import Product, Setting, SliceOf
from planner.trainer.mesh import Mesh
from planner.trainer.parameters import Unit
from planner.trainer.stage import add_gradients
from planner.trainer.store import Store

LOOK_UP, OUTPUT, SOFTMAX, HEAD_GRADIENT, EMBEDDING_GRADIENT = range(5)
MESSAGES = 5
KIND = "vocabulary"
"""Kind of these messages where bytes are counted."""


def shared_units(model: Transformer) -> list[Unit]:
    """The tables of tokens and, unless it is tied, of the head."""
    return [table_unit(model, name, shared=True) for name in (["tokens"] if model.tied else ["tokens", "head"])]


@dataclass
class _Pass:
    """A micro-batch between its logits and its gradients. gathered: the head's input, (b, S, h).

    made: input gradients of the exponentials and the targets.
    """

    part: SliceOf
    gathered: Array
    soft: Softmax
    made: tuple[Array, Array] | None
    size: int
    factor_bs: Array = None


class SharedEnds:
    """This rank's part of the embedding and the head.

    where: the rank of each stage and micro-batch. change: adds to what is live (`Live.change`).
    """

    def __init__(
        self, communicator: Communicator, mesh: Mesh, setting: Setting, store: Store,
        where: Mapping[tuple[int, int], int], change: Callable[[int, int, int], None],
    ) -> None:  # fmt: skip
        self.communicator, self.mesh, self.setting, self.store, self.where = communicator, mesh, setting, store, where
        self.change, self.last = change, max(stage for stage, _ in where)
        tables = shared_units(setting.model)
        self.tokens, self.head = tables[0], tables[-1]
        self.rows = setting.model.vocab // (mesh.tp * mesh.pp)
        self.row = (mesh.p * mesh.tp + mesh.t) * self.rows
        self.passes: dict[int, _Pass] = {}
        self.looked = 0
        self.unsent: int | None = None

    def begin(self, part_of: Callable[[int], SliceOf], num_micro_batches: int, first_tag: int) -> None:
        """A step. part_of: the tokens of a micro-batch's pass. first_tag: from which on tags are free."""
        self.part_of, self.m, self.first_tag, self.looked = part_of, num_micro_batches, first_tag, 0
        self.own: dict[int, Array] = {}

    def prepare(self, kind: str, i: int) -> None:
        """Sends, before an operation, the last U's input gradient, and embeddings ahead of time.

        The first stage is at most 2 p micro-batches before any other (`planner.schedules.vocabulary`).
        """
        self._settle()
        if kind == "F":
            self._look_up(i + 2 * self.mesh.pp)

    def run(self, kind: str, i: int) -> float:
        """S, T, U or V of a micro-batch; the loss of its tokens where T or V says it, on the last stage's rank."""
        if kind in "SU":
            self._logits(kind, i)
            return 0.0
        return self._gradients(kind, i)

    def sum(self, kind: str, i: int) -> Array:
        """All ranks' sum for a first stage's forward or a last stage's backward pass, on its rank."""
        return self._sum(LOOK_UP if kind == "F" else HEAD_GRADIENT, i)

    def spread(self, kind: str, i: int, x: Array) -> None:
        """Send all ranks what such a pass ends with: the last stage's output, or the gradient of the first's input."""
        for p in range(self.mesh.pp):
            self._send(OUTPUT if kind == "F" else EMBEDDING_GRADIENT, i, p, x)

    def _look_up(self, until: int) -> None:
        """Send the first stage this rank's part of the embedding of micro-batches up to one."""
        xp = self.setting.xp
        while self.looked <= min(until, self.m - 1):
            i, part = self.looked, self.part_of(self.looked)
            table = self._view(self.tokens)
            self._send(LOOK_UP, i, self.where[0, i], look_up(xp, table, part.tokens_bs, self.row, self.setting.region))
            self.store.release([self.tokens])
            self.looked += 1

    def _logits(self, kind: str, i: int) -> None:
        """S or U."""
        part, region, xp = self.part_of(i), self.setting.region, self.setting.xp
        x_bSh = region.enter(self._receive(OUTPUT, i, self.where[self.last, i], self._shape(), self.setting.dtype))
        table = self._view(self.head)
        soft = softmax(xp, product(x_bSh, table.T), part.targets_bs, region, self.row)
        made = None
        if kind == "U":
            targets_bsh = table[soft.column_n].reshape(*soft.mine_bs.shape, -1) * soft.mine_bs[..., None]
            made = product_input_gradient(soft.exp_bsv.astype(soft.given), table.T), targets_bsh
            self.unsent = i
        self.store.release([self.head])
        size = num_bytes([x_bSh, soft, made])
        self.passes[i] = _Pass(part, x_bSh, soft, made, size)
        self.change(0, 0, size)
        for p in range(self.mesh.pp):
            self._send(SOFTMAX, i, p, soft.told_3bs)

    def _settle(self) -> None:
        """Send the input gradient of the U before, now that its factor can be known."""
        if self.unsent is None:
            return
        i, self.unsent = self.unsent, None
        one = self._told(i)
        exponentials, targets = one.made or (None, None)
        dx_bSh = (exponentials * one.factor_bs[..., None] - targets) * (one.part.loss_weight * one.part.loss_scale)
        dx_bSh = dx_bSh.astype(self.setting.dtype, copy=False)
        self._send(HEAD_GRADIENT, i, self.where[self.last, i], self.setting.region.enter_gradient(dx_bSh))
        one.made = None

    def _gradients(self, kind: str, i: int) -> float:
        """T or V; the loss of the micro-batch's tokens, on the last stage's rank."""
        one = self._told(i) if kind == "T" else self.passes[i]
        del self.passes[i]
        scale = one.part.loss_weight * one.part.loss_scale
        dlogits_bsv = logits_gradient(self.setting.xp, one.soft, one.factor_bs, scale)
        if kind == "T":
            dx_bSh = product_input_gradient(dlogits_bsv, self._view(self.head).T)
            self.store.release([self.head])
            self._send(HEAD_GRADIENT, i, self.where[self.last, i], self.setting.region.enter_gradient(dx_bSh))
        add_gradients(self.store, [self.head], [Product(self.head.name, dlogits_bsv, one.gathered)], False)
        self.change(0, 0, -one.size)
        return float(one.part.loss) if self.where[self.last, i] == self.mesh.p else 0.0

    def end(self) -> None:
        """The embedding's gradients, once all micro-batches have come back."""
        for i in range(self.m):
            s, tokens_bs = self.setting, self.part_of(i).tokens_bs
            dy_bsh = self._receive(EMBEDDING_GRADIENT, i, self.where[0, i], self._shape(), s.dtype)
            rows = looked_up(s.xp, self.rows, tokens_bs, self.row, s.region, dy_bsh)
            add_gradients(self.store, [self.tokens], [rows], False)

    def _told(self, i: int) -> _Pass:
        """A micro-batch's pass with the loss and its factor, from what all ranks tell."""
        one = self.passes[i]
        like = one.soft.told_3bs
        told = [self._receive(SOFTMAX, i, p, like.shape, like.dtype) for p in range(self.mesh.pp)]
        part_size = self.rows * self.mesh.tp
        loss_bs, one.factor_bs = of_all(self.setting.xp, told, self.mesh.p, one.part.targets_bs, part_size)
        one.part.loss = loss_bs.sum() * one.part.loss_weight
        return one

    def _view(self, unit: Unit) -> Array:
        return self.store.parameters(unit)[unit.name]

    def _shape(self) -> tuple[int, ...]:
        part = self.part_of(0)
        mine = self.setting.region.my_tokens(part.stop - part.start)
        return (part.tokens_bs.shape[0], mine.stop - mine.start, self.setting.model.hidden)

    def _sum(self, message: int, i: int) -> Array:
        """The sum of all ranks' parts, in rank order."""
        total = wide(self._receive(message, i, 0, self._shape(), self.setting.dtype)).copy()
        for p in range(1, self.mesh.pp):
            total += self._receive(message, i, p, self._shape(), self.setting.dtype)
        return total.astype(self.setting.dtype, copy=False)

    def _tag(self, message: int, i: int) -> int:
        return self.first_tag + i * MESSAGES + message

    def _send(self, message: int, i: int, p: int, x: Array) -> None:
        tag = self._tag(message, i)
        if p == self.mesh.p:
            self.own[tag] = x
        else:
            self.communicator.send(x, self.mesh.at(p=p), tag, KIND)

    def _receive(self, message: int, i: int, p: int, shape: tuple[int, ...], dtype: Any) -> Array:
        tag = self._tag(message, i)
        if p == self.mesh.p:
            return self.own.pop(tag)
        return self.communicator.recv(self.mesh.at(p=p), tag, shape, self.setting.xp.dtype(dtype))
