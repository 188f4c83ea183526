"""Public training recipes beside our own advice: each legal, read and written again, and how far it is from our best.

    python benchmarks/public_recipes.py             # a Markdown table, as in docs/public-recipes.md; some minutes
    python benchmarks/public_recipes.py --changes   # of recipes over 8 % slower: which changes of ours save how much

The recipes are those of NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/perf_recipes, at commit 067f987df03b of
2026-08-22: public_recipes.csv has of each the model, the GPUs, the batch and what its function sets of the layout. Both
steps are those of the exact timeline, under the same profile of the framework, in the same precision and by the same
dispatcher; ours fits with 95 %. Both have CUDA graphs where the recipe has (column graphs).
"""

from __future__ import annotations

import csv
import shlex
import sys
from pathlib import Path
from typing import Any

from planner import Model, recommend
from planner.base.units import GIB
from planner.costs.memory.fit_chance import FIT_CHANCE
from planner.exporters.plan_export import export_plan, get_target
from planner.hardware import load_cluster, load_framework
from planner.imports.megatron import megatron_run
from planner.imports.run import ExistingRun
from planner.plan_file import SavedPlan
from planner.question import one_layout
from planner.report.tables import layout_text
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import first_broken
from planner.step.timeline.step import simulate

FILE = Path(__file__).with_name("public_recipes.csv")
FRAMEWORKS = {"0": "megatron-bridge-alltoall", "1": "megatron-bridge-overlap"}
"""Profiles by the column overlap: whether the recipe interleaves two micro-batches (moe_a2a_overlap)."""
DEGREES = {
    "tp": "--tensor-model-parallel-size", "pp": "--pipeline-model-parallel-size", "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size", "micro_batch": "--micro-batch-size", "global_batch": "--global-batch-size",
    "seq_len": "--seq-length",
}  # fmt: skip


def recipes() -> list[dict[str, str]]:
    """The rows of the file."""
    with FILE.open(newline="") as file:
        return list(csv.DictReader(file))


def framework_of(recipe: dict[str, str]) -> str:
    """The profile that a recipe and our layout are predicted with."""
    return FRAMEWORKS[recipe["overlap"]]


def arguments(recipe: dict[str, str]) -> str:
    """A recipe as Megatron-LM's arguments say it."""
    out = [f"{option} {recipe[name]}" for name, option in DEGREES.items()]
    out.append("--bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --grad-reduce-in-bf16")
    if recipe["precision"] == "fp8":
        out.append("--fp8-format hybrid --fp8-param-gather")
    if recipe["sequence_parallel"] == "1":
        out.append("--sequence-parallel --tp-comm-overlap")
    if recipe["layout"]:
        out.append(f"--pipeline-model-parallel-layout {shlex.quote(recipe['layout'])}")
    elif int(recipe["virtual_stages"]) > 1:
        out.append(f"--num-virtual-stages-per-pipeline-rank {recipe['virtual_stages']}")
        if recipe["model"] in BY_ENDS:
            out.append("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split")
    if recipe["recompute_modules"]:
        out.append(f"--recompute-granularity selective --recompute-modules {recipe['recompute_modules']}")
    if recipe["dispatcher"]:
        kind = "alltoall" if recipe["dispatcher"] == "alltoall" else "flex"
        out.append(f"--expert-tensor-parallel-size 1 --moe-token-dispatcher-type {kind}")
    if recipe["overlap"] == "1":
        out.append("--overlap-moe-expert-parallel-comm")
    if recipe["graphs"] == "1":
        out.append("--cuda-graph-impl transformer_engine")
    if recipe["dispatcher"] in ("deepep", "hybridep"):
        out.append(f"--moe-flex-dispatcher-backend {recipe['dispatcher']}")
    return " ".join(out)


BY_ENDS = ("llama3-405b", "qwen3-235b-a22b")
"""Models whose recipes count embedding and loss as a layer each (account_for_embedding_in_pipeline_split and its like
for the loss in recipes/llama and recipes/qwen): 126 and 94 layers, two fewer than a multiple of their stages."""


def read(recipe: dict[str, str]) -> ExistingRun:
    """The recipe as planner reads it from those arguments."""
    cluster, framework = load_cluster(recipe["cluster"]), load_framework(framework_of(recipe))
    return megatron_run(
        arguments(recipe), cluster, framework, gpus=int(recipe["gpus"]), model=recipe["model"], vocab=None
    )


def written(run: ExistingRun, target: str = "megatron") -> tuple[str, dict[str, Any]]:
    """The run's layout as a framework's file, and as the exporter left it."""
    done = export_plan(SavedPlan(setup=run.setup, layouts=run.layouts, record={}), get_target(target))
    return done.text, done.layouts.row(0)


def our_fastest(recipe: dict[str, str]) -> dict[str, Any]:
    """The record of our fastest layout that fits with 95 %."""
    told: dict[str, Any] = {"dispatcher": recipe["dispatcher"]} if recipe["dispatcher"] else {}
    plan = recommend(
        Model(recipe["model"], seq_len=int(recipe["seq_len"])), recipe["cluster"], gpus=int(recipe["gpus"]),
        batch=int(recipe["global_batch"]), framework=framework_of(recipe), precision=recipe["precision"],
        grad_dtype="bf16", cuda_graphs=recipe["graphs"] == "1", **told,
    )  # fmt: skip
    return plan.to_dict()["fastest"]


def compared(recipe: dict[str, str]) -> list[str]:
    """The cells of one recipe."""
    run, best = read(recipe), our_fastest(recipe)
    setup, layouts = run.profile, run.layouts
    step, memory = simulate(setup, layouts).step_time_s, float(estimate(setup, layouts).memory_bytes[0])
    return [
        recipe["recipe"].removesuffix("_config").replace("_pretrain_", " "), _shown(layouts.row(0)), f"{step:.4g}",
        f"{memory / GIB:.0f}", _shown(best["layout"]), f"{best['step_time_s']:.4g}",
        f"{step / best['step_time_s'] - 1.0:+.1%}",
    ]  # fmt: skip


def _shown(row: dict[str, Any]) -> str:
    return layout_text(row | {"dispatcher": "framework"}).replace("|", "\\|")


GROUPS = (
    ("stages", ("pp", "virtual_stages", "schedule", "layer_split", "pipeline_layout", "tp", "cp", "etp", "dp",
                "sequence_parallel", "ep")),
    ("experts' ranks", ("ep", "etp")), ("tp and cp", ("tp", "cp", "etp", "dp", "sequence_parallel")),
    ("chunks", ("virtual_stages", "schedule", "layer_split", "pipeline_layout")),
    ("degrees", ("tp", "cp", "etp", "dp", "sequence_parallel", "pp", "ep", "virtual_stages", "schedule", "layer_split",
                 "pipeline_layout")),
    ("micro-batch", ("micro_batch",)), ("recomputation", ("recompute",)),
)  # fmt: skip
"""Choices that change together on the way from a recipe to our layout."""


def way(setup: Setup, row: dict[str, Any], best: dict[str, Any]) -> list[tuple[str, float, float]]:
    """From a recipe to our layout, each time the change that saves most: in words, the step after it and its GiB.

    A change must fit with 95 %, or take no more memory than is taken already.
    """
    out: list[tuple[str, float, float]] = []
    held = estimate(setup, one_layout(setup.cluster, **row)).memory_bytes[0]
    while True:
        tried = []
        for _, names in GROUPS:
            changed = {name: best[name] for name in names if row[name] != best[name]}
            layouts = one_layout(setup.cluster, **(row | changed))
            alike = layouts.gpus[0] == row["dp"] * row["tp"] * row["pp"] * row["cp"]
            if changed and alike and not first_broken(setup.model, setup.cluster, layouts)[0]:
                said = estimate(setup, layouts)
                if said.fit_chance[0] >= FIT_CHANCE or said.memory_bytes[0] <= held:
                    step = simulate(setup, layouts).step_time_s
                    tried.append((step, len(changed), changed, float(said.memory_bytes[0])))
        if not tried:
            return out
        step, _, changed, held = min(tried, key=lambda one: one[:2])
        out.append((", ".join(f"{name} {row[name]} to {value}" for name, value in changed.items()), step, held / GIB))
        row = row | changed


def changes(only: list[str]) -> None:
    """Prints for each recipe that is over 8 % slower what to change, from the change that saves most to the least."""
    for recipe in recipes():
        if only and not any(part in recipe["recipe"] for part in only):
            continue
        run, best = read(recipe), our_fastest(recipe)
        step = simulate(run.profile, run.layouts).step_time_s
        if step <= 1.08 * best["step_time_s"]:
            continue
        print(recipe["recipe"].removesuffix("_config"), f"{step:.4g} s", flush=True)
        for words, after, memory in way(run.profile, run.layouts.row(0), best["layout"]):
            print(f"  {words}: {after:.4g} s, {after / step - 1.0:+.1%}, {memory:.0f} GiB", flush=True)


def main(only: list[str]) -> None:
    """Prints the table, a row as it is done; only: parts of names, or nothing for all recipes."""
    titles = ["recipe", "as it is", "step s", "GiB", "our fastest that fits", "step s", "recipe is slower by"]
    print("|", " | ".join(titles), "|")
    print("|", " | ".join(["---"] * len(titles)), "|", flush=True)
    for recipe in recipes():
        if not only or any(part in recipe["recipe"] for part in only):
            print("|", " | ".join(compared(recipe)), "|", flush=True)


if __name__ == "__main__":
    if "--changes" in sys.argv:
        changes([word for word in sys.argv[1:] if word != "--changes"])
    else:
        main(sys.argv[1:])
