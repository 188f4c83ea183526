"""A run of DeepSpeed from its JSON; the model and what is Python's to say come from elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError, LayoutError, one_line, shown
from planner.base.files import read_json
from planner.choices.choice import LARGEST
from planner.hardware import Framework
from planner.imports.run import ExistingRun, stated_gradients
from planner.question import one_layout
from planner.setup import Setup
from planner.step.legality import check_legal

TOP = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization", "bf16",
    "fp16", "tensor_parallel", "pipeline", "activation_checkpointing", "data_types", "communication_data_type",
)  # fmt: skip
NO_MATTER = (
    "comment", "optimizer", "scheduler", "gradient_clipping", "steps_per_print", "wall_clock_breakdown",
    "prescale_gradients", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "tensorboard", "wandb",
    "csv_monitor", "comms_logger", "flops_profiler", "checkpoint", "dump_state", "bfloat16",
)  # fmt: skip

FORMATS = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16"}
"""DeepSpeed's names of number formats, by their size."""


def deepspeed_run(path: Path, profile: Setup, *, gpus: int, **python: Any) -> ExistingRun:
    """The run that a DeepSpeed configuration describes.

    python: the layout's choices that the JSON can't say: pp, ep, recompute, attention.

    Raises FileFormatError for a key that is missing, left to be filled in, of the wrong kind or out of range;
    LayoutError for numbers that contradict each other, or a layout that breaks a rule.
    """
    config = read_json(path)
    notes: list[str] = []
    zero = _table(config, "zero_optimization", path)
    stage = _number(zero, "stage", path, "zero_optimization.", least=0, most=3) or 0
    tp = _number(_table(config, "tensor_parallel", path), "autotp_size", path, "tensor_parallel.", least=0) or 1
    pipeline = _table(config, "pipeline", path)
    if isinstance(pipeline.get("stages"), int):
        python["pp"] = _number(pipeline, "stages", path, "pipeline.") or 1
    if pipeline.get("activation_checkpoint_interval") and python["recompute"] == "none":
        python["recompute"] = "full"
    if gpus % (tp * python["pp"]):
        raise LayoutError(f"{gpus} GPUs aren't a multiple of tp {tp} * pp {python['pp']}")
    dp = gpus // (tp * python["pp"])
    batch, micro = _batch(config, dp, path)
    moved = _table(zero, "offload_optimizer", path, "zero_optimization.")
    offload, ratio = moved.get("device", "none") != "none", moved.get("ratio", 1.0)
    if type(ratio) not in (int, float) or not 0 <= ratio <= 1:
        field = "zero_optimization.offload_optimizer.ratio"
        raise FileFormatError(f"{path}: field {field} is {shown(ratio)}; allowed: a number from 0 to 1")
    if _table(zero, "offload_param", path, "zero_optimization.").get("device", "none") != "none":
        notes.append("zero_optimization.offload_param: not counted; planner offloads the optimizer's state alone")
    if "activation_checkpointing" in config and python["recompute"] == "none":
        notes.append("activation_checkpointing: the model's code turns it on; ask for recompute full if it does")
    precision = "bf16" if _on(config, "bf16", path) else "fp16" if _on(config, "fp16", path) else "fp32"
    layouts = one_layout(
        profile.cluster, global_batch=batch, dp=dp, tp=tp, micro_batch=micro, zero=stage, precision=precision,
        offload_optimizer=offload, offload_fraction=float(ratio) if offload else 1.0,
        **_gradients(config, precision, stage, profile.framework, path), **python,
    )  # fmt: skip
    check_legal(profile.model, profile.cluster, layouts)
    actual, switches = _turned_off(zero, stage, dp, profile.framework)
    unknown = tuple(one_line(key) for key in config if key not in (*TOP, *NO_MATTER))
    return ExistingRun(
        title="DeepSpeed",
        setup=replace(profile, framework=actual),
        layouts=layouts,
        profile=profile,
        switches=switches,
        notes=tuple(notes),
        unknown=unknown,
        ignored=sum(key in NO_MATTER for key in config),
    )


def _gradients(config: dict[str, Any], precision: str, stage: int, f: Framework, path: Path) -> dict[str, str]:
    """The number formats in which gradients add up and are summed, where the profile has others.

    With ZeRO gradients add up in bf16 unless data_types.grad_accum_dtype says otherwise, without it in fp32
    (deepspeed/runtime/engine.py: get_data_types).
    """
    said = {
        "data_types.grad_accum_dtype": _table(config, "data_types", path).get("grad_accum_dtype"),
        "communication_data_type": config.get("communication_data_type"),
    }
    for key, value in said.items():
        if value is not None and (not isinstance(value, str) or value not in FORMATS):
            raise FileFormatError(f"{path}: field {key} is {shown(value)}; allowed: {', '.join(FORMATS)}")
    kept, sent = (FORMATS.get(value or "", "") for value in said.values())
    kept = kept or ("bf16" if stage or precision == "fp16" else "fp32")
    return stated_gradients(f, precision, kept, sent or kept)


def _batch(config: dict[str, Any], dp: int, path: Path) -> tuple[int, int]:
    """Sequences per step and per micro-batch, of the three numbers any two, or one; DeepSpeed's own rules."""
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    batch, micro, steps = (_number(config, key, path) for key in keys)
    if batch is None and micro is None:
        raise FileFormatError(f"{path}: field {keys[0]} is missing; allowed: it or {keys[1]}")
    if batch is None:
        assert micro is not None
        batch = micro * (steps or 1) * dp
    if micro is None:
        micro = batch // (dp * (steps or 1))
    if micro < 1 or batch % (micro * dp) or (steps is not None and batch != micro * steps * dp):
        shown_steps = "" if steps is None else f" * {keys[2]} {steps}"
        raise LayoutError(
            f"{path}: {keys[0]} {batch} isn't {keys[1]} {micro}{shown_steps} * {dp} data-parallel replicas"
        )
    return batch, micro


def _turned_off(
    zero: dict[str, Any], stage: int, dp: int, f: Framework
) -> tuple[Framework, dict[str, tuple[str, ...]]]:
    """The profile without the overlap that a ZeRO run doesn't turn on; by default only stage 3 overlaps."""
    if (
        dp == 1
        or stage == 0
        or zero.get("overlap_comm", stage == 3)
        or f.overlap_grad_reduce == 0 == f.overlap_grad_reduce_pipelined
    ):
        return f, {}
    fields = ("overlap_grad_reduce", "overlap_grad_reduce_pipelined")
    return replace(f, overlap_grad_reduce=0.0, overlap_grad_reduce_pipelined=0.0), {
        '"overlap_comm": true': fields,
    }


def _table(config: dict[str, Any], key: str, path: Path, where: str = "") -> dict[str, Any]:
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FileFormatError(f"{path}: field {where}{key} is {shown(value)}; allowed: an object")
    return value


def _on(config: dict[str, Any], key: str, path: Path) -> bool:
    value = _table(config, key, path).get("enabled", False)
    if not isinstance(value, bool):
        raise FileFormatError(f"{path}: field {key}.enabled is {shown(value)}; allowed: true or false")
    return value


def _number(
    config: dict[str, Any], key: str, path: Path, where: str = "", *, least: int = 1, most: int = LARGEST
) -> int | None:
    value = config.get(key)
    if value is None:
        return None
    if value == "auto":
        raise FileFormatError(f"{path}: field {where}{key} is 'auto', which the trainer fills in; write the number")
    if type(value) is not int or not least <= value <= most:
        allowed = f"a whole number from {least} to {most}"
        raise FileFormatError(f"{path}: field {where}{key} is {shown(value)}; allowed: {allowed}")
    return value
