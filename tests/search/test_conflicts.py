"""What a search without a legal layout says: only what is true of everything that was settled."""

import re
from dataclasses import replace

import pytest

from planner.base.errors import InputError, LayoutError
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Precision
from planner.models import load_model
from planner.question import what_is_fixed
from planner.search import Fixed, recommend
from planner.setup import Setup

LLAMA, MIXTRAL = load_model("llama3-70b"), load_model("mixtral-8x7b")
CLUSTER, MEGATRON = load_cluster("dgx-h100"), load_framework("megatron-lm")
NUMERICS = {"precision": Precision.BF16, "attention": Attention.FLASH3}


def refused(model=LLAMA, gpus=64, batch=512, **settled) -> str:
    with pytest.raises(LayoutError) as error:
        recommend(
            Setup(model, CLUSTER, MEGATRON), gpus=gpus, global_batch=batch, fixed=what_is_fixed(**settled), **NUMERICS
        )
    return str(error.value)


CONFLICTS = [
    (
        {"schedule": "zb-v", "pp": 1, "virtual_stages": 3},
        "pp 1, virtual_stages 3: virtual stages need layers divisible by",
    ),
    ({"schedule": "zb-v", "virtual_stages": 4}, "schedule zb-v, virtual_stages 4: zb-v has exactly 2 virtual stages"),
    ({"ep": 8}, "ep 8: ep must divide the experts (1 for a dense model); give another ep"),
    ({"cp": 5}, "cp 5: cp must divide gpus; give another cp"),
    ({"cp": 64}, "cp 64: ranks with less than 256 tokens of the 8192 of a sequence are not searched"),
    ({"tp": 3}, "tp 3: tp must divide gpus; give another tp"),
    ({"tp": [3, 5], "zero": 1}, "tp 3 or 5: tp must divide gpus"),
    ({"tp": 16, "pp": 64}, "tp 16, pp 64: tp * pp must divide gpus; leave out one of tp, pp"),
    ({"micro_batch": 7}, "micro_batch 7: global_batch must be divisible by dp * micro_batch"),
    ({"recompute": "full", "schedule": "zb-h1", "tp": 2}, "schedule zb-h1, recompute full: a split backward"),
]


@pytest.mark.parametrize(("settled", "said"), CONFLICTS)
def test_the_settled_choices_that_conflict_are_named_and_no_others(settled, said):
    text = refused(**settled)
    assert f"no legal layout of llama3-70b on 64 GPUs with global_batch 512 and {said}" in text
    assert "near by" not in text


@pytest.mark.parametrize(
    ("gpus", "batch", "settled"),
    [(64, 512, {"tp": 8, "pp": 5}), (64, 512, {"tp": 2, "pp": 2, "dp": 2, "cp": 2}), (101, 96, {}),
     (64, 512, {"pp": 64, "zero": 1}),
     (64, 512, {"dp": 128, "schedule": "1f1b"})],
)  # fmt: skip
def test_a_number_near_by_is_legal_with_all_that_is_settled(gpus, batch, settled):
    near = int(re.search(r"a legal number of GPUs near by is (\d+)$", refused(gpus=gpus, batch=batch, **settled))[1])
    found = recommend(
        Setup(LLAMA, CLUSTER, MEGATRON), gpus=near, global_batch=batch, fixed=what_is_fixed(**settled), **NUMERICS
    )
    assert found.legal > 0


@pytest.mark.parametrize(
    ("settled", "said"),
    [({"zero": 4}, "zero is 4; allowed: a whole number from 0 to 3"), ({"zero": -1}, "zero is -1; allowed: a whole"),
     ({"micro_batch": -1}, "micro_batch is -1; allowed: a whole number from 1 to 10000000"),
     ({"tp": [2, 0]}, "tp is 0; allowed: a whole number from 1 to 10000000")],
)  # fmt: skip
def test_numbers_out_of_range_are_refused_before_any_search(settled, said):
    with pytest.raises(InputError, match=said):
        what_is_fixed(**settled)
    assert what_is_fixed(zero=0) == Fixed(zero=(0,))


def test_sharding_over_no_ranks_is_said():
    assert "zero 1: zero above 0 needs dp * cp above 1, ranks to shard over" in refused(pp=64, zero=1)


def test_a_named_schedule_that_leaves_no_second_stage_is_part_of_the_conflict():
    """Two GPUs are both context ranks: cp does divide them."""
    fixed = replace(what_is_fixed(schedule="interleaved", cp=2), pipelined=True)
    with pytest.raises(LayoutError) as error:
        recommend(Setup(LLAMA, CLUSTER, MEGATRON), gpus=2, global_batch=4, fixed=fixed, **NUMERICS)
    assert "schedule interleaved, cp 2: interleaved needs at least 2 pipeline ranks" in str(error.value)
    assert str(error.value).endswith("a legal number of GPUs near by is 4")


def test_a_batch_near_by_that_is_legal_is_named_too():
    text = refused(gpus=64, batch=100_001, pp=1, cp=1, tp=8)
    assert text.endswith("; global_batch 100032 is legal; a legal number of GPUs near by is 88")
    recommend(
        Setup(LLAMA, CLUSTER, MEGATRON),
        gpus=64,
        global_batch=100_032,
        fixed=what_is_fixed(pp=1, cp=1, tp=8),
        **NUMERICS,
    )


def test_experts_take_a_number_that_divides_them():
    assert "ep 3: ep must divide the experts (8 here); give another ep" in refused(MIXTRAL, gpus=48, batch=480, ep=3)
