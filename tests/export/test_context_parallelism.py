"""How context ranks bring tokens together goes out as Megatron-LM's flags and comes back; others say they lack it."""

from __future__ import annotations

import pytest

from planner import Cluster, Model, estimate
from planner.base.errors import LayoutError
from planner.hardware import load_cluster, load_framework
from planner.imports.megatron import megatron_run


def plan(**choices):
    return estimate(Model("llama3-8b"), Cluster("dgx-h100"), batch=16, cp=8, micro_batch=1, **choices)


@pytest.mark.parametrize(
    ("ulysses", "flags"),
    [
        (1, ["--cp-comm-type p2p"]),
        (8, ["--cp-comm-type a2a"]),
        (2, ["--cp-comm-type a2a+p2p", "--hierarchical-context-parallel-sizes 2 4"]),
    ],
)
def test_megatron_takes_it_and_gives_it_back(ulysses, flags):
    text = plan(ulysses=ulysses).export("megatron").text
    assert all(flag in text.replace("'", "") for flag in flags)
    run = megatron_run(
        text, load_cluster("dgx-h100"), load_framework("megatron-core"), gpus=8, model="llama3-8b", vocab=None
    )
    assert run.layouts.row(0)["ulysses"] == ulysses


def test_megatron_bridge_takes_it():
    text = plan(ulysses=2).export("megatron-bridge").text
    assert "cp_comm_type" in text
    assert "hierarchical_context_parallel_sizes" in text
    assert "cp_comm_type" not in plan().export("megatron-bridge").text


@pytest.mark.parametrize("target", ["torchtitan", "accelerate"])
def test_others_say_that_they_lack_it(target):
    assert "ulysses 8: it has no exchange of heads; exported as ulysses 1" in plan(ulysses=8).export(target).text


@pytest.mark.parametrize("sizes", ["2 3", "8", "2 x", "² 4", "9" * 5000 + " 4"])
def test_sizes_that_do_not_fit_are_refused(sizes):
    text = (
        plan(ulysses=2)
        .export("megatron")
        .text.replace("--hierarchical-context-parallel-sizes 2 4", f"--hierarchical-context-parallel-sizes {sizes}")
    )
    with pytest.raises(LayoutError, match=r"sizes is .*; allowed: two numbers whose product is cp 8"):
        megatron_run(
            text, load_cluster("dgx-h100"), load_framework("megatron-core"), gpus=8, model="llama3-8b", vocab=None
        )
