"""torchtitan since February 2026: a recipe in Python, a function that returns a `Trainer.Config`.

Names and rules read in torchtitan 0.3.0: config/configs.py, trainer.py, distributed/pipeline_parallel.py,
distributed/activation_checkpoint.py, components/quantization/float8.py. A schedule that PyTorch has no name for is
written beside the recipe: a CSV that its pipeline runtime loads.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from planner.base.arrays import Bools
from planner.base.errors import LayoutError, OutputError
from planner.exporters.file_text import comments, identifier
from planner.exporters.nearest import Job, Nearest
from planner.exporters.schedule_csv import schedule_csv
from planner.exporters.target import Target, allowed, stage_layers, under
from planner.exporters.torchtitan_models import BY_SIZES, attention_backend, base_recipe, products, sizes_of
from planner.layouts import Layouts, Recompute
from planner.models import Transformer
from planner.schedules import SCHEDULES, Pipeline, Schedule, get_schedule
from planner.search import Fixed
from planner.setup import Setup

NATIVE = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "breadth-first": "LoopedBFS",
    "zb-v": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
HALF = ("bf16", "fp8")
"""Precisions whose weights are in bf16."""
ONCE_A_STEP = "a pipeline's stages gather parameters and sum gradients once a step, zero 1"
NO_MODULES = "it recomputes whole layers or chosen operations, not modules"
WITH_STATE = "without a pipeline FSDP shards gradients with the optimizer's state, zero 2"
WITH_CONTEXT = "FSDP shards over context ranks too, zero 2 or 3, in a pipeline 1"
"""`fsdp_enabled` (distributed/parallel_dims.py)."""
CHECKPOINTING = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}


def sharded_once_a_step(layouts: Layouts) -> Bools:
    """Layouts whose stages would gather parameters, or scatter gradients, once a visit of all their micro-batches.

    PyTorch's stages do so once a step (ZeRO 1); with "always" they would gather anew for every micro-batch.
    """
    return np.asarray((layouts.pp > 1) & (layouts.zero > 1))


def whole_beside_context(layouts: Layouts) -> Bools:
    """Layouts whose context ranks would keep whole states."""
    return np.asarray((layouts.cp > 1) & (layouts.zero == 0))


class Torchtitan(Target):
    """A recipe for torchtitan's config registry."""

    name = "torchtitan"
    title = "torchtitan"
    profile = "torchtitan"
    family = "pytorch"
    version = "0.3.0"
    suffix = ".py"
    unwritten = ("nvfp4",)
    takes_base = True
    others = ("transformers",)
    chooses_gradients = False
    bf16_states = True
    adapters: str | None = "the recipe's model asks for it: give it a LoRAConverter (torchtitan, components/lora.py)"
    head_module = "lm_head"
    """The output product's name in its models."""
    runs = Fixed(
        ulysses=(1,), recompute_layers=(0,), offload_layers=(0,), offload_parameters=(False,), never=(
            (ONCE_A_STEP, sharded_once_a_step), (WITH_CONTEXT, whole_beside_context),
            (NO_MODULES, lambda x: x.recompute == Recompute.FINE),
        ),
    )  # fmt: skip
    splits_backward = False
    """Whether schedules can: not under its attention, whose mask is no tensor to `stage_backward_input`
    (tests/integration_tests/features.py), nor under torch.compile (pytorch/pytorch issue 161904)."""

    def check_question(self, model: Transformer, precision: str, base: str | None = None) -> None:
        """A recipe to start from, in a precision that is written."""
        super().check_question(model, precision)
        check_precision(precision)
        base_recipe(model, base)

    def has(self, schedule: Schedule, compiled: bool = False) -> bool:
        """Whether PyTorch's runtime can run it: one copy and version of weights, whole sequences, two chunks in a V."""
        whole = not schedule.splits_backward or (self.splits_backward and not compiled)
        ranks = schedule.several_ranks or not schedule.one_layer_chunks  # alone it passes micro-batch after micro-batch
        one_copy = schedule.synchronous and schedule.copies == 1 and not schedule.sliced
        return whole and ranks and one_copy and (schedule.looped_placement or schedule.chunks == 2)

    def narrow(self, model: Transformer) -> bool:
        """Whether all products of a model's layers are trained in fp8 where it is asked for."""
        return True

    def only(self, fixed: Fixed) -> Fixed:
        """Schedules that it names or loads from a CSV."""
        names = tuple(s.name for s in SCHEDULES.values() if s.quick and self.has(s))
        some = allowed(super().only(fixed), self.title, schedule=names)
        # A search leaves out ZeRO 1 without a pipeline by itself.
        return some.without((WITH_STATE, lambda x: x.pp == 1)) if fixed.zero == (1,) else some

    def in_precision(self, setup: Setup, precision: str) -> Setup:
        """Compiled in fp8: casts are counted as kernels that torch.compile fuses, and it warns of fp8 without it
        (components/quantization/float8.py)."""
        alone = precision == "fp8" and not setup.framework.compiled_layers
        return under(setup, "torchtitan-compiled") if alone else setup

    def adapt(self, nearest: Nearest) -> None:
        """FSDP for ZeRO, PyTorch's schedules. In a pipeline ZeRO 1 is FSDP that gathers once a step ("never")."""
        row = nearest.row
        if row["precision"] == "fp8" and (row["train"] != "full" or not self.narrow(nearest.setup.model)):
            reason = "adapters come after it" if row["train"] != "full" else "its experts in fp8 are a prototype"
            nearest.change("precision", "bf16", reason)
        nearest.setup = self.in_precision(nearest.setup, row["precision"])
        nearest.change("ulysses", 1, "it has no exchange of heads")
        nearest.change("capacity_factor", 0.0, "it drops no tokens")
        nearest.activations_stay("no field moves activations")
        nearest.change("recompute_layers", 0, "it recomputes every layer alike")
        # Its own names first: among the others, any that is legal could be loaded from a CSV.
        compiled = nearest.setup.framework.compiled_layers
        schedule = get_schedule(row["schedule"])
        if not self.has(schedule, compiled):
            own = [name for name in NATIVE if self.has(get_schedule(name), compiled)]
            split = ["compiled layers or attention can't split the backward pass"] * schedule.splits_backward
            nearest.schedules(own, *split)
        elif row["pp"] == 1:
            nearest.schedules(("1f1b",))
        if row["pp"] > 1 and not self.pipelines(nearest.setup.model):
            raise nearest.refuse("pp", "has no pipeline of this model", f"recommend with --framework {self.name}")
        check_precision(row["precision"])
        if row["precision"] == "nvfp4":
            nearest.change("precision", "bf16", "the recipe's model asks for it: give it an NVFP4LinearConverter")
        if whole_beside_context(nearest.layouts)[0]:
            nearest.change("zero", 2 if row["pp"] == 1 else 1, WITH_CONTEXT)
        if sharded_once_a_step(nearest.layouts)[0]:
            nearest.change("zero", 1, ONCE_A_STEP)
        if row["zero"] == 1 and row["pp"] == 1:
            nearest.change("zero", 2, WITH_STATE)
        if row["offload_optimizer"]:
            nearest.change("offload_fraction", 1.0, "it moves all or nothing")
            nearest.note("offload_optimizer: enable_cpu_offload keeps parameters and gradients in host memory too")
        if row["recompute"] == "selective":
            nearest.note("recompute selective: SelectiveAC recomputes other operations than the attention core")
        nearest.whole_layers(NO_MODULES)
        if row["ep"] > 1 and row["etp"] > 1 and self.takes_base:
            nearest.note(
                f"experts: torchtitan takes ep {row['ep']} out of dp, cp and tp; planner splits them by tp too"
            )
        if row["grad_dtype"] == "bf16" and row["main_dtype"] == "fp32":
            nearest.change("grad_dtype", "framework", "FSDP keeps the shard's gradient in the parameter's fp32")
        nearest.own_heads()
        if nearest.base or not self.takes_base or not attention_backend(nearest.setup, row):
            nearest.note(f"attention {row['attention']}: the recipe's model chooses its kernel")

    def pipelines(self, model: Transformer) -> bool:
        """Not of its models whose head is the embedding (models/common/decoder.py)."""
        return not (model.tied and sizes_of(model) in BY_SIZES)

    def render(self, job: Job) -> str:
        """The recipe."""
        source, base = base_recipe(job.model, job.base)
        name = identifier(f"{job.model.name}_{job.layouts.gpus[0]}_gpus")
        row = job.row
        fields = parallel_fields(job, self.head_module)
        csv, parts = csv_path(job), compiled(job)
        needed, narrowed = products(job, bool(parts))
        backend, several = None if job.base else attention_backend(job, row), max(row["pp"], row["ep"], row["cp"]) > 1
        if csv is not None:
            fields["pipeline_parallel_schedule_csv"] = f'str(Path(__file__).with_name("{csv.name}"))'
        lines = [
            *comments(job.head),
            *USAGE.splitlines(),
            *([WANTS] if backend and row["attention"] == "flash3" else []),
            "",
            *(["from pathlib import Path", ""] if csv is not None else []),
            *needed,
            "from torchtitan.config import CompileConfig, ParallelismConfig",
            "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC  # noqa: F401",
            "from torchtitan.trainer import Trainer",
            "",
            f"from {source} import {base} as base",
            "",
            "",
            f"def {name}() -> Trainer.Config:",
            "    config = base()",
            *narrowed,
            f"    config.training.seq_len = {job.model.seq_len}",
            f"    config.training.global_batch_size = {row['global_batch']}",
            f"    config.training.local_batch_size = {local_batch(job)}",
            *(['    config.training.dtype = "bfloat16"'] * (row["main_dtype"] == "bf16")),
            f'    config.training.mixed_precision_param = "{computed_in(row)}"',
            f'    config.training.mixed_precision_reduce = "{reduced_in(job)}"',
            f"    config.training.enable_cpu_offload = {row['offload_optimizer']}",
            *(["    config.training.disable_cuda_graphs = True"] * (several or bool(backend))),
            f"    config.activation_checkpoint = {CHECKPOINTING[row['recompute']]}",
            f"    config.compile = CompileConfig(enable={bool(parts)}{f', components={parts}' * bool(parts)})",
            "    config.parallelism = ParallelismConfig(",
            *(f"        {key}={value}," for key, value in fields.items()),
            "    )",
            "    return config",
            "",
        ]
        return "\n".join(lines)

    def companions(self, job: Job) -> dict[Path, str]:
        """The schedule's CSV, where PyTorch has no name for it."""
        path = csv_path(job)
        if path is None:
            return {}
        schedule = get_schedule(job.row["schedule"])
        row, m = job.row, int(job.layouts.micro_batches[0])
        pipe = Pipeline(p=row["pp"], m=m, v=row["virtual_stages"])
        return {path: schedule_csv(schedule.order(pipe), schedule)}


def parallel_fields(job: Job, head_module: str) -> dict[str, str]:
    """torchtitan's parallelism fields, each with its value as Python writes it."""
    row = job.row
    copies = row["dp_replicate"] if row["zero"] > 0 else row["dp"]
    # By default parameters are given up after the forward pass, but for the last norm's and the head's, which the
    # backward pass needs first.
    again = "default" if row["pp"] == 1 else "always"
    fields = {
        "data_parallel_replicate_degree": str(copies),
        "data_parallel_shard_degree": str(row["dp"] // copies),
        "fsdp_reshard_after_forward": f'"{again}"' if row["zero"] == 3 else '"never"',
        "tensor_parallel_degree": str(row["tp"]),
        "enable_sequence_parallel": str(row["sequence_parallel"]),
        "context_parallel_degree": str(row["cp"]),
        "expert_parallel_degree": str(row["ep"]),
        "pipeline_parallel_degree": str(row["pp"]),
    }
    if row["pp"] > 1:
        fields["pipeline_parallel_schedule"] = f'"{native_schedule(row)}"'
        fields["pipeline_parallel_microbatch_size"] = str(row["micro_batch"])
        fields["module_fqns_per_model_part"] = module_names(stage_layers(job, job.layouts), head_module)
    return fields


def compiled(job: Job) -> str:
    """The components that torch.compile takes where the prediction assumes it, as a list; else nothing.

    A compiled loss reads its 16-bit logits once.
    """
    if not job.framework.compiled_layers:
        return ""
    return '["model", "loss"]' if job.framework.entropy_forward_bytes <= 2.0 else '["model"]'


def native_schedule(row: dict[str, Any]) -> str:
    """PyTorch's name for a schedule; with a CSV, one of the same placement: it says which rank has which stage."""
    schedule = get_schedule(row["schedule"])
    if schedule.name in NATIVE:
        return NATIVE[schedule.name]
    if not schedule.looped_placement:
        return NATIVE["zb-v"]
    return NATIVE["interleaved" if row["virtual_stages"] > 1 else "1f1b"]


def module_names(stages: list[int], head_module: str) -> str:
    """The modules of every stage, as a list of lists."""
    first, parts = 0, []
    for i, layers in enumerate(stages):
        names = [f"layers.{j}" for j in range(first, first + layers)]
        first += layers
        if i == 0:
            names.insert(0, "tok_embeddings")
        if i == len(stages) - 1:
            names += ["norm", head_module]
        parts.append("[" + ", ".join(f'"{n}"' for n in names) + "]")
    return "[" + ", ".join(parts) + "]"


def local_batch(job: Job) -> int:
    """Sequences of a rank at once: a pipeline takes all of a step, else gradients accumulate over micro-batches."""
    row = job.row
    return int(row["global_batch"] // row["dp"] if row["pp"] > 1 else row["micro_batch"])


def csv_path(job: Job) -> Path | None:
    """The path of the schedule's CSV; None where PyTorch has a name for the schedule.

    Raises OutputError if the file itself goes to stdout, which nothing can lie beside.
    """
    if job.row["pp"] == 1 or job.row["schedule"] in NATIVE:
        return None
    if job.path is None:
        raise OutputError(
            f"schedule {job.row['schedule']} needs a CSV beside the recipe; give the recipe's file with -o FILE"
        )
    stem = re.sub(r"[^0-9A-Za-z._-]", "_", job.path.stem) or "recipe"
    return job.path.with_name(f"{stem}.schedule.csv")


def check_precision(precision: str) -> None:
    """Raises LayoutError if torchtitan does not train in that precision."""
    if precision == "fp16":
        raise LayoutError(
            "precision fp16: torchtitan trains in bfloat16 or float32; recommend with --precision bf16, or fp32"
        )


def reduced_in(job: Job) -> str:
    """torchtitan's name of the number format in which replicas sum gradients."""
    return "bfloat16" if job.row["precision"] in HALF and job.gradients[1] == "bf16" else "float32"


def computed_in(row: dict[str, Any]) -> str:
    """torchtitan's name of the number format of the passes."""
    return "bfloat16" if row["precision"] in HALF else "float32"


USAGE = """\
# Put this file on PYTHONPATH: torchrun ... -m torchtitan.train --module THIS_FILES_NAME --config THE_FUNCTIONS_NAME
# Dataset, optimizer, checkpoints and the number of steps are the base recipe's: planner does not choose them."""
WANTS = "# Attention wants flash-attn-3 on Hopper, flash-attn-4 on Blackwell and on context ranks."
