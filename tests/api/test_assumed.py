"""What an answer takes for granted is said with it."""

import pytest

import planner
from planner.base.errors import InputError
from planner.report.tables import UNCOUNTED


def test_gradients_optimizer_length_and_network_are_said():
    one = planner.estimate("llama3-8b", "dgx-h100", batch=64, dp=16)
    assert one.assumed == (
        "8,192 tokens per sequence", "products in bf16", "gradients kept in fp32, reduced in fp32 (megatron-core)",
        "Adam with fp32 moments", "8 x 400 Gb/s per node",
    )  # fmt: skip
    assert one.to_dict()["assumed"] == list(one.assumed)


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (100, "20 nodes with 5 of 8 GPUs each"),
        (9, "1 whole node of 8 GPUs and 1 GPU of another"),
        (62, "7 whole nodes of 8 GPUs and 6 GPUs of another"),
        (64, None),
    ],
)
def test_nodes_that_are_filled_in_part_are_said(gpus, said):
    """What the seconds are of."""
    found = planner.estimate("gpt2", "dgx-h100", batch=gpus, dp=gpus).assumed
    assert [phrase for phrase in found if " node" in phrase and "per node" not in phrase] == ([said] if said else [])


def test_what_was_asked_of_gradients_and_the_optimizer_is_said():
    one = planner.estimate("llama3-8b", "dgx-h100", batch=64, dp=8, grad_dtype="bf16", optimizer="muon")
    assert "gradients kept in 16 bits, reduced in 16 bits (as asked)" in one.assumed
    assert "Muon, Adam for embeddings, head and vectors" in one.assumed
    sent = planner.estimate("llama3-8b", "dgx-h100", batch=64, dp=8, grad_reduce_dtype="bf16", optimizer="adam-8bit")
    assert "gradients kept in fp32, reduced in 16 bits (as asked)" in sent.assumed
    assert "Adam with 8-bit moments" in sent.assumed
    plan = planner.recommend("llama3-8b", "dgx-h100", gpus=8, batch=64, optimizer="sgd", grad_dtype="bf16", tp=1)
    assert plan.assumed[2:4] == ("gradients kept in 16 bits, reduced in 16 bits (as asked)", "SGD with momentum")
    assert {one.layout["optimizer"] for one in plan} == {"sgd"}
    narrow = planner.estimate("llama3-8b", "dgx-h100", batch=64, dp=8, framework="torchtitan", main_dtype="bf16")
    assert "gradients kept in 16 bits, reduced in fp32 (torchtitan)" in narrow.assumed
    assert "weights, gradients and moments in bf16 alone, where small updates round away" in narrow.assumed


def test_fp32_gradients_one_node_and_experts():
    kept = planner.estimate("llama3-8b", "dgx-a100-80gb", batch=64, dp=8, framework="megatron-lm")
    assert "gradients kept in fp32, reduced in fp32 (megatron-lm)" in kept.assumed
    assert not any("per node" in phrase for phrase in kept.assumed)
    both = planner.estimate("llama3-8b", "dgx-a100-80gb", batch=64, dp=8, framework="megatron-deepspeed")
    assert any(said.startswith("gradients kept in fp32 beside bf16, reduced in ") for said in both.assumed)
    full = planner.estimate("gpt2", "dgx-a100-80gb", batch=64, dp=8, precision="fp32", framework="fsdp")
    assert {"products in fp32", "gradients kept in fp32, reduced in fp32 (fsdp)"} < set(full.assumed)
    even = (
        "experts evenly loaded, as benchmarks force them (left to itself a router loads the busiest rank "
        "1.7 times the mean: --expert-imbalance)"
    )
    assert even in planner.estimate("mixtral-8x7b", "dgx-h100", batch=64, dp=8, ep=8).assumed
    alone = planner.estimate("mixtral-8x7b", "dgx-h100", batch=64, dp=8, zero=3).assumed
    assert not any("experts" in said for said in alone)  # a rank that has all experts has all tokens' copies


def test_a_long_sequence_is_asked_about():
    plan = planner.recommend(planner.Model("llama3-8b", seq_len=131072), "dgx-h100", gpus=64, batch=16)
    assert plan.assumed[0].startswith("131,072 tokens per sequence (longer than most trainings'")
    assert plan.to_dict()["assumed"] == list(plan.assumed)


def test_whether_layers_are_compiled_is_said_where_both_are_known():
    plain, compiled, other = (
        planner.estimate("llama3-8b", "dgx-h100", batch=64, dp=16, zero=3, framework=name).assumed
        for name in ("torchtitan", "torchtitan-compiled", "megatron-core")
    )
    assert "layers not compiled (--framework torchtitan-compiled counts torch.compile)" in plain
    assert "layers compiled by torch.compile (torchtitan-compiled)" in compiled
    assert not any("compile" in phrase for phrase in other)
    ask = {"batch": 64, "dp": 16, "zero": 3, "precision": "fp8"}
    eager, fused = (
        planner.estimate("llama3-8b", "dgx-h100", framework=name, **ask).assumed
        for name in ("torchtitan", "torchtitan-compiled")
    )
    assert any(phrase.startswith("casts to fp8 as if compiled") for phrase in eager)
    assert not any("casts" in phrase for phrase in fused)


def test_what_offloaded_states_take_of_a_host_is_said():
    """8.03e9 parameters of Llama 3: 16 bytes each of fp32 parameter, moments and gradient, and 2 of the parameter."""
    choices = {"batch": 16, "dp": 8, "zero": 3, "offload_optimizer": True, "framework": "transformers-deepspeed"}
    stated = planner.estimate("llama3-8b", "dgx-h100", **choices, offload_parameters=True)
    assert "offloaded states take 134.62 GiB per node, of its host's 2048.00 GiB" in stated.assumed
    unstated = planner.estimate("llama3-8b", "rtx-4090-server", **choices)
    assert "offloaded states take 119.66 GiB per node, of what its host has, which is not stated" in unstated.assumed
    assert not any(
        "offloaded" in phrase for phrase in planner.estimate("llama3-8b", "dgx-h100", batch=16, dp=8).assumed
    )


def test_norms_are_the_framework_s_own_where_nothing_is_said():
    """Hugging Face's and FSDP's are several operations, as runs of them are taken to be (`planner.validation`)."""
    said = "norms of several kernels (--fused-norm: one)"
    asked = {"gpus": 8, "batch": 64, "top": 1}
    plans = {
        (name, fused): planner.recommend("llama3-8b", "dgx-a100-80gb", framework=name, fused_norm=fused, **asked)
        for name in ("transformers", "fsdp", "torchtitan") for fused in (None, True)
    }  # fmt: skip
    several = [not plan.best.layout["fused_norm"] for plan in plans.values()]
    assert several == [said in plan.assumed for plan in plans.values()] == [True, False, True, False, False, False]
    one = planner.estimate("llama3-8b", "dgx-a100-80gb", batch=64, dp=8, zero=3, framework="transformers")
    assert not one.layout["fused_norm"]


def test_cuda_graphs_are_those_of_the_framework_s_recipes_where_nothing_is_said():
    """Most of NVIDIA's recipes of Blackwell have them, few of H100; torchtitan has none to ask for."""
    said = f"layers replayed as CUDA graphs, {UNCOUNTED}"
    choices = {"batch": 128, "dp": 2, "tp": 4, "sequence_parallel": True}
    for cluster, framework, asked, wanted in (
        ("gb200-nvl72", "nemo", None, True), ("gb200-nvl72", "nemo", False, False), ("dgx-h100", "nemo", None, False),
        ("gb200-nvl72", "megatron-core", None, True), ("dgx-h100", "megatron-core", True, True),
    ):  # fmt: skip
        one = planner.estimate("llama3-8b", cluster, framework=framework, cuda_graphs=asked, **choices)
        assert (one.layout["cuda_graphs"], said in one.assumed) == (wanted, wanted)
    full = planner.estimate("llama3-8b", "gb200-nvl72", cuda_graphs=True, recompute="full", **choices)
    assert "no CUDA graphs: layers recomputed or offloaded have none" in full.assumed
    with pytest.raises(InputError, match="cuda_graphs is on; allowed: off with torchtitan, which replays no layers"):
        planner.estimate("llama3-8b", "dgx-h100", framework="torchtitan", cuda_graphs=True, batch=64, dp=8)


def test_a_search_that_waits_for_launches_says_what_graphs_would_bring():
    asked = {"gpus": 16, "batch": 512, "top": 1}
    plan = planner.recommend(planner.Model("qwen3-30b-a3b", seq_len=4096), "dgx-h100", **asked)
    graphed = planner.recommend(planner.Model("qwen3-30b-a3b", seq_len=4096), "dgx-h100", cuda_graphs=True, **asked)
    assert plan.faster_with["--cuda-graphs"] == graphed.best.step_time_s < 0.95 * plan.best.step_time_s
    assert "Slow for the host's launches: a step takes" in str(plan)
    assert "), whose own buffers are not counted: a few GB" in str(plan)
    assert "--cuda-graphs" not in graphed.faster_with
    assert planner.recommend("llama3-70b", "dgx-h100", gpus=256, batch=1024, top=1).faster_with == {}


def test_chunked_attention_is_said_to_be_counted_as_whole() -> None:
    said = "attention counted as whole, though most layers attend to chunks of 8,192 tokens"
    for seq_len, expected in ((8192, False), (16384, True)):
        one = planner.estimate(planner.Model("llama4-scout", seq_len=seq_len), "dgx-h100", batch=64, dp=64, ep=8)
        assert (said in one.assumed) is expected


def test_how_a_sequence_is_cut_is_said_where_it_is_cut():
    choices = {"batch": 16, "pp": 4, "dp": 2, "schedule": "seq1f1b"}
    cut = planner.estimate("llama3-8b", "dgx-h100", sequence_slices=4, **choices).assumed
    assert "a sequence's 4 slices take equal times (planner simulate --slices: other cuts)" in cut
    assert not any("slices" in said for said in planner.estimate("llama3-8b", "dgx-h100", batch=16, dp=16).assumed)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"tp": 8, "layer_split": "balanced"}, ["layer-split balanced"]),
        ({"tp": 8, "recompute": "full", "cuda_graphs": True}, ["cuda-graphs on"]),
        ({"dp": 8, "sequence_parallel": True, "schedule": "zb-h1"}, ["schedule zb-h1, sequence-parallel on"]),
        ({"tp": 2, "pp": 4, "layer_split": "balanced", "sequence_parallel": True}, []),
        ({"dp": 8, "grad_reduce_dtype": "fp32"}, []),  # as the framework does: another word would change it
    ],
)
def test_options_without_effect_are_named(choices, said):
    """Whichever option it is: what changes neither time nor memory is found by leaving it out."""
    begins = "without effect on this estimate: "
    found = planner.estimate("llama3-8b", "dgx-h100", batch=64, **choices).assumed
    assert [phrase.removeprefix(begins) for phrase in found if phrase.startswith(begins)] == said


def test_a_split_without_which_a_layout_is_illegal_has_an_effect():
    """126 layers, the embedding and the head fill 64 chunks; an even split can't, the others that can take as long."""
    layout = {"dp": 2, "tp": 8, "pp": 8, "virtual_stages": 8, "schedule": "interleaved", "layer_split": "ends"}
    one = planner.estimate("llama3-405b", "mi300x-server", batch=64, zero=1, sequence_parallel=True, **layout)
    assert not any(phrase.startswith("without effect") for phrase in one.assumed)
