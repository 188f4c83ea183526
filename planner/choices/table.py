"""Every choice of a layout, declared once. What lists choices anywhere derives from this table.

A new choice is a row here, a column of `planner.layouts.Layouts`, and the formulas that it means something to.
`docs/extend.md` adds one, step by step.
"""

from collections.abc import Mapping
from typing import Any

from planner.choices.choice import Choice, Codec
from planner.choices.enumerations import (
    Attention,
    Dispatcher,
    GradDtype,
    MainDtype,
    OptimizerKind,
    Precision,
    Recompute,
    Split,
)  # fmt: skip
from planner.choices.offload import ALLOWED_MODULES, modules_text, read_modules
from planner.choices.pipeline_layout import parse_pipeline_layout
from planner.choices.training import ALLOWED, read_training, training_text

CHOICES: Mapping[str, Choice] = {choice.name: choice for choice in (
    Choice("schedule", str, "1f1b", "The pipeline schedule (planner schedule lists them).", tie=6,
           derived="1f1b, interleaved with virtual stages, seq1f1b with sequence slices", of_layer=False, of_rank=False,
           apart=True, pipelined=True),
    Choice("dp", int, 1, "Data-parallel replicas.", "dp", of_layer=False, always=True),
    Choice("tp", int, 1, "Tensor-parallel ranks.", "tp", tie=1, always=True, apart=True),
    Choice("pp", int, 1, "Pipeline ranks.", "pp", tie=2, of_layer=False, always=True, apart=True),
    Choice("cp", int, 1, "Context-parallel ranks.", "cp", tie=3, apart=True),
    Choice("ulysses", int, 1, "Context ranks that exchange heads for tokens (Ulysses); a ring joins the rest.",
           "ulysses", tie=16, axis=6, tried=(1,)),
    Choice("inner_ring", int, 1, "Context ranks of an inner ring, neighbours; an outer ring joins such rings "
           "(LoongTrain). 1: one ring of all.", "inner ring", tie=20, axis=6, tried=(1,)),
    Choice("ep", int, 1, "Expert-parallel ranks, inside dp x cp, or with whole experts tp x dp x cp.", "ep", tie=4,
           apart=True),
    Choice("etp", int, 1, "Tensor ranks over which an expert is cut: tp, or 1.", "etp", tie=5,
           derived="tp, 1 where ep needs it", follows=True),
    Choice("virtual_stages", int, 1, "Model chunks per pipeline rank.", "v", also="vp", tie=7, of_layer=False,
           of_rank=False, pipelined=True),
    Choice("sequence_slices", int, 1, "Slices of a sequence, for seq1f1b and its kin.", "k", tie=8, settled=False,
           of_rank=False, risks=1, pipelined=True),
    Choice("micro_batch", int, 1, "Sequences per micro-batch and replica.", "mb", also="mb", tie=9, of_rank=False,
           always=True),
    Choice("global_batch", int, 1, "Sequences per optimizer step.", settled=False, of_layer=False,
           of_rank=False),
    Choice("zero", int, 1, "ZeRO stage, 0 to 3.", "zero", tie=11, axis=2, tried=(0, 1, 2, 3), least=0, most=3,
           of_layer=False, depends=True, always=True),
    Choice("dp_replicate", int, 1, "Copies of what ZeRO shards, each on neighbours: hybrid sharding.", "replicate",
           tie=12, axis=2, tried=(1,), of_layer=False, depends=True, risks=1, follows=True),
    Choice("sequence_parallel", bool, False, "Sequence parallelism between the products of tensor ranks.", "sp",
           also="sp", tie=13, axis=3, tried=(False, True), depends=True, follows=True,
           derived="on with tensor ranks where the framework turns it on by itself, as torchtitan does"),
    Choice("recompute", Recompute, Recompute.NONE, "Activations recomputed: none, selective (attention's core), "
           "fine (norms and experts' activations too), full (layers).",
           "recompute", tie=10, axis=1, tried=tuple(Recompute)),
    Choice("recompute_layers", int, 0, "Layers of each virtual stage, its first ones, that full recomputation repeats; "
           "0: all.", "first", tie=17, axis=1, tried=(0,), least=0),
    Choice("attention", Attention, Attention.FLASH2, "The kernel: unfused, fused, flash1, flash2 or flash3.",
           settled=False, derived="the accelerator's best"),
    Choice("precision", Precision, Precision.BF16, "The products' number format: fp32, tf32, fp16, bf16, fp8 or nvfp4.",
           settled=False, derived="the accelerator's usual one"),
    Choice("layer_split", Split, Split.EVEN, "Layers of the stages: even, balanced (by cost), parameters, products; "
           "ends: embedding and head are a layer each; last: short last stage.", tie=14, axis=4,
           tried=(Split.EVEN, Split.BALANCED), derived="the framework's own", of_layer=False, depends=True,
           risks=1, pipelined=True, follows=True),
    Choice("pipeline_layout", str, "", "The stages layer by layer, as Megatron-LM writes them: Et*3|(tt|)*29m|L.",
           "layout", settled=False, of_layer=False, parse=parse_pipeline_layout, pipelined=True),
    Choice("fused_norm", bool, True, "A fused norm kernel.", settled=False, shared=True,
           derived="the framework's own"),
    Choice("cuda_graphs", bool, False, "Layers that are not recomputed whole are replayed as CUDA graphs.",
           settled=False, shared=True, derived="on with Megatron-Core on Blackwell, as in most public recipes"),
    Choice("offload_optimizer", bool, False, "Optimizer state in host memory.", "offload", tie=15, axis=5,
           tried=(False, True), settled=False, of_layer=False, risks=2),
    Choice("offload_fraction", float, 1.0, "Share of the optimizer's state that offload_optimizer moves to the host, "
           "which updates it.", "share", settled=False, shared=True, of_layer=False, least=0, most=1),
    Choice("offload_parameters", bool, False, "With ZeRO 3: each rank's parameters wait in host memory for every "
           "gather.", "offloaded parameters", tie=19, axis=5, tried=(False,), risks=2),
    Choice("offload_layers", int, 0, "Layers of each virtual stage, the first behind recompute_layers, whose "
           "activations wait in host memory.", "offloaded", tie=18, axis=5, tried=(0,), least=0, of_layer=False,
           risks=2),
    Choice("offload_modules", str, 0, "Modules of each layer whose inputs wait in host memory, as Megatron-Core names "
           "them: core_attn+attn_proj, expert_fc1.", "offloaded modules", settled=False, shared=True, of_layer=False,
           codec=Codec(read_modules, modules_text, ALLOWED_MODULES)),
    Choice("grad_dtype", GradDtype, GradDtype.FRAMEWORK, "The gradient that micro-batches add up in: "
           "fp32 (Megatron's) or bf16.",
           settled=False, shared=True, derived="the framework's own"),
    Choice("grad_reduce_dtype", GradDtype, GradDtype.FRAMEWORK, "The gradient that replicas sum: fp32 or bf16.",
           settled=False, shared=True, derived="as --grad-dtype, else the framework's own"),
    Choice("main_dtype", MainDtype, MainDtype.FP32, "The weights that the optimizer updates: fp32, or bf16, as "
           "gradients and moments then are too.", settled=False, shared=True),
    Choice("optimizer", OptimizerKind, OptimizerKind.ADAM, "The optimizer: adam (fp32 moments), adam_bf16, adam_8bit, "
           "muon or sgd (with momentum).", settled=False, shared=True),
    Choice("dispatcher", Dispatcher, Dispatcher.FRAMEWORK, "How tokens get to their experts: alltoall, deepep, "
           "hybridep, or ppmoe (tensor ranks pick them).", settled=False, shared=True, derived="the framework's own"),
    Choice("expert_imbalance", float, 1.0, "Tokens of the rank with the busiest experts over the mean.", "imbalance",
           settled=False, shared=True, most=64),
    Choice("capacity_factor", float, 0.0, "Tokens that an expert takes at most over the mean; others are dropped. "
           "0: none.", "capacity", settled=False, shared=True, least=0, most=64),
    Choice("train", str, 0, "What is trained: full, or adapters of a rank beside frozen weights, lora:16 or "
           "lora:16:qkv+proj.", settled=False, shared=True,
           codec=Codec(read_training, training_text, ALLOWED)),
)}  # fmt: skip
"""Choices by name, in the order of records, files and lines of text."""

TEXTS: tuple[str, ...] = tuple(name for name, c in CHOICES.items() if c.kind is str and not c.codec)
"""The choices that are texts: a table of layouts has their names once, and in the column which of them."""

_CALLED = {word: name for name, c in CHOICES.items() for word in (c.short, c.also) if word}


def called(text: str) -> str:
    """The name of the choice that a text means, as vp or micro-batch; the text with underscores where it means none."""
    return _CALLED.get(text, text.replace("-", "_"))


SETTLED: tuple[str, ...] = tuple(name for name, c in CHOICES.items() if c.settled)
"""The choices that a user can hold a search to; a search sets the others itself, or has them from the question."""

SHARED: tuple[str, ...] = tuple(name for name, c in CHOICES.items() if c.shared)
"""The choices of which all layouts of a search have one value, the user's or the default."""

AXES: tuple[tuple[str, ...], ...] = tuple(
    tuple(name for name, c in CHOICES.items() if c.axis == axis)
    for axis in sorted({c.axis for c in CHOICES.values()} - {0})
)
"""The axes of a search's grids, each the choices that stand on it: what combines with every row of a grid."""

DEGREES = ("dp", "tp", "pp", "cp")
"""The degrees of parallelism whose product is the number of GPUs."""

NUMERICS = ("precision", "attention")
"""Choices that a search takes from its question, one value each."""


def usual(choice: Choice, row: dict[str, Any]) -> Any:
    """A choice's value where nothing is said of it: experts have as many tensor ranks as the rest."""
    return row["tp"] if choice.name == "etp" else choice.plain(choice.default)
