"""A run from DeepSpeed's JSON; model and GPUs come from elsewhere."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from planner.base.errors import FileFormatError, InputError, LayoutError, one_line, shown
from planner.base.files import read_json
from planner.choices.choice import whole
from planner.hardware import Framework
from planner.imports.names import ignored
from planner.imports.run import FORMATS, ExistingRun, Fields, stated_gradients
from planner.question import as_it_has, one_layout
from planner.setup import Setup
from planner.step.legality import check_legal

AUTO = {"global_batch": "train_batch_size", "micro_batch": "train_micro_batch_size_per_gpu"}
"""Fields that Hugging Face's trainer fills in where they are "auto", by the choice that says what with."""


def deepspeed_run(
    path: Path, profile: Setup, *, gpus: int, filled: Mapping[str, Any] = MappingProxyType({}), **python: Any
) -> ExistingRun:
    """The run that a DeepSpeed configuration describes.

    filled: global_batch, micro_batch and precision for what the JSON leaves "auto", None for not given. python: the
    layout's choices that the JSON can't say: pp, ep, recompute, attention.

    Raises FileFormatError for a key that is missing, left to be filled in, of the wrong kind or out of range;
    LayoutError for numbers that contradict each other, or a layout that breaks a rule.
    """
    config = Fields(path, read_json(path), "an object")
    notes: list[str] = []
    stage = config.number("zero_optimization.stage", least=0, most=3)
    tp = config.number("tensor_parallel.autotp_size", least=0) or 1
    pipeline = config.table("pipeline")
    if isinstance(pipeline.get("stages"), int):
        python["pp"] = config.number("pipeline.stages")
    if pipeline.get("activation_checkpoint_interval") and python["recompute"] == "none":
        python["recompute"] = "full"
    if whole("gpus", gpus) % (tp * python["pp"]):
        raise LayoutError(f"{gpus} GPUs aren't a multiple of tp {tp} * pp {python['pp']}")
    dp = gpus // (tp * python["pp"])
    batch, micro = _batch(config, dp, tp, filled, notes)
    moved = config.table("zero_optimization.offload_optimizer")
    offload, ratio = moved.get("device", "none") != "none", moved.get("ratio", 1.0)
    if type(ratio) not in (int, float) or not 0 <= ratio <= 1:
        raise config.wrong("zero_optimization.offload_optimizer.ratio", "a number from 0 to 1")
    parameters = config.table("zero_optimization.offload_param").get("device", "none") != "none"
    if config.get("activation_checkpointing") is not None and python["recompute"] == "none":
        notes.append("activation_checkpointing: the model's code turns it on; ask for recompute full if it does")
    precision = _precision(config, filled, notes)
    layouts = one_layout(
        profile.cluster, global_batch=batch, dp=dp, tp=tp, micro_batch=micro, zero=stage, precision=precision,
        offload_optimizer=offload, offload_fraction=float(ratio) if offload else 1.0, offload_parameters=parameters,
        **_gradients(config, precision, profile.framework), **as_it_has(profile.framework, python),
    )  # fmt: skip
    check_legal(profile.model, profile.cluster, layouts)
    actual, switches = _turned_off(config.table("zero_optimization"), stage, dp, profile.framework)
    no_matter = ignored("deepspeed")
    unknown = tuple(one_line(key) for key in config.content if key not in {*config.read, *no_matter})
    return ExistingRun(
        title="DeepSpeed", setup=replace(profile, framework=actual), layouts=layouts, profile=profile,
        switches=switches, notes=tuple(notes), unknown=unknown,
        ignored=sum(key in no_matter for key in config.content),
    )  # fmt: skip


def _precision(config: Fields, filled: Mapping[str, Any], notes: list[str]) -> str:
    """The number format that is enabled, or where that is "auto" the one given, else bf16."""
    bf16, fp16 = (config.one_of(f"{x}.enabled", (True, False, "auto"), False) for x in ("bf16", "fp16"))
    given = filled.get("precision")
    if "auto" in (bf16, fp16) and True not in (bf16, fp16):
        notes.append(f"bf16.enabled or fp16.enabled is 'auto': counted as --precision {given or 'bf16'}")
        return given or "bf16"
    if given is not None:
        raise InputError(f"--precision {shown(given)} stands beside bf16.enabled of {config.path}; change it there")
    return "bf16" if bf16 is True else "fp16" if fp16 is True else "fp32"


def _gradients(config: Fields, precision: str, f: Framework) -> dict[str, str]:
    """The number formats in which gradients add up and are summed, where the profile has others.

    In 16-bit training gradients add up in bf16 unless data_types.grad_accum_dtype says otherwise
    (deepspeed/runtime/engine.py: get_data_types).
    """
    fields = ("data_types.grad_accum_dtype", "communication_data_type")
    kept, sent = (FORMATS.get(config.one_of(field, FORMATS, ""), "") for field in fields)
    kept = kept or ("fp32" if precision in ("fp32", "tf32") else "bf16")
    return stated_gradients(f, precision, kept, sent or kept)


def _batch(config: Fields, dp: int, tp: int, filled: Mapping[str, Any], notes: list[str]) -> tuple[int, int]:
    """Sequences per step and per micro-batch, of the three numbers any two, or one; DeepSpeed's own rules.

    Without an mpu it counts tensor ranks, which train on the same sequences, as replicas (runtime/config.py).
    """
    keys = (*AUTO.values(), "gradient_accumulation_steps")
    auto = [key for key in keys if config.get(key) == "auto"]
    batch, micro, steps = (0 if key in auto else config.number(key) for key in keys)
    for name, field in AUTO.items():
        if filled.get(name) is not None and field not in auto:
            raise InputError(f"--{name.replace('_', '-')} stands beside {field} of {config.path}; change it there")
    batch, micro = batch or filled.get("global_batch") or 0, micro or filled.get("micro_batch") or 0
    if keys[1] in auto and not micro and not (batch and steps):
        micro = 1
        notes.append(f"{keys[1]} is 'auto': counted as 1; give --micro-batch")
    if keys[0] in auto and not (batch or steps):
        raise FileFormatError(
            f"{config.path}: field {keys[0]} is 'auto', which the trainer fills in; give --global-batch"
        )
    if not batch and not micro:
        raise FileFormatError(f"{config.path}: field {keys[0]} is missing; allowed: it or {keys[1]}")
    least = (micro or 1) * (steps or 1) * dp
    counted = batch and keys[0] not in auto
    if tp > 1 and counted and batch % (least * tp) == 0 and not (micro and steps and batch == least):
        batch //= tp
        notes.append(
            f"{keys[0]} counts each of tp {tp} ranks as a replica, without an mpu: a step has {batch} sequences"
        )
    batch = batch or micro * (steps or 1) * dp
    micro = micro or batch // (dp * (steps or 1))
    if micro < 1 or batch % (micro * dp) or (steps and batch != micro * steps * dp):
        shown_steps = "" if not steps else f" * {keys[2]} {steps}"
        raise LayoutError(
            f"{config.path}: {keys[0]} {batch} isn't {keys[1]} {micro}{shown_steps} * {dp} data-parallel replicas"
        )
    return batch, micro


def _turned_off(
    zero: dict[str, Any], stage: int, dp: int, f: Framework
) -> tuple[Framework, dict[str, tuple[str, ...]]]:
    """The profile without the overlap that a ZeRO run doesn't turn on; by default only stage 3 overlaps."""
    nothing = f.overlap_grad_reduce == 0 == f.overlap_grad_reduce_pipelined
    if dp == 1 or stage == 0 or zero.get("overlap_comm", stage == 3) or nothing:
        return f, {}
    fields = ("overlap_grad_reduce", "overlap_grad_reduce_pipelined")
    return replace(f, overlap_grad_reduce=0.0, overlap_grad_reduce_pipelined=0.0), {'"overlap_comm": true': fields}
