"""Runs a schedule on one rank: its operations strictly in order, activations and gradients to and from neighbours.

A pass of a stage is for one slice of one micro-batch. Where each runs is read off the schedule itself: the rank in
whose row the operation stands, so a stage may live on several ranks (a pipeline with two replicas of the model).
Sends never wait and every message has a tag of its own, so that ranks which keep their order can't block each other.

Shapes: m micro-batches, b sequences each, S tokens a sequence, s tokens of this rank's part of a slice, h hidden.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from planner.base.errors import LayoutError
from planner.schedules.operations import Operation
from planner.trainer.arrays import Array, num_bytes
from planner.trainer.attention import KeysValues
from planner.trainer.communicator import Communicator
from planner.trainer.host_arena import HostArena
from planner.trainer.layer import Layer, Setting, SliceOf
from planner.trainer.mesh import Mesh
from planner.trainer.shared_ends import SharedEnds
from planner.trainer.stage import Stage, add_gradients
from planner.trainer.store import Store


class Event(NamedTuple):
    """An operation as it ran: seconds on this machine's clock, the wait for its input apart."""

    stage: int
    kind: str
    micro_batch: int
    slice: int
    asked_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One replica's micro-batches of a step: integer arrays (m, b, S); the loss is a mean over `num_tokens`."""

    tokens: Array
    targets: Array
    num_tokens: int


@dataclass
class Live:
    """Passes and bytes held on a rank, now and at most.

    forward: passes whose backward hasn't run, counted in slices; waiting: input gradients whose weight gradients
    haven't; size_bytes: of the arrays that both hold.
    """

    forward: int = 0
    waiting: int = 0
    size_bytes: int = 0
    peak_forward: int = 0
    peak_both: int = 0
    peak_bytes: int = 0

    def change(self, forward: int, waiting: int, size_bytes: int) -> None:
        """Add to what is live."""
        self.forward += forward
        self.waiting += waiting
        self.size_bytes += size_bytes
        self.peak_forward = max(self.peak_forward, self.forward)
        self.peak_both = max(self.peak_both, self.forward + self.waiting)
        self.peak_bytes = max(self.peak_bytes, self.size_bytes)


Key = tuple[int, int, int]  # stage, micro-batch, slice


@dataclass
class _State:
    """Arrays between the operations of one step."""

    saved: dict[Key, tuple[SliceOf, list[Any]]] = field(default_factory=dict)
    waiting: dict[Key, list[tuple[Layer, list[Any]]]] = field(default_factory=dict)
    bytes_of: dict[Key, int] = field(default_factory=dict)
    keys_values: dict[tuple[int, int], dict[int, KeysValues]] = field(default_factory=dict)
    local: dict[int, Array] = field(default_factory=dict)
    losses: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))


class Hooks:
    """Hooks run around operations; by default they do nothing."""

    def before(self, here: Operation) -> None:
        """Called before an operation starts, its input at hand."""

    def after(self, here: Operation) -> None:
        """Called when it has ended."""


class Executor:
    """Runs one rank's row of a schedule.

    rows: the whole schedule, one row a pipeline rank. bounds: where slices start, and the end: 0, ..., S.
    layer_at_a_time: operations of one stage in a row share one gather of parameters and one scatter of gradients.
    loss_scale: what the next run's gradients are multiplied by. images: of the micro-batches whose first tokens' inputs
    a tower makes.
    """

    def __init__(
        self,
        *,
        communicator: Communicator,
        mesh: Mesh,
        setting: Setting,
        stages: Sequence[Stage],
        store: Store,
        rows: Sequence[Sequence[Operation]],
        bounds: Sequence[int],
        layer_at_a_time: bool = False,
    ) -> None:
        self.communicator, self.mesh, self.setting, self.store = communicator, mesh, setting, store
        self.stages, self.row, self.bounds = stages, rows[mesh.p], list(bounds)
        self.layer_at_a_time = layer_at_a_time
        self.where = rank_of_passes(rows)
        self.live = Live()
        self.arena = HostArena(communicator, self.live.change)
        self.ends = None
        if shares_ends(rows):
            self.ends = SharedEnds(communicator, mesh, setting, store, self.where, self.live.change)
        self.loss_scale = 1.0
        self.images: Mapping[int, Any] = {}
        self.events: list[Event] = []
        self._check_slices()

    def _check_slices(self) -> None:
        split = len(self.bounds) > 2 or any(op.kind == "I" for op in self.row)
        if split and any(stage.moved for stage in self.stages):
            modules = any(stage.modules for stage in self.stages)
            named, allowed = ("offload_modules", "none") if modules else ("offload_layers", "0")
            raise LayoutError(f"{named} excludes sequence slices and a split backward pass; allowed: {allowed}")
        region = self.setting.region
        parts = [(b - a) // self.setting.context.size for a, b in zip(self.bounds, self.bounds[1:], strict=False)]
        if region.split_tokens and any(n % region.size for n in parts):
            raise LayoutError(
                f"sequence parallelism splits every slice over tp {region.size}; slices of {parts} tokens don't split"
            )

    def run(self, batch: Batch, hooks: Hooks | None = None) -> dict[int, float]:
        """One step's forward and backward passes; returns this rank's part of the mean loss by micro-batch.

        Gradients of this rank's operations are added to the store's; `Store.reduce_gradients` completes them.
        """
        state, hooks = _State(), hooks or Hooks()
        if self.ends:
            m = len(batch.tokens)
            tags = 2 * len(self.stages) * m * (len(self.bounds) - 1)
            self.ends.begin(lambda i: self.part(i, 0, batch, {}), m, tags)
        for here, after in zip(self.row, [*self.row[1:], None], strict=True):
            alike = after is not None and (after.stage, after.kind) == (here.stage, here.kind)
            keep = self.layer_at_a_time and alike
            ready_s = time.perf_counter()
            if self.ends:
                self.ends.prepare(here.kind, here.micro_batch)
            x = self._input(here, batch, state)
            start = time.perf_counter()
            hooks.before(here)
            if here.kind == "F":
                self._forward(here, x, batch, state, keep)
            elif here.kind == "W":
                self._weight_gradient(here, state, keep)
            elif self.ends and here.kind in "STUV":
                state.losses[here.micro_batch] += self.ends.run(here.kind, here.micro_batch)
            else:
                self._backward(here, x, state, keep)
            hooks.after(here)
            now = time.perf_counter()
            self.events.append(Event(here.stage, here.kind, here.micro_batch, here.slice, ready_s, start, now))
        if self.ends:
            self.ends.end()
        self.communicator.flush()
        return dict(state.losses)

    def _forward(self, here: Operation, x: Array, batch: Batch, state: _State, keep: bool) -> None:
        key = (here.stage, here.micro_batch, here.slice)
        part = self.part(here.micro_batch, here.slice, batch, state.keys_values.setdefault(key[:2], {}))
        y, saved = self.stages[here.stage].forward(self.store, x, part, keep, self.arena)
        state.saved[key] = part, saved
        size = num_bytes(saved) + num_bytes(part.keys_values if here.slice == 0 else None)
        state.bytes_of[key] = size
        self.live.change(1, 0, size)
        if y is None:
            state.losses[here.micro_batch] += float(part.loss)
        else:
            self._output(here, here.stage + 1, y, state)

    def part(self, micro_batch: int, piece: int, batch: Batch, keys_values: dict[int, KeysValues]) -> SliceOf:
        """The tokens of a pass."""
        start, stop = self.bounds[piece], self.bounds[piece + 1]
        context = self.setting.context
        positions, further = context.positions(start, stop), self.setting.model.num_mtp_layers
        targets = self.setting.xp.pad(batch.targets[micro_batch], ((0, 0), (0, further)), constant_values=-1)
        ahead = tuple(targets[:, positions + k] for k in range(1 + further))
        return SliceOf(
            start=start // context.size,
            stop=stop // context.size,
            num_tokens=self.bounds[-1] // context.size,
            positions_s=positions,
            keys_values=keys_values,
            tokens_bs=batch.tokens[micro_batch][:, positions],
            targets_bs=ahead[0],
            ahead=ahead,
            images=self.images.get(micro_batch),
            loss_weight=1.0 / batch.num_tokens,
            loss_scale=self.loss_scale,
        )

    def _backward(self, here: Operation, dy: Array, state: _State, keep: bool) -> None:
        key = (here.stage, here.micro_batch, here.slice)
        part, saved = state.saved.pop(key)
        stage = self.stages[here.stage]
        if here.kind == "B":
            dx = stage.backward(self.store, dy, saved, part, keep, self.arena)
            self.live.change(-1, 0, -state.bytes_of.pop(key))
        else:
            dx, state.waiting[key] = stage.input_gradient(self.store, dy, saved, part, keep)
            held = num_bytes([gradients for _, gradients in state.waiting[key]])
            self.live.change(-1, 1, held - state.bytes_of.pop(key))
            state.bytes_of[key] = held
        if here.slice == 0:
            del state.keys_values[key[:2]]
        if dx is not None:
            self._output(here, here.stage - 1, dx, state)

    def _weight_gradient(self, here: Operation, state: _State, keep: bool) -> None:
        key = (here.stage, here.micro_batch, here.slice)
        for layer, gradients in state.waiting.pop(key):
            add_gradients(self.store, layer.units, gradients, keep)
        self.live.change(0, -1, -state.bytes_of.pop(key))

    def _tag(self, here: Operation, receiver: int) -> int:
        """A number of its own for every message of a step."""
        forward = here.kind == "F"
        from_stage = receiver - 1 if forward else receiver + 1
        num_slices = len(self.bounds) - 1
        return ((here.micro_batch * num_slices + here.slice) * len(self.stages) + from_stage) * 2 + forward

    def _input(self, here: Operation, batch: Batch, state: _State) -> Array:
        """The operation's input: the last stage's activations, the next stage's gradient; None at the ends."""
        source = here.stage + (-1 if here.kind == "F" else 1)
        if here.kind in "WSTUV":
            return None
        if not 0 <= source < len(self.stages):
            return self.ends.sum(here.kind, here.micro_batch) if self.ends else None
        tag = self._tag(here, here.stage)
        p = self.where[source, here.micro_batch]
        if p == self.mesh.p:
            return state.local.pop(tag)
        S = (self.bounds[here.slice + 1] - self.bounds[here.slice]) // self.setting.context.size
        mine = self.setting.region.my_tokens(S)
        shape = (batch.tokens.shape[1], mine.stop - mine.start, self.setting.model.hidden)
        return self.communicator.recv(self.mesh.at(p=p), tag, shape, self.setting.xp.dtype(self.setting.dtype))

    def _output(self, here: Operation, receiver: int, x: Array, state: _State) -> None:
        """Hand a result to the stage that needs it, on this rank or another."""
        if self.ends and not 0 <= receiver < len(self.stages):
            self.ends.spread(here.kind, here.micro_batch, x)
            return
        tag = self._tag(here, receiver)
        p = self.where[receiver, here.micro_batch]
        if p == self.mesh.p:
            state.local[tag] = x
        else:
            self.communicator.send(x, self.mesh.at(p=p), tag)


def shares_ends(rows: Sequence[Sequence[Operation]]) -> bool:
    """Whether all pipeline ranks of a schedule share embedding and head."""
    return any(op.kind in "STUV" for op in rows[0])


def rank_of_passes(rows: Sequence[Sequence[Operation]]) -> Mapping[tuple[int, int], int]:
    """The pipeline rank that runs each (stage, micro-batch). Raises LayoutError if a pass stands in two rows."""
    where: dict[tuple[int, int], int] = {}
    for rank, row in enumerate(rows):
        for op in row:
            if where.setdefault((op.stage, op.micro_batch), rank) != rank:
                raise LayoutError(
                    f"stage {op.stage} of micro-batch {op.micro_batch} runs on ranks {where[op.stage, op.micro_batch]} "
                    f"and {rank}; allowed: one rank"
                )
    return where
