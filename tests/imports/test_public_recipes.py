"""Public recipes (benchmarks/public_recipes.csv) are legal, are read from arguments, and are written as they were."""

import ast

import pytest

from benchmarks.public_recipes import FRAMEWORKS, read, recipes, written
from planner.exporters.target import stage_layers
from planner.hardware import load_cluster, load_framework
from planner.imports.megatron import megatron_run
from planner.step.legality import check_legal

RECIPES = recipes()
WHOLE = ("tp", "pp", "cp", "ep", "micro_batch", "global_batch", "virtual_stages")


def test_there_are_at_least_twenty_of_five_families_and_three_gpus():
    assert len(RECIPES) >= 20
    assert {r["cluster"] for r in RECIPES} == {"dgx-h100", "dgx-b200", "gb200-nvl72"}
    families = {r["model"].split("-")[0] for r in RECIPES}
    assert families == {"llama3", "qwen3", "deepseek", "gpt", "nemotron"}


@pytest.mark.parametrize("recipe", RECIPES, ids=[r["recipe"] for r in RECIPES])
def test_a_public_recipe_is_legal_read_and_written_again(recipe):
    run = read(recipe)
    check_legal(run.setup.model, run.setup.cluster, run.layouts)
    row = run.layouts.row(0)
    assert {name: row[name] for name in WHOLE} == {name: int(recipe[name]) for name in WHOLE}
    assert int(run.layouts.gpus[0]) == int(recipe["gpus"])
    assert row["precision"] == recipe["precision"]
    assert row["pipeline_layout"] == recipe["layout"]
    assert row["dispatcher"] == (recipe["dispatcher"] or "framework")
    assert not run.unknown
    if run.setup.model.num_ssm_layers:  # Megatron-LM trains it by another script, which is not written
        text, again = written(run, "megatron-bridge")
        ast.parse(text)
        assert again == row
        return
    text, again = written(run)
    assert again == row
    cluster, framework = load_cluster(recipe["cluster"]), load_framework(FRAMEWORKS[recipe["overlap"]])
    back = megatron_run(text, cluster, framework, gpus=int(recipe["gpus"]), model=recipe["model"], vocab=None)
    now = back.layouts.row(0)
    if recipe["layout"]:
        assert recipe["layout"] in text
    else:  # uneven stages that were said in numbers are written one by one
        row |= {name: now[name] for name in ("layer_split", "pipeline_layout")}
        assert stage_layers(back.setup, back.layouts) == stage_layers(run.setup, run.layouts)
    assert now == row
