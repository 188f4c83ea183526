"""A run from DeepSpeed's JSON; model and GPUs come from elsewhere."""

import json
from collections.abc import Iterator, Mapping
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
OPTIMIZERS = {"adam": "adam", "adamw": "adam", "muon": "muon", "sgd": "sgd"}
"""DeepSpeed's names of optimizers, in any case of their letters, by planner's."""
ZERO = "zero_optimization"
SIZES = {
    "reduce_bucket_size": "reduce_bucket_parameters", "stage3_max_live_parameters": "live_parameters",
    "max_live_parameters": "live_parameters", "sub_group_size": "update_parameters",
}  # fmt: skip
"""Sizes of ZeRO, by the figures of a framework's profile that they are."""
MOST_PARAMETERS = 1e18


def deepspeed_run(
    path: Path, profile: Setup, *, gpus: int, filled: Mapping[str, Any] = MappingProxyType({}), **python: Any
) -> ExistingRun:
    """The run that a DeepSpeed configuration describes.

    filled: global_batch, micro_batch and precision for what the JSON leaves "auto", None for not given. python: the
    layout's choices that the JSON can't say: pp, ep, recompute, attention, train; optimizer where it doesn't say it.

    Raises InputError for a choice that stands in both; FileFormatError for a key that is missing, left to be filled in,
    of the wrong kind or out of range; LayoutError for numbers that contradict each other, or a layout that breaks a
    rule.
    """
    if path.suffix in (".yaml", ".yml"):
        raise FileFormatError(
            f"{path}: is YAML; allowed: DeepSpeed's JSON, which Accelerate's YAML names as deepspeed_config_file"
        )
    config = Fields(path, read_json(path), "an object")
    notes: list[str] = []
    _refuse_unread(config)
    profile = replace(profile, framework=_sized(config, profile))
    stage = config.number(f"{ZERO}.stage", least=0, most=3)
    tp = config.number("tensor_parallel.autotp_size", least=0) or 1
    pipeline = config.table("pipeline")
    if isinstance(pipeline.get("stages"), int):
        python["pp"] = config.number("pipeline.stages")
    if config.get("pipeline.activation_checkpoint_interval") and python["recompute"] == "none":
        python["recompute"] = "full"
    tp = tp if python["pp"] == 1 or tp > 1 else _ranks_of_modules(config, whole("gpus", gpus) // python["pp"])
    if whole("gpus", gpus) % (tp * python["pp"]):
        raise LayoutError(f"{gpus} GPUs aren't a multiple of tp {tp} * pp {python['pp']}")
    dp = gpus // (tp * python["pp"])
    batch, micro = _batch(config, dp, tp, filled, notes)
    if config.get("activation_checkpointing") is not None and python["recompute"] == "none":
        notes.append("activation_checkpointing: the model's code turns it on; ask for recompute full if it does")
    precision, python["optimizer"] = _precision(config, filled, notes), _optimizer(config, python, notes)
    offload, share, parameters = _offloaded(config, stage)
    layouts = one_layout(
        profile.cluster, global_batch=batch, dp=dp, tp=tp, micro_batch=micro, zero=stage, precision=precision,
        offload_optimizer=offload, offload_fraction=share, offload_parameters=parameters,
        **_states(config, precision), **_gradients(config, precision, profile.framework),
        **as_it_has(profile, python),
    )  # fmt: skip
    check_legal(profile.model, profile.cluster, layouts)
    actual, switches = _turned_off(config, stage, dp, profile.framework)
    others = dict(_others(config, config.content))
    return ExistingRun(
        title="DeepSpeed", setup=replace(profile, framework=actual), layouts=layouts, profile=profile,
        switches=switches, notes=tuple(notes),
        unknown=tuple(one_line(key) for key in others if not others[key]), ignored=sum(others.values()),
    )  # fmt: skip


def _others(config: Fields, table: dict[str, Any], above: str = "") -> Iterator[tuple[str, bool]]:
    """The fields that weren't read, by dotted name, and whether they change neither time nor memory."""
    no_matter = ignored("deepspeed-tables" if above else "deepspeed")
    for key, value in table.items():
        name, plain = above + key, key.removeprefix("stage3_")
        if isinstance(value, dict) and any(read.startswith(f"{name}.") for read in config.read):
            yield from _others(config, value, f"{name}.")
        elif name not in config.read:
            yield name, plain in no_matter or f"{plain} {json.dumps(value)}" in no_matter


def _refuse_unread(config: Fields) -> None:
    """Raises FileFormatError for ways to cut a model that aren't read."""
    if config.number("sequence_parallel_size", 1) > 1:
        raise config.wrong("sequence_parallel_size", "1; sequences cut over GPUs aren't read")
    if config.get("expert_parallel.enabled"):
        raise config.wrong("expert_parallel.enabled", "false; experts cut by the model's own code are --ep")


def _sized(config: Fields, profile: Setup) -> Framework:
    """The profile with the sizes that ZeRO is given; Hugging Face's trainer makes an "auto" bucket of a matrix."""
    sizes: dict[str, Any] = {}
    for key, figure in SIZES.items():
        size = config.get(f"{ZERO}.{key}")
        if size == "auto" and key == "reduce_bucket_size":
            size = profile.model.hidden**2
        if size in (None, "auto"):
            continue
        if type(size) not in (int, float) or not 0 <= size <= MOST_PARAMETERS or size % 1:
            raise config.wrong(f"{ZERO}.{key}", f"a whole number from 0 to {MOST_PARAMETERS:.0e}")
        sizes[figure] = float(size) or 1.0  # a profile's 0 is no limit
    return replace(profile.framework, **sizes)


def _offloaded(config: Fields, stage: int) -> tuple[bool, float, bool]:
    """Whether the optimizer is in host memory, its share, whether parameters are: by a table or its older name."""
    on_host = {}
    for part, old in (("offload_optimizer", "cpu_offload"), ("offload_param", "cpu_offload_param")):
        device = config.get(f"{ZERO}.{part}.device")
        if device not in (None, "none", "cpu"):
            raise config.wrong(f"{ZERO}.{part}.device", "cpu, none; NVMe isn't counted")
        if config.get(f"{ZERO}.{old}") is not None and config.get(f"{ZERO}.{part}") is not None:
            raise config.wrong(f"{ZERO}.{old}", f"none beside {part}")
        on_host[part] = device == "cpu" or config.one_of(f"{ZERO}.{old}", (True, False), False)
    ratio = config.get(f"{ZERO}.offload_optimizer.ratio")
    ratio = 1.0 if ratio is None else ratio
    if type(ratio) not in (int, float) or not 0 <= ratio <= 1:
        raise config.wrong(f"{ZERO}.offload_optimizer.ratio", "a number from 0 to 1")
    if ratio < 1 and stage < 3:
        raise config.wrong(f"{ZERO}.offload_optimizer.ratio", f"1 at stage {stage}, less at stage 3")
    optimizer = on_host["offload_optimizer"]
    if optimizer and stage == 0:
        raise FileFormatError(f"{config.path}: field {ZERO}.stage is 0; allowed: 1 to 3 with offload_optimizer")
    return optimizer, float(ratio) if optimizer else 1.0, on_host["offload_param"]


def _optimizer(config: Fields, python: Mapping[str, Any], notes: list[str]) -> str | None:
    """The optimizer of the JSON, else the one given."""
    name, given = config.get("optimizer.type"), python.get("optimizer")
    if name is None:
        return given
    kind = OPTIMIZERS.get(str(name).lower())
    if kind is None:
        raise config.wrong("optimizer.type", "Adam, AdamW, Muon, SGD")
    if given not in (None, kind):
        raise InputError(f"--optimizer {shown(given)} stands beside optimizer.type of {config.path}; change it there")
    params = config.table("optimizer").get("params")
    if kind == "sgd" and not (isinstance(params, dict) and params.get("momentum")):
        notes.append("optimizer.type SGD without momentum: counted with it")
    return kind


def _precision(config: Fields, filled: Mapping[str, Any], notes: list[str]) -> str:
    """The number format that is enabled, or where that is "auto" the one given, else bf16."""
    half = "bf16" if config.get("bf16") is not None else "bfloat16"  # the older name (runtime/precision_config.py)
    bf16, fp16 = (config.one_of(f"{x}.enabled", (True, False, "auto"), False) for x in (half, "fp16"))
    if bf16 is True is fp16:
        raise config.wrong("fp16.enabled", f"false beside {half}.enabled")
    given = filled.get("precision")
    if "auto" in (bf16, fp16) and True not in (bf16, fp16):
        notes.append(f"bf16.enabled or fp16.enabled is 'auto': counted as --precision {given or 'bf16'}")
        return given or "bf16"
    if given is not None:
        raise InputError(f"--precision {shown(given)} stands beside bf16.enabled of {config.path}; change it there")
    if bf16 is True or fp16 is True:
        return "bf16" if bf16 is True else "fp16"
    return _autocast(config, notes) if config.one_of("torch_autocast.enabled", (True, False), False) else "fp32"


def _autocast(config: Fields, notes: list[str]) -> str:
    """The number format of products under PyTorch's autocast, whose parameters stay in fp32 (runtime/torch_autocast.py:
    linear layers' are gathered and summed in the products' format); without a word it is PyTorch's own, fp16."""
    theirs = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16"}
    precision = theirs[config.one_of("torch_autocast.dtype", theirs, "float16")]
    notes.append(f"torch_autocast: counted as {precision} training; its fp32 weights and gradients take more memory")
    return precision


def _states(config: Fields, precision: str) -> dict[str, str]:
    """All states in bf16 where both keys ask for it."""
    keys = ("bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states")
    weights, moments = (config.one_of(key, (True, False), False) for key in keys)
    if weights is not moments:
        # DeepSpeed takes the first alone beside fp32 moments on the host, and not the second.
        raise config.wrong(keys[1], f"as {keys[0]}, {str(weights).lower()}; moments of another format aren't counted")
    return {"main_dtype": "bf16"} if weights and precision == "bf16" else {}


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
    given, micro = micro, micro or batch // (dp * (steps or 1))
    if micro < 1 or batch % (micro * dp) or (steps and batch != micro * steps * dp):
        due = f"{f'{keys[2]} {steps} * ' if steps else ''}{dp} data-parallel replicas"
        wrong = f"{batch} isn't {keys[1]} {micro} * {due}" if given else f"is {batch}; allowed: a multiple of {due}"
        raise LayoutError(f"{config.path}: {keys[0]} {wrong}")
    return batch, micro


def _ranks_of_modules(config: Fields, stage_gpus: int) -> int:
    """Tensor ranks of a pipeline, whose modules have them, not AutoTP: GPUs of a stage for each replica that it counts.

    1 where its batch sizes don't say how many replicas there are.
    """
    sizes = [config.get(key) for key in (*AUTO.values(), "gradient_accumulation_steps")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return 1
    batch, micro, steps = sizes
    replicas = batch // (micro * steps)
    return stage_gpus // replicas if replicas and batch % (micro * steps) == stage_gpus % replicas == 0 else 1


def _turned_off(config: Fields, stage: int, dp: int, f: Framework) -> tuple[Framework, dict[str, tuple[str, ...]]]:
    """The profile without the overlap that a ZeRO run doesn't turn on; by default only stage 3 overlaps."""
    nothing = f.overlap_grad_reduce == 0 == f.overlap_grad_reduce_pipelined
    overlaps = config.one_of(f"{ZERO}.overlap_comm", (True, False, "auto"), "auto")
    if dp == 1 or stage == 0 or nothing or (stage == 3 if overlaps == "auto" else overlaps):
        return f, {}
    off: dict[str, Any] = {"overlap_grad_reduce": 0.0, "overlap_grad_reduce_pipelined": 0.0}
    off |= {"reduce_buffers": min(f.reduce_buffers, 1.0)}
    return replace(f, **off), {'"overlap_comm": true': tuple(off)}
