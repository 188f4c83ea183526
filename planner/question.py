"""The question, from names and numbers: model, hardware, framework, numerics, one layout, or what a search may choose.

The command line and the Python API both come through here, so that a name or a number means the same in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from math import lcm
from typing import TYPE_CHECKING, Any

from planner.base.errors import ArgumentError, InputError, shown
from planner.base.units import GIB, MEGA, MONTH
from planner.choices.choice import LARGEST, flag, real, whole, word
from planner.choices.pipeline_layout import parse_pipeline_layout
from planner.choices.table import CHOICES, SETTLED, SHARED
from planner.costs.layer.host_launches import GRAPHS_BY_DEFAULT
from planner.costs.memory.fit_chance import FIT_CHANCE, kinds_of, safe_share, unmeasured
from planner.hardware import Cluster, Framework, framework_on, load_cluster
from planner.hardware.framework_runs import Runs
from planner.layouts import Attention, Layouts, Precision, Split, choice
from planner.models import Transformer, load_model, with_seq_len
from planner.schedules import get_schedule, usual_schedule
from planner.search import Fixed, attention_kernels, default_attention, default_precision
from planner.search.exclusion import without
from planner.search.request import MIXED, Request
from planner.setup import Setup

if TYPE_CHECKING:
    from planner.training_time.largest import LargestQuestion

RUNS = tuple(field.name for field in fields(Runs))
"""Choices of which a framework may run some alone."""
MOST_NICS = 1024
USUAL_BATCH_TOKENS = 4e6
"""Tokens per step where none are given: LLaMA 2 (arXiv 2307.09288, 2.2), LLaMA 3's first (2407.21783, 3.4.1)."""


def load_setup(
    model: Transformer | str,
    cluster: Cluster | str,
    *,
    network: str | None = None,
    framework: str | None = None,
    seq_len: int | None = None,
    nics_per_node: int | None = None,
) -> Setup:
    """The question that names ask: presets, profiles or files, or what was loaded from them already.

    Raises UnknownNameError for an unknown model, cluster, network or framework; FileFormatError for a file that can't
    be read, parsed or validated; InputError for a sequence length out of range.
    """
    shape = load_model(model, seq_len) if isinstance(model, str) else model
    hardware = load_cluster(cluster, network=network) if isinstance(cluster, str) else cluster
    if nics_per_node is not None:
        given = {"nics_per_node": "given with the question"}
        nics = whole("nics_per_node", nics_per_node, most=MOST_NICS)
        hardware = replace(hardware, nics_per_node=nics, sources={**hardware.sources, **given})
    return Setup(
        model=shape if seq_len is None else with_seq_len(shape, seq_len),
        cluster=hardware,
        framework=framework_on(hardware, framework),
    )


def numerics(cluster: Cluster, precision: str | None, attention: str | None) -> tuple[Precision, Attention]:
    """Precision and attention kernel, by name or by the accelerator's default.

    Raises InputError for a precision or a kernel that the accelerator lacks, UnknownNameError for an unknown one.
    """
    if precision == "mxfp8":
        raise InputError(
            "precision is mxfp8; allowed: fp8, which is MXFP8 on GPUs whose recipes have it, as Blackwell's"
        )
    number = default_precision(cluster) if precision is None else choice(Precision, word("precision", precision))
    if number.name.lower() not in cluster.accelerator.peak_flops:
        known = ", ".join(cluster.accelerator.peak_flops)
        raise InputError(f"precision is {number.name.lower()}; {cluster.accelerator.name} has: {known}")
    if attention is None:
        return number, default_attention(cluster)
    kernel, kernels = choice(Attention, word("attention", attention)), attention_kernels(cluster)
    if kernel not in kernels:
        known = ", ".join(k.name.lower() for k in kernels)
        raise InputError(f"attention is {kernel.name.lower()}; {cluster.accelerator.name} has: {known}")
    return number, kernel


def batch_of_tokens(name: str, tokens: float, seq_len: int, ranks: int = 1, unit: int = 1) -> int:
    """Sequences per optimizer step of about so many tokens: the nearest 2^a or 3 x 2^a.

    ranks: accelerators or replicas that share them. Where their number has an odd factor, such as 96's 3, the sequences
    have it too, unless that is far from the tokens: else replicas could not have it, and pipelines would.

    unit: of which the sequences are a multiple, unless they are meant exactly.

    Whole sequences that are not thousands of tokens are meant exactly: 50,176 tokens are 49 sequences of 1,024, but
    512k of 4,096 are 128, not 125, which few GPUs could share.

    Raises InputError if they are less than one sequence, or too many; the message names the field.
    """
    sequences = tokens / float(seq_len)
    if not 1.0 <= sequences <= LARGEST:
        raise InputError(
            f"{name} is {tokens:g}; allowed: from one sequence of {seq_len} tokens to {LARGEST:,} sequences"
        )
    if sequences.is_integer() and tokens % 1000:
        return int(sequences)
    odd = lcm(unit, ranks // (ranks & -ranks)) if isinstance(ranks, int) and ranks > 0 else unit
    well = [(odd if odd <= sequences else unit) * k << a for k in (1, 3) for a in range(24)]
    return min(well, key=lambda n: max(n / sequences, sequences / n))


def batch_or_usual(batch: int | None, seq_len: int, ranks: int = 1, unit: int = 1) -> int:
    """Sequences per optimizer step: those given, else about `USUAL_BATCH_TOKENS`. Raises InputError if out of range."""
    usual = max(USUAL_BATCH_TOKENS, float(seq_len))
    return batch_of_tokens("batch", usual, int(seq_len), ranks, unit) if batch is None else whole("batch", batch)


def one_layout(cluster: Cluster, *, own_split: str = "even", **choices: Any) -> Layouts:
    """A table of one layout; the caller checks whether it is legal (`planner.step.legality`).

    choices: by the names of `CHOICES`; None, or nothing, is the default. The schedule's is 1f1b, interleaved with
    virtual stages, seq1f1b with sequence slices; etp's is `planner.layouts.usual_etp`; layer_split's is own_split, the
    framework's, over stages that are whole, else even. A pipeline_layout says how many virtual stages there are.

    Raises InputError if a value is out of range or of another kind; UnknownNameError for an unknown schedule, recompute
    mode, split, precision or kernel.
    """
    _check_names(choices)
    precision, attention = numerics(cluster, choices.get("precision"), choices.get("attention"))
    said = {name: value for name, value in choices.items() if value is not None}
    row = {name: CHOICES[name].coded(value) for name, value in said.items()} | {
        "precision": precision, "attention": attention
    }  # fmt: skip
    given = row.get("pipeline_layout", "")
    if given and row.get("virtual_stages", 1) == 1:
        row["virtual_stages"] = max(len(parse_pipeline_layout(given).layers) // row.get("pp", 1), 1)
    chunks, slices = row.get("virtual_stages", 1), row.get("sequence_slices", 1)
    row["schedule"] = get_schedule(row.get("schedule", usual_schedule(chunks, slices))).name
    whole_stages = row.get("pp", 1) > 1 and chunks == 1 and not given
    row.setdefault("layer_split", choice(Split, own_split if whole_stages else "even"))
    return Layouts.of(**row)


def what_is_fixed(*, allow_offload: bool = False, allow_async: bool = False, **choices: Any) -> Fixed:
    """The choices open to a search: each a value or several, None (or nothing) for every legal one.

    choices: by the names of `SETTLED`; and by those of `SHARED` one value, None (or nothing) for the default.

    Raises InputError if a value is of the wrong kind or out of range; UnknownNameError for an unknown schedule,
    recompute mode or split.
    """
    more = [*(what_is_fixed.__kwdefaults__ or ()), *(careful.__kwdefaults__ or ()), "attention"]
    _check_names(choices, (*SETTLED, *SHARED), more)
    settled: dict[str, Any] = {}
    given = {name: choices.pop(name) for name in SHARED if name in choices}
    shared = tuple((name, CHOICES[name].coded(value)) for name, value in given.items() if value is not None)
    check_share(dict(shared), allow_offload, "allow_offload")
    for name, values in choices.items():
        if values == []:
            raise InputError(f"{name} is []; allowed: one value or several, or None for any")
        coded = [CHOICES[name].coded(value) for value in _several(values)]
        if name == "schedule":
            coded = [get_schedule(schedule).name for schedule in coded]
        settled[name] = tuple(dict.fromkeys(coded)) or None
    return Fixed(
        **settled, shared=shared, offload=flag("allow_offload", allow_offload),
        allow_async=flag("allow_async", allow_async),
    )  # fmt: skip


def as_it_has(setup: Setup, choices: Mapping[str, Any]) -> dict[str, Any]:
    """The choices; where nothing is said, norms are the framework's own and CUDA graphs as usual on such GPUs.

    Raises InputError for parameters in host memory if the framework doesn't put them there by themselves, for rings in
    a ring if it gathers keys, and for CUDA graphs if it has none.
    """
    framework = setup.framework
    if choices.get("offload_parameters") not in (None, False) and not framework.offloads_parameters:
        raise InputError(
            f"offload_parameters is on; allowed: off with {framework.name}, which moves them with the optimizer's "
            "state or not at all; DeepSpeed moves them alone"
        )
    inner = choices.get("inner_ring")
    if inner not in (None, 1) and (framework.gathered_context or framework.sdpa_context):
        raise InputError(f"inner_ring is {inner}; allowed: 1 with {framework.name}, whose context ranks gather keys")
    if choices.get("cuda_graphs") and not framework.captures_graphs:
        raise InputError(f"cuda_graphs is on; allowed: off with {framework.name}, which replays no layers")
    usual = framework.captures_graphs and setup.cluster.accelerator.efficiency.name in GRAPHS_BY_DEFAULT
    own = {"fused_norm": framework.unstated.fused_norm} | ({"cuda_graphs": True} if usual else {})
    return {**choices, **{name: value for name, value in own.items() if choices.get(name) is None}}


def check_tokens(fixed: Fixed, given: bool, allowed: str = "full, or with --tokens") -> None:
    """Raises InputError if only laws, which are of whole models, would say how many tokens adapters train on."""
    train = fixed.train
    if train and not given:
        said = CHOICES["train"].plain(train)
        raise InputError(f"train is {said}, and laws of loss are of whole models; allowed: {allowed}")


def careful(
    setup: Setup, *, precision: Precision | None = None, fit_chance: float | None = None,
    headroom_gib: float | None = None, max_memory_gib: float | None = None, any_framework: bool = False,
    exclude: Sequence[str] | None = None, **choices: Any,
) -> tuple[Setup, Fixed]:  # fmt: skip
    """The question with the memory that a layout may be predicted to take, and what a search may choose from.

    precision: of the training, which memory's errors may depend on; the accelerator's default where None is given.
    fit_chance: how likely a layout must fit, 0.95 unless given. Besides, headroom_gib: memory to leave free;
    max_memory_gib: most to take. any_framework: also schedules, and context parallelism, that the framework lacks.
    exclude: what must not be chosen: "schedule=zb-*", "recompute=full", "tp=8"; "cp": any of it but its default.
    choices: as of `what_is_fixed`; what a user settles holds, whether the framework has it or not. A schedule other
    than 1f1b and those of one stage means a pipeline.

    Raises InputError and UnknownNameError as `what_is_fixed`, or if a figure of memory is out of range.
    """
    memory = setup.cluster.accelerator.memory_bytes
    kinds = kinds_of(setup, (precision or default_precision(setup.cluster)).name.lower())
    chance = FIT_CHANCE if fit_chance is None else real("fit_chance", fit_chance, least=0.01, most=0.999)
    safe = memory * safe_share(chance, bool(unmeasured(kinds)))
    room = min(safe, settled_room(memory, headroom_gib, max_memory_gib))
    accelerator = replace(setup.cluster.accelerator, room_bytes=room)
    fixed = what_is_fixed(**as_it_has(setup, choices))
    named = [get_schedule(name) for name in fixed.schedule or ()]
    if named and not any(s.name == "1f1b" or s.one_layer_chunks for s in named):
        fixed = replace(fixed, pipelined=True)
    if not flag("any_framework", any_framework):
        # What the framework runs of the choices that the user has not settled, where it does not run all.
        setup = replace(setup, framework=_with_its_schedules(setup.framework, fixed.train))
        has = {name: getattr(setup.framework.runs, name) for name in RUNS if getattr(fixed, name) is None}
        if fixed.pipelined or any(CHOICES[name].pipelined for name in fixed.settled):
            has.pop("pp", None)  # a schedule or virtual stages mean a pipeline
        fixed = replace(fixed, **{name: values for name, values in has.items() if values})
        fixed = fixed.without(*MIXED) if any(fixed.offload_layers or ()) else fixed
    if isinstance(exclude, str):
        raise InputError(f"exclude is {shown(exclude)}; allowed: several in a list, such as ['tp=8', 'schedule=zb-*']")
    for text in listed("exclude", exclude or ()):
        fixed = without(fixed, text)
    return replace(setup, cluster=replace(setup.cluster, accelerator=accelerator)), fixed


def settled_room(memory_bytes: float, headroom_gib: float | None = None, max_memory_gib: float | None = None) -> float:
    """Bytes of an accelerator that a layout may take, whatever the chance that it fits.

    Raises InputError if a figure is out of range.
    """
    rooms, size_gib = [memory_bytes], memory_bytes / GIB
    if headroom_gib is not None:
        left = real("headroom_gib", headroom_gib, least=0.0, most=0.99 * size_gib, unit=" GiB")
        rooms.append(memory_bytes - GIB * left)
    if max_memory_gib is not None:
        rooms.append(GIB * real("max_memory_gib", max_memory_gib, least=0.001, most=size_gib, unit=" GiB"))
    return min(rooms)


def _with_its_schedules(framework: Framework, train: int) -> Framework:
    """The framework with the schedules that it runs of a training.

    None splits a backward pass where layers are compiled, for PyTorch can't (github.com/pytorch/pytorch issue 161904),
    or where matrices are frozen: they have no gradient to put off, and nobody's adapters come with such a schedule.
    """
    if not (train or framework.compiled_layers):
        return framework
    whole = tuple(name for name in framework.runs.schedule if not get_schedule(name).splits_backward)
    return replace(framework, runs=replace(framework.runs, schedule=whole))


def search_request(
    setup: Setup, *, gpus: int = 1, batch: int = 1, precision: str | None = None, attention: str | None = None,
    **choices: Any,
) -> tuple[Setup, Request]:  # fmt: skip
    """The question as `careful` has it, and what its search is asked; gpus, batch: as of `Request`.

    precision, attention: by name; None is what is usual on the cluster. Raises as `numerics` and `careful`.
    """
    number, kernel = numerics(setup.cluster, precision, attention)
    setup, fixed = careful(setup, precision=number, **choices)
    request = Request.of(
        setup.framework, gpus=gpus, global_batch=batch, precision=number, attention=kernel, fixed=fixed
    )
    return setup, request


def largest_question(
    cluster: Cluster, *, months: float = 3.0, gpus: int | None = None, power_mw: float | None = None,
    max_cost: float | None = None, experts: int = 0, aspect: float = 128.0, seq_len: int = 8192,
    framework: str | None = None, critical_batch_law: str = "zhang-2024", batch_rule: str = "overhead",
    given: Mapping[str, float | None] | None = None, **choices: Any,
) -> LargestQuestion:  # fmt: skip
    """The question of the largest training within a time; arguments as of `planner.largest`, of one kind of model.

    Raises InputError, UnknownNameError if a value is out of range or of another kind, or a name is unknown.
    """
    from planner.training_time.assumptions import assume
    from planner.training_time.largest import COMPUTES, LargestQuestion, Shape, shape_of

    shape = Shape(aspect=aspect, experts=experts, seq_len=seq_len)
    setup = Setup(shape_of(COMPUTES[0], shape), cluster, framework_on(cluster, framework))
    setup, request = search_request(setup, **choices)
    check_tokens(request.fixed, False, "full")
    return LargestQuestion(
        cluster=setup.cluster, framework=setup.framework, shape=shape, assumptions=assume(cluster, given),
        deadline_s=months * MONTH, max_gpus=gpus, max_power_w=None if power_mw is None else power_mw * MEGA,
        max_cost=max_cost, batch_law=critical_batch_law, rule=batch_rule, request=request,
    )  # fmt: skip


ELSEWHERE = {
    "seq_len": "planner.Model(name, seq_len=...)", "network": "planner.Cluster(name, network=...)",
    "global_batch": "batch, in sequences per step", "batch_tokens": "batch, in sequences per step",
}  # fmt: skip
"""Where in Python belongs what commands have as an option."""


def listed(name: str, values: Any) -> list[str]:
    """Several names. Raises InputError for anything else; the message names the argument."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name} is {shown(values)}; allowed: several in a list")
    return list(values)


def check_elsewhere(choices: Mapping[str, Any]) -> None:
    """Raises ArgumentError if one of the choices has another place in Python."""
    for name in choices:
        if where := ELSEWHERE.get(name):
            raise ArgumentError(f"{name} is no choice of a layout; allowed: {where}")


def _check_names(choices: Mapping[str, Any], known: Iterable[str] = CHOICES, more: Iterable[str] = ()) -> None:
    """Raises ArgumentError if a choice is unknown."""
    if unknown := {name: value for name, value in choices.items() if name not in known}:
        check_elsewhere(unknown)
        raise ArgumentError(f"{next(iter(unknown))} is no choice; there are {', '.join((*known, *more))}")


def check_share(given: Mapping[str, Any], offloads: bool, needed: str) -> None:
    """Raises InputError if a share of the optimizer's state is given where none of it may go to the host."""
    if given.get("offload_fraction") not in (None, 1.0) and not offloads:
        raise InputError(f"offload_fraction is {given['offload_fraction']:g}; allowed: with {needed}")


def _several(values: Any) -> Iterable[Any]:
    """One value or several, as several."""
    if values is None:
        return ()
    return values if isinstance(values, (list, tuple, set, frozenset, range)) else (values,)
