"""The layout to run among those too close to tell apart: the plainest, likeliest to fit. And answers that differ."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.choices.table import CHOICES, DEGREES
from planner.layouts import Layouts, Recompute
from planner.search.found import EQUAL
from planner.setup import Setup
from planner.step.estimate import Estimate

SURE = 0.01  # of not fitting: less tells nothing apart
USUAL_SCHEDULES = ("1f1b", "interleaved")
USUAL_CHUNKS = 12  # virtual stages of a rank: 96 % of the measured runs that have several have at most so many
USUAL_TOKENS = 4096  # of a sequence on a context rank: 99 % of the measured runs with several leave so many
USUAL_EXPERT_RANKS = 64  # 365 of the 367 measured runs that have several have at most so many


LIKE, OTHER_DEGREES, OTHER_KINDS = 0.015, 0.04, 0.071
"""Steps that can't be told apart: of layouts with the same degrees, with others, with another kind of ranks (tensor,
tensor over nodes, context, stages, experts over many nodes). Of two that near to each other the one said to be faster
is so with odds of less than two to one, in pairs of measured runs by fits without their publication
(`benchmarks/near_pairs.py`)."""


def told_apart(layouts: Layouts, other: int, gpus_per_node: int) -> Array:
    """The difference of steps below which each layout can't be told from one of them, shape (n,)."""
    far = np.maximum(layouts.ep / most_expert_ranks(gpus_per_node), 1.0)
    degrees = np.stack([layouts.tp, layouts.tp / gpus_per_node, layouts.pp, layouts.cp, far])
    same, kinds = (np.all(x == x[:, other, None], axis=0) for x in (degrees, degrees > 1))
    return np.asarray(np.where(same, LIKE, np.where(kinds, OTHER_DEGREES, OTHER_KINDS)))


def most_expert_ranks(gpus_per_node: int) -> int:
    """Beyond so many expert ranks are unusual: they leave a rack of GPUs on one fast link, or are over many nodes."""
    return max(USUAL_EXPERT_RANKS, gpus_per_node)


def unusual(setup: Setup, layouts: Layouts) -> Ints:
    """How many choices of each layout are not the usual ones, shape (n,)."""
    return np.asarray(sum(unusual_choices(setup, layouts).values()))


def unusual_choices(setup: Setup, layouts: Layouts) -> dict[str, Ints]:
    """As how many unusual choices each choice of each layout counts, by name, shape (n,).

    Each doubling of the context-parallel ranks counts as one that leaves a rank fewer than `USUAL_TOKENS`, or cuts
    several sequences at once, each doubling of virtual stages beyond `USUAL_CHUNKS`, and two each of tensor ranks
    beyond a node and of expert ranks beyond `most_expert_ranks`: all are further from what published runs have
    measured, of which none cuts several, and 9 of 1,561 have tensor ranks over nodes. An uneven split is usual where no
    even one is over so many ranks, which are a power of two, as of 274 of the 294 measured runs with one. Every
    doubling of context ranks counts where no NVLink joins a node's GPUs: of the 201 measured runs with several none is
    there; of tensor or context ranks where a framework leaves them to a model's own code (splits_layers); any number of
    them, and stages, where its runs are of data-parallel ranks (data_parallel_alone).
    """
    seq_len, gpus_per_node = setup.model.seq_len, setup.cluster.gpus_per_node
    splits_layers, x = setup.framework.splits_layers, layouts
    out: dict[str, Any] = {c.name: c.risks * (getattr(x, c.name) != c.default) for c in CHOICES.values() if c.risks}
    out["layer_split"] *= (setup.model.num_layers % x.pp == 0) | (x.pp & (x.pp - 1) != 0)
    usual = np.array([name in USUAL_SCHEDULES for name in x.schedule_names])
    out |= {"schedule": (x.pp > 1) & ~usual[x.schedule], "recompute": x.recompute == Recompute.FULL}
    shorter = np.clip(x.cp * USUAL_TOKENS / seq_len, 1.0, x.cp)
    tensor = (gpus_per_node, 2) if splits_layers else (1, 1)
    for name, many, most, each in (
        ("cp", np.where((x.micro_batch == 1) & splits_layers & (setup.cluster.nvlink_gpus > 1), shorter, x.cp), 1, 1),
        ("virtual_stages", x.virtual_stages, USUAL_CHUNKS, 1),
        ("tp", x.tp, *tensor),
        ("ep", x.ep, most_expert_ranks(gpus_per_node), 2),
    ):
        out[name] = each * np.ceil(np.log2(np.maximum(many / most, 1.0))).astype(np.int64)
    for name in DEGREES[1:] if setup.framework.data_parallel_alone else ():
        out[name] = out.get(name, 0) + (getattr(x, name) > 1)
    return out


def kinds(layouts: Layouts) -> Ints:
    """A number for each layout, the same for twins, which share all that sets answers `apart`, shape (n,)."""
    columns = np.stack([getattr(layouts, choice.name) for choice in CHOICES.values() if choice.apart])
    return np.asarray(np.unique(columns, axis=1, return_inverse=True)[1].ravel())


def on_fewest_context_ranks(layouts: Layouts) -> Layouts:
    """The same tokens per rank, of fewer sequences on as many times fewer context ranks."""
    return replace(layouts, cp=layouts.cp // np.gcd(layouts.cp, layouts.micro_batch))


def first_of_each(order: Any, kind: Ints) -> Ints:
    """The first index of each kind, in order."""
    _, first = np.unique(kind[order], return_index=True)
    return np.asarray(order[np.sort(first)])


def plainest_first(setup: Setup, result: Estimate, order: Any) -> Ints:
    """Fitting layouts, fastest first, with the one to run before them."""
    if not len(order):
        return np.asarray(order)
    some = result.take(order)
    odd = unusual(setup, some.layouts)
    apart = partial(told_apart, some.layouts, gpus_per_node=setup.cluster.gpus_per_node)
    best = plainest(some.step_time_s, some.fit_chance, odd, apart)
    if setup.framework.spreads_tokens:
        best = spread_instead(some.layouts, some.step_time_s, odd, apart(best), best)
    pick = order[best]
    return np.concatenate([[pick], order[order != pick]])


def spread_instead(layouts: Layouts, step_time_s: Any, odd: Ints, apart: Any, best: int) -> int:
    """The fastest layout with sequence parallelism that is as plain as the best, which has none, of the same degrees
    and too close to tell apart; else the best: for a framework that spreads tokens where nothing is said."""
    near = (apart == LIKE) & (odd <= odd[best]) & (step_time_s <= (1.0 + LIKE) * step_time_s[best])
    own = np.flatnonzero(near & layouts.sequence_parallel & ~layouts.sequence_parallel[best])
    return int(own[np.argmin(step_time_s[own])]) if len(own) else best


def plainest(step_time_s: Any, fit_chance: Any, odd: Ints, apart: Callable[[int], Array]) -> int:
    """The index of the layout to run, of some that fit: steps, chances of fitting, `unusual`, (n,); apart: `told_apart`
    from one of them.

    Of those that can't be told apart from the fastest it has the fewest unusual choices. Of as plain ones within
    `EQUAL` of the fastest of them it has the best chance of fitting, then the shortest step. Chances count rounded to
    whole percent, and above 99 % as alike. It is left for a faster one that fits at most a percent less likely, where
    that one is as plain, or surer with one more unusual choice and the same kinds of ranks, or told apart from it.
    """
    fails = np.maximum(np.round(1.0 - fit_chance, 2), SURE)
    near = np.flatnonzero(step_time_s <= (1.0 + apart(int(step_time_s.argmin()))) * step_time_s.min())
    plain = near[odd[near] == odd[near].min()]
    plain = plain[step_time_s[plain] <= (1.0 + EQUAL) * step_time_s[plain].min()]
    best = plain[np.lexsort((step_time_s[plain], fails[plain]))[0]]
    while True:
        gain = apart(int(best))
        plain = odd <= odd[best] + ((fails < fails[best]) & (gain < OTHER_KINDS))
        told = (1.0 + np.where(plain, 0.0, gain)) * step_time_s < step_time_s[best]
        better = np.flatnonzero(told & (fit_chance > fit_chance[best] - SURE))
        if not len(better):
            return int(best)
        best = better[np.lexsort((step_time_s[better], odd[better]))[0]]
