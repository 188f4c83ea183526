"""Megatron-Bridge (NeMo): a Python function that sets a plan's choices on a recipe's `ConfigContainer`.

Fields read in megatron-bridge 0.3.1 (training/config.py, training/comm_overlap.py, training/mixed_precision.py) and in
the Megatron-Core 0.16.1 classes that they extend.
"""

from __future__ import annotations

from typing import Any

from planner.choices.training import TARGETS, adapter_rank, adapts, read_training
from planner.exporters.megatron import (
    HALF,
    MOMENTS,
    SCHEDULES,
    SHARDING,
    adapt_optimizer,
    check_rules,
    dispatcher_name,
    optimizer_name,
    uneven_layout,
)
from planner.exporters.recompute_modules import modules, recompute_method
from planner.exporters.safe_text import comments, quoted
from planner.exporters.target import Job, Nearest, Target, allowed
from planner.models import Transformer, load_model, with_seq_len
from planner.search import Fixed

# Shipped recipes of the presets: module and function.
RECIPES = {
    "gpt3-175b": ("gpt.gpt3_175b", "gpt3_175b_pretrain_config"),
    "llama2-7b": ("llama.llama2", "llama2_7b_pretrain_config"),
    "llama3-8b": ("llama.llama3", "llama3_8b_pretrain_config"),
    "llama3-70b": ("llama.llama3", "llama3_70b_pretrain_config"),
    "llama3-405b": ("llama.llama3", "llama31_405b_pretrain_config"),
    "qwen2-0.5b": ("qwen.qwen2", "qwen2_500m_pretrain_config"),
    "qwen2-1.5b": ("qwen.qwen2", "qwen2_1p5b_pretrain_config"),
    "qwen2-7b": ("qwen.qwen2", "qwen2_7b_pretrain_config"),
    "qwen2-72b": ("qwen.qwen2", "qwen2_72b_pretrain_config"),
    "deepseek-v3": ("deepseek.deepseek_v3", "deepseek_v3_pretrain_config"),
    "deepseek-v3-mtp": ("deepseek.deepseek_v3", "deepseek_v3_pretrain_config"),
}
PRECISIONS = {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_delayed_scaling_mixed",
              "nvfp4": "bf16_with_nvfp4_mixed"}  # fmt: skip


class MegatronBridge(Target):
    """Overrides of a Megatron-Bridge recipe; the model is the recipe's."""

    name = "megatron-bridge"
    title = "Megatron-Bridge"
    profile = "megatron-bridge"
    version = "0.3.1"
    suffix = ".py"
    adapters = ""

    def only(self, fixed: Fixed) -> Fixed:
        """1F1B and its interleaved form; ZeRO 2 and 3, which are Megatron-FSDP's, only where they are asked for."""
        fixed = allowed(fixed, schedule=SCHEDULES)
        return fixed if fixed.zero else allowed(fixed, zero=(0, 1))

    def adapt(self, nearest: Nearest) -> None:
        """As Megatron-LM, but that the model is not exported."""
        row, model = nearest.row, nearest.setup.model
        nearest.schedules(SCHEDULES)
        adapt_optimizer(nearest)
        nearest.whole_activations("cpu_offloading")
        if row["offload_optimizer"] and row["zero"] == 0:
            nearest.change("zero", 1, "optimizer_cpu_offload needs use_distributed_optimizer")
        if row["precision"] in ("tf32", "fp32"):
            nearest.note(f"precision {row['precision']}: no mixed-precision recipe; PyTorch's setting decides on tf32")
        if row["precision"] == "fp16" and row["ep"] > 1:
            raise nearest.refuse("ep", "has no expert parallelism in fp16", "recommend with --precision bf16 or --ep 1")
        if model.num_experts and row["tp"] > 1:
            nearest.change("sequence_parallel", True, "experts under tensor parallelism need it")
        if not row["fused_norm"]:
            nearest.note("fused_norm off: Transformer Engine has no other norm; exported as on")
        nearest.experts_in_turn("overlap_moe_expert_parallel_comm")

    def render(self, job: Job) -> str:
        """The function."""
        check_rules(job)
        recipe = _shipped_recipe(job.model)
        module, function = recipe or ("your.recipes", "your_pretrain_config")
        train = job.row["train"] == "full"
        usage = [
            f"from {'megatron.bridge.recipes.' if recipe else ''}{module} import {function}",
            "from megatron.bridge.training.gpt_step import forward_step",
            *(
                [
                    "from megatron.bridge.training.pretrain import pretrain",
                    f"pretrain(apply_plan({function}()), forward_step)",
                ]
                if train
                else [
                    "from megatron.bridge.training.finetune import finetune",
                    f"finetune(apply_plan({function}()), forward_step)  # with cfg.checkpoint.pretrained_checkpoint",
                ]
            ),
        ]
        return "\n".join([
            *comments(job.head),
            "#",
            *comments(["The model, data, optimizer and iterations are the recipe's. Use:"]),
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


def _shipped_recipe(model: Transformer) -> tuple[str, str] | None:
    """The recipe of a preset; a model of one's own that bears the same name has none."""
    if model.name not in RECIPES:
        return None
    preset = with_seq_len(load_model(model.name), model.seq_len)
    return RECIPES[model.name] if preset == model else None


def _imports(job: Job) -> list[str]:
    lines = ["from megatron.core.transformer.enums import AttnBackend", ""]
    if job.row["pp"] > 1 or job.row["optimizer"] in MOMENTS:
        lines.insert(0, "import torch")
    if _half_gradients(job):
        lines.append("from megatron.bridge.training.mixed_precision import get_mixed_precision_config")
    if job.row["train"] != "full":
        lines.append("from megatron.bridge.peft.lora import LoRA")
    if _overlaps_tensor(job):
        lines.append("from megatron.bridge.training.comm_overlap import CommOverlapConfig")
    return lines


def _half_gradients(job: Job) -> bool:
    return job.row["precision"] in HALF and "bf16" in job.gradients


def _overlaps_tensor(job: Job) -> bool:
    return bool(job.row["sequence_parallel"]) and job.row["tp"] > 1 and job.framework.overlap_tensor > 0


def _context(cp: int, ulysses: int) -> list[tuple[str, Any]]:
    """How context ranks bring tokens together, where not by the ring that is the default."""
    if ulysses == 1:
        return []
    if ulysses == cp:
        return [("model.cp_comm_type", quoted("a2a"))]
    sizes = [ulysses, cp // ulysses]
    return [("model.cp_comm_type", quoted("a2a+p2p")), ("model.hierarchical_context_parallel_sizes", sizes)]


def _overrides(job: Job) -> list[tuple[str, Any]]:
    """Fields of the container, each with its value as Python writes it."""
    return [
        *_parallelism(job),
        *_recompute(job),
        *_batch(job),
        *_data_parallelism(job),
        *_model_parts(job),
        *_numerics(job),
        *_optimizer(job),
        *_adapters(job.row["train"]),
        *([("comm_overlap", "CommOverlapConfig(tp_comm_overlap=True)")] if _overlaps_tensor(job) else []),
    ]


def _parallelism(job: Job) -> list[tuple[str, Any]]:
    row, model = job.row, job.model
    layout = uneven_layout(job) if row["pp"] > 1 else ""
    dtype = {"fp16": "torch.float16", "fp32": "torch.float32", "tf32": "torch.float32"}.get(
        row["precision"], "torch.bfloat16"
    )
    return [
        ("model.tensor_model_parallel_size", row["tp"]),
        ("model.pipeline_model_parallel_size", row["pp"]),
        ("model.pipeline_dtype", dtype if row["pp"] > 1 else None),
        ("model.virtual_pipeline_model_parallel_size", row["virtual_stages"] if row["virtual_stages"] > 1 else None),
        ("model.pipeline_model_parallel_layout", quoted(layout) if layout else None),
        ("model.context_parallel_size", row["cp"]),
        *_context(row["cp"], row["ulysses"]),
        ("model.sequence_parallel", row["sequence_parallel"] and row["tp"] > 1),
        ("model.seq_length", model.seq_len),
        ("dataset.seq_length", model.seq_len),
        ("model.attention_backend", f"AttnBackend.{'flash' if row['attention'].startswith('flash') else 'unfused'}"),
    ]


def _batch(job: Job) -> list[tuple[str, Any]]:
    return [("train.micro_batch_size", job.row["micro_batch"]), ("train.global_batch_size", job.row["global_batch"])]


def _data_parallelism(job: Job) -> list[tuple[str, Any]]:
    """How gradients and states are sharded and sent."""
    row, f = job.row, job.framework
    reduced = f.overlap_grad_reduce_pipelined if row["pp"] > 1 else f.overlap_grad_reduce
    overlaps = row["dp"] * row["cp"] > 1 and reduced > 0
    return [
        ("ddp.use_distributed_optimizer", row["zero"] > 0 and row["optimizer"] != "muon"),
        ("optimizer.use_distributed_optimizer", row["zero"] > 0 and row["optimizer"] != "muon"),
        ("ddp.use_megatron_fsdp", row["zero"] > 1),
        ("ddp.data_parallel_sharding_strategy", quoted(SHARDING.get(row["zero"], "no_shard"))),
        ("ddp.num_distributed_optimizer_instances", row["dp_replicate"]),
        ("ddp.overlap_grad_reduce", overlaps),
        ("ddp.overlap_param_gather", overlaps and row["zero"] > 0 and f.overlap_param_gather > 0),
    ]


def _model_parts(job: Job) -> list[tuple[str, Any]]:
    """What multi-token prediction and experts need, and Megatron-FSDP's own."""
    row, model, dispatcher = job.row, job.model, dispatcher_name(job)
    out: list[tuple[str, Any]] = []
    if model.num_mtp_layers or (model.name in RECIPES and model.kv_lora_rank):
        # DeepSeek-V3's recipe has a module.
        out.append(("model.mtp_num_layers", model.num_mtp_layers or None))
    if model.num_experts:
        out += [
            ("model.expert_model_parallel_size", row["ep"]),
            ("model.expert_tensor_parallel_size", row["etp"]),
            ("model.moe_token_dispatcher_type", quoted("alltoall" if dispatcher == "alltoall" else "flex")),
            *([("model.moe_expert_capacity_factor", row["capacity_factor"])] if row["capacity_factor"] else []),
            ("model.moe_flex_dispatcher_backend", None if dispatcher == "alltoall" else quoted(dispatcher)),
        ]
    if row["zero"] > 1:
        out += [
            ("dist.use_megatron_fsdp", True),
            ("ddp.average_in_collective", False),
            ("model.gradient_accumulation_fusion", False),
            ("checkpoint.ckpt_format", quoted("fsdp_dtensor")),
        ]
    return out


def _numerics(job: Job) -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    if job.row["precision"] in PRECISIONS:
        name = quoted(PRECISIONS[job.row["precision"]])
        out.append(("mixed_precision", f"get_mixed_precision_config({name})" if _half_gradients(job) else name))
    if _half_gradients(job):  # the named recipes reduce in fp32, and override what ddp says
        out += [("mixed_precision.grad_reduce_in_fp32", False), ("ddp.grad_reduce_in_fp32", False)]
    return out


def _optimizer(job: Job) -> list[tuple[str, Any]]:
    row = job.row
    out: list[tuple[str, Any]] = []
    if row["offload_optimizer"]:
        out += [
            ("optimizer.optimizer_cpu_offload", True),
            ("optimizer.optimizer_offload_fraction", row["offload_fraction"]),
        ]
    if row["offload_optimizer"] or row["optimizer"] in MOMENTS:
        out.append(("optimizer.use_precision_aware_optimizer", True))
    if row["optimizer"] in MOMENTS:
        dtype = "torch.bfloat16" if row["optimizer"] == "adam_bf16" else "torch.uint8"
        out += [("optimizer.exp_avg_dtype", dtype), ("optimizer.exp_avg_sq_dtype", dtype)]
    if row["optimizer"] in ("muon", "sgd"):
        out.append(("optimizer.optimizer", quoted(optimizer_name(row))))
    return out


def _adapters(train: str) -> list[tuple[str, Any]]:
    if train == "full":
        return []
    code = read_training(train)
    names = [quoted(f"linear_{target}") for target in TARGETS if adapts(code, target)]
    return [("peft", f"LoRA(target_modules=[{', '.join(names)}], dim={int(adapter_rank(code))})")]


def _recompute(job: Job) -> list[tuple[str, Any]]:
    full, some = job.row["recompute"] == "full", modules(job.row["recompute"], job.model)
    method, layers = recompute_method(job.row)
    moved = job.row["offload_layers"]
    return [
        ("model.recompute_granularity", quoted("full" if full else "selective") if full or some else None),
        ("model.recompute_method", quoted(method) if full else None),
        ("model.recompute_num_layers", layers if full else None),
        ("model.recompute_modules", f"[{', '.join(map(quoted, some))}]" if some else None),
        *([("model.cpu_offloading", True), ("model.cpu_offloading_num_layers", moved),
           ("model.cpu_offloading_activations", True), ("model.cpu_offloading_weights", False)] if moved else []),
    ]  # fmt: skip
