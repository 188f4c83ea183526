"""A tower before a language model, each with a layout of its own: an encoder whose outputs are the first embeddings.

The tower is a model of its own with its own dp, tp and micro-batch on the same ranks, without a pipeline. In a step it
goes forward over the images of the whole batch. Its outputs go to the ranks of the language model that need them, which
takes its ordinary step with them in place of the embeddings of the first k tokens of each sequence. Their gradients
come back; the tower goes backward, and reduces its gradients over its own data ranks. It goes forward again for that,
and has kept its outputs alone (decoupled encoder process, Kimi K2.5, arXiv 2602.02276), or has kept what its backward
pass needs (modality-decoupled parallelism, LongCat-Flash-Omni, arXiv 2511.00279).

A token of images has a number: its sequence's in the whole batch times k, and its position.
Shapes: n tokens of images on a rank, t of one image, m micro-batches, b sequences of each, h the model's width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np

from planner.base.errors import InputError, LayoutError
from planner.trainer.arrays import Array, on_host
from planner.trainer.communicator import Communicator
from planner.trainer.executor import Batch
from planner.trainer.layer import SliceOf
from planner.trainer.optimizers import Optimizer
from planner.trainer.task import Task
from planner.trainer.worker import Worker, setting_of

KIND = "tower"  # of what the exchange sends, in counts of bytes


@dataclass(frozen=True, kw_only=True)
class TowerBatch(Batch):
    """A step's micro-batches, and those of this rank's replica of the tower, of any size: integer patches (m, b, t)."""

    patches: Array


@dataclass(frozen=True)
class Images:
    """A tower's outputs for one micro-batch of the language model: rows_bnh of positions_n. Gradients replace them."""

    positions_n: Array
    rows_bnh: Array

    def put(self, x_bsh: Array, positions_s: Array) -> None:
        """Add the outputs to the inputs at those positions, which are zero there."""
        here, of = self._both(positions_s)
        x_bsh[:, here] += self.rows_bnh[:, of]

    def keep_gradient(self, dx_bsh: Array, positions_s: Array) -> None:
        """The gradient of `put`."""
        here, of = self._both(positions_s)
        self.rows_bnh[:, of] = dx_bsh[:, here]

    def _both(self, positions_s: Array) -> tuple[Array, Array]:
        """Places of common positions among those given, and among all here; both ascend."""
        here = positions_s <= self.positions_n[-1]
        return here, self.positions_n.searchsorted(positions_s[here])


@dataclass(frozen=True)
class Side:
    """Numbers of the tokens that a rank has on one side of the exchange, and of those that it sends; ascending."""

    has: Any
    sends: Any


def tokens_of(worker: Worker, k: int, sequences: int, rank: int) -> Side:
    """The first k tokens of each sequence, as far as a rank's first stage has them.

    Tensor ranks that all have the same tokens send an equal share each.
    """
    task, where = worker.task, worker.executor.where
    mesh, m = task.mesh(rank), task.micro_batches
    setting = setting_of(worker.communicator, task, mesh)
    region, context = setting.region, setting.context
    slices = pairwise(task.bounds or (0, task.model.seq_len))
    parts = [on_host(context.positions(a, b))[region.my_tokens((b - a) // context.size)] for a, b in slices]
    positions = np.concatenate(parts)
    positions = positions[positions < k]
    share = positions if region.split_tokens else np.array_split(positions, task.tp)[mesh.t]
    b = sequences // (task.dp * m)
    first = np.array([(mesh.replica * m + i) * b for i in range(m) if where[0, i] == mesh.p], dtype=int)
    of_sequences = ((first[:, None] + np.arange(b)) * k).reshape(-1, 1)
    return Side((of_sequences + positions).ravel(), (of_sequences + share).ravel())


def exchange(communicator: Communicator, x_nh: Array, here: Sequence[Side], there: Sequence[Side]) -> Array:
    """The rows of the tokens that this rank has there, from the ranks that have them here; sides of every rank.

    A rank is sent each row that it lacks, once.
    """
    xp, me, wanted = communicator.xp, communicator.rank, there[communicator.rank].has
    missing = [np.setdiff1d(b.has, a.has) for a, b in zip(here, there, strict=True)]

    def places(tokens: Any, among: Any) -> Array:
        return xp.asarray(np.searchsorted(among, tokens))

    for to in range(communicator.size):
        if len(tokens := np.intersect1d(here[me].sends, missing[to])):
            communicator.send(x_nh[places(tokens, here[me].has)], to, 0, KIND)
    out_nh = xp.empty((len(wanted), x_nh.shape[1]), dtype=x_nh.dtype)
    tokens = np.intersect1d(here[me].has, wanted)
    out_nh[places(tokens, wanted)] = x_nh[places(tokens, here[me].has)]
    for source in range(communicator.size):
        if len(tokens := np.intersect1d(here[source].sends, missing[me])):
            came = communicator.recv(source, 0, (len(tokens), x_nh.shape[1]), x_nh.dtype)
            out_nh[places(tokens, wanted)] = came
    communicator.flush()
    return out_nh


def check_tower(task: Task, tower: Task) -> None:
    """Raises InputError or LayoutError for the first rule that is broken of a tower before a task's model."""
    m, width = tower.model, task.model.hidden
    if m.num_experts or m.num_mtp_layers or m.num_window_layers:
        raise InputError(
            f"tower's model {m.name} has experts, windows or multi-token prediction; allowed: none of them"
        )
    if np.dtype(task.dtype).itemsize < 4 or tower.dtype != task.dtype:
        raise LayoutError(f"tower's dtype is {np.dtype(tower.dtype)}; allowed: the language model's, of 32 or 64 bits")
    for name, value, right, allowed in (
        ("pp", tower.pp, tower.pp == 1, "1"),
        ("cp", tower.cp, tower.cp == 1, "1"),
        ("bounds", tower.bounds, len(tower.bounds) <= 2, "one slice"),
        ("offload_layers", tower.offload_layers, tower.offload_layers == 0, "0"),
        ("offload_modules", tower.offload_modules, not tower.offload_modules, "none"),
        ("dp * tp", tower.num_ranks, tower.num_ranks == task.num_ranks, f"all {task.num_ranks} ranks"),
        ("output_width", tower.output_width, tower.output_width == width, f"the language model's hidden {width}"),
    ):
        if not right:
            raise LayoutError(f"tower's {name} is {value}; allowed: {allowed}")


class TowerWorker(Worker):
    """One rank of a language model behind a tower.

    tower: the same rank of it; frozen: its parameters stay; keeps: what its backward pass needs, in place of its going
    forward again.
    """

    def __init__(
        self, communicator: Communicator, task: Task, optimizer: Optimizer, tower: Worker, *, frozen: bool = False,
        keeps: bool = False,
    ) -> None:  # fmt: skip
        check_tower(task, tower.task)
        super().__init__(communicator, task, optimizer)
        self.tower, self.frozen, self.keeps = tower, frozen, keeps and not frozen

    def gradients(self, batch: Batch) -> float:
        """See `Worker`; a batch is a `TowerBatch`. Raises LayoutError unless all sequences have as many images."""
        batch, each = cast("TowerBatch", batch), self.tower.task
        sequences = batch.tokens.shape[1] * self.task.micro_batches * self.task.dp
        m, b, t = batch.patches.shape
        images, most = each.dp * m * b, self.task.model.seq_len
        k = images // sequences * t
        if (m, t) != (each.micro_batches, each.model.seq_len) or images % sequences or not 0 < k <= most:
            allowed = f"({each.micro_batches}, b, {each.model.seq_len}) with as many images for each of {sequences} "
            allowed += f"sequences over dp {each.dp}, of at most {most} tokens"
            raise LayoutError(f"tower's patches are of shape {batch.patches.shape}; allowed: {allowed}")
        at_tower, at_model = (
            [tokens_of(*of, rank) for rank in range(self.communicator.size)]
            for of in ((self.tower, t, images), (self, k, sequences))
        )
        self.tower.store.clear_gradients()
        kept, ys = [], []
        for i in range(m):
            y, *needed = self._forward(batch, i)
            ys.append(y)
            kept.append(needed if self.keeps else None)
        y_nh = self.communicator.xp.concatenate(ys).reshape(-1, self.task.model.hidden)
        del y, ys, needed
        x_nh = exchange(self.communicator, y_nh, at_tower, at_model)
        del y_nh
        self.executor.images = self._images(x_nh, at_model[self.mesh.rank].has, k)
        tokens = batch.tokens.copy()
        tokens[..., :k] = -1  # no word of the table
        loss = super().gradients(replace(batch, tokens=tokens))
        self.executor.images = {}
        if not self.frozen:
            self._backward(batch, exchange(self.communicator, x_nh, at_model, at_tower), kept)
        return loss

    def _images(self, x_nh: Array, tokens_n: Any, k: int) -> dict[int, Images]:
        """Views of outputs, by micro-batch; a rank without tokens of images has none."""
        here = [i for i in range(self.task.micro_batches) if self.executor.where[0, i] == self.mesh.p]
        if not len(tokens_n):
            return {}
        positions_n = np.unique(tokens_n % k)
        rows = x_nh.reshape(len(here), -1, len(positions_n), x_nh.shape[1])
        positions_n = self.communicator.xp.asarray(positions_n)
        return {i: Images(positions_n, rows[j]) for j, i in enumerate(here)}

    def _forward(self, batch: TowerBatch, i: int) -> tuple[Array, list[Any], SliceOf]:
        """The tower's outputs for its micro-batch i, what its backward pass needs, and the pass."""
        executor = self.tower.executor
        part = executor.part(i, 0, Batch(tokens=batch.patches, targets=batch.patches, num_tokens=1), {})
        return *executor.stages[0].forward(executor.store, None, part, False, executor.arena), part

    def _backward(self, batch: TowerBatch, dy_nh: Array, kept: list[Any]) -> None:
        """The tower's gradients. kept: what each micro-batch's pass needs, or None, where it goes forward again."""
        executor = self.tower.executor
        for i, dy_bnh in enumerate(dy_nh.reshape(*batch.patches.shape[:2], -1, dy_nh.shape[1])):
            saved, part = kept[i] or self._forward(batch, i)[1:]
            executor.stages[0].backward(executor.store, dy_bnh, saved, part, False, executor.arena)
        executor.store.reduce_gradients()

    def gradient_norm(self) -> float:
        """See `Worker`; of both models."""
        return math.hypot(super().gradient_norm(), 0.0 if self.frozen else self.tower.gradient_norm())

    def apply(self, step: int, shrink: float = 1.0) -> None:
        """See `Worker`; of both models."""
        super().apply(step, shrink)
        if not self.frozen:
            self.tower.apply(step, shrink)
            self.tower.store.publish()

    def whole(self, which: str = "gradients") -> dict[str, Array]:
        """See `Worker`; the tower's tensors begin with `tower.`."""
        return super().whole(which) | {f"tower.{name}": value for name, value in self.tower.whole(which).items()}
