"""How a sequence is cut into slices that pass a pipeline one by one: of equal work (Seq1F1B), or by TeraPipe's program.

A slice of n tokens behind P others takes t(n, P) on a stage: what n tokens cost alone, and attention to all before. Of
m sequences in slices on p stages a step takes m times the sum of all t, and (p - 1) times the longest (Li et al. 2021,
arXiv 2102.07988, section 3.3, equation 5): long slices fill the pipeline slowly, short ones run below peak.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import InputError, shown
from planner.choices.choice import number
from planner.costs.layer.slices import causal_pairs, equal_work_slices, even_slices
from planner.layouts import Layouts, Recompute
from planner.models import Transformer
from planner.setup import Setup
from planner.step.step_costs import step_costs

MOST_UNITS = 256
"""Units of a sequence that its slices are made of: the program takes their square in memory."""
SPLITS = ("work", "even", "auto")


def slice_seconds(setup: Setup, layouts: Layouts, tokens: Sequence[int]) -> tuple[Array, Array]:
    """Seconds of a stage's passes of one layout (a table of length one), forward and backward.

    Of slices of so many tokens with nothing before them, shape (n,); and what a pair of a query and a key costs more.
    """
    whole = replace(layouts, sequence_slices=np.ones_like(layouts.sequence_slices))
    model = setup.model
    layers = float(model.num_layers) / float(layouts.pp[0])
    sizes = np.asarray(tokens, dtype=np.int64)
    alone = replace(setup, model=replace(model, seq_len=sizes))
    short = step_costs(alone, whole.take(np.zeros(len(sizes), dtype=np.int64)))
    full = step_costs(setup, whole)
    seconds = layers * short.layer.total_s + 2.0 * short.send_s
    again = float(layouts.recompute[0] in (Recompute.SELECTIVE, Recompute.FULL))
    attention = full.cost.forward_attention_s * (1.0 + again) + full.cost.backward_attention_s
    pair = layers * attention[0] / float(causal_pairs(model, model.seq_len))
    return np.asarray(seconds), np.asarray(pair)


def times(setup: Setup, layouts: Layouts, slices: Sequence[int]) -> Array:
    """Seconds of each slice of a sequence on a stage, shape (k,)."""
    alone, pair = slice_seconds(setup, layouts, slices)
    tokens = np.asarray(slices)
    end = np.cumsum(tokens)
    before = _pairs_before(setup.model, end - tokens, tokens)
    return np.asarray(alone + pair * before)


def _pairs_before(model: Transformer, before: Any, tokens: Any) -> Array:
    """Number of pairs of a slice's queries with the `before` tokens ahead of the slice."""
    return causal_pairs(model, before + tokens) - causal_pairs(model, before) - causal_pairs(model, tokens)


def program(seconds: Array, m: int, p: int, count: int | None = None) -> list[int]:
    """TeraPipe's dynamic program: units of each slice, exact; seconds[a - 1, b] of a slice of a units behind b others.

    It minimises m times the sum of the slices' seconds plus (p - 1) times the longest. For a limit on the longest the
    least sum is found slice by slice; then the limit falls below the longest that this took, until nothing is left.
    count: how many slices there must be; None for any number.

    Raises InputError if there are fewer units than slices.
    """
    units = len(seconds)
    if count is not None and not 1 <= count <= units:
        raise InputError(f"sequence_slices is {count}; allowed: 1 to {units}, the units that a sequence is cut into")
    best, cuts, limit = np.inf, [units], np.inf
    while True:
        found = _least_sum(np.where(seconds < limit, seconds, np.inf), count)
        if not found:
            return cuts
        ends = np.cumsum(found)
        took = seconds[np.asarray(found) - 1, ends - found]
        whole = m * float(took.sum()) + (p - 1) * float(took.max())
        if whole < best:
            best, cuts = whole, found
        limit = float(took.max())


def _least_sum(seconds: Array, count: int | None) -> list[int]:
    """The slices of all units with the least sum, empty where there are none; with a count so many of them."""
    units = len(seconds)
    rows = 1 if count is None else count + 1
    least = np.full((rows, units + 1), np.inf)
    last = np.zeros((rows, units + 1), dtype=np.int64)
    least[0, 0] = 0.0
    for end in range(1, units + 1):
        length = np.arange(1, end + 1)
        one = seconds[length - 1, end - length]
        before = least[:, end - length] if count is None else least[:-1, end - length]
        sums = before + one
        take = np.argmin(sums, axis=1)
        into = slice(None) if count is None else slice(1, None)
        least[into, end] = sums[np.arange(len(take)), take]
        last[into, end] = length[take]
    row, end, out = rows - 1, units, []
    if not np.isfinite(least[row, end]):
        return []
    while end:
        out.append(int(last[row, end]))
        end -= out[-1]
        row -= count is not None
    return out[::-1]


def cut(setup: Setup, layouts: Layouts, said: str) -> list[int]:
    """Tokens of each slice of one layout (a table of length one), as many as its `sequence_slices`.

    said: work, slices of equal work (Sun et al. 2024, arXiv 2406.03488, section 3.4); even, of equal tokens; auto, by
    TeraPipe's program for its schedule, of equal work for others; or the tokens themselves, "11040,8416,7080,6232".
    Slices are multiples of tp under sequence parallelism.

    Raises InputError if it is none of these, or the tokens are no cut of the sequence.
    """
    row, length = layouts.row(0), int(setup.model.seq_len)
    k, multiple = row["sequence_slices"], row["tp"] if row["sequence_parallel"] else 1
    if said == "even":
        return even_slices(length, k)
    if said == "auto" and row["schedule"] == "terapipe" and k > 1:
        unit = multiple * -(-length // (multiple * MOST_UNITS))
        while length % unit:
            unit += multiple
        seconds = _table(setup, layouts, unit)
        m = row["global_batch"] // (row["dp"] * row["micro_batch"])
        return [unit * units for units in program(seconds, m, row["pp"], k)]
    if said in SPLITS:
        return equal_work_slices(setup.model, k, multiple)
    tokens = [n if isinstance(n := number(word.strip()), int) else 0 for word in said.split(",")]
    if len(tokens) != k or min(tokens) < 1 or sum(tokens) != length or any(n % multiple for n in tokens):
        of = f", multiples of tp {multiple}" if multiple > 1 else ""
        raise InputError(
            f"slices is {shown(said)}; allowed: {', '.join(SPLITS)}, "
            f"or the tokens of {k} slices that add up to {length}{of}"
        )
    return tokens


def _table(setup: Setup, layouts: Layouts, unit: int) -> Array:
    """Seconds of a slice of a units (row a - 1) behind b units (column b); endless where it leaves the sequence."""
    tokens = np.arange(unit, int(setup.model.seq_len) + 1, unit)
    alone, pair = slice_seconds(setup, layouts, tokens.tolist())
    before = tokens - unit
    end = tokens[:, None] + before
    more = _pairs_before(setup.model, before, tokens[:, None])
    return np.where(end <= setup.model.seq_len, alone[:, None] + pair * more, np.inf)
