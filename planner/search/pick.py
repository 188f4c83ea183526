"""The layout to run among those too close to tell apart: the plainest, likeliest to fit. And answers that differ."""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.arrays import Ints
from planner.choices.table import CHOICES
from planner.layouts import Layouts
from planner.search.found import EQUAL
from planner.setup import Setup
from planner.step.estimate import Estimate

SURE = 0.01  # of not fitting: less tells nothing apart
USUAL_SCHEDULES = ("1f1b", "interleaved")
USUAL_CHUNKS = 12  # virtual stages of a rank: 96 % of the measured runs that have several have at most so many
USUAL_TOKENS = 4096  # of a sequence on a context rank: 99 % of the measured runs with several leave so many


def unusual(layouts: Layouts, seq_len: Any, gpus_per_node: int, splits_layers: bool = True) -> Ints:
    """How many choices of each layout are not the usual ones, shape (n,).

    Each doubling of the context-parallel ranks counts as one that leaves a rank fewer than `USUAL_TOKENS`, or cuts
    several sequences at once, each doubling of virtual stages beyond `USUAL_CHUNKS`, and each of tensor ranks beyond a
    node: all are further from what published runs have measured, of which none cuts several, and 9 of 1,561 have
    tensor ranks over nodes. Every doubling of either ranks counts where a framework leaves them to a model's own code
    (splits_layers).
    """
    usual = np.array([name in USUAL_SCHEDULES for name in layouts.schedule_names])
    count = ((layouts.pp > 1) & ~usual[layouts.schedule]).astype(np.int64)
    shorter = np.clip(layouts.cp * USUAL_TOKENS / seq_len, 1.0, layouts.cp)
    whole = (layouts.micro_batch == 1) & splits_layers
    count += np.ceil(np.log2(np.where(whole, shorter, layouts.cp))).astype(np.int64)
    for many, most in ((layouts.virtual_stages, USUAL_CHUNKS), (layouts.tp, gpus_per_node if splits_layers else 1)):
        count += np.ceil(np.log2(np.maximum(many / most, 1.0))).astype(np.int64)
    for choice in CHOICES.values():
        if choice.risky:
            count += getattr(layouts, choice.name) != choice.default
    return np.asarray(count)


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
    seq_len = some.tokens / some.layouts.global_batch
    odd = unusual(some.layouts, seq_len, setup.cluster.gpus_per_node, setup.framework.splits_layers)
    pick = order[plainest(some.step_time_s, some.fit_chance, odd)]
    return np.concatenate([[pick], order[order != pick]])


def plainest(step_time_s: Any, fit_chance: Any, odd: Ints) -> int:
    """The index of the layout to run, of some that fit: steps, chances of fitting and `unusual` choices, (n,).

    Of those that can't be told apart from the fastest (`EQUAL`), and of which no faster one fits with a better chance,
    it has the fewest unusual choices, then the better chance of fitting, then the shortest step. Chances count in whole
    percent, as they are shown, and above 99 % as alike.
    """
    fails = np.maximum(np.round(1.0 - fit_chance, 2), SURE)
    near = np.flatnonzero(step_time_s <= (1.0 + EQUAL) * step_time_s.min())
    near = near[np.lexsort((fails[near], step_time_s[near]))]
    near = near[fails[near] <= np.minimum.accumulate(fails[near])]
    return int(near[np.lexsort((step_time_s[near], fails[near], odd[near]))[0]])
