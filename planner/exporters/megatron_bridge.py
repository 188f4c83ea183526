"""Megatron-Bridge (NeMo): a Python function that sets a plan's choices on a recipe's `ConfigContainer`.

Fields read in megatron-bridge 0.3.1 (training/config.py, training/comm_overlap.py, training/mixed_precision.py) and in
the Megatron-Core 0.16.1 classes that they extend.
"""

from dataclasses import replace
from itertools import chain
from typing import Any

from planner.choices.offload import module_names
from planner.choices.training import TARGETS, adapter_rank, adapts, read_training
from planner.exporters import megatron, megatron_limits
from planner.exporters.file_text import comments, quoted
from planner.exporters.megatron_model import modules, recompute_method
from planner.exporters.megatron_optimizer import MOMENTS, optimizer_name
from planner.exporters.nearest import Job, Nearest
from planner.exporters.target import MODELS
from planner.models import Transformer, load_model, with_seq_len

RECIPES: dict[str, tuple[str, str]] = MODELS["megatron-bridge"]
WITHOUT_PEFT = ("gpt.gpt3_175b", "llama.llama2", "deepseek.deepseek_v2", "deepseek.deepseek_v3", "kimi.kimi_k2")
"""Modules of recipes that have none for adapters beside each one for all weights."""
PRECISIONS = {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "nvfp4": "bf16_with_nvfp4_mixed",
              "delayed": "bf16_with_fp8_delayed_scaling_mixed", "mxfp8": "bf16_with_mxfp8_mixed",
              "tensorwise": "bf16_with_fp8_current_scaling_mixed"}  # fmt: skip
FORMATS = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp8": "torch.uint8"}

Table = list[tuple[Any, str, Any]]
"""Whether a field is set, its name, its value."""


class MegatronBridge(megatron.OnMegatronCore):
    """Overrides of a Megatron-Bridge recipe; the model is the recipe's."""

    name = "megatron-bridge"
    title = "Megatron-Bridge"
    profile = "megatron-bridge"
    version = "0.3.1"
    suffix = ".py"
    adapters = ""

    def adapt(self, nearest: Nearest) -> None:
        """Adapts to Megatron-Core; the model is not exported."""
        nearest.schedules(megatron.SCHEDULES)
        megatron.adapt_core(nearest, str)
        if (precision := nearest.row["precision"]) in ("tf32", "fp32"):
            nearest.note(f"precision {precision}: no mixed-precision recipe; PyTorch's setting decides on tf32")

    def render(self, job: Job) -> str:
        """The function."""
        megatron_limits.check_rules(job)
        full = job.row["train"] == "full"
        recipe = _shipped_recipe(job.model, full)
        module, function = recipe or ("your.recipes", f"your_{'pretrain' if full else 'peft'}_config")
        way, after = ("pretrain", "") if full else ("finetune", "  # with cfg.checkpoint.pretrained_checkpoint")
        usage = [
            f"from {'megatron.bridge.recipes.' if recipe else ''}{module} import {function}",
            "from megatron.bridge.training.gpt_step import forward_step",
            f"from megatron.bridge.training.{way} import {way}",
            f"{way}(apply_plan({function}()), forward_step)" + after,
        ]
        if connections := megatron.connections(job):
            usage.append(f"Launch with CUDA_DEVICE_MAX_CONNECTIONS={connections}.")
        if job.layouts.offload_modules[0]:
            usage.append("Launch with NVTE_CPU_OFFLOAD_V1=1: else Transformer Engine moves weights too.")
        return "\n".join([
            *comments(job.head),
            "#",
            *comments(["Data, iterations, and what isn't set below of model and optimizer, are the recipe's. Use:"]),
            *(f"#   {line}" for line in usage),
            "",
            *_imports(job),
            "from megatron.bridge.training.config import ConfigContainer",
            "",
            "",
            "def apply_plan(cfg: ConfigContainer) -> ConfigContainer:",
            '    """The plan\'s choices on a recipe for the same model."""',
            *(f"    cfg.{name} = {value}" for name, value in _overrides(job)),
            "    return cfg",
            "",
        ])  # fmt: skip


def _shipped_recipe(model: Transformer, full: bool) -> tuple[str, str] | None:
    """The recipe of a preset, for all weights or for adapters; a model of one's own of the same name has none."""
    shape = replace(model, model_type="")
    if model.name not in RECIPES or with_seq_len(load_model(model.name), model.seq_len) != shape:
        return None
    module, function = RECIPES[model.name]
    if full:
        return module, function
    return None if module in WITHOUT_PEFT else (module, function.replace("pretrain", "peft"))


def _imports(job: Job) -> list[str]:
    lines = ["import torch", "from megatron.core.transformer.enums import AttnBackend", ""]
    if _half_gradients(job) or job.row["precision"] == "fp8":
        lines.append("from megatron.bridge.training.mixed_precision import get_mixed_precision_config")
    if job.row["train"] != "full":
        lines.append("from megatron.bridge.peft.lora import LoRA")
    return [*lines, "from megatron.bridge.training.comm_overlap import CommOverlapConfig"]


def _half_gradients(job: Job) -> bool:
    return job.row["precision"] in megatron.HALF and "bf16" in job.gradients


def _overlaps(job: Job) -> str:
    """Arguments of `CommOverlapConfig`, which overrides ddp's where the distributed optimizer is (its `setup`)."""
    tensor, (reduced, gathered) = megatron.overlaps_tensor(job, job.row), megatron.overlaps_data(job)
    more = ", overlap_moe_expert_parallel_comm=True" if megatron.overlaps_experts(job) else ""
    return f"tp_comm_overlap={tensor}, overlap_grad_reduce={reduced}, overlap_param_gather={gathered}{more}"


def _overrides(job: Job) -> list[tuple[str, Any]]:
    """Fields of the container, each with its value as Python writes it; a table's rows begin with whether it is set."""
    row = job.row
    tables = (
        _parallelism(job),
        _recompute(job),
        [(True, "train.micro_batch_size", row["micro_batch"]), (True, "train.global_batch_size", row["global_batch"])],
        _data_parallelism(job),
        _model_parts(job),
        _numerics(job),
        _optimizer(job),
        _adapters(row["train"]),
        [(True, "comm_overlap", f"CommOverlapConfig({_overlaps(job)})")],
    )
    return [(name, value) for wanted, name, value in chain.from_iterable(tables) if wanted]


def _parallelism(job: Job) -> Table:
    row, model = job.row, job.model
    layout = megatron.uneven_layout(job) if row["pp"] > 1 else ""
    way, sizes = megatron.context_parts(row["cp"], row["ulysses"])
    dtype = {"fp16": "torch.float16", "fp32": FORMATS["fp32"], "tf32": FORMATS["fp32"]}.get(
        row["precision"], FORMATS["bf16"]
    )
    return [
        (True, "model.tensor_model_parallel_size", row["tp"]),
        (True, "model.pipeline_model_parallel_size", row["pp"]),
        (True, "model.pipeline_dtype", dtype if row["pp"] > 1 else None),
        (True, "model.virtual_pipeline_model_parallel_size",
         row["virtual_stages"] if row["virtual_stages"] > 1 else None),
        (True, "model.pipeline_model_parallel_layout", quoted(layout) if layout else None),
        # Recipes set these (llama31_405b), which a layout excludes, and even stages would be others.
        (True, "model.account_for_embedding_in_pipeline_split", False),
        (True, "model.account_for_loss_in_pipeline_split", False),
        (True, "model.num_layers_in_first_pipeline_stage", None),
        (True, "model.num_layers_in_last_pipeline_stage", None),
        (True, "model.context_parallel_size", row["cp"]),
        (row["ulysses"] > 1, "model.cp_comm_type", quoted(way)),  # a ring is its default
        (sizes, "model.hierarchical_context_parallel_sizes", list(sizes)),
        (True, "model.sequence_parallel", row["sequence_parallel"] and row["tp"] > 1),
        (True, "model.seq_length", model.seq_len),
        (True, "dataset.seq_length", model.seq_len),
        (model.rotary and model.rotary_base, "model.rotary_base", model.rotary_base),
        (model.norm_epsilon, "model.layernorm_epsilon", model.norm_epsilon),
        (True, "model.attention_backend", f"AttnBackend.{megatron.attention_backend(job)}"),
        (True, "model.cuda_graph_impl", quoted("transformer_engine" if row["cuda_graphs"] else "none")),
        (row["cuda_graphs"], "model.cuda_graph_scope", f"[{', '.join(map(quoted, megatron.graph_scope(job)))}]"),
        (row["cuda_graphs"], "model.use_te_rng_tracker", True),
        (row["cuda_graphs"], "rng.te_rng_tracker", True),
    ]  # fmt: skip


def _data_parallelism(job: Job) -> Table:
    """How gradients and states are sharded and sent."""
    row, (reduced, gathered) = job.row, megatron.overlaps_data(job)
    shards = row["zero"] > 0
    return [
        (True, "ddp.use_distributed_optimizer", shards and row["optimizer"] != "muon"),
        (True, "optimizer.use_distributed_optimizer", shards and row["optimizer"] != "muon"),
        (True, "ddp.use_megatron_fsdp", row["zero"] > 1),
        (True, "ddp.data_parallel_sharding_strategy", quoted(megatron.SHARDING.get(row["zero"], "no_shard"))),
        (True, "ddp.num_distributed_optimizer_instances", row["dp_replicate"]),
        (True, "ddp.overlap_grad_reduce", reduced),
        (True, "ddp.overlap_param_gather", gathered),
    ]


def _model_parts(job: Job) -> Table:
    """Settings of multi-token prediction, of experts, and of Megatron-FSDP."""
    row, model, dispatcher, fsdp = job.row, job.model, megatron.dispatcher_name(job), job.row["zero"] > 1
    plain, experts = dispatcher == "alltoall", model.num_experts
    return [
        (True, "model.mtp_num_layers", model.num_mtp_layers or None),  # recipes of DeepSeek-V3 and GLM-4.5 have one
        (experts, "model.expert_model_parallel_size", row["ep"]),
        (experts, "model.expert_tensor_parallel_size", row["etp"]),
        (experts, "model.moe_token_dispatcher_type", quoted("alltoall" if plain else "flex")),
        (experts and row["capacity_factor"], "model.moe_expert_capacity_factor", row["capacity_factor"]),
        (experts, "model.moe_flex_dispatcher_backend", None if plain else quoted(dispatcher)),
        (experts, "model.moe_permute_fusion", megatron.fuses_routing(job)),
        (experts, "model.moe_router_fusion", megatron.fuses_routing(job)),
        (experts and not plain, "model.moe_router_dtype", quoted("fp32")),
        # Recipes run shared experts beside the all-to-alls, which excludes another micro-batch there.
        (megatron.overlaps_experts(job), "model.moe_shared_expert_overlap", False),
        (fsdp, "dist.use_megatron_fsdp", True),
        (fsdp, "ddp.average_in_collective", False),
        (fsdp, "model.gradient_accumulation_fusion", False),
        (fsdp, "checkpoint.ckpt_format", quoted("fsdp_dtensor")),
    ]


def _numerics(job: Job) -> Table:
    """The mixed precision; the named recipes reduce in fp32, and override what ddp says."""
    half, fp8, scaling = _half_gradients(job), job.row["precision"] == "fp8", megatron.fp8_recipe(job)
    name, gathers = PRECISIONS.get(scaling if fp8 else job.row["precision"]), megatron.gathers_fp8(job, job.row)
    recipe = quoted(name or "")
    return [
        (name, "mixed_precision", f"get_mixed_precision_config({recipe})" if half or fp8 else recipe),
        (fp8 and scaling == "tensorwise", "mixed_precision.first_last_layers_bf16", False),  # all are counted in fp8
        (fp8 and not gathers, "mixed_precision.fp8_param_gather", False),
        (fp8 and not gathers and scaling == "mxfp8", "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag", False),
        (half, "mixed_precision.grad_reduce_in_fp32", False),
        (half, "ddp.grad_reduce_in_fp32", False),
    ]


def _optimizer(job: Job) -> Table:
    """Recipes set the number formats of Adam's states (deepseek_v3: moments and gradients in bf16), so all are said."""
    row, moments = job.row, MOMENTS.get(job.row["optimizer"], "fp32")
    aware = row["offload_optimizer"] or moments != "fp32"
    return [
        (row["offload_optimizer"], "optimizer.optimizer_cpu_offload", True),
        (row["offload_optimizer"], "optimizer.optimizer_offload_fraction", row["offload_fraction"]),
        (True, "optimizer.use_precision_aware_optimizer", aware),
        (True, "optimizer.main_grads_dtype", FORMATS[job.gradients[0] if aware else "fp32"]),
        (True, "optimizer.main_params_dtype", FORMATS["fp32"]),
        (True, "optimizer.exp_avg_dtype", FORMATS[moments]),
        (True, "optimizer.exp_avg_sq_dtype", FORMATS[moments]),
        (True, "optimizer.optimizer", quoted(optimizer_name(row))),  # kimi_k2's recipe has Muon
    ]


def _adapters(train: str) -> Table:
    if train == "full":
        return []
    code = read_training(train)
    names = [quoted(f"linear_{target}") for target in TARGETS if adapts(code, target)]
    return [
        (True, "dataset.packed_sequence_specs", None),
        (True, "peft", f"LoRA(target_modules=[{', '.join(names)}], dim={int(adapter_rank(code))})"),
    ]


def _recompute(job: Job) -> Table:
    full, some = job.row["recompute"] == "full", modules(job.row["recompute"], job.model)
    method, layers = recompute_method(job.row)
    moved, waiting = job.row["offload_layers"], module_names(int(job.layouts.offload_modules[0]))
    return [
        (True, "model.recompute_granularity", quoted("full" if full else "selective") if full or some else None),
        (True, "model.recompute_method", quoted(method) if full else None),
        (True, "model.recompute_num_layers", layers if full else None),
        (True, "model.recompute_modules", f"[{', '.join(map(quoted, some))}]" if some else None),
        (moved, "model.cpu_offloading", True),
        (moved, "model.cpu_offloading_num_layers", moved),
        (moved, "model.cpu_offloading_activations", True),
        (moved, "model.cpu_offloading_weights", False),
        (waiting, "model.fine_grained_activation_offloading", True),
        (waiting, "model.offload_modules", f"[{', '.join(map(quoted, waiting))}]"),
    ]
