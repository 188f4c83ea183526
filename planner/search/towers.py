"""Towers before a language model: all train on the same GPUs, one after another, each under a layout of its own.

A step has five phases: each tower forward over all images of the batch; its outputs to the language model's ranks; the
language model's own step; the outputs' gradients back; each tower backward. Kimi K2.5 trains so (Kimi Team 2026, arXiv
2602.02276, section 4.5, decoupled encoder process: a tower keeps its outputs alone and goes forward again), and
LongCat-Flash-Omni (2025, arXiv 2511.00279, section 5, modality-decoupled parallelism: it keeps what its backward pass
needs). A tower has no pipeline in either, and none here.

Every part is an ordinary estimate. Its seconds add to the step. Of its memory some is held while others work: its
states, and what it keeps; GPUs need what all others hold beside the most of the one at work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from operator import add
from typing import Any
from zlib import crc32

import numpy as np

from planner.base import records
from planner.base.arrays import Array, Ints, record
from planner.base.errors import LayoutError
from planner.base.units import format_bytes, gpus_text
from planner.choices.table import DEGREES
from planner.costs.kernels.device import Device
from planner.costs.network.collectives import to_first_stage_s
from planner.layouts import Layouts, Recompute
from planner.models import Transformer
from planner.search.found import known
from planner.search.ranking import ALL_AGAIN, simulate_finalists
from planner.search.request import Fixed, Request
from planner.search.scan import estimate_all, fitting
from planner.search.space import whole_space
from planner.setup import Setup
from planner.step.estimate import Estimate, Totals
from planner.step.passes import forward_s
from planner.step.pipelines import exact_uneven, layer_at_a_time
from planner.step.step_costs import step_costs
from planner.step.timeline.timed import timed

ALIKE = (*DEGREES, "schedule", "zero", "dp_replicate", "sequence_parallel", "recompute", "micro_batch")
"""What a uniform layout has in common; the micro-batch in sequences of the language model."""
NOT_SHARED = ("train", "dispatcher", "expert_imbalance", "capacity_factor")
"""Choices for all layouts that a tower doesn't take over: it is trained whole or frozen, and mostly has no experts."""
TOGETHER, ROUNDS = 12, 16
"""Layouts run on the timeline at once, and how often at most, until none that is left may be faster."""
NEAR = 1.05  # times the best step by the closed form: slower layouts are not run


@record
class Ways:
    """Ways to run a tower, or several one after another; arrays of shape (n,), rows of shape (towers, n).

    seconds: of a step. held_bytes: what stays while others work. peak_bytes: the most while these work. rows: each
    tower's row in its table, and the table's length more where it keeps its activations.
    """

    seconds: Array
    held_bytes: Array
    peak_bytes: Array
    rows: Ints

    def beside(self, other: Ways) -> Ways:
        """The ways of both, each while the other holds what it holds."""
        i, j = (x.ravel() for x in np.indices((len(self.seconds), len(other.seconds))))
        a, b = records.take(self, i), records.take(other, j)
        peak = np.maximum(a.peak_bytes + b.held_bytes, b.peak_bytes + a.held_bytes)
        rows = np.concatenate([a.rows, b.rows])
        return Ways(
            seconds=a.seconds + b.seconds, held_bytes=a.held_bytes + b.held_bytes, peak_bytes=peak, rows=rows
        ).best()

    def best(self) -> Ways:
        """Those that no other beats in all three, the fastest first."""
        order = np.lexsort((self.peak_bytes, self.held_bytes, self.seconds))
        sizes = np.stack([self.held_bytes, self.peak_bytes])[:, order]
        kept: list[int] = []
        for i in range(len(order)):
            if not (sizes[:, kept] <= sizes[:, i, None]).all(axis=0).any():
                kept.append(i)
        return records.take(self, order[kept])

    def fastest(self, held_bytes: Array, peak_bytes: Array, room_bytes: float) -> tuple[Array, Ints]:
        """The least seconds beside parts that hold and take so much, (n,), inf where none fits; and which way it is."""
        seconds, which = np.full(len(peak_bytes), np.inf), np.zeros(len(peak_bytes), dtype=np.int64)
        for i in reversed(range(len(self.seconds))):
            fits = np.maximum(peak_bytes + self.held_bytes[i], held_bytes + self.peak_bytes[i]) <= room_bytes
            seconds[fits], which[fits] = self.seconds[i], i
        return seconds, which


@dataclass(frozen=True, kw_only=True, eq=False)
class Tower:
    """A tower's question, and its sequences in one of the language model's. frozen: it goes forward alone."""

    setup: Setup
    request: Request
    sequences: int
    frozen: bool = False

    @staticmethod
    def of(model: Transformer, setup: Setup, request: Request, sequences: int, frozen: bool = False) -> Tower:
        """A tower before a language model: its layouts are free, as far as the framework runs them."""
        shared = tuple((name, value) for name, value in request.fixed.shared if name not in NOT_SHARED)
        runs = setup.framework.runs
        settled: dict[str, Any] = {f.name: getattr(runs, f.name) or None for f in fields(runs)}
        named = request.fixed.schedule and (*request.fixed.schedule, "1f1b")  # of what has no pipeline
        fixed = Fixed(shared=shared, settled=settled | {"schedule": named, "pp": None})
        request = replace(request.sized(request.gpus, sequences * request.global_batch), fixed=fixed)
        return Tower(setup=replace(setup, model=model), request=request, sequences=sequences, frozen=frozen)

    @cached_property
    def estimate(self) -> Estimate:
        """Of every legal layout, pipelines included, (n,). Raises as `whole_space`."""
        return estimate_all(self.setup, whole_space(self.setup.model, self.setup.cluster, self.request))

    @cached_property
    def forward_s(self) -> Array:
        """Seconds of all forward passes of a step, (n,)."""
        return forward_s(step_costs(self.setup, self.estimate.layouts))

    @property
    def alone(self) -> tuple[Array, Array, Array]:
        """Seconds of a step without what a step takes once, whatever it trains; bytes of states, and at work; (n,)."""
        if self.frozen:
            return self.forward_s, self.estimate.memory.parameters_bytes, self.estimate.memory.buffers_bytes
        return self.estimate.step_time_s - self.setup.framework.host_step_s, *_states_and_work(self.estimate)

    def ways(self, outputs_bytes: float) -> Ways:
        """The ways without a pipeline; a GPU keeps so many bytes of outputs, or of their gradients.

        Each layout goes forward again before it goes backward, or keeps all micro-batches' activations. Raises
        LayoutError if none is legal.
        """
        (seconds, states, work), layouts = self.alone, self.estimate.layouts
        own = (layouts.pp == 1) & ~layer_at_a_time(layouts)
        if not own.any():
            raise LayoutError(
                f"no layout of {self.setup.model.name} without a pipeline is legal on {gpus_text(self.request.gpus)}, "
                f"which {self.request.global_batch} sequences per step and its heads can't share; give it more "
                "sequences, or fewer GPUs"
            )
        one, held = self.estimate.memory.activations_bytes, states + outputs_bytes
        again, kept = (0.0 if self.frozen else self.forward_s), layouts.micro_batches * one
        every = Ways(
            seconds=np.concatenate([seconds + again, seconds]), held_bytes=np.concatenate([held, held + kept]),
            peak_bytes=np.concatenate([held + work, held + kept - one + work]), rows=np.arange(2 * len(layouts))[None],
        )  # fmt: skip
        return records.take(every, np.flatnonzero(np.tile(own, 2))).best()


def _states_and_work(result: Estimate) -> tuple[Array, Array]:
    """Bytes of parameters, gradients and optimizer, which stay, and of what comes and goes; (n,) each."""
    memory = result.memory
    states = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    return states, memory.total_bytes - memory.reserved_bytes - states


@record
class Together:
    """Layouts that towers have in common, with their rows, (towers, n); keys: the columns of `ALIKE`, (k, n)."""

    keys: Array
    seconds: Array
    size_bytes: Array
    rows: Ints

    @staticmethod
    def of(tower: Tower) -> Together:
        """One tower's layouts, its layers spread over all stages."""
        (seconds, states, work), keys = tower.alone, _keys(tower.estimate.layouts, tower.sequences)
        return Together(keys=keys, seconds=seconds, size_bytes=states + work, rows=np.arange(len(seconds))[None])

    def beside(self, other: Together) -> Together:
        """Layouts that both have."""
        i, j = _pairs(self.keys, other.keys)
        a, b = records.take(self, i), records.take(other, j)
        rows = np.concatenate([a.rows, b.rows])
        return Together(keys=a.keys, seconds=a.seconds + b.seconds, size_bytes=a.size_bytes + b.size_bytes, rows=rows)

    def fastest(self, keys: Array, size_bytes: Array, room_bytes: float) -> tuple[Array, Ints]:
        """As `Ways.fastest`, of the same layout alone."""
        i, j = _pairs(keys, self.keys)
        fits = size_bytes[i] + self.size_bytes[j] <= room_bytes
        i, j = i[fits], j[fits]
        order = np.lexsort((self.seconds[j], i))
        rows, first = np.unique(i[order], return_index=True)
        seconds, which = np.full(len(size_bytes), np.inf), np.zeros(len(size_bytes), dtype=np.int64)
        seconds[rows], which[rows] = self.seconds[j[order[first]]], j[order[first]]
        return seconds, which


def _keys(layouts: Layouts, sequences: int = 1) -> Array:
    """The columns of `ALIKE`."""
    names = np.array([crc32(name.encode()) for name in layouts.schedule_names])
    own = {"micro_batch": layouts.micro_batch / sequences, "schedule": names[layouts.schedule]}
    return np.stack([own.get(name, getattr(layouts, name)) for name in ALIKE]).astype(np.float64)


def _pairs(a: Array, b: Array) -> tuple[Ints, Ints]:
    """Every pair of equal columns."""
    code = np.unique(np.concatenate([a, b], axis=1), axis=1, return_inverse=True)[1].ravel()
    first, second = code[: a.shape[1]], code[a.shape[1] :]
    order = np.argsort(second, kind="stable")
    start, end = (np.searchsorted(second[order], first, side=side) for side in ("left", "right"))
    i = np.repeat(np.arange(len(first)), end - start)
    within = np.arange(len(i)) - np.repeat(np.cumsum(end - start) - (end - start), end - start)
    return i, order[start[i] + within]


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """A layout of the language model, and one of each tower.

    language: an estimate of one. towers: each with its row in its estimate, and whether it goes forward twice.
    to_language_s: seconds in which outputs, or their gradients, come to where they are needed; 0 in a uniform layout.
    """

    step_s: float
    memory_bytes: float
    language: Estimate
    towers: tuple[tuple[Tower, int, bool], ...]
    to_language_s: float = 0.0


Beside = Callable[[Estimate], tuple[Array, Ints]]
"""Seconds that towers, and what passes to and from them, add to each layout of a language model; and which way."""


def fastest(setup: Setup, request: Request, towers: Sequence[Tower]) -> tuple[Found, Found | None]:
    """The fastest layouts of a language model and its towers, each its own; and the fastest with one layout for all.

    Raises LayoutError, InputError as `whole_space`, or if nothing fits; None where no layout is legal for all, or fits.
    """
    usable, reserved = setup.cluster.accelerator.usable_bytes, setup.framework.reserved_bytes
    element = float(Device.of(setup.cluster.accelerator, np.array([request.precision]), request.gpus).element_bytes[0])
    outputs = [float(tower.estimate.tokens[0]) * setup.model.hidden * element for tower in towers]
    ways = reduce(Ways.beside, (t.ways(size / request.gpus) for t, size in zip(towers, outputs, strict=True)))
    common, there_and_back = reduce(Together.beside, map(Together.of, towers)), [2 - t.frozen for t in towers]

    def moved_s(layouts: Layouts, times: Sequence[int]) -> Array:
        each = (n * to_first_stage_s(setup.cluster, layouts, size) for n, size in zip(times, outputs, strict=True))
        return reduce(add, each)

    def own(some: Estimate) -> tuple[Array, Ints]:
        states, work = _states_and_work(some)
        seconds, which = ways.fastest(states, states + work, usable - reserved)
        return seconds + moved_s(some.layouts, there_and_back), which

    def alike(some: Estimate) -> tuple[Array, Ints]:
        return common.fastest(_keys(some.layouts), some.memory_bytes, usable)

    least = min(float(x.min(initial=np.inf)) for x in (ways.held_bytes, common.size_bytes))
    layouts, sums = fitting(setup, request, usable - least)
    more_s, size = moved_s(layouts, there_and_back), sums.memory_bytes - reserved
    # States are less than all of it, and more than nothing.
    bounds = [more_s + ways.fastest(states, size, usable - reserved)[0] for states in (np.zeros(len(size)), size)]
    if len(hopeful := _hopeful(layouts, sums, *bounds)):
        closed = estimate_all(setup, layouts.take(hopeful))
        seconds, which = own(closed)
        room = usable - float(ways.held_bytes[which[np.argmin(closed.step_time_s + seconds)]])
        roomy = replace(setup.cluster, accelerator=replace(setup.cluster.accelerator, room_bytes=room))
        ran = simulate_finalists(replace(setup, cluster=roomy), request, replace(closed, usable_bytes=room), 1, False)
        some, best = _settled(setup, Estimate.concatenate(ran), own)
    if not len(hopeful) or best is None:
        raise _nothing_fits(setup, request, towers, float(ways.held_bytes.min()))
    (states, work), (seconds, way) = (x(some.take([best])) for x in (_states_and_work, own))
    peak = np.maximum(states + work + ways.held_bytes[way], states + ways.peak_bytes[way]) + reserved
    rows = zip(towers, ways.rows[:, way[0]].tolist(), strict=True)
    found = Found(
        step_s=float(some.step_time_s[best] + seconds[0]), memory_bytes=float(peak[0]), language=some.take([best]),
        towers=tuple((t, r % len(t.forward_s), r < len(t.forward_s) and not t.frozen) for t, r in rows),
        to_language_s=float(moved_s(some.layouts.take([best]), [1] * len(towers))[0]),
    )  # fmt: skip
    beside_s = common.fastest(_keys(layouts), sums.memory_bytes, usable)[0]
    if len(hopeful := _hopeful(layouts, sums, beside_s, beside_s)):
        some = Estimate.concatenate([some, estimate_all(setup, layouts.take(hopeful))])
    some, best = _settled(setup, some, alike)
    if best is None:
        return found, None
    (seconds, way), one = alike(some), some.take([best])
    return found, Found(
        step_s=float(one.step_time_s[0] + seconds[best]), language=one,
        memory_bytes=float(one.memory_bytes[0] + common.size_bytes[way[best]]),
        towers=tuple((tower, int(row), False) for tower, row in zip(towers, common.rows[:, way[best]], strict=True)),
    )  # fmt: skip


def _least_s(layouts: Layouts, step_s: Array, bubble_s: Array) -> Array:
    """Seconds that the timeline doesn't go below: without any bubble, where the closed form doesn't follow it."""
    return np.asarray(step_s - np.where(exact_uneven(layouts), 0.0, bubble_s))


def _hopeful(layouts: Layouts, sums: Totals, at_least_s: Array, at_most_s: Array) -> Ints:
    """Layouts that may be the fastest, beside towers that take between so many seconds; or where some layers of all
    that are recomputed are."""
    reach = (
        NEAR
        * np.where(layouts.recompute == Recompute.FULL, ALL_AGAIN, 1.0)
        * np.min(sums.step_time_s + at_most_s, initial=np.inf)
    )
    least = _least_s(layouts, sums.step_time_s, sums.bubble_s) + at_least_s
    return np.flatnonzero(np.isfinite(at_least_s) & (least <= reach))


def _settled(setup: Setup, some: Estimate, beside: Beside) -> tuple[Estimate, int | None]:
    """The fastest beside its towers, with all that may be faster run on the timeline, the likeliest first; None if none
    fits."""
    for _ in range(ROUNDS):
        towers_s, ran = beside(some)[0], known(some)
        total = np.where(ran, some.step_time_s + towers_s, np.inf)
        least = np.where(ran, np.inf, _least_s(some.layouts, some.step_time_s, some.time.bubble_s) + towers_s)
        due = np.argsort(least, kind="stable")[:TOGETHER]
        due = due[least[due] < total.min()]
        if not len(due):
            break
        some = timed(setup, some, due)
    total = np.where(known(some), some.step_time_s + beside(some)[0], np.inf)
    return some, int(np.argmin(total)) if np.isfinite(total).any() else None


def _nothing_fits(setup: Setup, request: Request, towers: Sequence[Tower], held_bytes: float) -> LayoutError:
    names = " and ".join(tower.setup.model.name for tower in towers)
    room, held = (format_bytes(x) for x in (setup.cluster.accelerator.usable_bytes, held_bytes))
    return LayoutError(
        f"no layouts of {setup.model.name} and {names} on {gpus_text(request.gpus)} fit together in the {room} per GPU "
        f"that they may take; the towers hold at least {held} of it; give more GPUs, or freeze the towers"
    )
