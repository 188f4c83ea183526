"""A plan for a framework: the nearest layout that it can run, what changed and what that costs, and the file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.base.errors import InputError, LayoutError, UnknownNameError
from planner.base.files import check_writable, write_text
from planner.base.units import GIB, format_seconds, gpus_text
from planner.choices.table import CHOICES, usual
from planner.costs.memory.fit_chance import FIT_CHANCE
from planner.exporters.accelerate import Accelerate
from planner.exporters.deepspeed import DeepSpeed
from planner.exporters.megatron import Megatron
from planner.exporters.megatron_bridge import MegatronBridge
from planner.exporters.nearest import Job, Nearest
from planner.exporters.target import Target
from planner.exporters.torchtitan import Torchtitan
from planner.exporters.torchtitan_toml import TorchtitanToml
from planner.layouts import Layouts
from planner.models.flops import mfu_text
from planner.plan_file import SavedPlan
from planner.question import one_layout
from planner.setup import Setup
from planner.step.legality import check_legal
from planner.step.timeline.timed import timed_estimate

TARGETS: Mapping[str, Target] = {
    t.name: t for t in (Megatron(), MegatronBridge(), DeepSpeed(), Torchtitan(), TorchtitanToml(), Accelerate())
}
ALIASES = {"megatron-lm": "megatron", "nemo": "megatron-bridge", "fsdp": "accelerate"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Export:
    """A framework's file.

    notes: what of the plan the framework can't express, a sentence each. layouts: what the file runs, a table of one.
    warning: that this layout doesn't fit in memory, or nothing. companions: files that it needs beside it.
    """

    text: str
    notes: tuple[str, ...]
    layouts: Layouts
    warning: str = ""
    companions: Mapping[Path, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the file and what it needs beside it.

        Raises OutputError if one of them can't be written, so none is.
        """
        files = {**self.companions, path: self.text}
        for file in files:
            check_writable(file)
        for file, text in files.items():
            write_text(file, text)


def get_target(name: str) -> Target:
    """The framework of that name or alias. Raises UnknownNameError if planner writes nothing for it."""
    name = ALIASES.get(name, name)
    if name not in TARGETS:
        raise UnknownNameError("framework to export to", name, [*TARGETS, *ALIASES])
    return TARGETS[name]


def export_plan(
    plan: SavedPlan, target: Target, *, path: Path | None = None, base: str | None = None, own: bool = True
) -> Export:
    """The file of a framework for a plan.

    path: where the file will be, for its companions. base: the user's own recipe, where the framework builds on one.
    own: predicted with the framework's own profile, where the plan's is of another family.

    Raises InputError for a recipe for a framework that builds on none; LayoutError for a choice that has no equivalent
    in the framework, if a rule of its own is broken, or for a bidirectional model.
    """
    if base is not None and not target.takes_base:
        raise InputError(f"base is {base!r}; allowed: none for {target.name}, only torchtitan builds on a recipe")
    if plan.setup.model.bidirectional:
        raise LayoutError(f"{plan.setup.model.name} is bidirectional; allowed: causal models in {target.title}'s file")
    setup = target.own(plan.setup) if own else plan.setup
    target.check_training(plan.row["train"])
    target.check_shared((name, plan.row[name]) for name in ("optimizer", "main_dtype"))
    nearest = Nearest(target.title, setup, plan.row, base)
    if plan.row["train"] != "full" and target.adapters:
        nearest.note(f"train {plan.row['train']}: {target.adapters}")
    if plan.row["dispatcher"] == "ppmoe":
        raise nearest.refuse("dispatcher", "sends tokens to their experts", "recommend with another --dispatcher")
    if not target.offloads_parameters:
        nearest.change("offload_parameters", False, "no setting moves them alone")
    nearest.change("inner_ring", 1, "its context ranks have one ring")
    if not setup.framework.captures_graphs:
        nearest.change("cuda_graphs", False, "its layers are not replayed")
    target.adapt(nearest)
    setup = nearest.setup
    layouts = one_layout(setup.cluster, **nearest.row)
    check_legal(setup.model, setup.cluster, layouts)
    head, warning = _head(plan, setup, target, layouts, nearest)
    job = Job(
        model=setup.model, cluster=setup.cluster, framework=setup.framework, layouts=layouts,
        head=head, path=path, base=base,
    )  # fmt: skip
    return Export(
        text=target.render(job),
        notes=tuple(nearest.notes),
        layouts=layouts,
        warning=warning,
        companions=target.companions(job),
    )


def _head(
    plan: SavedPlan, setup: Setup, target: Target, layouts: Layouts, nearest: Nearest
) -> tuple[tuple[str, ...], str]:
    """Sentences for the file's top, and a warning if what it runs does not fit in memory."""
    same = nearest.row == plan.row and setup.framework == plan.setup.framework
    figures = plan.record if same or not plan.anchored else {}  # what is set beside seconds without an anchor has none
    predicted, fits, chance = _predicted(setup, layouts, plan.record if same else {})
    least = 0.0
    row = layouts.row(0)
    head = [
        f"{setup.model.name} on {gpus_text(plan.gpus)} of {setup.cluster.name}, for {target.title} ({target.version}),"
        " written by planner export.",
        f"Layout: {', '.join(f'{k} {v}' for k, v in row.items() if v != usual(CHOICES[k], row))}; else the defaults.",
        f"Predicted with profile {setup.framework.name}: {predicted}",
    ]
    if row["attention"] == "flash3" and setup.cluster.accelerator.efficiency.name.startswith("blackwell"):
        head[1] += " flash3 stands for Blackwell's best kernel, cuDNN's or FlashAttention 4."
    if not same:
        own, _, least = _predicted(plan.setup, plan.layouts, figures)
        head.append(f"The plan's own layout with profile {plan.setup.framework.name}: {own}")
        head.append(f"The best that {target.title} can run: planner recommend ... --framework {target.name}")
    if plan.anchored:
        kept = "with" if same and plan.record else "without"
        head.append(f"These seconds are {kept} the measured runs that the plan was anchored on.")
    head += [f"NOT EXPRESSED: {note}." for note in nearest.notes]
    if fits and chance >= min(least, FIT_CHANCE):
        return tuple(head), ""
    holds = f"fits in {math.floor(100.0 * chance)}% of such cases" if fits else "does not fit in memory"
    warning = f"what {target.title} can run of this plan {holds}: {predicted} "
    warning += f"Search for what fits with planner recommend --framework {target.name}"
    return (*head, f"WARNING: this {holds}."), warning


def _predicted(setup: Setup, layouts: Layouts, record: Mapping[str, Any]) -> tuple[str, bool, float]:
    """Step, MFU and memory of a layout in words, whether it fits, how likely: a record's figures, else an estimate."""
    capacity = setup.cluster.accelerator.memory_bytes
    keys = ("step_time_s", "mfu", "memory_gib", "fit_chance")
    if all(key in record for key in keys):
        step, mfu, memory, chance = (float(record[key]) for key in keys)
    else:
        x = timed_estimate(setup, layouts)
        step, mfu, memory, chance = (float(a[0]) for a in (x.step_time_s, x.mfu, x.memory_bytes / GIB, x.fit_chance))
    held = f"{memory:.1f} of {capacity / GIB:.1f} GiB per GPU."
    text = f"{format_seconds(step)} per step, {mfu_text(mfu, setup.model)}, {held}"
    return text, memory * GIB <= capacity, chance
