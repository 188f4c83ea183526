"""torchtitan's models: those that it registers, by their sizes, and the attention kernels that they have."""

from dataclasses import dataclass
from typing import Any

from planner.base.errors import LayoutError
from planner.costs.shapes import is_latent
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
