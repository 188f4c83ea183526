"""A run from its configuration file, DeepSpeed's JSON or torchtitan's TOML; model and GPUs come from elsewhere.

torchtitan's fields and their defaults: 0.2.2, config/job_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError, LayoutError, one_line, shown
from planner.base.files import read_json, read_toml
from planner.choices.choice import LARGEST
from planner.exporters.torchtitan import CHECKPOINTING, NATIVE
from planner.hardware import Framework
from planner.imports.megatron_stages import split_so
from planner.imports.run import ExistingRun, stated_gradients
from planner.question import one_layout
from planner.schedules import get_schedule
from planner.setup import Setup
from planner.step.legality import check_legal

NO_MATTER = (
    "comment", "optimizer", "scheduler", "gradient_clipping", "steps_per_print", "wall_clock_breakdown",
    "prescale_gradients", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "tensorboard", "wandb",
    "csv_monitor", "comms_logger", "flops_profiler", "checkpoint", "dump_state", "bfloat16",
)  # fmt: skip
NO_MATTER_TO_TITAN = (
    "job", "profiling", "metrics", "optimizer", "lr_scheduler", "checkpoint", "comm", "quantize", "validation", "debug",
    "model.name", "model.flavor", "model.hf_assets_path", "model.tokenizer_path", "training.dataset", "training.steps",
    "training.dataset_path", "training.max_norm", "training.seq_len", "compile.components",
)  # fmt: skip
PIPELINE, PARTS = "parallelism.pipeline_parallel", "parallelism.module_fqns_per_model_part"
FORMATS = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16"}
"""DeepSpeed's names of number formats, by their size."""


@dataclass(frozen=True)
class Fields:
    """A file's fields by dotted name, and which were read; kind: what its format calls a table. Faults name a field."""

    path: Path
    content: dict[str, Any]
    kind: str
    read: set[str] = field(default_factory=set)

    def get(self, name: str) -> Any:
        """The value of a field, None where it isn't given; a fault if what should hold it is no table."""
        self.read.add(name)
        above, _, last = name.rpartition(".")
        return (self.table(above) if above else self.content).get(last)

    def table(self, name: str) -> dict[str, Any]:
        """A table; empty where it isn't given."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, self.kind)
        return value or {}

    def number(self, name: str, default: int = 0, *, least: int = 1, most: int = LARGEST) -> int:
        """A whole number; the default where it isn't given."""
        value = self.get(name)
        if value == "auto":
            raise FileFormatError(f"{self.path}: field {name} is 'auto', which the trainer fills in; write the number")
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return default if value is None else int(value)

    def one_of(self, name: str, allowed: Iterable[Any], default: Any) -> Any:
        """One of the values allowed; the default where it isn't given."""
        value = self.get(name)
        if value is not None and value not in [*allowed]:
            raise self.wrong(name, ", ".join(str(x).lower() if isinstance(x, bool) else str(x) for x in allowed))
        return default if value is None else value

    def wrong(self, name: str, allowed: str) -> FileFormatError:
        """The fault of a field's value."""
        return FileFormatError(f"{self.path}: field {name} is {shown(self.get(name))}; allowed: {allowed}")


def deepspeed_run(path: Path, profile: Setup, *, gpus: int, **python: Any) -> ExistingRun:
    """The run that a DeepSpeed configuration describes.

    python: the layout's choices that the JSON can't say: pp, ep, recompute, attention.

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
    if gpus % (tp * python["pp"]):
        raise LayoutError(f"{gpus} GPUs aren't a multiple of tp {tp} * pp {python['pp']}")
    dp = gpus // (tp * python["pp"])
    batch, micro = _batch(config, dp)
    moved = config.table("zero_optimization.offload_optimizer")
    offload, ratio = moved.get("device", "none") != "none", moved.get("ratio", 1.0)
    if type(ratio) not in (int, float) or not 0 <= ratio <= 1:
        raise config.wrong("zero_optimization.offload_optimizer.ratio", "a number from 0 to 1")
    if config.table("zero_optimization.offload_param").get("device", "none") != "none":
        notes.append("zero_optimization.offload_param: not counted; planner offloads the optimizer's state alone")
    if config.get("activation_checkpointing") is not None and python["recompute"] == "none":
        notes.append("activation_checkpointing: the model's code turns it on; ask for recompute full if it does")
    bf16, fp16 = (config.one_of(f"{x}.enabled", (True, False), False) for x in ("bf16", "fp16"))
    precision = "bf16" if bf16 else "fp16" if fp16 else "fp32"
    layouts = one_layout(
        profile.cluster, global_batch=batch, dp=dp, tp=tp, micro_batch=micro, zero=stage, precision=precision,
        offload_optimizer=offload, offload_fraction=float(ratio) if offload else 1.0,
        **_gradients(config, precision, stage, profile.framework), **python,
    )  # fmt: skip
    check_legal(profile.model, profile.cluster, layouts)
    actual, switches = _turned_off(config.table("zero_optimization"), stage, dp, profile.framework)
    unknown = tuple(one_line(key) for key in config.content if key not in {*config.read, *NO_MATTER})
    return ExistingRun(
        title="DeepSpeed", setup=replace(profile, framework=actual), layouts=layouts, profile=profile,
        switches=switches, notes=tuple(notes), unknown=unknown,
        ignored=sum(key in NO_MATTER for key in config.content),
    )  # fmt: skip


def _gradients(config: Fields, precision: str, stage: int, f: Framework) -> dict[str, str]:
    """The number formats in which gradients add up and are summed, where the profile has others.

    With ZeRO gradients add up in bf16 unless data_types.grad_accum_dtype says otherwise, without it in fp32
    (deepspeed/runtime/engine.py: get_data_types).
    """
    fields = ("data_types.grad_accum_dtype", "communication_data_type")
    kept, sent = (FORMATS.get(config.one_of(field, FORMATS, ""), "") for field in fields)
    kept = kept or ("bf16" if stage or precision == "fp16" else "fp32")
    return stated_gradients(f, precision, kept, sent or kept)


def _batch(config: Fields, dp: int) -> tuple[int, int]:
    """Sequences per step and per micro-batch, of the three numbers any two, or one; DeepSpeed's own rules."""
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    batch, micro, steps = (config.number(key) for key in keys)
    if not batch and not micro:
        raise FileFormatError(f"{config.path}: field {keys[0]} is missing; allowed: it or {keys[1]}")
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


def torchtitan_run(path: Path, profile: Setup, *, gpus: int) -> ExistingRun:
    """The run that a job file of torchtitan describes. Raises as `deepspeed_run`."""
    config = Fields(path, read_toml(path), "a table")
    copies, tp, cp, ep, pp = (
        config.number(f"parallelism.{name}_degree", 1) for name in
        ("data_parallel_replicate", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline_parallel")
    )  # fmt: skip
    etp = config.one_of("parallelism.expert_tensor_parallel_degree", (1, tp), 1)
    shard, beside = config.number("parallelism.data_parallel_shard_degree", -1, least=-1), copies * tp * cp * pp
    dp = copies * (gpus // beside if shard < 0 else shard)
    if dp * tp * cp * pp != gpus:
        raise LayoutError(f"{path}: data_parallel_shard_degree {dp // copies} * the rest's {beside} isn't {gpus} GPUs")
    theirs = config.one_of("parallelism.pipeline_parallel_schedule", NATIVE.values(), NATIVE["1f1b"])
    schedule = get_schedule(next(name for name in NATIVE if NATIVE[name] == theirs) if pp > 1 else "1f1b")
    stages, notes = _stages(config, int(profile.model.num_layers), pp, schedule.chunks or 2), list[str]()
    gathered = config.one_of("parallelism.fsdp_reshard_after_forward", ("default", "always", "never"), "default")
    again = gathered != "never" if pp == 1 else gathered == "always" and schedule.layer_at_a_time
    if gathered == "always" and not again:
        notes.append("parallelism.fsdp_reshard_after_forward always: counted as never, in a pipeline")
    local, micro = config.number("training.local_batch_size", 8), config.number(f"{PIPELINE}_microbatch_size", 1)
    batch, micro = config.number("training.global_batch_size", -1, least=-1), micro if pp > 1 else local
    if local % micro or batch == 0 or (batch % (local * dp) and batch > 0):
        said = f"global_batch_size {batch}, local_batch_size {local} * {dp} replicas, pipeline_parallel_microbatch_size"
        raise LayoutError(f"{path}: {said} {micro} * {dp}; allowed: multiples, each of the next")
    if pp > 1 and batch > local * dp:
        notes.append(f"training.global_batch_size {batch}: {batch // local // dp} pipelines per step counted as one")
    mode = config.one_of("activation_checkpoint.mode", CHECKPOINTING, "selective")
    every = config.one_of("activation_checkpoint.selective_ac_option", ("op", *"12345678"), "2")
    some = max(min(stages) // int(every), 1) if mode == "selective" and every not in ("op", "1") else 0
    if mode == "selective" and every != "op":
        mode, some = "full", 0 if len(stages) > pp else some
        notes.append(
            f"selective_ac_option {every}: counted as {some or 'all'} layers of each stage, recomputed in full"
        )
    precision, reduced = (
        FORMATS[config.one_of(f"training.mixed_precision_{of}", ("bfloat16", "float32"), usual)]
        for of, usual in (("param", "bfloat16"), ("reduce", "float32"))
    )
    precision = "fp8" if re.search(r"linear|'float8'|'mx'", str(config.get("model.converters"))) else precision
    layouts = one_layout(
        profile.cluster, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp if ep > 1 else tp, micro_batch=micro,
        global_batch=batch if batch > 0 else local * dp, virtual_stages=len(stages) // pp, sequence_parallel=tp > 1,
        zero=0 if dp * cp == copies else 3 if again else 2 if pp == 1 else 1, recompute=mode, recompute_layers=some,
        dp_replicate=1 if dp * cp == copies else copies, precision=precision, schedule=schedule.name,
        offload_optimizer=config.one_of("training.enable_cpu_offload", (True, False), False),
        **stated_gradients(profile.framework, precision, "fp32", reduced),
    )  # fmt: skip
    layouts = split_so(profile, layouts, stages) if pp > 1 else layouts
    check_legal(profile.model, profile.cluster, layouts)
    others = [(table, x) for table in config.content if table not in NO_MATTER_TO_TITAN for x in config.table(table)]
    names = [f"{table}.{x}" for table, x in others if config.table(table)[x]]
    return ExistingRun(
        title="torchtitan", setup=profile, layouts=layouts, profile=profile, switches={}, notes=tuple(notes),
        unknown=tuple(one_line(x) for x in names if x not in {*config.read, *NO_MATTER_TO_TITAN}), ignored=0,
    )  # fmt: skip


def _stages(config: Fields, layers: int, pp: int, chunks: int) -> list[int]:
    """Layers of each virtual stage, given or as torchtitan shares them out: of a rank so many chunks, or as many as its
    layers per stage make (distributed/pipeline_parallel.py)."""
    parts = config.get(PARTS)
    ends = [f"{PIPELINE}_{end}_stage_less_layers" for end in ("first", "last")]
    each, (first, last) = config.number(f"{PIPELINE}_layers_per_stage"), (config.number(x, 1, least=0) for x in ends)
    if pp == 1:
        return [layers]
    if parts is not None:
        lists = [part for part in parts if isinstance(part, list)] if isinstance(parts, list) else []
        named = [[x for x in part if str(x).startswith("layers.")] for part in lists]
        if [*chain(*named)] != [f"layers.{i}" for i in range(layers)] or len(named) % pp:
            raise config.wrong(PARTS, f"a multiple of {pp} lists, in all with layers.0 to layers.{layers - 1} in order")
        return [len(part) for part in named]
    count = -(-(layers + first + last) // each) if each else pp * chunks
    least, more = divmod(layers + first + last, count)
    if count % pp or least < max(first, last):
        said = f"layers_per_stage {each or 'unset'}, less_layers {first} and {last} make {count} stages of {least}"
        raise LayoutError(f"{config.path}: {said}; allowed: a multiple of pipeline_parallel_degree {pp}, none under 0")
    stages = [least + (i < more) for i in range(count)]
    return [stages[0] - first, *stages[1:-1], stages[-1] - last]
