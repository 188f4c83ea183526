"""Why a search has nothing to choose from: the settled choices that conflict, the rule, a number of GPUs near by."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice, product
from typing import Any

import numpy as np

from planner.base.errors import LayoutError
from planner.base.units import gpus_text
from planner.choices.choice import value_text
from planner.choices.table import CHOICES, DEGREES
from planner.hardware import Cluster
from planner.layouts import Layouts
from planner.models import Transformer
from planner.schedules import get_schedule
from planner.search.request import LEAST_TOKENS, Request, degrees_left
from planner.step.legality import rules

AROUND = 256  # accelerators more or fewer that are near by
BATCH_AROUND = 0.1  # of the batch, more or less
MOST_VALUES = 64  # of choices that conflict, each value with each

Legal = Callable[..., bool]
"""Whether there is a legal layout within what is settled, on so many accelerators, with such a batch if it is given."""


def no_layout(model: Transformer, cluster: Cluster, request: Request, legal: Legal) -> LayoutError:
    """The error for a search without a legal layout."""
    settled = _conflicting(request, legal)
    text = f"no legal layout of {model.name} on {gpus_text(request.gpus)} with global_batch {request.global_batch}"
    if settled:
        text += " and " + ", ".join(f"{key} {' or '.join(map(_word, values))}" for key, values in settled.items())
        rule = _rule(model, cluster, request, settled)
        text += f": {rule}" if rule else ""
    given = {name: code for name, code in request.fixed.shared if code != CHOICES[name].default}
    shared = {name: CHOICES[name].plain(code) for name, code in given.items()}
    if shared and not settled and legal(replace(request.fixed, shared=()), request.gpus):
        said, rule = ", ".join(f"{name} {value}" for name, value in shared.items()), _rule(model, cluster, request, {})
        return LayoutError(f"{text} and {said}{f': {rule}' if rule else ''}; leave out {' or '.join(shared)}")
    gpus, batch = request.gpus, request.global_batch
    other = max(round(batch / gpus), 1) * gpus
    if other != batch and abs(other - batch) <= BATCH_AROUND * batch and legal(request.fixed, gpus, other):
        text += f"; global_batch {other} is legal"
    near = _nearby(request, legal)
    if near is not None:
        return LayoutError(f"{text}; a legal number of GPUs near by is {near}")
    if list(settled) == ["excluded"]:
        return LayoutError(f"{text}; exclude less")
    options = ", ".join(settled).replace("excluded", "exclude")
    remedy = f"leave out one of {options}" if len(settled) > 1 else f"give another {''.join(settled)}"
    return LayoutError(f"{text}; {remedy if settled else f'give a batch with more divisors, such as {request.gpus}'}")


def _conflicting(request: Request, legal: Legal) -> dict[str, tuple[Any, ...]]:
    """Settled choices without a legal layout, none of which can be left out of them: with any other there is one."""
    fixed = request.fixed
    settled: dict[str, tuple[Any, ...]] = {**fixed.settled, **({"excluded": fixed.excluded} if fixed.excluded else {})}
    for name in tuple(settled):
        left_out: dict[str, Any] = {name: () if name == "excluded" else None}
        if name == "schedule":
            left_out["pipelined"] = False
        freer = replace(fixed, **left_out)
        if not legal(freer, request.gpus):
            fixed = freer
            del settled[name]
    return settled


def _nearby(request: Request, legal: Legal) -> int | None:
    """The number of accelerators closest to the one asked for that has a legal layout with all that is settled."""
    for step in range(1, AROUND + 1):
        for n in (request.gpus - step, request.gpus + step):
            if n >= 1 and legal(request.fixed, n):
                return n
    return None


def _rule(model: Transformer, cluster: Cluster, request: Request, settled: dict[str, tuple[Any, ...]]) -> str:
    """The rule that every layout with these choices breaks, or nothing where none is broken by all."""
    if "excluded" in settled:
        return ""
    sets = [dict(zip(settled, values, strict=True)) for values in islice(product(*settled.values()), MOST_VALUES)]
    every = [row for wanted in sets for row in _rows(request, wanted)]
    if not every:
        given = [key for key in DEGREES if key in settled]
        whole = "be" if len(given) == len(DEGREES) else "divide"
        return f"{' * '.join(given)} must {whole} gpus"
    rows = [row for row in every if row["pp"] > request.fixed.pipelined] or every
    columns: dict[str, Any] = {key: [row[key] for row in rows] for key in rows[0]}
    layouts = Layouts.of(
        **columns, global_batch=request.global_batch, attention=request.attention, precision=request.precision,
        **dict(request.fixed.shared),
    )  # fmt: skip
    for text, broken in request.fixed.never:
        if np.all(broken(layouts)):
            return text
    for rule in rules(model, cluster, layouts):
        # Rules of a schedule begin with its name, and count where it was asked for.
        own = rule.text.split(" ", 1)[0] in layouts.schedule_names and "schedule" not in settled
        if np.all(rule.broken) and not own:
            return rule.text
    if "cp" in settled and min(settled["cp"]) > model.seq_len // LEAST_TOKENS:
        return f"ranks with less than {LEAST_TOKENS} tokens of the {model.seq_len} of a sequence are not searched"
    if "zero" in settled and not request.fixed.offload and np.all(layouts.dp * layouts.cp == 1):
        return "zero above 0 needs dp * cp above 1, ranks to shard over"
    return ""


def _rows(request: Request, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Layouts with these choices, legal or not: every way to share out the accelerators that are left."""
    schedule = get_schedule(
        wanted.get("schedule") or ("interleaved" if wanted.get("virtual_stages", 1) > 1 else "1f1b")
    )
    base = {"schedule": schedule.name, "zero": 0, "sequence_parallel": "etp" in wanted} | schedule.least_size
    return [base | some | wanted for some in degrees_left(request.gpus, wanted)]


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        name, code = value
        return f"{name}={value_text(CHOICES[name].plain(code))}"
    return value_text(value)
