"""The neighbours of a layout: each differs in a single decision, and is estimated."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.choices.table import CHOICES, DEGREES
from planner.hardware import Framework
from planner.layouts import Layouts, Recompute
from planner.models import Transformer
from planner.schedules import get_schedule
from planner.search.request import Fixed, divisors
from planner.search.space import allows, by_cost, by_ends, stages_of_zero
from planner.setup import Setup
from planner.step.estimate import Estimate
from planner.step.legality import legal
from planner.step.timeline.timed import timed_estimate


@dataclass(frozen=True, kw_only=True, eq=False)
class Changed:
    """Neighbours of a layout, fastest first, those that don't fit last; changes[i]: the fields of row i that differ."""

    estimate: Estimate
    changes: list[dict[str, Any]]


def one_change(setup: Setup, layouts: Layouts, runnable: Fixed, attention: str) -> Changed | None:
    """The layouts that one decision away is legal and runnable; None where there are none.

    A decision: the kernel (`attention` is the fastest that there is), CUDA graphs, recomputation,
    sharding, sequence parallelism, micro-batch, virtual stages, schedule, the split of layers, offload, experts'
    parallelism, or a prime factor moved from one degree to another, on the same number of accelerators.
    """
    row = layouts.row(0)
    seen: dict[tuple[Any, ...], dict[str, Any]] = {}
    for change in _neighbours(setup.model, setup.framework, row, attention):
        if any(name == "pp" or CHOICES[name].pipelined for name in change):
            change["pipeline_layout"] = ""  # the given stages were of another pipeline
        new = row | change
        if new != row:
            seen.setdefault(tuple(new.values()), {k: v for k, v in new.items() if v != row[k]})
    rows = [row | change for change in seen.values()]
    changes = list(seen.values())
    if not rows:
        return None
    table = Layouts.of_rows(rows)
    kept = np.flatnonzero(legal(setup.model, setup.cluster, table) & allows(runnable, table))
    if not len(kept):
        return None
    result = timed_estimate(setup, table.take(kept))
    order = np.lexsort((result.step_time_s, ~result.fits))
    return Changed(estimate=result.take(order), changes=[changes[kept[i]] for i in order])


def _neighbours(model: Transformer, framework: Framework, row: dict[str, Any], attention: str) -> list[dict[str, Any]]:
    """Fields that each decision sets."""
    out: list[dict[str, Any]] = [{"attention": attention}]
    for choice in CHOICES.values():
        if choice.axis and not choice.depends:
            tried = [value for value in choice.tried if value is not Recompute.FINE or framework.fine_recompute]
            all_layers = {"recompute_layers": 0} if choice.name == "recompute" else {}
            out += [{choice.name: choice.plain(value)} | all_layers for value in tried]
    if row["recompute"] == "full" and framework.block_recompute and not row["offload_layers"]:
        most = int(model.num_layers) // (row["pp"] * row["virtual_stages"])
        out += [{"recompute_layers": n} for n in {most // 4, most // 2, 3 * most // 4} if n]
    stages = stages_of_zero(row["pp"], get_schedule(row["schedule"]), framework.zero2_by_layer)
    out += [{"zero": stage, "dp_replicate": 1} for stage in stages]
    out += [{"zero": 3, "dp_replicate": n} for n in divisors(row["dp"])] if framework.hybrid_sharding else []
    out += [{"micro_batch": n} for n in divisors(row["global_batch"] // row["dp"])]
    if framework.layer_split == "even":  # else its user has no say
        out += [{"layer_split": split} for split in ("even", "balanced", "ends", "last")]
    out += [{"grad_dtype": "bf16", "grad_reduce_dtype": "framework"}]
    if framework.captures_graphs:
        out.append({"cuda_graphs": not row["cuda_graphs"]})
    if row["tp"] > 1:
        out.append({"sequence_parallel": not row["sequence_parallel"]})
    if model.num_experts:
        ranks = row["tp"] * row["dp"] * row["cp"]
        out += [{"ep": n, "etp": cut} for cut in {row["tp"], 1} for n in divisors(ranks // cut)]
    if row["pp"] > 1:
        out += [{"virtual_stages": 1, "schedule": name, "sequence_slices": 1} for name in ("1f1b", "zb-h1")]
        name = row["schedule"] if get_schedule(row["schedule"]).chunks is None else "interleaved"
        for split, choices in (
            ("even", divisors(int(model.num_layers) // row["pp"])[1:]),
            ("ends", by_ends(model, row["pp"])),
            ("balanced", by_cost(model, row["pp"])),
        ):
            out += [{"virtual_stages": v, "schedule": name, "layer_split": split} for v in choices]
    primes = {a: [p for p in divisors(row[a]) if len(divisors(p)) == 2] for a in DEGREES}
    moves = [(a, b, f) for a in DEGREES for b in DEGREES if a != b for f in primes[a]]
    return out + [_moved(row, *move, whole) for move in moves for whole in _whole_experts(model, row)]


def _whole_experts(model: Transformer, row: dict[str, Any]) -> list[bool]:
    """Whether experts may stay whole where tensor parallelism changes: as they are, either where there was none."""
    if row["tp"] == 1:
        return [False, True] if model.num_experts else [False]
    return [row["etp"] == 1]


def _moved(row: dict[str, Any], source: str, target: str, factor: int, whole: bool) -> dict[str, Any]:
    """A factor moved from one degree to another; what has no meaning without its degree goes with it."""
    change: dict[str, Any] = {source: row[source] // factor, target: row[target] * factor}
    new = row | change
    change["etp"] = 1 if whole else new["tp"]
    if new["tp"] == 1 or row["tp"] == 1:
        change["sequence_parallel"] = new["tp"] > 1  # as it is used with tensor parallelism
    if new["dp"] % row["dp_replicate"]:
        change["dp_replicate"] = 1
    if new["pp"] == 1:
        change |= {c.name: c.plain(c.default) for c in CHOICES.values() if c.pipelined}
    return change
