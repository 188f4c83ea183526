"""A chunk of a sweep answered: each search made, a row for each of its cases. This is what workers run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.base import records
from planner.base.errors import InputError, LayoutError
from planner.base.units import DAY, GIB, HOUR, gpus_text
from planner.costs.adapters import trained_parameters
from planner.models import counts
from planner.models.flops import causal_share
from planner.scaling.training import training_time
from planner.search import Recommendation, largest_part, recommend
from planner.sweeps.columns import FAILED, FITS, NOT_LEGAL, Column
from planner.sweeps.sweep import Ask, Search
from planner.sweeps.versions import check_versions

BILLION = 1e9
JOULES_PER_MWH = 3.6e9


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some searches of a sweep with their cases: all that a worker needs, names already looked up.

    tokens: of the training, or None; versions: what must run on the worker.
    """

    number: int
    searches: tuple[tuple[Search, tuple[Ask, ...]], ...]
    columns: tuple[Column, ...]
    tokens: float | None
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ChunkAnswer:
    """A chunk's rows, each a list of plain values in the order of the columns; layouts: how many were evaluated."""

    chunk: int
    rows: list[list[Any]]
    layouts: int


def answer(chunk: Chunk) -> ChunkAnswer:
    """Every row of a chunk: the same whoever computes it.

    Raises ExecutionError if other versions run here than where the sweep was started.
    """
    check_versions(chunk.versions)
    rows, layouts = [], 0
    for search, asks in chunk.searches:
        found: dict[bool, Recommendation | str] = {}
        for ask in asks:
            by_memory = ask.objective == "memory"
            if by_memory not in found:
                found[by_memory] = _search(search, ask.objective)
            result = found[by_memory]
            record = {"case": ask.case, **ask.names, "parameters": int(counts.total_params(search.setup.model))}
            if isinstance(result, str):
                record |= {"status": NOT_LEGAL, "reason": result, "layouts": 0, "layouts_fitting": 0}
            else:
                record |= _row(result, search, ask, chunk.tokens)
            rows.append([_plain(record.get(column.name)) for column in chunk.columns])
        layouts += sum(r.legal for r in found.values() if not isinstance(r, str))
    return ChunkAnswer(chunk=chunk.number, rows=rows, layouts=layouts)


def first_question(chunk: Chunk) -> str:
    """A chunk's first question, for a person."""
    search, _ = chunk.searches[0]
    setup, request = search.setup, search.request
    where = f"{setup.model.name} on {gpus_text(request.gpus)} of {setup.cluster.name}"
    return f"{where} with global_batch {request.global_batch}"


def _plain(value: Any) -> Any:
    """A value that JSON and Parquet hold alike: no NaN, no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _search(q: Search, objective: str) -> Recommendation | str:
    """The search's result, or why nothing is legal."""
    if q.refused:
        return q.refused
    try:
        return recommend(q.setup, **q.request.question, top=1, objective=objective)
    except (LayoutError, InputError) as error:
        return str(error)


def _row(found: Recommendation, search: Search, ask: Ask, tokens: float | None) -> dict[str, Any]:
    limit = search.setup.cluster.accelerator.memory_bytes
    counted = {"layouts": found.legal, "layouts_fitting": found.fitting, "memory_limit_gib": limit / GIB}
    if not len(found.best):
        least = float(found.estimate.memory_bytes.min())
        reason = f"the layout of least memory needs {least / GIB:.4g} GiB of {found.estimate.usable_bytes / GIB:.4g}"
        return counted | {"status": FAILED, "reason": reason}
    i = int(found.best[0])
    result = found.estimate
    part, share = largest_part(result, i)
    times = {f"time.{name}": seconds for name, seconds in records.parts(result.time, i, "").items()}
    memory = {f"memory.{name}_gib": size for name, size in records.parts(result.memory, i, "_bytes", GIB).items()}
    step = float(result.step_time_s[i])
    return {
        **counted,
        **result.layouts.row(i),
        "micro_batches": int(result.layouts.micro_batches[i]),
        "status": FITS,
        "step_time_s": step,
        "simulated": bool(result.simulated[i]),
        "mfu": float(result.mfu[i]),
        "causal_mfu": float(result.mfu[i] * causal_share(search.setup.model)),
        "memory_gib": float(result.memory_bytes[i]) / GIB,
        "binding": part,
        "binding_share": share,
        "memory_binds": found.faster_over_memory is not None,
        **times,
        **memory,
        **_money(search, ask, step),
        **(_training(search, ask, step, tokens) if tokens else {}),
    }


def _money(q: Search, ask: Ask, step_time_s: float) -> dict[str, Any]:
    """Throughput, cost and energy of steps alone."""
    prices, gpus = ask.assumptions.prices, q.request.gpus
    rate = q.request.global_batch * float(q.setup.model.seq_len) / step_time_s
    time_s = BILLION / rate
    price = prices.price_per_hour
    power_kw = gpus * prices.power_w * prices.site_factor / 1e3
    return {
        "tokens_per_s_per_gpu": rate / gpus,
        "tokens_per_s": rate,
        "time_s_per_billion_tokens": time_s,
        "price_usd_per_gpu_hour": price,
        "cost_usd_per_billion_tokens": None if price is None else gpus * price * time_s / HOUR,
        "power_kw": power_kw,
        "energy_kwh_per_billion_tokens": power_kw * time_s / HOUR,
    }


def _training(q: Search, ask: Ask, step_time_s: float, tokens: float) -> dict[str, Any]:
    """A whole training, failures included."""
    a, (gpus, batch) = ask.assumptions, (q.request.gpus, q.request.global_batch)
    stored = a.storage(trained_parameters(q.setup, q.request.fixed.train))
    run = training_time(
        step_time_s, gpus, batch * float(q.setup.model.seq_len), tokens, reliability=a.reliability, storage=stored,
        prices=a.prices,
    )  # fmt: skip
    return {
        "training_days": float(run.wall_s[0]) / DAY,
        "training_goodput": float(run.goodput[0]),
        "training_cost_usd": float(run.cost_usd[0]),
        "training_energy_mwh": float(run.energy_j[0]) / JOULES_PER_MWH,
    }
