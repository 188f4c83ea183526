"""What a profile counts on in the experts' all-to-alls: set where a framework has a field for it, said where not."""

import pytest

from planner.exporters.plan_export import export_plan, get_target
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Dispatcher, Layouts
from planner.models import load_model
from planner.plan_file import SavedPlan
from planner.setup import Setup


def exported(target, framework, ep=8, **more):
    setup = Setup(
        model=load_model("mixtral-8x7b"), cluster=load_cluster("dgx-h100"), framework=load_framework(framework)
    )
    layouts = Layouts.of(**{"global_batch": 64, "dp": 8, "ep": ep, "zero": 1} | more)
    done = export_plan(SavedPlan(setup=setup, layouts=layouts, record={}), get_target(target))
    return done.text


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
def test_dispatch(target):
    counted, plain = exported(target, "megatron-bridge"), exported(target, "megatron-bridge-alltoall")
    assert "deepep" in counted.lower()
    assert "deepep" not in plain.lower()
    assert "overlap_moe_expert_parallel_comm" in counted.replace("-", "_")
    assert "overlap_moe_expert_parallel_comm" not in plain.replace("-", "_")
    assert "alltoall" in plain
    alone = exported(target, "megatron-bridge", ep=1)
    assert "overlap_moe_expert_parallel_comm" not in alone.replace("-", "_")
    # Nothing is counted on where two micro-batches can't take turns.
    piped = exported(target, "megatron-bridge", pp=2)
    assert "overlap_moe_expert_parallel_comm" not in piped.replace("-", "_")


@pytest.mark.parametrize(("framework", "fused"), [("megatron-bridge-alltoall", True), ("megatron-core", False)])
def test_routing_is_fused_where_that_is_predicted(framework, fused):
    """megatron/core/transformer/transformer_config.py: moe_permute_fusion and moe_router_fusion are off by default."""
    script = exported("megatron", framework, dispatcher=Dispatcher.ALLTOALL)
    assert ("--moe-permute-fusion" in script, "--moe-router-fusion" in script) == (fused, fused)
    function = exported("megatron-bridge", framework, dispatcher=Dispatcher.ALLTOALL)
    assert f"model.moe_permute_fusion = {fused}\n" in function
    assert f"model.moe_router_fusion = {fused}\n" in function
    # Beside DeepEP the kernels that are counted are the fused ones (Routing.NODES).
    assert "--moe-permute-fusion" in exported("megatron", framework, dispatcher=Dispatcher.DEEPEP)


def test_two_micro_batches_in_turn():
    """Virtual stages can; the connections that this wants; shared experts that a recipe runs there are turned off."""
    more = {"dp": 4, "tp": 2, "sequence_parallel": True, "pp": 2, "virtual_stages": 2, "schedule": "interleaved"}
    script, plan = (exported(target, "megatron-bridge", **more) for target in ("megatron", "megatron-bridge"))
    assert "--overlap-moe-expert-parallel-comm" in script
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=32" in script
    data = "overlap_grad_reduce=True, overlap_param_gather=True"
    assert f"CommOverlapConfig(tp_comm_overlap=True, {data}, overlap_moe_expert_parallel_comm=True)" in plan
    assert "cfg.model.moe_shared_expert_overlap = False" in plan
    assert "CUDA_DEVICE_MAX_CONNECTIONS=32" in plan
    without = exported("megatron", "megatron-bridge", **more | {"virtual_stages": 1, "schedule": "1f1b"})
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" in without


@pytest.mark.parametrize("model", ["gpt-oss-120b", "deepseek-v3"])
def test_transformer_engine_chooses_the_kernel(model):
    """Flash attention has no learned sinks, nor heads of unlike width on Blackwell: asked for, nothing could run."""
    setup = Setup(load_model(model), load_cluster("dgx-b200"), load_framework("megatron-bridge"))
    for target, option in (("megatron", "--attention-backend "), ("megatron-bridge", "AttnBackend.")):
        for kernel, word in ((Attention.FLASH3, "auto"), (Attention.FLASH2, "flash")):
            layouts = Layouts.of(global_batch=64, dp=64, ep=8, zero=1, attention=kernel)
            done = export_plan(SavedPlan(setup=setup, layouts=layouts, record={}), get_target(target))
            assert option + word in done.text, (target, kernel)
