"""DeepSpeed's JSON: older names, sizes of ZeRO, what is refused, and what isn't understood (its own 0.19.8)."""

from typing import Any

import pytest

from planner.api.frameworks import named_framework
from planner.base.errors import PlannerError
from planner.imports.deepspeed import deepspeed_run
from planner.imports.run import ExistingRun
from tests.imports.test_imports import deepspeed, question


def run_of(folder: Any, zero: dict[str, Any] | None = None, **more: Any) -> ExistingRun:
    """A run of 64 sequences in bf16."""
    said = {"train_batch_size": 64, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3} | (zero or {})}
    return deepspeed(folder, said | more)


def test_bfloat16_is_the_older_name_of_bf16(tmp_path):
    """runtime/precision_config.py: get_bfloat16_config reads it where bf16 isn't given."""
    on, off = {"enabled": True}, {"enabled": False}
    assert run_of(tmp_path, bf16=None, bfloat16=on).layouts.row(0)["precision"] == "bf16"
    assert run_of(tmp_path, bf16=off, bfloat16=on).layouts.row(0)["precision"] == "fp32"


@pytest.mark.parametrize(("old", "new"), [("cpu_offload", "offload_optimizer"), ("cpu_offload_param", "offload_param")])
def test_older_names_of_offload_are_read(tmp_path, old, new):
    named = run_of(tmp_path, {new: {"device": "cpu"}}).layouts.row(0)
    assert run_of(tmp_path, {old: True}).layouts.row(0) == named
    assert run_of(tmp_path, {old: False}).layouts.row(0) == run_of(tmp_path).layouts.row(0) != named


def test_sizes_of_zero_are_the_run_s(tmp_path):
    sizes = {"reduce_bucket_size": 2e8, "stage3_max_live_parameters": 0, "sub_group_size": 10**12}
    names = ("reduce_bucket_parameters", "live_parameters", "update_parameters")
    for zero, wanted in (
        (sizes, (2e8, 1.0, 1e12)),  # a profile's 0 is no limit
        ({"reduce_bucket_size": "auto", "max_live_parameters": 7}, (4096.0**2, 7.0, None)),
        ({}, (None, None, None)),
    ):
        run = run_of(tmp_path, zero)
        for name, value in zip(names, wanted, strict=True):
            own = getattr(question().framework, name) if value is None else value
            assert getattr(run.setup.framework, name) == getattr(run.profile.framework, name) == own


def test_what_is_not_understood_is_listed_inside_tables_too(tmp_path):
    zero = {
        "frob": 1, "stage3_prefetch_bucket_size": 5e7, "reduce_scatter": True, "overlap_comm": "auto",
        "zero_quantized_weights": True, "zero_hpz_partition_size": 8, "contiguous_gradients": False,
        "offload_optimizer": {"device": "cpu", "pin_memory": True, "super_offload": True},
    }  # fmt: skip
    optimizer = {"type": "AdamW", "params": {"lr": 1e-4}}
    run = run_of(tmp_path, zero, optimizer=optimizer, bf16={"enabled": True, "frob": True})
    assert set(run.unknown) == {"bf16.frob"} | {
        f"zero_optimization.{name}" for name in (
            "frob", "zero_quantized_weights", "zero_hpz_partition_size", "contiguous_gradients",
            "offload_optimizer.super_offload",
        )
    }  # fmt: skip
    assert run.ignored == 4  # prefetching, reduce_scatter, pinned memory, the optimizer's parameters
    assert '"overlap_comm": true' not in run.switches  # the default of stage 3


@pytest.mark.parametrize(
    ("name", "kind", "noted"), [("AdamW", "adam", 0), ("Adam", "adam", 0), ("SGD", "sgd", 1), ("Muon", "muon", 0)]
)
def test_the_optimizer_is_the_json_s(tmp_path, name, kind, noted):
    run = run_of(tmp_path, {"stage": 1}, optimizer={"type": name})
    assert (run.layouts.row(0)["optimizer"], len(run.notes)) == (kind, noted)


def test_products_under_autocast_are_not_in_fp32(tmp_path):
    for dtype, precision in (("bfloat16", "bf16"), ("fp16", "fp16"), (None, "fp16")):
        said = {"enabled": True} | ({} if dtype is None else {"dtype": dtype})
        run = run_of(tmp_path, bf16=None, torch_autocast=said)
        assert run.layouts.row(0)["precision"] == precision
        assert "its fp32 weights and gradients take more memory" in run.notes[0]
        assert run.unknown == ()
    off = run_of(tmp_path, bf16=None, torch_autocast={"enabled": False})
    assert (off.layouts.row(0)["precision"], off.notes) == ("fp32", ())


ZERO = "zero_optimization"
REFUSED = [
    ({"offload_param": {"device": "nvme"}}, {},
     f"{ZERO}.offload_param.device is 'nvme'; allowed: cpu, none; NVMe isn't counted"),
    ({"offload_optimizer": {"device": "gpu"}}, {}, f"{ZERO}.offload_optimizer.device is 'gpu'; allowed: cpu, none"),
    ({"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}, {},
     f"{ZERO}.offload_optimizer.ratio is 0.5; allowed: 1 at stage 2, less at stage 3"),
    ({"stage": 0, "cpu_offload": True}, {}, f"{ZERO}.stage is 0; allowed: 1 to 3 with offload_optimizer"),
    ({"cpu_offload": False, "offload_optimizer": {"device": "cpu"}}, {},
     f"{ZERO}.cpu_offload is False; allowed: none beside offload_optimizer"),
    ({"cpu_offload": "yes"}, {}, f"{ZERO}.cpu_offload is 'yes'; allowed: true, false"),
    ({"reduce_bucket_size": -1}, {}, f"{ZERO}.reduce_bucket_size is -1; allowed: a whole number from 0 to 1e+18"),
    ({"sub_group_size": 10**400}, {}, f"{ZERO}.sub_group_size is 1"),
    ({"overlap_comm": "yes"}, {}, f"{ZERO}.overlap_comm is 'yes'; allowed: true, false, auto"),
    ({}, {"fp16": {"enabled": True}}, "fp16.enabled is True; allowed: false beside bf16.enabled"),
    ({}, {"bf16": None, "torch_autocast": {"enabled": True, "dtype": "int8"}},
     "torch_autocast.dtype is 'int8'; allowed: bfloat16, bf16, float16, fp16"),
    ({}, {"optimizer": {"type": "Lion"}}, "optimizer.type is 'Lion'; allowed: Adam, AdamW, Muon, SGD"),
    ({}, {"sequence_parallel_size": 2}, "sequence_parallel_size is 2; allowed: 1; sequences cut"),
    ({}, {"expert_parallel": {"enabled": True, "autoep_size": 2}}, "expert_parallel.enabled is True; allowed: false"),
]  # fmt: skip


@pytest.mark.parametrize(("zero", "more", "said"), REFUSED, ids=[said[:40] for _, _, said in REFUSED])
def test_what_deepspeed_or_planner_refuses_is_one_line(tmp_path, zero, more, said):
    with pytest.raises(PlannerError) as caught:
        run_of(tmp_path, zero, **more)
    assert f"ds.json: field {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_yaml_is_told_from_the_json(tmp_path):
    with pytest.raises(PlannerError, match=r"run\.yaml: is YAML; allowed: DeepSpeed's JSON"):
        deepspeed_run(tmp_path / "run.yaml", question(), gpus=8, pp=1, ep=1, recompute="none", attention=None)


def test_an_unknown_framework_is_told_each_name_once():
    with pytest.raises(PlannerError) as caught:
        named_framework("frob")
    names = str(caught.value).partition("allowed: ")[2].partition(".")[0].split(", ")
    assert len(names) == len(set(names)) > 20
