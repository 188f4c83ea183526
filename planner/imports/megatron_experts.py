"""How experts meet their tokens in a run of Megatron-LM: the dispatch, its kernels, and what hides it."""

from dataclasses import replace
from typing import Any

from planner.base.errors import LayoutError
from planner.costs.case import Case
from planner.costs.layer.expert_routing import dispatchers
from planner.hardware import Framework, load_framework
from planner.imports.arguments import Arguments
from planner.layouts import Dispatcher, Layouts
from planner.setup import Setup

OVERLAP = "overlap-moe-expert-parallel-comm"
PADDED = "moe-pad-expert-input-to-capacity"
GRAPHS = (
    "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full", "full_iteration", "full_iteration_inference",
)  # fmt: skip
FUSED = ("moe-permute-fusion", "moe-router-fusion")


def dispatcher(a: Arguments, notes: list[str]) -> str | None:
    """How tokens get to their experts; None where the arguments say nothing.

    Raises LayoutError for experts padded to a capacity beside DeepEP (transformer_config.py).
    """
    kind = a.one_of("moe-token-dispatcher-type", ("allgather", "alltoall", "flex"))
    backend = a.one_of("moe-flex-dispatcher-backend", ("deepep", "hybridep"))
    if kind == "allgather":
        notes.append("--moe-token-dispatcher-type allgather: counted as alltoall")
    if kind in ("allgather", "alltoall"):
        return "alltoall"
    if kind is None and backend is None and "moe-enable-deepep" not in a:
        return None
    if backend != "hybridep" and PADDED in a:
        raise LayoutError(f"--{PADDED} and DeepEP are both there, which Megatron-LM refuses; allowed: one of them")
    return backend or "deepep"


def graph_scope(a: Arguments) -> set[str]:
    """What of a layer is replayed as a CUDA graph; nothing stands for all of it.

    Raises InputError for a name that Megatron-Core has not (transformer/enums.py: CudaGraphModule, CudaGraphScope).
    """
    return {word for name in ("cuda-graph-scope", "cuda-graph-modules") for word in a.each_of(name, GRAPHS)}


def check_overlap(a: Arguments, row: dict[str, Any], modules: int) -> None:
    """Raises LayoutError where Megatron-Core 0.16.1 refuses the overlap of experts' all-to-alls that is asked for.

    row: the layout; modules: of multi-token prediction (transformer_config.py: overlap_moe_expert_parallel_comm).
    """
    scope = graph_scope(a)
    repeats = a.text("recompute-granularity") == "full" or "recompute-method" in a or "recompute-num-layers" in a
    table = (
        (row["ep"] > 1, "--expert-model-parallel-size above 1"),
        (row["pp"] == 1 or row["virtual_stages"] > 1, f"virtual stages beside pp {row['pp']}"),
        (a.text("moe-token-dispatcher-type") != "allgather", "--moe-token-dispatcher-type alltoall or flex"),
        (not repeats, "no full recomputation, its method or its number of layers"),
        ("bf16" in a or "fp16" in a, "--bf16 or --fp16"),
        ("moe-shared-expert-overlap" not in a, "no --moe-shared-expert-overlap"),
        (modules < 2 and (not modules or row["pp"] > 1), f"at most one --mtp-num-layers ({modules}), with a pipeline"),
        (not scope & {"moe", "mlp"} and a.text("cuda-graph-impl") in (None, "none", "transformer_engine"),
         "no --cuda-graph-scope moe or mlp, and --cuda-graph-impl transformer_engine"),
    )  # fmt: skip
    for kept, needed in table:
        if not kept:
            raise LayoutError(f"Megatron-LM refuses --{OVERLAP} here; it needs {needed}")


def turned_on(a: Arguments, f: Framework) -> Framework:
    """The profile with what the run asks for beyond it: fused routing, all-to-alls hidden as in Bridge's recipes."""
    overlap = f.overlap_experts or (load_framework("megatron-bridge").overlap_experts if OVERLAP in a else 0.0)
    return replace(f, overlap_experts=overlap, fused_routing=f.fused_routing or all(name in a for name in FUSED))


def turned_off(
    a: Arguments, profile: Setup, layouts: Layouts, notes: list[str]
) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """The profile's fields that the run is without, and which argument would turn which of them on."""
    off: dict[str, tuple[str, ...]] = {}
    changes: dict[str, Any] = {}
    f, ep, named = profile.framework, int(layouts.ep[0]), int(layouts.dispatcher[0])
    if ep > 1 and OVERLAP not in a and f.overlap_experts:
        off[f"--{OVERLAP}"], changes["overlap_experts"] = ("overlap_experts",), 0.0
    if named > Dispatcher.ALLTOALL:
        return changes | {"node_dispatch": True}, off
    if ep > 1:
        own = dispatchers(Case.of(profile, layouts.framework_dispatched()))[0]
        changes |= {"node_dispatch": False, "flex_dispatch": False}
        if own > Dispatcher.ALLTOALL:
            how = "moe-enable-deepep" if own == Dispatcher.DEEPEP else "moe-flex-dispatcher-backend hybridep"
            off[f"--{how}"] = ("node_dispatch", "flex_dispatch")
    there = [name for name in FUSED if name in a]
    if len(there) < len(FUSED):
        notes += [f"--{there[0]} alone: counted as off, for --{' and --'.join(FUSED)} count together"] if there else []
        if f.fused_routing:
            off[" ".join(f"--{name}" for name in FUSED)], changes["fused_routing"] = ("fused_routing",), False
    return changes, off
