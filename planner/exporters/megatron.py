"""Megatron-LM: a shell script with the arguments of `pretrain_gpt.py`, launched by torchrun.

Names and rules read in megatron/training/arguments.py (commit 000c4ac2, fall of 2025) and in Megatron-Core 0.16.1.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.base.errors import LayoutError
from planner.choices.offload import module_names
from planner.choices.pipeline_layout import pipeline_layout_text
from planner.costs.case import Case
from planner.costs.layer.expert_routing import dispatchers, takes_turns
from planner.costs.layer.host_launches import graphed
from planner.costs.shapes import has_dropout, is_latent
from planner.exporters import megatron_limits, megatron_model
from planner.exporters.file_text import comments
from planner.exporters.megatron_model import Arguments, chosen, model_arguments, model_notes, modules, recompute_method
from planner.exporters.megatron_optimizer import MOMENTS, NEVER, adapt_optimizer, optimizer_name
from planner.exporters.nearest import Job, Nearest
from planner.exporters.target import OPTIMIZERS, Target, allowed, launch_shape, stage_layers
from planner.layouts import Dispatcher
from planner.models import Transformer
from planner.search import Fixed, default_attention
from planner.search.request import MIXED
from planner.setup import Setup

SCRIPT = Path(__file__).with_name("megatron.sh")
SCHEDULES = ("1f1b", "interleaved")
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
HALF = ("bf16", "fp8", "nvfp4")
"""The precisions whose weights are in bf16."""


class OnMegatronCore(Target):
    """What stands on Megatron-Core."""

    family = "megatron"
    optimizers = OPTIMIZERS
    moves_modules = True
    runs = Fixed(schedule=SCHEDULES, never=(*NEVER, *MIXED))

    def only(self, fixed: Fixed) -> Fixed:
        """1F1B and its interleaved form; ZeRO 2 and 3, which are Megatron-FSDP's, only where they are asked for."""
        some = super().only(fixed)
        return some if fixed.zero else allowed(some, self.title, zero=(0, 1))

    def of_model(self, fixed: Fixed, model: Transformer) -> Fixed:
        """The ways of context ranks and of experts that run."""
        return megatron_limits.of_model(fixed, model)


class Megatron(OnMegatronCore):
    """Megatron-LM's training script."""

    name = "megatron"
    title = "Megatron-LM"
    profile = "megatron-core"
    cluster_first = True
    version = "Megatron-Core 0.16.1"
    suffix = ".sh"

    def check_question(self, model: Transformer, precision: str, base: str | None = None) -> None:
        """No state-space layers."""
        if model.num_ssm_layers:
            raise LayoutError(
                f"model {model.name} has state-space layers, which Megatron-LM trains by pretrain_mamba.py: not "
                "written yet; export --to megatron-bridge sets the layout on a recipe of yours"
            )

    def adapt(self, nearest: Nearest) -> None:
        """Schedules, slices, sharding and numerics that Megatron-LM has."""
        row, model = nearest.row, nearest.setup.model
        self.check_question(model, row["precision"])
        nearest.schedules(SCHEDULES)
        if row["dp_replicate"] > 1 and row["zero"] > 1:
            nearest.note(
                f"dp_replicate {row['dp_replicate']}: Megatron-FSDP's copies are newer than its first versions; "
                "--outer-dp-sharding-strategy stays no_shard"
            )
        adapt_core(nearest, lambda setting: "--" + setting.replace("_", "-"))
        if row["precision"] == "tf32":
            nearest.note(
                "precision tf32: Megatron-LM has no argument for it; exported as fp32, PyTorch's setting decides"
            )
        if row["attention"] == "flash1":
            nearest.note("attention flash1: --attention-backend flash runs the version that is installed")
        for sentence in model_notes(model):
            nearest.note(sentence)

    def render(self, job: Job) -> str:
        """The script, its data paths left as variables."""
        row = job.row
        megatron_limits.check_rules(job)
        nodes, each, last = launch_shape(job.cluster, int(job.layouts.gpus[0]))
        dropout, half = bool(has_dropout(job.model, job.layouts)[0]), row["precision"] in HALF
        groups = [
            ("MODEL_ARGS", model_arguments(job.model, dropout=dropout, grouped=half, dispatcher=dispatcher_name(job))),
            ("PARALLEL_ARGS", parallel_arguments(job)),
            ("TRAINING_ARGS", training_arguments(job)),
        ]
        number = connections(job)
        lines = f"export CUDA_DEVICE_MAX_CONNECTIONS={number}\n" if number else ""
        if row["zero"] > 1:
            lines = "# Megatron FSDP wants more than one connection.\nunset CUDA_DEVICE_MAX_CONNECTIONS\n"
        if job.layouts.offload_modules[0]:  # Transformer Engine 2.10 and newer would move weights too (arguments.py)
            lines += "export NVTE_CPU_OFFLOAD_V1=1\n"
        parts = {
            "HEAD": "\n".join(comments(job.head)),
            "CONNECTIONS": lines,
            "NODES": nodes,
            "GPUS_PER_NODE": each if last == each else f"$((${{NODE_RANK:-0}} == {nodes - 1} ? {last} : {each}))",
            "ARGUMENTS": "\n\n".join(
                "\n".join([f"{name}=(", *(f"  {shlex.join(argument)}" for argument in arguments), ")"])
                for name, arguments in groups
            ),
            "VOCAB": job.model.vocab - 1,
        }
        return re.sub("@([A-Z_]+)@", lambda part: str(parts[part[1]]), SCRIPT.read_text(encoding="utf-8"))


def context_parts(cp: int, ulysses: int) -> tuple[str, tuple[int, ...]]:
    """Megatron-Core's word for how context ranks bring tokens together, and the ranks of an exchange inside a ring."""
    if ulysses in (1, cp):
        return ("p2p" if ulysses == 1 else "a2a"), ()
    return "a2a+p2p", (ulysses, cp // ulysses)


def overlaps_data(job: Job) -> tuple[bool, bool]:
    """Whether the prediction reduces gradients beside the backward pass, and gathers parameters beside the forward."""
    f, row = job.framework, job.row
    reduced = f.overlap_grad_reduce_pipelined if row["pp"] > 1 else f.overlap_grad_reduce
    reduces = bool(row["dp"] * row["cp"] > 1 and reduced > 0 and row["optimizer"] != "muon")
    return reduces, reduces and row["zero"] > 0 and f.overlap_param_gather > 0


def overlaps_tensor(setup: Setup, row: dict[str, Any]) -> bool:
    """Whether the prediction hides what tensor ranks send, by Transformer Engine's user buffers."""
    overlaps = row["sequence_parallel"] and 1 < row["tp"] <= setup.cluster.nvlink_gpus
    return bool(overlaps and setup.framework.overlap_tensor > 0 and not is_latent(setup.model))


def fp8_recipe(job: Job) -> str:
    """The scaling of NVIDIA's recipes (Megatron-Bridge, scripts/performance): MXFP8 on Blackwell, else current scaling.

    Beside parameters in fp8 Megatron-Core moves the optimizer to the host under delayed scaling only.
    """
    if job.row["offload_optimizer"] and gathers_fp8(job, job.row):
        return "delayed"
    return "mxfp8" if job.cluster.accelerator.efficiency.name.startswith("blackwell") else "tensorwise"


def gathers_fp8(setup: Setup, row: dict[str, Any]) -> bool:
    """Whether parameters are kept and gathered in fp8, which asks for the distributed optimizer."""
    distributed = row["zero"] > 0 and row["optimizer"] != "muon"
    return bool(row["precision"] == "fp8" and setup.framework.fp8_parameter_bytes < 2 and distributed)


def overlaps_experts(job: Job) -> bool:
    """Whether the prediction counts on the experts' all-to-alls beside another micro-batch's passes."""
    return bool(takes_turns(Case.of(job, job.layouts))[0])


def fuses_routing(job: Job) -> bool:
    """Whether the prediction has the router and permutations in fused kernels, as beside a flex dispatch always."""
    return bool(job.model.num_experts and (job.framework.fused_routing or dispatcher_name(job) != "alltoall"))


def connections(job: Job) -> int:
    """CUDA_DEVICE_MAX_CONNECTIONS (Megatron-LM, skills/mcore-run-on-slurm); 0: unset, for Megatron-FSDP wants several.

    Experts' all-to-alls beside products want 32. Before Blackwell tensor and context ranks must have 1 otherwise;
    of both together arguments.py warns, and NVIDIA's recipes have more than 1.
    """
    if job.row["zero"] > 1:
        return 0
    return 32 if overlaps_experts(job) else int(job.row["tp"] * job.row["cp"] > 1)


def parallel_arguments(job: Job) -> Arguments:
    """Degrees, sharding, pipeline and what the profile overlaps. Data parallelism is what is left of the GPUs."""
    row, experts, (reduced, gathered) = job.row, job.model.num_experts, overlaps_data(job)
    way, sizes = context_parts(row["cp"], row["ulysses"])
    tokens = row["sequence_parallel"] and row["tp"] > 1
    fsdp, muon = row["zero"] > 1, row["optimizer"] == "muon"  # Muon distributes its own states
    dtype, waiting = MOMENTS.get(row["optimizer"]), module_names(int(job.layouts.offload_modules[0]))
    return chosen(
        (True, "--tensor-model-parallel-size", row["tp"]),
        (True, "--pipeline-model-parallel-size", row["pp"]),
        (True, "--context-parallel-size", row["cp"]),
        (experts, "--expert-model-parallel-size", row["ep"]),
        (experts, "--expert-tensor-parallel-size", row["etp"]),
        (row["cp"] > 1, "--cp-comm-type", way),
        (sizes, "--hierarchical-context-parallel-sizes", *sizes),
        (tokens, "--sequence-parallel"),
        (overlaps_tensor(job, row), "--tp-comm-overlap"),
        *((True, *argument) for argument in _pipeline(job)),
        (row["zero"] == 1 and not muon, "--use-distributed-optimizer"),
        (fsdp, "--use-megatron-fsdp"),
        (fsdp, "--data-parallel-sharding-strategy", SHARDING.get(row["zero"])),
        (fsdp, "--use-distributed-optimizer"),
        (fsdp, "--no-gradient-accumulation-fusion"),
        (fsdp, "--ckpt-format", "fsdp_dtensor"),
        # Else each rank first holds all of its part; a gate of shared experts has no reset_parameters.
        (fsdp and "--moe-shared-expert-gate" not in megatron_model.of_family(job.model).get("balance", ""),
         "--init-model-with-meta-device"),
        (row["dp_replicate"] > 1, "--num-distributed-optimizer-instances", row["dp_replicate"]),
        (reduced, "--overlap-grad-reduce"),
        (gathered, "--overlap-param-gather"),
        (overlaps_experts(job), "--overlap-moe-expert-parallel-comm"),
        (fuses_routing(job), "--moe-permute-fusion"),
        (fuses_routing(job), "--moe-router-fusion"),
        (row["capacity_factor"], "--moe-expert-capacity-factor", row["capacity_factor"]),
        (row["offload_layers"], "--cpu-offloading-num-layers", row["offload_layers"]),
        (waiting, "--fine-grained-activation-offloading"),
        (waiting, "--offload-modules", *waiting),
        (row["offload_optimizer"], "--optimizer-cpu-offload"),
        (row["offload_optimizer"], "--optimizer-offload-fraction", row["offload_fraction"]),
        (row["offload_optimizer"] or dtype, "--use-precision-aware-optimizer"),
        (dtype, "--exp-avg-dtype", dtype),
        (dtype, "--exp-avg-sq-dtype", dtype),
        (row["optimizer"] in ("muon", "sgd"), "--optimizer", optimizer_name(row)),
    )  # fmt: skip


def adapt_core(nearest: Nearest, named: Callable[[str], str]) -> None:
    """Changes what Megatron-Core doesn't have, whichever framework above it names a setting by `named`.

    Raises LayoutError for Muon and for experts over several ranks in fp16, and for SGD on the host.
    """
    row = nearest.row
    if row["offload_optimizer"] and row["zero"] == 0:
        nearest.change("zero", 1, f"{named('optimizer_cpu_offload')} needs {named('use_distributed_optimizer')}")
    adapt_optimizer(nearest)
    if row["pp"] > 1 or row["recompute"] != "none":  # transformer_config.py's own rule
        reason = f"{named('cpu_offloading_num_layers')} excludes a pipeline and recomputation"
        nearest.change("offload_layers", 0, reason)
    if {"attn_norm", "mlp_norm"} & {*row["offload_modules"].split("+")}:
        nearest.change("cuda_graphs", False, f"norms in {named('offload_modules')} lie across a graph's ends")
    if not graphed(nearest.layouts)[0]:
        nearest.change("cuda_graphs", False, "layers recomputed whole or offloaded have none")
    if row["recompute"] == "selective" and nearest.setup.model.dropout:
        nearest.change("cuda_graphs", False, "a graph can't repeat attention with dropout")
    if row["precision"] == "fp16" and row["ep"] > 1:
        raise nearest.refuse("ep", "has no expert parallelism in fp16", "recommend with --precision bf16 or --ep 1")
    if row["recompute"] == "fine" and row["offload_optimizer"] and gathers_fp8(nearest.setup, row):
        reason = "fp8 parameters beside an offloaded optimizer ask for delayed scaling, which repeats no single modules"
        nearest.change("recompute", "full", reason)
    megatron_limits.adapt(nearest)
    if not row["fused_norm"]:
        nearest.note("fused_norm off: Transformer Engine has no other norm; exported as on")


def _pipeline(job: Job) -> Arguments:
    """Virtual stages by layers, or the whole split where stages are uneven."""
    row, stages = job.row, stage_layers(job, job.layouts)
    if row["pp"] == 1:
        return []
    if layout := uneven_layout(job):
        return [("--pipeline-model-parallel-layout", layout)]
    return [("--num-layers-per-virtual-pipeline-stage", str(stages[0]))] if row["virtual_stages"] > 1 else []


def uneven_layout(job: Job) -> str:
    """The stages as Megatron-LM writes them, as they were given or where they are uneven; else nothing."""
    stages = stage_layers(job, job.layouts)
    if len(set(stages)) == 1 or job.row["pipeline_layout"]:
        return str(job.row["pipeline_layout"])
    return pipeline_layout_text(stages, [0] * (len(stages) - 1) + [job.model.num_mtp_layers])


def dispatcher_name(job: Job) -> str:
    """The dispatcher as Megatron-Core names it: alltoall, or the flex dispatcher's backend."""
    if job.row["dispatcher"] == "framework" and job.row["ep"] == 1:
        return "alltoall"
    return Dispatcher(int(dispatchers(Case.of(job, job.layouts))[0])).name.lower()


def training_arguments(job: Job) -> Arguments:
    """Batch, recomputation, kernels and precision."""
    row, kept = job.row, job.gradients
    full, some, (method, layers) = (
        row["recompute"] == "full",
        modules(row["recompute"], job.model),
        recompute_method(row),
    )
    precision, recipe = row["precision"], fp8_recipe(job)
    return chosen(
        (True, "--micro-batch-size", row["micro_batch"]),
        (True, "--global-batch-size", row["global_batch"]),
        (full, "--recompute-granularity", "full"),
        (full, "--recompute-method", method),
        (full, "--recompute-num-layers", layers),
        (some, "--recompute-granularity", "selective"),
        (some, "--recompute-modules", *some),
        (True, "--attention-backend", attention_backend(job)),
        (True, "--no-create-attention-mask-in-dataloader"),  # sequence x sequence; kernels are causal by themselves
        (row["attention"] == "unfused", "--no-masked-softmax-fusion"),
        (row["cuda_graphs"], "--cuda-graph-impl", "transformer_engine"),
        (row["cuda_graphs"], "--cuda-graph-scope", *graph_scope(job)),
        (precision in HALF, "--bf16"),
        # Without it Megatron-LM keeps gradients in fp32 too, and the memory would not be the predicted one.
        (precision in HALF and "bf16" in kept, "--grad-reduce-in-bf16"),
        (precision == "fp16", "--fp16"),
        (precision == "fp16" and kept[0] == "fp32", "--accumulate-allreduce-grads-in-fp32"),
        (precision == "fp8", "--fp8-format", "e4m3" if recipe == "mxfp8" else "hybrid"),
        (precision == "fp8", "--fp8-recipe", recipe),
        (gathers_fp8(job, row), "--fp8-param-gather"),
        # The memory counted; Megatron-FSDP has none.
        (gathers_fp8(job, row) and recipe == "mxfp8" and row["zero"] < 2, "--reuse-grad-buf-for-mxfp8-param-ag"),
        (precision == "nvfp4", "--fp4-format", "e2m1"),
    )


def graph_scope(job: Job) -> tuple[str, ...]:
    """What of a layer is a CUDA graph: all of a dense one; of experts their routing, and what precedes the dispatch.

    Of experts with a capacity an all-to-all copies counts to the host there (transformer_config.py).
    """
    if not job.model.num_experts:
        return "attn", "mlp"
    return ("attn", "moe_router") if job.row["capacity_factor"] else ("attn", "moe_router", "moe_preprocess")


def attention_backend(job: Job) -> str:
    """Megatron-Core's word for the kernel; auto for the GPU's best, which Transformer Engine then chooses.

    `flash` turns cuDNN's kernels off, which alone have GPT-OSS's sinks, and DeepSeek-V3's heads on Blackwell.
    """
    kernel, best = job.row["attention"], default_attention(job.cluster).name.lower()
    return "unfused" if not kernel.startswith("flash") else "auto" if kernel == best else "flash"
