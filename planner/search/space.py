"""The space of layouts: every legal choice for a model on a number of accelerators."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, product

import numpy as np

from planner.base.arrays import Bools, Ints
from planner.choices.choice import whole
from planner.choices.table import AXES, CHOICES, NUMERICS, SETTLED
from planner.hardware import Cluster
from planner.layouts import Attention, Dispatcher, Layouts, Recompute, Split
from planner.models import Transformer
from planner.models.counts import head_in_layers
from planner.schedules import SCHEDULES, Schedule, get_schedule
from planner.search.conflicts import no_layout
from planner.search.grids import A_NODE_EACH, CHUNK, Axes, Degrees, Family, Grid, GridAxis, Run, Searched, grids
from planner.search.request import LEAST_TOKENS, Fixed, Request, divisors
from planner.step.splits import has_short_last, shared_by_ends

ORDER = sorted((name for name, choice in CHOICES.items() if choice.tie), key=lambda name: CHOICES[name].tie)
"""Columns by which layouts that are equally good are told apart, first the one that counts most."""
Ways = tuple[int, ...]
"""Values of a choice that are tried."""
SHARDING = ("zero", "dp_replicate")
LEAST_SLICE = 1024  # tokens: shorter sequence slices make products too small to be worth listing
MOST_HEAD = 0.3  # of a rank's layers: a head of more leaves its rank too much of even stages
LONG = 16_384  # tokens: in shorter sequences exchanged heads gained nothing in any question tried (docs/search.md)
FEW = 1024  # layouts of a chunk where one legal layout is enough


def degrees(model: Transformer, gpus: int, global_batch: int, fixed: Fixed) -> list[Degrees]:
    """Every set of degrees of so many accelerators that divides what it must."""
    out = []
    ways = divisors(gpus)
    longest = model.seq_len // LEAST_TOKENS
    for tp in fixed.among("tp", [d for d in ways if model.num_heads % d == 0]):
        for pp in fixed.among(
            "pp", [d for d in ways if fixed.pipelined < d <= model.num_layers and gpus % (tp * d) == 0]
        ):
            rest = gpus // (tp * pp)
            for cp in fixed.among("cp", [d for d in divisors(rest) if d == 1 or d <= longest]):
                dp = rest // cp
                if global_batch % dp or not fixed.among("dp", [dp]):
                    continue
                if cp > 1 and model.seq_len % (2 * cp):
                    continue
                for etp in fixed.among("etp", [tp, 1] if model.num_experts and tp > 1 else [tp]):
                    ranks = tp * dp * cp // etp
                    experts = [e for e in divisors(ranks) if model.num_experts % e == 0] if model.num_experts else [1]
                    out += [Degrees(dp, tp, pp, cp, ep, etp) for ep in fixed.among("ep", experts)]
    return out


def default_schedules(allow_async: bool = False) -> tuple[str, ...]:
    """The schedules searched by default: those with a quick closed form; asynchronous ones where allowed."""
    return tuple(name for name, s in SCHEDULES.items() if s.quick and (s.synchronous or allow_async))


Chunks = dict[Split, list[int]]
"""Virtual stages by the splits that are listed for them."""


def _runs(model: Transformer, pp: int, names: tuple[str, ...], fixed: Fixed, uneven: Chunks) -> list[Run]:
    """Virtual stages and slices for each schedule with so many stages; uneven: their `uneven_chunks`."""
    number = list(range(len(names)))
    if pp == 1:
        # Without a pipeline only the order of layers and micro-batches is left to choose.
        number = [names.index(n) for n in ("1f1b", "layered") if n in names] or [0]
    layers = model.num_layers // pp if model.num_layers % pp == 0 else 1
    out = []
    for i in number:
        schedule = get_schedule(names[i])
        chunks = [1] if pp == 1 and not schedule.one_layer_chunks else divisors(layers)
        if schedule.one_layer_chunks:
            chunks = [layers] if layers * pp == model.num_layers else []
        elif schedule.chunks is not None:
            in_a_v = not schedule.looped_placement and _over_a_v(model, pp, schedule.chunks)
            chunks = [schedule.chunks] if layers % schedule.chunks == 0 or in_a_v else []
        elif schedule.has_ends:
            chunks = sorted({*chunks, *chain(*uneven.values())})
        slices = [1]
        if schedule.sliced:
            slices = [k for k in (2, 4, 8, 16) if model.seq_len % k == 0 and model.seq_len // k >= LEAST_SLICE]
        out += [Run(i, v, k) for v in fixed.among("virtual_stages", chunks) for k in slices]
    return out


def _over_a_v(model: Transformer, pp: int, chunks: int) -> list[Split]:
    """How the layers may lie on the stages of a V."""
    splits = [Split.EVEN, Split.BALANCED] if model.num_layers >= pp * chunks else []
    by_both = shared_by_ends(model.num_layers, pp * chunks, model.output_heads)
    return [*splits, Split.ENDS] if by_both else splits


def uneven_chunks(model: Transformer, pp: int, fixed: Fixed) -> Chunks:
    """Virtual stages, two or more, that can't share the layers evenly, by the splits that are listed for them.

    A short last stage is listed where it is asked for: a split by cost leaves its slowest rank no more to do.
    """
    filled = by_cost(model, pp) if fixed.virtual_stages is None else [v for v in fixed.virtual_stages if v > 1]
    out = {Split.ENDS: by_ends(model, pp), Split.BALANCED: filled}  # of equals the first is kept
    return out | ({Split.LAST: by_last(model, pp)} if Split.LAST in (fixed.layer_split or ()) else {})


def by_ends(model: Transformer, pp: int) -> list[int]:
    """Virtual stages, two or more, that share the layers once embedding and head count as one each: LLaMA 405B's."""
    layers, heads = model.num_layers, model.output_heads
    every = divisors((layers + 1 + heads) // pp)[1:] if pp > 1 else []
    return [v for v in every if layers % (pp * v) and shared_by_ends(layers, pp * v, heads)]


def by_last(model: Transformer, pp: int) -> list[int]:
    """Virtual stages, two or more, that leave the last one fewer layers, where a rank can't have an even share."""
    layers = model.num_layers
    return [v for v in range(2, layers // pp + 1) if layers % pp and has_short_last(layers, pp * v)]


def by_cost(model: Transformer, pp: int) -> list[int]:
    """Virtual stages, two or more, to fill by cost, that can't share the layers evenly.

    None where ranks can have even chunks of two layers or more, and the head is no more than `MOST_HEAD` of a rank's
    layers: those lose about 1 % to filled ones, which would be a third of a search. Filled ones are then tried on the
    best of them (`planner.search.beyond_grids.filled`).
    """
    layers = model.num_layers
    even = layers % pp == 0 and len(divisors(layers // pp)) > 2
    small = head_in_layers(model) <= MOST_HEAD * layers / pp
    return [] if even and small else [v for v in fillable(model, pp) if layers % (pp * v)]


def fillable(model: Transformer, pp: int) -> list[int]:
    """Virtual stages, two or more, to fill by cost: the fewest for each number of layers that one may have at most.

    Embedding and each head count as a layer.
    """
    layers, items = model.num_layers, model.num_layers + 1 + model.output_heads
    fewest = {-(-items // (pp * most)) for most in range(1, layers // pp + 1)} if pp > 1 else set()
    return sorted(v for v in fewest if v > 1 and pp * v <= layers)


def _modes(model: Transformer, schedule: Schedule, request: Request) -> list[Recompute]:
    """Recomputation worth listing: flash kernels repeat the core by themselves, dense models have little to repeat."""
    modes = set(request.fixed.recompute or ())
    if not modes:
        fine = request.fine_recompute and bool(model.has_experts_or_latents)
        worth = {Recompute.SELECTIVE: request.attention < Attention.FLASH1, Recompute.FINE: fine}
        modes = {mode for mode in Recompute if worth.get(mode, True)}
    return sorted(mode for mode in modes if not (schedule.splits_backward and mode == Recompute.FULL))


def _shards(zero: int, copies: int) -> bool:
    """Whether copies of what a ZeRO stage shards are worth listing.

    With stage 1 or 2 a copy in each node saves no traffic between nodes that a step doesn't have.
    """
    return copies == 1 or zero == 3 or (zero > 0 and copies != A_NODE_EACH)


def _splits(model: Transformer, pp: int, v: int, schedule: Schedule, request: Request, uneven: Chunks) -> list[Split]:
    """How the layers of so many stages and virtual stages may be split; uneven: their `uneven_chunks`."""
    settled = request.fixed.layer_split
    if pp == 1:
        return [Split.EVEN]
    if v == 1:
        own = CHOICES["layer_split"].tried if request.own_split is None else [request.own_split]
        return list(own if settled is None else sorted(set(settled)))
    splits = [Split.EVEN] if settled is None else [Split.EVEN, Split.BALANCED]
    if not schedule.looped_placement:
        splits = _over_a_v(model, pp, v)
    elif model.num_layers % (pp * v):
        splits = [split for split, chunks in uneven.items() if v in chunks]
    return request.fixed.among("layer_split", splits)


def stages_of_zero(pp: int, schedule: Schedule, zero2_by_layer: bool) -> list[int]:
    """Stages of ZeRO worth listing; a pipeline passes all micro-batches with its parameters and gradients whole."""
    if pp == 1:
        return [0, 2, 3] if zero2_by_layer else [0, 1, 2, 3]
    return [0, 1, 2, 3] if schedule.layer_at_a_time else [0, 1]


def exchanges(model: Transformer, degree: Degrees) -> Ways:
    """Context ranks that exchange heads: of long sequences one, for a ring of all, and the two most that may."""
    if model.seq_len < LONG or degree.cp == 1:
        return CHOICES["ulysses"].tried
    heads = max(model.num_kv_heads, degree.tp) // degree.tp
    return (1, *[n for n in divisors(degree.cp) if n > 1 and heads % n == 0][-2:])


def _axes(modes: Ways, stages: Ways, splits: Ways, sequence: Ways, exchanged: Ways, request: Request) -> Axes:
    """Choices that combine with every row, given those that depend on it."""
    fixed = request.fixed
    zero = fixed.among("zero", stages)
    listed: dict[str, Iterable[int]] = {
        "recompute": modes,
        "zero": zero,
        "dp_replicate": fixed.dp_replicate or ([1, A_NODE_EACH] if request.hybrid_sharding else [1]),
        "sequence_parallel": sequence,
        "layer_split": splits,
        "ulysses": fixed.ulysses or exchanged,
        "offload_optimizer": [0, 1] if fixed.offload else [0],
        "offload_parameters": fixed.offload_parameters
        or ([0, 1] if fixed.offload and request.offloads_parameters and 3 in zero else [0]),
    }

    for name in chain(*AXES):
        if name not in listed:
            listed[name] = fixed.settled.get(name, CHOICES[name].tried)

    def axis(names: tuple[str, ...]) -> GridAxis:
        every = (tuple(map(int, values)) for values in product(*(listed[name] for name in names)))
        return GridAxis(names, tuple(values for values in every if names != SHARDING or _shards(*values)))

    return tuple(axis(names) for names in AXES)


def sequence_choices(tp: int, etp: int, fixed: Fixed) -> tuple[int, ...]:
    """Sequence parallelism, off and on, as far as the degrees allow it: whole experts on tensor ranks need it."""
    picks = dict(fixed.shared).get("dispatcher") == Dispatcher.PPMOE
    choices = (0,) if tp == 1 or picks else (1,) if etp < tp else (0, 1)
    return tuple(s for s in choices if tp == 1 or fixed.sequence_parallel is None or bool(s) in fixed.sequence_parallel)


def runs_of(
    model: Transformer, request: Request, names: tuple[str, ...], pp: int, sequence: Ways, exchanged: Ways = (1,)
) -> dict[Axes, Ints]:
    """Rows of schedule, virtual stages and slices for so many stages, by the choices that combine with them."""
    out: dict[Axes, list[Run]] = {}
    known: dict[tuple[Ways, Ways, Ways], Axes] = {}
    uneven = uneven_chunks(model, pp, request.fixed)
    for run in _runs(model, pp, names, request.fixed, uneven):
        schedule = get_schedule(names[run.schedule])
        stages = tuple(stages_of_zero(pp, schedule, request.no_zero_1))
        splits = tuple(_splits(model, pp, run.virtual_stages, schedule, request, uneven))
        own = tuple(_modes(model, schedule, request)), stages, splits
        axes = known[own] = known.get(own) or _axes(*own, sequence, exchanged, request)
        if all(axis.values for axis in axes):
            out.setdefault(axes, []).append(run)
    return {axes: np.array(rows, dtype=np.int64) for axes, rows in out.items()}


def allows(fixed: Fixed, layouts: Layouts) -> Bools:
    """Whether a layout is within what is fixed, boolean of shape (n,)."""
    out = np.ones(len(layouts), dtype=bool)
    for name in SETTLED:
        values = getattr(fixed, name)
        if values is not None and name != "schedule":
            out &= np.isin(getattr(layouts, name), values)
    for name, value in fixed.excluded:
        out &= getattr(layouts, name) != value
    for _, broken in fixed.never:
        out &= ~broken(layouts)
    if fixed.schedule is not None:
        named = np.array([name in fixed.schedule for name in layouts.schedule_names])
        out &= named[layouts.schedule] | (layouts.pp == 1)
    return out


def families(model: Transformer, request: Request, names: tuple[str, ...]) -> Iterator[Family]:
    """Every set of degrees with what each schedule may have; the same cut of a layer in a row."""
    gpus, global_batch, fixed = request.gpus, request.global_batch, request.fixed

    @cache
    def runs(pp: int, sequence: Ways, exchanged: Ways) -> dict[Axes, Ints]:
        return runs_of(model, request, names, pp, sequence, exchanged)

    @cache
    def micro(dp: int) -> Ints:
        return np.array(fixed.among("micro_batch", divisors(global_batch // dp)), dtype=np.int64)

    for degree in sorted(degrees(model, gpus, global_batch, fixed), key=lambda d: (d.tp, d.cp, d.ep, d.etp, d.pp)):
        sequence = sequence_choices(degree.tp, degree.etp, fixed)
        for axes, rows in runs(degree.pp, sequence, exchanges(model, degree)).items():
            if len(micro(degree.dp)):
                yield Family(degrees=degree, axes=axes, runs=rows, micro=micro(degree.dp))


def space(model: Transformer, cluster: Cluster, request: Request, chunk: int = CHUNK) -> Iterator[Grid]:
    """Every legal layout, within what is fixed, in grids of about `chunk` layouts. Without a pipeline: 1f1b.

    Raises InputError for numbers out of range; LayoutError if no layout is legal, which says what settled choices
    conflict, or a number of accelerators near by.
    """
    gpus, global_batch = request.gpus, request.global_batch
    cluster.check_gpus("gpus", whole("gpus", gpus))
    whole("global_batch", global_batch)
    found = False
    for grid in _grids(model, cluster, request, chunk):
        found = True
        yield grid
    if found:
        return

    def legal(fixed: Fixed, gpus: int, batch: int = global_batch) -> bool:
        # The degrees alone take microseconds, and rule most out.
        if (cluster.max_gpus is not None and gpus > cluster.max_gpus) or not degrees(model, gpus, batch, fixed):
            return False
        grids = _grids(model, cluster, replace(request, fixed=fixed, gpus=gpus, global_batch=batch), FEW)
        return next(grids, None) is not None

    raise no_layout(model, cluster, request, legal)


def _grids(model: Transformer, cluster: Cluster, request: Request, chunk: int) -> Iterator[Grid]:
    fixed = request.fixed
    names = tuple(fixed.schedule or default_schedules(fixed.allow_async))
    given = {name: int(getattr(request, name)) for name in (*NUMERICS, "global_batch")} | dict(fixed.shared)
    shared = Searched(schedule_names=names, choices=given, excluded=fixed.excluded, never=fixed.never)
    some = families(model, request, names)
    return grids(model, cluster, some, shared, chunk)


def whole_space(model: Transformer, cluster: Cluster, request: Request) -> Layouts:
    """All of `space` as one table, in the order of `canonical`; raises the same."""
    layouts = Layouts.concatenate([grid.table() for grid in space(model, cluster, request)])
    return layouts.take(canonical(layouts))


def canonical(layouts: Layouts) -> Ints:
    """Indices that sort a table by its columns: an order that does not depend on how the space was cut."""
    return np.lexsort([getattr(layouts, name) for name in reversed(ORDER)])
