"""What a run stated by columns alone is taken to have had: what its framework does unless told otherwise."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.hardware import Framework, load_framework
from planner.validation import predict
from planner.validation.runs import MeasuredRun, read_runs

ROW = {
    "source": "unheard-of", "run": "1", "model": "llama3-8b", "cluster": "dgx-h100", "n_gpus": 64, "precision": "bf16",
    "global_batch": 64, "micro_batch": 1, "tp": 2, "pp": 1, "zero": 1, "recompute": "full", "outcome": "ok",
}  # fmt: skip


def run(tmp_path: Path, **cells: Any) -> MeasuredRun:
    path = tmp_path / "runs.csv"
    row = ROW | cells
    path.write_text(",".join(row) + "\n" + ",".join(str(v) for v in row.values()) + "\n")
    return read_runs(path)[0]


def took(of: MeasuredRun, **unstated: Any) -> float:
    """Predicted seconds, where the framework's profile said otherwise of what isn't stated."""

    def other(name: str) -> Framework:
        framework = load_framework(name)
        return replace(framework, unstated=replace(framework.unstated, **unstated))

    return float(predict([of], framework_of=other).step_time_s[0])


@pytest.mark.parametrize("framework", ["megatron-lm", "megatron-core", "megatron-deepspeed"])
def test_gradients_wait_for_the_last_pass_unless_megatron_is_told_to_overlap_them(tmp_path, framework):
    of = run(tmp_path, framework=framework, tp=1, n_gpus=64)
    assert took(of) == took(of, reduction="exposed") > took(of, reduction="hidden")


def test_zero_3_reduces_beside_the_backward_pass_whatever_is_said_of_less(tmp_path):
    of = run(tmp_path, framework="megatron-deepspeed", tp=1, zero=3)
    assert took(of) == took(of, reduction="hidden") == took(of, reduction="exposed")


@pytest.mark.parametrize("framework", ["nemo", "megatron-bridge", "megatron-core-deepep", "fsdp", "torchtitan"])
def test_recipes_of_nvidia_and_pytorch_reduce_beside_the_passes(tmp_path, framework):
    of = run(tmp_path, framework=framework)
    assert took(of) == took(of, reduction="hidden", tensor="hidden", loss="") < took(of, reduction="exposed")


def test_tensor_ranks_of_megatron_core_wait_unless_told_otherwise(tmp_path):
    """--tp-comm-overlap is off unless given, in Primus' configurations too."""
    for framework in ("megatron-core", "primus"):
        of = run(tmp_path, framework=framework, tp=8)
        assert took(of) == took(of, tensor="exposed") > took(of, tensor="hidden")


def test_cross_entropy_is_one_kernel_in_recipes_alone(tmp_path):
    core, primus = (run(tmp_path, framework=name, tp=1) for name in ("megatron-core", "primus"))
    assert took(core) == took(core, loss="megatron-lm") > took(core, loss="megatron-core")
    assert took(primus) == took(primus, loss="megatron-core") < took(primus, loss="megatron-lm")


@pytest.mark.parametrize(
    ("framework", "whose"),
    [("megatron-lm", "allocator"), ("megatron-core", "allocator"), ("nemo", "allocator"), ("torchtitan", "allocator"),
     ("transformers", "allocator"), ("megatron-deepspeed", "allocator"), ("primus", "device"),
     ("nanotron", "first-rank-allocator"), ("litgpt", "allocated"), ("nemo-automodel", "allocated"),
     ("colossalai", "allocated")],
)  # fmt: skip
def test_peak_memory_is_what_the_frameworks_log_prints(tmp_path, framework, whose):
    of = run(tmp_path, framework=framework, tp=1, pp=2, peak_memory_gib=70)
    if framework in ("transformers", "litgpt"):
        of = replace(of, cells=of.cells | {"pp": 1, "zero": 3})

    def taken(peak: str) -> float:
        own = load_framework(framework)
        other = replace(own, unstated=replace(own.unstated, memory=peak))
        return float(predict([of], framework_of=lambda name: other).memory_bytes[0])

    assert predict([of]).memory_bytes[0] == taken(whose)
    if whose == "allocated":
        assert taken(whose) < taken("allocator")  # logits go before a layer's backward pass
    assert taken("device") - taken("allocator") == pytest.approx(load_framework(framework).reserved_bytes)
    needed = replace(of, cells=of.cells | {"peak_memory_gib": None})
    assert predict([needed]).memory_bytes[0] == taken("device")  # no memory was measured


def test_fsdp_shards_all_states_and_trainer_none_that_fit(tmp_path):
    """PyTorch's FULL_SHARD, Hugging Face's DDP."""
    stages = {"fsdp": 3, "torchtitan": 3, "jax": 3, "transformers": 0}
    for framework, zero in stages.items():
        unsaid, said, other = (
            predict([run(tmp_path, framework=framework, model="llama3.2-1b", tp=1, zero=stage)]).memory_bytes[0]
            for stage in ("", zero, 1)
        )
        assert unsaid == said != other


def test_nanotron_attends_with_flash_attentions_package(tmp_path):
    unsaid, said = (run(tmp_path, framework="nanotron", attention=kernel) for kernel in ("", "flash2"))
    assert took(unsaid) == took(said) > took(run(tmp_path, framework="nanotron", attention="flash3"))


@pytest.mark.parametrize(("framework", "kernel"), [("torchtitan", "flash1"), ("fsdp", "flash1"), ("jax", "flash3")])
def test_pytorch_attends_with_aotriton_on_amds_gpus(tmp_path, framework, kernel):
    cells = {"framework": framework, "cluster": "mi300x-server", "tp": 1, "zero": 3}
    unsaid, said = (run(tmp_path, **cells, attention=name) for name in ("", kernel))
    assert took(unsaid) == took(said)
    assert took(said) == took(unsaid, amd_attention=kernel) != took(unsaid, amd_attention="flash2")


def test_a_run_launched_as_planned_has_its_profile_s_overlaps_dispatcher_and_loss(tmp_path):
    of, planned = run(tmp_path, tp=8), run(tmp_path, tp=8, as_planned="true")
    assert took(planned) == took(of, reduction="hidden", tensor="hidden", loss="") < took(of)
    mixture = {"model": "mixtral-8x7b", "tp": 1, "ep": 8}
    one = planner.estimate("mixtral-8x7b", "dgx-h100", batch=64, dp=64, ep=8, recompute="full")
    assert took(run(tmp_path, **mixture, as_planned="true")) == pytest.approx(one.step_time_s)
    assert took(run(tmp_path, **mixture)) > 1.1 * one.step_time_s  # a plain all-to-all


@pytest.mark.parametrize(("framework", "routing"), [
    ("transformers", "own"), ("megatron-swift", "own"), ("torchtitan", "even"), ("megatron-bridge", "even"),
])  # fmt: skip
def test_trainers_of_public_weights_leave_routers_to_themselves(tmp_path, framework, routing):
    of = run(tmp_path, framework=framework, model="mixtral-8x7b", tp=1, ep=8)
    even, own = (took(of, routing=how) for how in ("even", "own"))
    assert took(of) == {"even": even, "own": own}[routing]
    assert even < own
    dense = run(tmp_path, framework=framework, tp=1)
    assert took(dense, routing="own") == took(dense, routing="even")


@pytest.mark.parametrize(("framework", "mode"), [("llama-factory", "full"), ("fsdp", "none")])
def test_a_trainer_that_recomputes_unless_told_is_taken_to_do_so(tmp_path, framework, mode):
    """LLaMA-Factory's disable_gradient_checkpointing is False; of others what fits is taken."""
    of = run(tmp_path, framework=framework, tp=1, zero=3, model="gpt2", recompute="")
    stated = [run(tmp_path, framework=framework, tp=1, zero=3, model="gpt2", recompute=m) for m in ("none", mode)]
    assert [took(run) == took(of) for run in stated] == [mode == "none", True]
