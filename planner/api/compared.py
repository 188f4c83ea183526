"""Layouts set side by side: under every schedule, over stages, two plans, launch arguments before they are merged."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from planner.api.answer import Answer
from planner.api.existing_run import run_of_megatron
from planner.api.frameworks import layout_under, schedules_of
from planner.base.errors import FileFormatError
from planner.costs.memory.fit_chance import chance_in
from planner.imports.names import megatron_arguments
from planner.layouts import Split
from planner.models.flops import causal_share, mfu_text
from planner.plan_file import read_plan
from planner.report.difference import difference_record, plans_view
from planner.report.imported import OF_IT, left_out_lines
from planner.report.plots import draw_layouts, draw_rows
from planner.report.records import estimate_record
from planner.report.simulations import comparison_record, comparison_view, split_record, split_view
from planner.report.tables import chance_text, layout_text, question_title
from planner.search.compare import compare
from planner.search.stage_split import stage_split
from planner.setup import Setup
from planner.step.given_stages import is_given
from planner.step.timeline.timed import timed_estimate


def compare_schedules(setup: Setup, **choices: Any) -> Answer:
    """Every schedule that is legal for a layout, simulated; choices: as of `planner.estimate`.

    Raises as `planner.estimate`, and LayoutError if no schedule can run it.
    """
    layouts = layout_under(setup, **choices)
    rows, refused = compare(setup, layouts)
    title = question_title(setup, int(layouts.gpus[0]), int(layouts.global_batch[0]))
    named = setup.export or setup.framework.name
    chance = partial(chance_in, setup, layouts.row(0)["precision"])
    record = comparison_record(rows, refused, setup.cluster, named, schedules_of(setup, int(layouts.pp[0])), chance)
    told = {x.step.schedule.name: one for x, one in zip(rows, record["schedules"], strict=True)}
    figures = ("step_time_s", "seconds per step"), ("peak_gib", "GiB of the fullest rank")
    draw = partial(draw_rows, title, told, *figures)
    return Answer(title, record, comparison_view(record), draw)


def partition(setup: Setup, **choices: Any) -> Answer:
    """The layers split over pipeline stages by cost; choices: as of `planner.estimate`, but for the split.

    Raises as `planner.estimate`, and LayoutError if no split fits in memory.
    """
    layouts = layout_under(setup, **choices, layer_split="even")
    stages = int(layouts.pp[0] * layouts.virtual_stages[0])
    if stages > layouts.pp[0] and setup.model.num_layers % stages and not is_given(layouts)[0]:
        layouts = replace(layouts, layer_split=np.array([Split.BALANCED]))  # virtual stages can't be even
    split = stage_split(setup, layouts)
    title = question_title(setup, int(layouts.gpus[0]), int(layouts.global_batch[0]))
    record = split_record(split)
    return Answer(title, record, split_view(record))


def compare_plans(
    first: Path, second: Path, *, cluster: str | None = None, network: str | None = None, framework: str | None = None
) -> Answer:
    """Two plans: their own figures, or estimates where a file has none.

    cluster, network, framework: in place of the plans' own.

    Raises as `planner.plan_file.read_plan`.
    """
    plans = [read_plan(path, cluster=cluster, network=network, framework=framework) for path in (first, second)]
    a, b = (estimate_record(timed_estimate(p.setup, p.layouts), 0, p.setup.cluster) | p.figures() for p in plans)
    titles = [question_title(p.setup, p.gpus, int(p.layouts.global_batch[0])) for p in plans]
    record = {"a": a, "b": b, "difference": difference_record(a, b)}
    names = (str(first), str(second))
    causal = [x | {"causal_mfu": x["mfu"] * causal_share(p.setup.model)} for x, p in zip((a, b), plans, strict=True)]
    view = plans_view(names, (titles[0], titles[1]), causal[0], causal[1])
    return Answer("", record, view, partial(draw_layouts, "Two plans", a, b, series=names))


WORD = re.compile(r"--([a-z0-9-]+)")


def check_megatron(
    text: str, cluster: str, *, name: str, before: tuple[str, str] | None, fit_chance: float, **known: Any
) -> Answer:
    """Megatron-LM's arguments: seconds per step and GiB per GPU, beside those of an earlier version.

    It is kept where the run fits with the chance that was asked for, and no argument is probably misspelt.

    name: of the file. before: the earlier version's name and its arguments, None for none. known: what arguments don't
    say, as `run_of_megatron` takes it: network, framework, GPUs, model and vocabulary.

    Raises as `planner.imports.megatron.megatron_run`.
    """
    after = _launch_figures(name, text, cluster, **known)
    fits = after["fit_chance"] >= fit_chance or not after["judged"]
    record = {"file": name, "cluster": cluster, "least_chance": fit_chance, "fits": fits, "after": after}
    lines = [f"{name} on {cluster}: {_line(after)}"]
    if before is not None:
        old, earlier = before[0], _launch_figures(*before, cluster, **known)
        record |= {"against": old, "before": earlier}
        # Tokens per second as a share, since a batch may change with the rest.
        gain = after["tokens_per_s_per_gpu"] / earlier["tokens_per_s_per_gpu"] - 1.0
        more = after["memory_gib"] - earlier["memory_gib"]
        lines.append(f"before ({old}): {_line(earlier)}")
        lines.append(f"change: {gain:+.1%} tokens per second, {more:+.1f} GiB per GPU")
    lines += [f"{OF_IT}{note}" for note in after["assumed"]] + left_out_lines(after["unknown"], after["ignored"])
    if not fits:
        lines.append(f"It may run out of memory: at least {fit_chance * 100:g}% is asked for.")
    return Answer("", record, "\n".join(lines), kept=fits and not after["misspelt"])


def _launch_figures(name: str, text: str, cluster: str, **known: Any) -> dict[str, Any]:
    if not megatron_arguments("model", "read", "newer") & set(WORD.findall(text.replace("_", "-"))):
        hint = f"; of a DeepSpeed JSON: planner estimate MODEL --deepspeed {name}" if name.endswith(".json") else ""
        if name.endswith((".yaml", ".yml")):
            hint = "; of Accelerate's YAML only its deepspeed_config_file: planner estimate MODEL --deepspeed FILE"
        allowed = f"allowed: a launch script with arguments such as --num-layers 32{hint}"
        raise FileFormatError(f"{name}: no argument of Megatron-LM is in it; {allowed}")
    run = run_of_megatron(text, cluster, **known)
    own = estimate_record(timed_estimate(run.setup, run.layouts), 0, run.setup.cluster)
    said = {"layout": layout_text(own["layout"]), "global_batch": own["layout"]["global_batch"]}
    kept = {name: own[name] for name in ("step_time_s", "mfu", "tokens_per_s_per_gpu", "memory_gib", "fit_chance")}
    said["judged"] = run.judged
    heard = {"assumed": list(run.notes), "unknown": list(run.unknown), "ignored": run.ignored,
             "misspelt": run.misspelt}  # fmt: skip
    return said | kept | {"mfu_text": mfu_text(own["mfu"], run.setup.model)} | heard


def _line(f: dict[str, Any]) -> str:
    return (
        f"{f['layout']}, batch {f['global_batch']:,}: {f['step_time_s']:.4g} s per step, {f['mfu_text']}, "
        f"{f['memory_gib']:.1f} GiB per GPU "
        + (f"(fits in {chance_text(f['fit_chance'])} of such cases)" if f["judged"] else "at most (no verdict)")
    )
