"""nvfp4 in other tools' files: Megatron's argument, Megatron-Bridge's recipe, bf16 where a file has no key."""

import pytest

from planner import estimate
from planner.exporters.plan_export import export_plan, get_target


@pytest.fixture(scope="module")
def plan():
    return estimate("llama3-8b", "dgx-b200", batch=64, dp=8, precision="nvfp4", zero=2).as_plan()


def test_megatron_s_argument_and_bridge_s_recipe():
    chosen = estimate("llama3-8b", "dgx-b200", batch=64, dp=8, precision="nvfp4", zero=1).as_plan()
    text = export_plan(chosen, get_target("megatron")).text
    assert "--fp4-format e2m1" in text
    assert "--bf16" in text
    assert "--fp8-format" not in text
    assert "bf16_with_nvfp4_mixed" in export_plan(chosen, get_target("megatron-bridge")).text


@pytest.mark.parametrize(
    ("to", "as_bf16"),
    [
        ("deepspeed", '"enabled": true'),
        ("accelerate", 'mixed_precision: "bf16"'),
        ("torchtitan", "NVFP4LinearConverter"),
    ],
)
def test_others_train_in_bf16_and_say_so(plan, to, as_bf16):
    done = export_plan(plan, get_target(to))
    assert any("precision" in note and "bf16" in note for note in done.notes)
    assert as_bf16 in done.text
