"""How a Hugging Face config.json says that experts are weighed, and which layers have them."""

from collections.abc import Callable
from typing import Any

from planner.models.description import LARGEST_OF
from planner.models.hub_config import Config


def router_fields(c: Config, score: str, scale: float = 1.0, *, sums: bool = True) -> dict[str, Any]:
    """How an expert's weight comes of its score; what a file leaves out is Transformers' default, given here."""
    score = c.data.get("scoring_func") or score
    if score not in ("softmax", "sigmoid"):
        raise c.fault("scoring_func", "softmax or sigmoid")
    scale = c.real("router_scale") if c.data.get("routed_scaling_factor") is not None else scale
    first = "" if c.flag("norm_topk_prob", sums) else "-first"
    return {"router": f"{score}{first}" + (f" {scale:g}" if scale != 1 else "")}


def layer_fields(layers: int, sparse: Callable[[int], bool]) -> dict[str, Any]:
    """Layers without experts by their number from 0: how many, and the whole where they aren't the first."""
    each = "".join(str(int(sparse(i))) for i in range(min(layers, LARGEST_OF["layers"] + 1)))
    return {"dense_layers": each.count("0"), "expert_layers": "" if "10" not in each else each}
