"""An existing run from its configuration: what it is, how good, and what to change first."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.api.answer import Answer
from planner.api.frameworks import held_request
from planner.api.layout_estimate import LayoutEstimate
from planner.base.errors import InputError
from planner.choices.choice import value_text
from planner.choices.table import SHARED
from planner.costs.memory.fit_chance import FIT_CHANCE
from planner.exporters.plan_export import get_target
from planner.exporters.target import Target
from planner.hardware import load_cluster, load_framework
from planner.imports.deepspeed import deepspeed_run
from planner.imports.megatron import megatron_run
from planner.imports.run import ExistingRun
from planner.imports.torchtitan import torchtitan_run
from planner.question import load_setup
from planner.report.difference import differing
from planner.report.imported import Review, review_record, review_view
from planner.search import default_attention, recommend
from planner.search.neighbours import one_change
from planner.step.estimate import Estimate
from planner.step.timeline.timed import timed_estimate

WORTH_IT = 0.005


def review_megatron(text: str, cluster: str, **known: Any) -> Answer:
    """A run of Megatron-LM, from the text of its arguments; known: as `run_of_megatron` takes it, and raises."""
    return _answer(run_of_megatron(text, cluster, **known), get_target("megatron"))


def run_of_megatron(
    text: str, cluster: str, *, network: str | None = None, framework: str | None = None, **known: Any
) -> ExistingRun:
    """The run of Megatron-LM's arguments on a cluster by name; known: as `megatron_run` takes it, and raises."""
    hardware = load_cluster(cluster, network=network)
    profile = framework or get_target("megatron").profile_on(hardware)
    return megatron_run(text, hardware, load_framework(profile), **known)


FILES: dict[str, tuple[str, Callable[..., ExistingRun]]] = {
    "deepspeed": ("DeepSpeed's configuration", deepspeed_run),
    "torchtitan-toml": ("torchtitan's job file", torchtitan_run),
}
"""What a framework's file is called, and who reads it."""


def review_file(target: str, path: Path, cluster: str, **known: Any) -> Answer:
    """A run from its framework's file; known: as `run_of_file` takes it, and raises."""
    return _answer(run_of_file(target, path, cluster, **known), get_target(target))


def run_of_file(
    target: str, path: Path, cluster: str, *, model: str | None, network: str | None = None, framework: str | None,
    gpus: int | None, seq_len: int | None = None, **said: Any,
) -> ExistingRun:  # fmt: skip
    """The run of a framework's file, with a model named beside it; said: what its reader takes beside it.

    Raises as `planner.imports.deepspeed.deepspeed_run`.
    """
    file, run_of = FILES[target]
    if model is None:
        raise InputError(f"MODEL is missing; {file} has no model: name it")
    if gpus is None:
        raise InputError(f"--gpus is missing; {file} doesn't say how many GPUs the job has")
    profile = framework or get_target(target).profile
    setup = load_setup(model, cluster, network=network, framework=profile, seq_len=seq_len)
    return run_of(path, setup, gpus=gpus, **said)


def _answer(run: ExistingRun, target: Target) -> Answer:
    review = _review(run, target)
    own = LayoutEstimate(run.setup, review.run, 0, run.judged)
    record = own.to_dict()
    more = review_record(review, run.setup.cluster) | {"assumed": [*run.notes, *record["assumed"]]}
    return Answer(str(own.lines[0]), record | more, review_view(review, own.lines[2]), own.plot)


def _review(run: ExistingRun, target: Target) -> Review:
    """The run, the best that the framework can run, and every single change that helps."""
    setup = run.setup
    own = timed_estimate(setup, run.layouts)
    bar = min(FIT_CHANCE, float(own.fit_chance[0]))
    row = run.layouts.row(0)
    same = {name: row[name] for name in SHARED}
    same |= {"dispatcher": "framework"} if any("flex_dispatch" in names for names in run.switches.values()) else {}
    same |= {"zero": (0, 1, 2, 3)} if row["zero"] > 1 else {}  # what Megatron-LM is held to is less, unless asked for
    held, request = held_request(
        replace(run.profile, export=target.name), gpus=int(run.layouts.gpus[0]), batch=row["global_batch"],
        precision=row["precision"], allow_offload=row["offload_optimizer"], **same,
    )  # fmt: skip
    found = recommend(held, **request.question, top=1, plainest=True)
    best = None
    if len(found.best):
        best = timed_estimate(run.profile, found.chosen.layouts)
    fits, step = bool(own.fits[0]) or not run.judged, float(own.step_time_s[0])
    helps = [
        (text, changed) for text, changed in _suggestions(run, request.fixed)
        if (changed.fits[0] or not run.judged) and changed.fit_chance[0] >= bar
        and (not fits or changed.step_time_s[0] < (1.0 - WORTH_IT) * step)
    ]  # fmt: skip
    helps.sort(key=lambda pair: (pair[1].fit_chance[0] < FIT_CHANCE, pair[1].step_time_s[0]))
    return Review(asked=run, run=own, best=best, suggestions=helps)


def _suggestions(run: ExistingRun, runnable: Any) -> list[tuple[str, Estimate]]:
    """Single changes of the layout, and of what the run has turned off."""
    setup, row = run.setup, run.layouts.row(0)
    out = []
    for what, names in run.switches.items():
        on = replace(setup.framework, **{name: getattr(run.profile.framework, name) for name in names})
        layouts = run.layouts.framework_dispatched() if "flex_dispatch" in names else run.layouts
        out.append((f"turn on {what}", timed_estimate(replace(setup, framework=on), layouts)))
    kernel = default_attention(setup.cluster).name.lower()
    changed = one_change(setup, run.layouts, runnable, kernel)
    if changed is not None:
        for i, fields in enumerate(changed.changes):
            told = differing(row, row | fields)
            text = ", ".join(f"{key} {value_text(row[key])} -> {value_text(fields[key])}" for key in told)
            out.append((text, changed.estimate.take([i])))
    return out
