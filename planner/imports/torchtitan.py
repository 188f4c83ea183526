"""A run from torchtitan's TOML; model and GPUs come from elsewhere.

Its fields and their defaults: 0.2.2, config/job_config.py. Of 0.1 training.batch_size and training.compile.
"""

import re
from dataclasses import replace
from itertools import chain
from pathlib import Path

from planner.base.errors import FileFormatError, LayoutError, one_line
from planner.base.files import read_toml
from planner.choices.choice import whole
from planner.exporters.target import under
from planner.exporters.torchtitan import CHECKPOINTING, NATIVE
from planner.hardware import Framework
from planner.imports.megatron_stages import split_so
from planner.imports.names import ignored
from planner.imports.run import FORMATS, ExistingRun, Fields, stated_gradients
from planner.models import with_seq_len
from planner.question import one_layout
from planner.schedules import get_schedule
from planner.setup import Setup
from planner.step.legality import check_legal

PIPELINE, PARTS = "parallelism.pipeline_parallel", "parallelism.module_fqns_per_model_part"


def torchtitan_run(path: Path, profile: Setup, *, gpus: int, attention: str | None = None) -> ExistingRun:
    """The run that a job file of torchtitan describes. Raises as `planner.imports.deepspeed.deepspeed_run`."""
    config = Fields(path, read_toml(path), "a table")
    profile = replace(profile, model=with_seq_len(profile.model, config.number("training.seq_len", 2048)))
    compiled = [config.one_of(name, (True, False), False) for name in ("compile.enable", "training.compile")]
    if any(compiled) and profile.framework.name == "torchtitan":
        profile = under(profile, "torchtitan-compiled")
    copies, tp, cp, ep, pp = (
        config.number(f"parallelism.{name}_degree", 1) for name in
        ("data_parallel_replicate", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline_parallel")
    )  # fmt: skip
    etp = config.one_of("parallelism.expert_tensor_parallel_degree", (1, tp), 1)
    shard, beside = config.number("parallelism.data_parallel_shard_degree", -1, least=-1), copies * tp * cp * pp
    dp = copies * (whole("gpus", gpus) // beside if shard < 0 else shard)
    if dp * tp * cp * pp != gpus:
        left = f"degrees but the shards' make {beside} ranks; allowed: a divisor of {gpus} GPUs"
        given = f"data_parallel_shard_degree {shard} * the rest's {beside} isn't {gpus} GPUs"
        raise LayoutError(f"{path}: {left if shard < 0 else given}")
    theirs = config.one_of("parallelism.pipeline_parallel_schedule", NATIVE.values(), NATIVE["1f1b"])
    schedule = get_schedule(next(name for name in NATIVE if NATIVE[name] == theirs) if pp > 1 else "1f1b")
    stages, notes = _stages(config, int(profile.model.num_layers), pp, schedule.chunks or 2), list[str]()
    gathered = config.one_of("parallelism.fsdp_reshard_after_forward", ("default", "always", "never"), "default")
    again = gathered != "never" if pp == 1 else gathered == "always" and schedule.layer_at_a_time
    if gathered == "always" and not again:
        notes.append("parallelism.fsdp_reshard_after_forward always: counted as never, in a pipeline")
    local = config.number("training.local_batch_size", config.number("training.batch_size", 8))
    micro = config.number(f"{PIPELINE}_microbatch_size", 1)
    batch, micro = config.number("training.global_batch_size", -1, least=-1), micro if pp > 1 else local
    if local % micro or batch == 0 or (batch % (local * dp) and batch > 0):
        said = f"global_batch_size {batch}, local_batch_size {local} * {dp} replicas, pipeline_parallel_microbatch_size"
        raise LayoutError(f"{path}: {said} {micro} * {dp}; allowed: multiples, each of the next")
    if pp > 1 and batch > local * dp:
        notes.append(f"training.global_batch_size {batch}: {batch // local // dp} pipelines per step counted as one")
    mode, some = _recomputed(config, stages, pp, notes)
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
        attention=attention,
        offload_optimizer=config.one_of("training.enable_cpu_offload", (True, False), False),
        **_states(config, profile.framework, precision, reduced),
    )  # fmt: skip
    layouts = split_so(profile, layouts, stages) if pp > 1 else layouts
    check_legal(profile.model, profile.cluster, layouts)
    no_matter = ignored("torchtitan")
    if not config.content.keys() & {name.partition(".")[0] for name in (*config.read, *no_matter)}:
        raise FileFormatError(f"{path}: no table of torchtitan's is in it; allowed: a job file, as with [training]")
    others = [(table, x) for table in config.content if table not in no_matter for x in config.table(table)]
    names = [f"{table}.{x}" for table, x in others if config.table(table)[x]]
    return ExistingRun(
        title="torchtitan", setup=profile, layouts=layouts, profile=profile, switches={}, notes=tuple(notes),
        unknown=tuple(one_line(x) for x in names if x not in {*config.read, *no_matter}), ignored=0,
    )  # fmt: skip


def _states(config: Fields, f: Framework, precision: str, reduced: str) -> dict[str, str]:
    """The number formats of weights and gradients: training.dtype's, in which all states are."""
    if config.one_of("training.dtype", ("bfloat16", "float32"), "float32") == "bfloat16":
        return {"main_dtype": "bf16"} | ({"grad_reduce_dtype": "bf16"} if reduced == "bf16" else {})
    return stated_gradients(f, precision, "fp32", reduced)


def _recomputed(config: Fields, stages: list[int], pp: int, notes: list[str]) -> tuple[str, int]:
    """The mode of recomputation, and of how many layers of each stage (0: all)."""
    if config.get("activation_checkpoint.mode") == "memory_budget":
        allowed = ", ".join(CHECKPOINTING)
        raise config.wrong("activation_checkpoint.mode", f"{allowed}; what the compiler repeats itself isn't counted")
    mode = config.one_of("activation_checkpoint.mode", CHECKPOINTING, "selective")
    every = config.one_of("activation_checkpoint.selective_ac_option", ("op", *"12345678"), "2")
    if mode != "selective" or every == "op":
        return mode, 0
    some = 0 if len(stages) > pp or every == "1" else max(min(stages) // int(every), 1)
    notes.append(f"selective_ac_option {every}: counted as {some or 'all'} layers of each stage, recomputed in full")
    return "full", some


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
