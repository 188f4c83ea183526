"""States in host memory on few GPUs, as frameworks have them."""

import pytest

import planner
from planner import InputError, estimate, recommend

ASKED = {"gpus": 1, "batch": 16, "allow_offload": True, "top": 1}


@pytest.mark.parametrize("framework", ["accelerate", "transformers-deepspeed"])
def test_one_gpu_shards_between_itself_and_its_host(framework):
    """7B on one card of 24 GB: parameters and gradients go to the host with ZeRO alone."""
    best = recommend(planner.Model("llama2-7b", seq_len=2048), "rtx-4090-server", framework=framework, **ASKED).best
    assert best.layout["offload_optimizer"]
    assert best.layout["zero"] > 0


def test_deepspeed_offloads_with_zero_and_hugging_faces_models_have_no_sequence_parallelism():
    asked = ASKED | {"gpus": 8, "batch": 64}
    model = planner.Model("llama2-7b", seq_len=2048)
    layouts = recommend(model, "rtx-3090-server", framework="deepspeed", **asked).found.estimate.layouts
    assert not (layouts.offload_optimizer & (layouts.zero == 0)).any()
    for framework in ("transformers", "transformers-deepspeed"):
        layouts = recommend(model, "rtx-3090-server", framework=framework, **asked).found.estimate.layouts
        assert not layouts.sequence_parallel.any()


@pytest.mark.parametrize("framework", ["fsdp", "torchtitan", "megatron-core"])
def test_parameters_alone_are_deepspeeds_to_move(framework):
    told = f"offload_parameters is on; allowed: off with {framework}, which moves them with the optimizer's state"
    with pytest.raises(InputError, match=told):
        estimate("llama2-7b", "dgx-h100", batch=16, dp=4, zero=3, offload_parameters=True, framework=framework)
    with pytest.raises(InputError, match=told):
        recommend("llama2-7b", "dgx-h100", gpus=8, batch=16, offload_parameters=True, framework=framework)


def test_activations_go_to_the_host_though_many_pipelines_that_recompute_are_faster():
    """Qwen3-30B on a node: the fastest that recompute all layers are pipelines, which can't move activations."""
    plan = planner.recommend("qwen3-30b-a3b", "dgx-h100", gpus=8, batch=64, allow_offload=True)
    fastest = plan.to_dict()["fastest"]
    assert fastest["layout"]["offload_layers"] > 0
    assert fastest["step_time_s"] < 0.96 * plan.best.step_time_s
