"""Recomputation of some layers goes out as Megatron-LM's flags and comes back; others say that they lack it."""

from __future__ import annotations

import pytest

from planner import Cluster, Model, estimate
from planner.base.errors import InputError
from planner.hardware import load_cluster, load_framework
from planner.imports.megatron import megatron_run


def plan(**choices):
    question = {"batch": 16, "tp": 4, "pp": 2, "recompute": "full", "sequence_parallel": True} | choices
    return estimate(Model("llama3-8b"), Cluster("dgx-h100"), **question)


def read(text: str):
    return megatron_run(
        text, load_cluster("dgx-h100"), load_framework("megatron-core"), gpus=8, model="llama3-8b", vocab=None
    )


@pytest.mark.parametrize(("layers", "method"), [(0, "uniform 1"), (1, "block 1"), (5, "block 5")])
def test_megatron_takes_it_and_gives_it_back(layers, method):
    text = plan(recompute_layers=layers).export("megatron").text
    name, number = method.split()
    words = text.replace("'", "").replace("\\\n", " ").split()
    assert words[words.index("--recompute-method") + 1] == name
    assert words[words.index("--recompute-num-layers") + 1] == number
    assert read(text).layouts.row(0)["recompute_layers"] == layers


def test_groups_of_layers_are_counted_one_by_one():
    text = plan().export("megatron").text.replace("--recompute-num-layers 1", "--recompute-num-layers 4")
    run = read(text)
    assert run.layouts.row(0)["recompute_layers"] == 0
    assert any("counted as 1, each layer's input kept" in note for note in run.notes)


def test_block_needs_a_number():
    text = plan(recompute_layers=2).export("megatron").text.replace("--recompute-num-layers 2", "")
    with pytest.raises(InputError, match="--recompute-method block needs --recompute-num-layers"):
        read(text)


def test_megatron_bridge_takes_it():
    text = plan(recompute_layers=3).export("megatron-bridge").text
    assert "recompute_method" in text
    assert '"block"' in text


@pytest.mark.parametrize("target", ["torchtitan", "deepspeed"])
def test_others_say_that_they_lack_it(target):
    text = plan(recompute_layers=3, tp=1, pp=1, dp=8, sequence_parallel=False).export(target).text
    assert "recompute_layers 3: " in text
    assert "exported as recompute_layers 0" in text
