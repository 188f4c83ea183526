"""Optimizers as Megatron-Core has and names them."""

from typing import Any

from planner.exporters.nearest import Nearest
from planner.layouts import OptimizerKind
from planner.search.request import Broken

MOMENTS = {"adam_bf16": "bf16", "adam_8bit": "fp8"}
"""The number formats of Adam's moments, where they aren't fp32."""
ADAMS = "the distributed optimizer is Adam's"  # distrib_optimizer.py
ON_HOST = "moves to the host no optimizer but Adam"  # optimizer_config.py: its precision-aware form
OFFLOADED = "an optimizer on the host needs the distributed one, zero above 0"
NEVER: Broken = (
    (ADAMS, lambda x: (x.optimizer == OptimizerKind.SGD) & (x.zero > 0)),
    (ON_HOST, lambda x: x.offload_optimizer & (x.optimizer == OptimizerKind.SGD)),
    (OFFLOADED, lambda x: x.offload_optimizer & (x.zero == 0)),
)
"""What a search leaves out."""


def adapt_optimizer(nearest: Nearest) -> None:
    """Optimizers as Megatron-Core has them (optimizer/__init__.py, muon.py), and gradients in one format.

    Raises LayoutError for Muon in fp16, and for SGD on the host.
    """
    row, optimizer = nearest.row, nearest.row["optimizer"]
    if row["offload_optimizer"] and optimizer == "sgd":
        raise nearest.refuse("optimizer", ON_HOST, "recommend with adam")
    if row["grad_reduce_dtype"] not in ("framework", row["grad_dtype"]):
        nearest.change("grad_dtype", row["grad_reduce_dtype"], "gradients are kept as they are reduced")
    if optimizer in MOMENTS and row["zero"] == 0:
        nearest.change("zero", 1, "--use-precision-aware-optimizer needs --use-distributed-optimizer")
    if optimizer == "adam_8bit":
        nearest.note("optimizer adam_8bit: moments in fp8, with one scale for each tensor")
    if optimizer == "muon" and row["precision"] == "fp16":
        raise nearest.refuse("optimizer", "has no Muon in fp16", "recommend with --precision bf16")
    if optimizer == "sgd" and row["zero"] > 0:
        nearest.change("zero", 0, ADAMS)
        nearest.change("dp_replicate", 1, ADAMS)


def optimizer_name(row: dict[str, Any]) -> str:
    """Megatron-Core's name of an optimizer: Muon whose replicas share the matrices is dist_muon."""
    return {"sgd": "sgd", "muon": "dist_muon" if row["zero"] else "muon"}.get(row["optimizer"], "adam")
