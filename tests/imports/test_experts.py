"""What a script of Megatron-LM says of its experts' dispatch is what is counted, whichever profile it is read with."""

import pytest

from planner.api.existing_run import review_megatron
from planner.base.errors import InputError, LayoutError
from planner.costs.case import Case
from planner.costs.layer.expert_routing import takes_turns
from planner.exporters.plan_export import export_plan, get_target
from planner.hardware import load_cluster, load_framework
from planner.imports.megatron import megatron_run
from planner.imports.run import ExistingRun
from planner.layouts import Layouts, Split
from planner.models import load_model
from planner.plan_file import SavedPlan
from planner.setup import Setup
from planner.step.estimate import estimate

QWEN = (
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 8 --num-virtual-stages-per-pipeline-rank 4 "
    "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split "
    "--expert-model-parallel-size 32 --expert-tensor-parallel-size 1 --sequence-parallel --micro-batch-size 1 "
    "--global-batch-size 2048 --seq-length 4096 --bf16 --use-distributed-optimizer "
    "--overlap-grad-reduce --overlap-param-gather --moe-token-dispatcher-type alltoall "
    "--recompute-granularity selective --recompute-modules layernorm moe_act "
)
OVERLAP, FUSED = "--overlap-moe-expert-parallel-comm", "--moe-permute-fusion --moe-router-fusion"


def read(text: str, framework: str = "megatron-core", model: str = "qwen3-235b-a22b") -> ExistingRun:
    return megatron_run(
        text, load_cluster("dgx-h100"), load_framework(framework), gpus=256, model=model, vocab=None
    )  # fmt: skip


def step(run: ExistingRun) -> float:
    return float(estimate(run.setup, run.layouts).step_time_s[0])


def test_an_overlap_that_is_asked_for_counts_under_a_profile_without_it():
    plain, both = read(QWEN), read(f"{QWEN} {OVERLAP} --delay-wgrad-compute")
    assert both.setup.framework.overlap_experts == load_framework("megatron-bridge").overlap_experts
    assert both.profile.framework.overlap_experts == both.setup.framework.overlap_experts
    assert plain.setup.framework.overlap_experts == 0.0
    assert step(both) < 0.9 * step(plain)
    assert not both.unknown


def test_fused_routing_is_the_scripts():
    """Off by default (transformer_config.py: moe_permute_fusion, moe_router_fusion)."""
    assert step(read(f"{QWEN} {FUSED}")) < step(read(QWEN))
    for framework in ("megatron-core", "megatron-bridge-alltoall"):
        assert read(f"{QWEN} {FUSED}", framework).setup.framework.fused_routing
        assert not read(QWEN, framework).setup.framework.fused_routing
    assert read(QWEN, "megatron-bridge-alltoall").switches[FUSED] == ("fused_routing",)
    one = read(f"{QWEN} --moe-permute-fusion")
    assert not one.setup.framework.fused_routing
    assert any(note.startswith("--moe-permute-fusion alone") for note in one.notes)


@pytest.mark.parametrize(
    ("change", "needed"),
    [
        (("--num-virtual-stages-per-pipeline-rank 4", ""), "virtual stages beside pp 8"),
        (("--expert-model-parallel-size 32", ""), "--expert-model-parallel-size above 1"),
        (("selective --recompute-modules layernorm moe_act", "full"), "no full recomputation"),
        (("--bf16", ""), "--bf16 or --fp16"),
        (("alltoall", "allgather"), "--moe-token-dispatcher-type alltoall or flex"),
        (("--bf16", "--bf16 --moe-shared-expert-overlap"), "no --moe-shared-expert-overlap"),
        (
            ("--bf16", "--bf16 --cuda-graph-impl transformer_engine --cuda-graph-scope moe"),
            "no --cuda-graph-scope",
        ),
    ],
)
def test_what_megatron_core_refuses_of_the_overlap_is_refused(change, needed):
    """core_v0.16.1, transformer_config.py: the asserts of overlap_moe_expert_parallel_comm."""
    changed = QWEN.replace(*change)
    if "pipeline-rank" in change[0]:
        changed = changed.replace("--account-for-embedding-in-pipeline-split", "").replace(
            "--account-for-loss-in-pipeline-split", "--decoder-first-pipeline-num-layers 10"
        )
    with pytest.raises(LayoutError, match=f"Megatron-LM refuses {OVERLAP} here; it needs {needed}"):
        read(f"{changed} {OVERLAP}")


def test_a_module_of_multi_token_prediction_needs_a_pipeline_beside_the_overlap():
    setup = Setup(load_model("deepseek-v3-mtp"), load_cluster("dgx-h100"), load_framework("megatron-bridge"))
    piped = Layouts.of(dp=8, ep=8, pp=[1, 4], virtual_stages=[1, 2], schedule="interleaved", global_batch=64)
    assert takes_turns(Case.of(setup, piped)).tolist() == [False, True]


def test_delayed_weight_gradients_need_the_overlap():
    with pytest.raises(InputError, match="--delay-wgrad-compute stands without --overlap-moe-expert-parallel-comm"):
        read(f"{QWEN} --delay-wgrad-compute")


@pytest.mark.parametrize("framework", ["megatron-bridge", "megatron-bridge-overlap", "megatron-bridge-alltoall"])
def test_a_plan_of_megatron_bridge_reads_back_with_its_seconds(framework):
    asked = Setup(load_model("qwen3-30b-a3b"), load_cluster("dgx-h100"), load_framework(framework))
    layouts = Layouts.of(dp=32, ep=8, zero=1, global_batch=256, layer_split=Split.EVEN)
    text = export_plan(SavedPlan(setup=asked, layouts=layouts, record={}), get_target("megatron")).text
    run = megatron_run(text, asked.cluster, asked.framework, gpus=32, model=None, vocab=None, attention="flash2")
    assert step(run) == pytest.approx(float(estimate(asked, layouts).step_time_s[0]), rel=1e-12)
    # What the script says of experts counts under another profile too.
    other = megatron_run(text, asked.cluster, load_framework("megatron-core"), gpus=32, model=None, vocab=None)
    same = ("overlap_experts", "fused_routing")
    own = [getattr(asked.framework, name) for name in same]
    assert [getattr(other.setup.framework, name) for name in same] == own


def test_another_dispatcher_is_a_change_to_try_and_the_best_has_it():
    known = {"gpus": 256, "model": "qwen3-235b-a22b", "vocab": None}
    record = review_megatron(QWEN, "dgx-h100", **known).record
    turned = next(one for one in record["single_changes"] if one["change"] == "turn on --moe-enable-deepep")
    flex = QWEN.replace("alltoall", "flex --moe-enable-deepep")
    there = review_megatron(flex, "dgx-h100", **known).record
    assert turned["step_time_s"] == pytest.approx(there["step_time_s"], rel=1e-9)
    assert record["best_runnable"]["step_time_s"] <= there["step_time_s"]
