"""`planner estimate` on an existing run: what it is, how good, and what to change first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli import options as o

if TYPE_CHECKING:
    from planner.export.target import Target
    from planner.imports.run import Run
    from planner.report.imported import Review, Suggestion

WORTH_IT = 0.005
MOST_BYTES = 2**20


def review_megatron(
    text: str, model: str | None, cluster: str, network: str | None, framework: str | None, *, gpus: int | None,
    vocab: int | None, attention: str | None, json: bool,
) -> None:  # fmt: skip
    """A run of Megatron-LM: its arguments, or @FILE that holds them."""
    from planner.export.plan_export import get_target
    from planner.files import read_bytes
    from planner.hardware import load_cluster, load_framework
    from planner.imports.megatron import megatron_run

    if text.startswith("@"):
        from planner.files import read_text

        path = Path(text[1:])
        read_bytes(path, MOST_BYTES)
        text = read_text(path)
    hardware = load_cluster(cluster, network=network)
    stack = load_framework(framework or hardware.framework)
    run = megatron_run(text, hardware, stack, gpus=gpus, model=model, vocab=vocab, attention=attention)
    _show(run, get_target("megatron"), json)


def review_deepspeed(
    path: Path, model: str | None, cluster: str, network: str | None, framework: str | None, *, gpus: int | None,
    seq_len: int | None, json: bool, **python: Any,
) -> None:  # fmt: skip
    """A run of DeepSpeed: its JSON, with a model named beside it."""
    from planner.errors import InputError
    from planner.export.plan_export import get_target
    from planner.imports.deepspeed import deepspeed_run
    from planner.question import question

    if model is None:
        raise InputError("MODEL is missing; DeepSpeed's configuration has no model: name it")
    if gpus is None:
        raise InputError("--gpus is missing; DeepSpeed's configuration doesn't say how many GPUs the job has")
    asked = question(model, cluster, network=network, framework=framework, seq_len=seq_len)
    _show(deepspeed_run(path, asked, gpus=gpus, **python), get_target("deepspeed"), json)


def _show(run: Run, target: Target, json: bool) -> None:
    from planner.report import records, tables
    from planner.report.imported import review_record, review_view

    with o.working("searching what else it could run"):
        review = _review(run, target)
    q, gpus, batch = run.question, int(run.layouts.gpus[0]), int(run.layouts.global_batch[0])
    if json:
        asked = records.question_record(q.model, q.cluster, q.framework, gpus) | {"global_batch": batch}
        o.print_json(asked | review_record(review, q.cluster))
    else:
        title = tables.question_title(q.model, q.cluster, gpus, batch)
        o.print_view(title, "", review_view(review, q.model, q.cluster))


def _review(run: Run, target: Target) -> Review:
    """The run, the best that the framework can run, and every single change that helps."""
    from planner.estimate import estimate
    from planner.layouts import Precision
    from planner.question import what_is_fixed
    from planner.report.imported import Review
    from planner.search import default_attention, recommend

    q = run.question
    own = estimate(q.model, q.cluster, q.framework, run.layouts)
    runnable = target.only(what_is_fixed(allow_offload=bool(run.layouts.offload_optimizer[0])))
    found = recommend(
        q.model, q.cluster, run.profile.framework, gpus=int(run.layouts.gpus[0]),
        global_batch=int(run.layouts.global_batch[0]), precision=Precision(int(run.layouts.precision[0])),
        attention=default_attention(q.cluster), fixed=runnable, top=1,
    )  # fmt: skip
    best = None
    if len(found.best):
        best = estimate(q.model, q.cluster, run.profile.framework, found.estimate.layouts.take(found.best[:1]))
    fits, step = bool(own.fits[0]), float(own.step_time_s[0])
    helps = [
        s for s in _suggestions(run, runnable)
        if s.fits and (not fits or s.step_time_s < (1.0 - WORTH_IT) * step)
    ]  # fmt: skip
    return Review(
        title=run.title,
        run=own,
        best=best,
        suggestions=sorted(helps, key=lambda s: s.step_time_s),
        notes=run.notes,
        unknown=run.unknown,
        ignored=run.ignored,
    )


def _suggestions(run: Run, runnable: Any) -> list[Suggestion]:
    """Single changes of the layout, and of what the run has turned off."""
    from planner.estimate import estimate
    from planner.report.imported import Suggestion
    from planner.search import default_attention
    from planner.search.one_change import one_change
    from planner.search.passes import taken

    q = run.question
    row = run.layouts.row(0)
    out = []
    for what, names in run.switches.items():
        on = replace(q.framework, **{name: getattr(run.profile.framework, name) for name in names})
        out.append(Suggestion(text=f"turn on {what}", estimate=estimate(q.model, q.cluster, on, run.layouts)))
    kernel = default_attention(q.cluster).name.lower()
    changed = one_change(q.model, q.cluster, q.framework, run.layouts, runnable, kernel)
    if changed is not None:
        for i, fields in enumerate(changed.changes):
            text = ", ".join(f"{key} {_word(row[key])} -> {_word(value)}" for key, value in fields.items())
            out.append(Suggestion(text=text, estimate=taken(changed.estimate, [i])))
    return out


def _word(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
