"""torchtitan's models: those that it registers, by their sizes, their kernels, and a recipe's lines of a model."""

import re
from dataclasses import dataclass
from typing import Any

from planner.base.errors import LayoutError
from planner.costs.shapes import is_latent
from planner.exporters.nearest import Job
from planner.exporters.target import MODELS
from planner.models import Transformer
from planner.setup import Setup

VARLEN = {"flash2": ("ampere", "ada", "ada-l4", "ada-l40s"), "flash3": ("hopper", "blackwell", "blackwell-ultra")}
"""The GPUs where `attn_backend="varlen"` runs what is counted as each kernel (tools/utils.py): FlashAttention 2 before
Hopper, 3 there, 4 on Blackwell. Context ranks have the last two as `flex_flash`."""


def attention_backend(setup: Setup, row: dict[str, Any]) -> str:
    """The `attn_backend` of torchtitan's models that runs a layout's kernel; empty where none does.

    FlashAttention 2 has no latent attention, whose values are narrower than its keys.
    """
    kernel, lacks = row["attention"], row["attention"] == "flash2" and is_latent(setup.model)
    if lacks or setup.cluster.accelerator.efficiency.name not in VARLEN.get(kernel, ()):
        return ""
    return "varlen" if row["cp"] == 1 else "flex_flash" if kernel == "flash3" else ""


@dataclass(frozen=True)
class Registered:
    """torchtitan's module of models, the flavor, a recipe to start from; new: 0.2.2 lacks the flavor."""

    module: str
    flavor: str
    recipe: str
    new: bool = False


BY_SIZES = {tuple(known.pop("sizes")): Registered(**known) for known in map(dict, MODELS["torchtitan"])}


def registered(model: Transformer, remedy: str = "", *, before: bool = False) -> Registered:
    """The torchtitan model of these sizes; before: of 0.2.2. Raises LayoutError, with the remedy, if it has none."""
    known = BY_SIZES.get(sizes_of(model))
    if known is None or (before and known.new):
        modules = ", ".join(dict.fromkeys(some.module for some in BY_SIZES.values()))
        raise LayoutError(f"torchtitan registers no model of the sizes of {model.name} (of its {modules}){remedy}")
    return known


def sizes_of(m: Transformer) -> tuple[int, ...]:
    """What `models.toml` tells torchtitan's models apart by."""
    return m.num_layers, m.hidden, m.num_heads, m.num_kv_heads, m.moe_ffn if m.num_experts else m.ffn, m.vocab


def base_recipe(model: Transformer, base: str | None) -> tuple[str, str]:
    """Module and function of the recipe to start from: the user's, or torchtitan's of a model of these sizes."""
    if base is not None:
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", base, re.ASCII):
            raise LayoutError(f"--base is {base!r}; allowed: package.module:function, a recipe of your own")
        source, _, function = base.partition(":")
        return source, function
    known = registered(model, "; give a recipe of your own with --base package.module:function")
    return f"torchtitan.models.{known.module}.config_registry", known.recipe


def products(job: Job, compiles: bool) -> tuple[list[str], list[str]]:
    """The recipe's lines for its model: attention kernel, and products in fp8 as torchtitan's own recipes have them.

    Imports, statements. A recipe of torchtitan's may ask for fp8 itself: its model is taken without it.
    """
    needed, lines = [], []
    if job.base is None:
        known = registered(job.model)
        backend = attention_backend(job, job.row) or "flex"
        needed.append(f"from torchtitan.models.{known.module} import model_registry")
        lines += [
            f'    config.model_spec = model_registry("{known.flavor}", attn_backend="{backend}")',
            "    for layer in config.model_spec.model.layers:  # its check refuses what is longer than the flavor's",
            f"        layer.attention.rope.max_seq_len = {job.model.seq_len}",
        ]
    if job.row["precision"] != "fp8":
        return needed, lines
    kept = '"lm_head", "router.gate"' if job.model.num_experts else '"lm_head"'
    how = f"model_compile_enabled={compiles}"
    converters = {"Float8LinearConverter": f"filter_fqns=[{kept}], {how}"}
    converters |= {"Float8GroupedExpertsConverter": how} if job.model.num_experts else {}
    return [f"from torchtitan.components.quantization import {', '.join(converters)}", *needed], [
        *lines,
        "    for converter in (",
        *(f"        {name}.Config({fields})," for name, fields in converters.items()),
        "    ):",
        "        config.model_spec.model = converter.build().convert(config.model_spec.model)",
    ]
