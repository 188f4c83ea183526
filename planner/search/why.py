"""Why a search did not choose what somebody had in mind: the first reason, and the best layout of that kind."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.base import records
from planner.base.errors import InputError, LayoutError, UnknownNameError, shown
from planner.base.units import GIB
from planner.choices.choice import Choice, flag, switch, value_text
from planner.choices.table import CHOICES, DEGREES, NUMERICS, SETTLED, SHARED, called
from planner.hardware import Cluster
from planner.layouts import Layouts
from planner.schedules import SCHEDULES, Rule, get_schedule, usual_schedule
from planner.search.found import Recommendation
from planner.search.pick import told_apart, unusual, unusual_choices
from planner.search.ranking import recommend
from planner.search.request import attention_kernels, degrees_left, divisors
from planner.search.scan import estimate_all
from planner.setup import Setup
from planner.step.estimate import Estimate
from planner.step.legality import legal, rules
from planner.step.timeline.timed import timed

FINALISTS = 64
TIE = 0.01


@dataclass(frozen=True, kw_only=True, eq=False)
class Why:
    """Why layouts with the wanted choices were not chosen.

    reason: chosen, settled, illegal, asynchronous, offload, memory, slower or tie; text: a sentence with the figures.
    best: the search's best, other: the best of that kind, or the one that is least over memory (tables of one), None
    where there is none.
    """

    wanted: dict[str, Any]
    reason: str
    text: str
    best: Estimate | None
    other: Estimate | None


def parse_wanted(text: str) -> dict[str, Any]:
    """The choices in a text such as tp=8,recompute=full.

    Raises InputError for no choice, one without a value or given twice, or a value of the wrong kind; UnknownNameError
    for an unknown choice, with the nearest.
    """
    known = [name for name in CHOICES if name != "global_batch"]
    if not isinstance(text, str):
        raise InputError(f"why is {shown(text)}; allowed: choices with values, such as 'tp=8,pp=1'")
    out: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value:
            raise InputError(f"why is {shown(text)}; allowed: choices with values, such as tp=8,pp=1")
        key = called(name)
        if key not in known:
            raise UnknownNameError("choice of a layout", name, [CHOICES[key].typed for key in known])
        if key in out:
            raise InputError(f"why has {CHOICES[key].typed} twice; allowed: once")
        out[key] = _value(CHOICES[key], value.lower())
    return out


def _value(choice: Choice, value: str) -> Any:
    """A choice's value from its text."""
    if choice.name == "schedule":
        return get_schedule(value).name
    if choice.kind is str and not choice.codec:
        raise InputError(
            f"why has {choice.typed}, which no search chooses; allowed: other choices, such as layer-split=ends"
        )
    if choice.kind is bool:
        return flag(choice.name, switch(value))
    if choice.enumeration or choice.codec:
        return choice.plain(choice.coded(value))
    if choice.kind is float:
        try:
            return choice.coded(float(value))
        except ValueError:
            raise InputError(f"why has {choice.typed} {shown(value)}; allowed: {choice.allowed}") from None
    if not (value.isdecimal() and value.isascii() and len(value) <= 7 and choice.least <= int(value) <= choice.most):
        raise InputError(f"why has {choice.typed} {shown(value)}; allowed: {choice.allowed}")
    return int(value)


def why_not(setup: Setup, found: Recommendation, wanted: dict[str, Any]) -> Why:
    """Why the search's best isn't as wanted."""
    best = found.chosen if len(found.best) else None

    def because(reason: str, text: str, other: Estimate | None = None) -> Why:
        return Why(wanted=wanted, reason=reason, text=text, best=best, other=other)

    row = {} if best is None else best.layouts.row(0)
    if best is not None and _is(row, wanted):
        return because("chosen", "The best is like that.", best)
    for key in SETTLED:
        allowed = getattr(found.request.fixed, key)
        lacks = allowed is not None and allowed == getattr(setup.framework.runs, key, None)
        if key in wanted and allowed is not None and not lacks and _coded(key, wanted[key]) not in allowed:
            words = ", ".join(value_text(value) for value in allowed)
            return because("settled", f"Not searched: only {CHOICES[key].typed} {words} was allowed.")
    kernels = [kernel.name.lower() for kernel in attention_kernels(setup.cluster)]
    if wanted.get("attention", kernels[0]) not in kernels:
        return because("illegal", f"Not legal: {setup.cluster.accelerator.name} has attention {', '.join(kernels)}.")
    other, fits, problem = _best_of_kind(setup, found, wanted)
    if other is None:
        return because("illegal", problem)
    other = timed(setup, other)
    if not (fits and other.fits[0]):
        return because("memory", _over(other, setup.cluster), other)
    kind = get_schedule(other.layouts.row(0)["schedule"])
    difference = _difference(best, other)
    if other.layouts.pp[0] > 1 and not kind.synchronous and not found.request.fixed.allow_async:
        return because("asynchronous", f"Not searched: {kind.name} is asynchronous and changes the training; "
                       f"--allow-async searches it. {difference}", other)  # fmt: skip
    for name in [name for name, c in CHOICES.items() if name.startswith("offload_") and c.axis]:
        open_to_it = found.request.fixed.offload or name in found.request.fixed.settled
        if getattr(other.layouts, name)[0] and not open_to_it:
            text = f"Not searched: --allow-offload tries {name.replace('_', ' ')}. {difference}"
            return because("offload", text, other)
    for key, runs in vars(setup.framework.runs).items():
        value = other.layouts.row(0)[key]
        if key in wanted and runs and value not in runs and getattr(found.request.fixed, key) == runs:
            text = f"Not searched: {setup.framework.name} does not run {CHOICES[key].typed} {value}; "
            return because("framework", f"{text}--any-framework searches it. {difference}", other)
    if found.request.no_zero_1 and other.layouts.zero[0] == 1 and other.layouts.pp[0] == 1:
        text = f"Not searched: {setup.framework.name} scatters gradients in every backward pass, so without a pipeline "
        return because("framework", f"{text}zero 1 is zero 2 there; --zero 1 searches it. {difference}", other)
    if best is not None:
        both, share = records.concatenate([best, other]), _slower(best, other)
        apart = float(told_apart(both.layouts, 1, setup.cluster.gpus_per_node)[0])
        if -apart <= share <= TIE:
            difference += " That is too close to tell apart"
            difference += "." if share >= 0.0 else f": within {apart:.1%} the plainest layout is taken."
        if share <= TIE:
            return because("tie", difference + (_passed_over(setup, both) if share < 0.0 else ""), other)
    return because("slower", difference, other)


def _passed_over(setup: Setup, both: Estimate) -> str:
    """What speaks against the second of two layouts, the faster one: more unusual choices, or a worse chance to fit."""
    counts = unusual_choices(setup, both.layouts)
    few, many = unusual(setup, both.layouts)
    if many > few:
        row = both.layouts.row(1)
        names = ", ".join(f"{CHOICES[key].typed} {value_text(row[key])}" for key, count in counts.items() if count[1])
        return f" It has {many} unusual choice{'s' * bool(many > 1)}, not {few}: {names}."
    less, more = both.fit_chance[1], both.fit_chance[0]
    return f" It fits in {less:.1%} of such cases, not in {more:.1%}." if less < more else ""


def _best_of_kind(setup: Setup, found: Recommendation, wanted: dict[str, Any]) -> tuple[Estimate | None, bool, str]:
    """The fastest layout as wanted, whether it fits (else it is the one that is least over), or why none is legal."""
    request = found.request
    only: dict[str, Any] = {key: (_coded(key, wanted[key]),) for key in SETTLED if key in wanted}
    # A schedule and a split of layers are of a pipeline, sequence parallelism is of tensor parallelism.
    pipelined = "schedule" in wanted and not get_schedule(wanted["schedule"]).one_layer_chunks
    for needs, key in (
        (pipelined or wanted.get("layer_split", "even") != "even", "pp"),
        (wanted.get("sequence_parallel", False), "tp"),
    ):
        if needs and key not in wanted:
            only[key] = tuple(n for n in getattr(request.fixed, key) or divisors(request.gpus) if n > 1) or (1,)
    k = wanted.get("sequence_slices")
    if k is not None and "schedule" not in wanted:
        names = request.fixed.schedule or tuple(s.name for s in SCHEDULES.values() if s.quick and s.synchronous)
        only["schedule"] = tuple(n for n in names if get_schedule(n).sliced == (k > 1)) or names
    numbers = {key: _coded(key, wanted[key]) if key in wanted else getattr(request, key) for key in NUMERICS}
    shared = dict(request.fixed.shared) | {key: _coded(key, wanted[key]) for key in SHARED if key in wanted}
    late = any(key not in (*SETTLED, *NUMERICS, *SHARED) for key in wanted)
    try:
        again = recommend(
            setup, gpus=request.gpus, global_batch=request.global_batch, top=FINALISTS,
            fixed=replace(request.fixed, **only, shared=tuple(shared.items())), **numbers,
        )  # fmt: skip
    except LayoutError:
        return _outside_the_search(setup, found, wanted)
    table, best = again.estimate, again.best
    if late:
        layouts = Layouts.of_rows([table.layouts.row(i) | wanted for i in range(len(table.layouts))])
        kept = legal(setup.model, setup.cluster, layouts)
        if not np.any(kept):
            return _outside_the_search(setup, found, wanted)
        table = estimate_all(setup, layouts.take(kept))
        return *_fastest(table), ""
    alike = np.array([_is(table.layouts.row(i), wanted) for i in range(len(table.layouts))])
    if not np.any(alike):
        return _outside_the_search(setup, found, wanted)
    if np.any(alike[best]):
        return table.take(best[alike[best]][:1]), True, ""
    return *_fastest(table.take(np.flatnonzero(alike))), ""


def _is(row: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a layout is as wanted; one stage splits its layers in every way alike."""
    return all(row[key] == value or (key == "layer_split" and row["pp"] == 1) for key, value in wanted.items())


def _fastest(table: Estimate) -> tuple[Estimate, bool]:
    """The fastest that fits, or the one that is least over memory."""
    fits = bool(np.any(table.fits))
    key = np.where(table.fits, table.step_time_s, np.inf) if fits else table.memory_bytes
    return table.take([int(np.argmin(key))]), fits


def _outside_the_search(
    setup: Setup, found: Recommendation, wanted: dict[str, Any]
) -> tuple[Estimate | None, bool, str]:
    """The answer where the search has nothing: the rule that all such layouts break, or the best that breaks none."""
    model = setup.model
    gpus, batch = found.request.gpus, found.request.global_batch
    given = {key: wanted[key] for key in DEGREES if key in wanted}
    used = int(np.prod(list(given.values()), dtype=object)) if given else 1
    said = " * ".join(f"{key} {value}" for key, value in given.items())
    if gpus % used or (len(given) == len(DEGREES) and used != gpus):
        said += f" is {used}, which" if len(given) > 1 else ""
        return None, False, f"Not legal: {said} doesn't divide {gpus} GPUs."
    rows = _rows(found, wanted)
    layouts = Layouts.of_rows(rows)
    own = [Rule(text=text, broken=broken(layouts)) for text, broken in found.request.fixed.never]
    table = own + rules(model, setup.cluster, layouts)
    broken = np.array([rule.broken for rule in table])
    kept = np.flatnonzero(~broken.any(axis=0))
    if len(kept):
        return *_fastest(estimate_all(setup, layouts.take(kept))), ""
    always = [rule.text for rule in table if np.all(rule.broken)]
    nearest = int(np.argmin(broken.sum(axis=0)))
    text = always[0] if always else next(rule.text for rule in table if rule.broken[nearest])
    shape = (
        f"{model.num_layers} layers, {model.num_heads} heads, {model.num_kv_heads} key-value heads, "
        f"{model.num_experts or 'no'} experts, {model.seq_len} tokens, batch {batch}, {gpus} GPUs"
    )
    return None, False, f"Not legal: {text} ({shape})."


def _rows(found: Recommendation, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Layouts as wanted, legal or not: every way to share the remaining accelerators out."""
    request = found.request
    base = Layouts.of(
        global_batch=request.global_batch, precision=request.precision, attention=request.attention,
        **dict(request.fixed.shared),
    ).row(0)  # fmt: skip
    if "schedule" not in wanted:
        base["schedule"] = usual_schedule(wanted.get("virtual_stages", 1), wanted.get("sequence_slices", 1))
    else:
        base |= get_schedule(wanted["schedule"]).least_size
    shares = degrees_left(request.gpus, wanted)
    return [base | some | {"zero": stage} | wanted for some in shares for stage in request.fixed.zero or range(4)]


def _coded(key: str, value: Any) -> Any:
    """A choice as `Fixed` holds it."""
    return CHOICES[key].coded(value)


def _over(other: Estimate, cluster: Cluster) -> str:
    need, room = float(other.memory_bytes[0]) / GIB, cluster.accelerator.usable_bytes / GIB
    parts = records.parts(other.memory, 0, "_bytes", GIB)
    most = max(parts, key=lambda name: parts[name])
    return (
        f"Does not fit: the least that it needs is {need:.1f} GiB of {room:.1f} GiB per GPU, {need - room:.1f} GiB too "
        f"much; most of it is {most}, {parts[most]:.1f} GiB."
    )


def _slower(best: Estimate, other: Estimate) -> float:
    return float(other.step_time_s[0] / best.step_time_s[0]) - 1.0


def _difference(best: Estimate | None, other: Estimate) -> str:
    if best is None:
        return f"It takes {other.step_time_s[0]:.4g} s per step."
    share = _slower(best, other)
    steps = f"{other.step_time_s[0]:.4g} s per step against {best.step_time_s[0]:.4g} s"
    if share < 0:
        return f"It would be {-share:.1%} faster: {steps}."
    return f"Slower by {share:.1%}: the best of its kind takes {steps}."
