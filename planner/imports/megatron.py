"""A run of Megatron-LM from its arguments. Names read as in `planner.exporters.megatron`."""

from dataclasses import replace
from typing import Any

from planner.base.errors import InputError, LayoutError, one_line, shown
from planner.base.units import GIB, format_bytes
from planner.choices.choice import number, whole
from planner.choices.offload import ALLOWED_MODULES, modules_text, read_modules
from planner.exporters.megatron_model import modules
from planner.hardware import Cluster, Framework
from planner.imports.arguments import Arguments, read_arguments
from planner.imports.megatron_experts import OVERLAP, check_overlap, dispatcher, graph_scope, turned_off, turned_on
from planner.imports.megatron_model import model_of
from planner.imports.megatron_stages import LAYOUT, run_stages, split_so, virtual_stages
from planner.imports.names import ignored, meant_argument, megatron_arguments
from planner.imports.run import ExistingRun, stated_gradients
from planner.models import Transformer, load_model, with_seq_len
from planner.question import one_layout
from planner.setup import Setup
from planner.step.legality import check_legal

MOMENTS = ("fp32", "fp16", "bf16", "fp8")
NEEDS = {
    "tp-comm-overlap": "sequence-parallel", "overlap-param-gather": "overlap-grad-reduce",
    "optimizer-cpu-offload": "use-precision-aware-optimizer", "delay-wgrad-compute": OVERLAP,
}  # fmt: skip
EXCLUDES = {"bf16": "fp16", "fp8-format": "fp4-format"}
"""What Megatron-LM refuses: core_v0.16.1, megatron/training/arguments.py, validate_args."""
MASK = "no-create-attention-mask-in-dataloader"
MODULES = (
    "core_attn", "layernorm", "mla_up_proj", "moe_act", "mlp", "moe", "shared_experts", "gdn_norm_out", "gdp_in_proj",
    "gdp_qkv", "mhc",
)  # fmt: skip
"""What selective recomputation may repeat (transformer_config.py: recompute_modules)."""
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def megatron_run(
    text: str, cluster: Cluster, framework: Framework, *, gpus: int | None, model: Transformer | str | None,
    vocab: int | None, attention: str | None = None,
) -> ExistingRun:  # fmt: skip
    """The run that Megatron-LM's arguments describe.

    gpus: of the job; None where the text names torchrun's nodes and processes. model: instead of the model's arguments.
    attention: the kernel, instead of what the arguments say.

    Raises InputError for an argument that is missing or wrong, LayoutError for a layout that breaks a rule.
    """
    a = read_arguments(text)
    if "recompute-activations" in a:  # which overwrites it there too
        a.words["recompute-granularity"] = ["selective"]
    for name, wanted in NEEDS.items():
        if name in a and wanted not in a:
            raise InputError(f"--{name} stands without --{wanted}, which Megatron-LM refuses; allowed: both")
    for name, unwanted in EXCLUDES.items():
        if name in a and unwanted in a:
            raise InputError(
                f"--{name} and --{unwanted} are both there, which Megatron-LM refuses; allowed: one of them"
            )
    gpus = whole("gpus", gpus or _launched(a))
    notes: list[str] = []
    if model is None:
        shape, notes = model_of(a, "the run's model", vocab)
    else:
        length = a.number("seq-length")
        shape = load_model(model) if isinstance(model, str) else model
        shape = shape if length is None else with_seq_len(shape, length)
        if vocab is not None:
            shape = replace(shape, vocab=vocab)
    if MASK not in a and (mask := int(shape.seq_len) ** 2) >= GIB:
        notes.append(f"no --{MASK}: the dataset builds {format_bytes(4 * mask)} of mask for each sequence on the host, "
                     f"and {format_bytes(mask)} of it go to the GPU, which isn't counted")  # fmt: skip
    profile = Setup(shape, cluster, framework)
    row = _choices(a, profile, gpus, notes)
    if attention is not None:
        row["attention"] = attention
    layouts = one_layout(cluster, **row)
    stages = run_stages(a, int(shape.num_layers), row["pp"], row["virtual_stages"])
    layouts = layouts if stages is None else split_so(profile, layouts, stages)
    try:
        check_legal(shape, cluster, layouts)
    except LayoutError as error:  # what was misspelt may be why
        raise LayoutError("; ".join((str(error), *_unread(a)[1]))) from None
    if OVERLAP in a:
        check_overlap(a, row, int(shape.num_mtp_layers))
    changes, switches = _turned_off(a, framework, layouts.row(0))
    if shape.num_experts:
        profile = replace(profile, framework=turned_on(a, framework))
        more, of_experts = turned_off(a, profile, layouts, notes)
        changes, switches = changes | more, switches | of_experts
    actual = replace(profile.framework, **changes)
    unknown, misspelt, without_effect = _unread(a)
    return ExistingRun(
        title="Megatron-LM", setup=replace(profile, framework=actual), layouts=layouts, profile=profile,
        switches=switches, notes=(*misspelt, *notes), unknown=unknown, ignored=without_effect,
        judged=not _uncounted(a, shape), misspelt=bool(misspelt),
    )  # fmt: skip


def _unread(a: Arguments) -> tuple[tuple[str, ...], list[str], int]:
    """Arguments that were not understood, a sentence on each that is probably misspelt, and how many don't matter."""
    known = megatron_arguments("launcher", "model", "read", "newer")
    other = [name for name in a.words if name not in known]
    unknown = [name for name in other if not name.startswith(ignored("megatron"))]
    misspelt = [f"{one_line(f'--{name}')} is unknown: did you mean --{meant}?"
                for name in unknown if (meant := meant_argument(name))]  # fmt: skip
    return tuple(one_line(f"--{name}") for name in unknown), misspelt, len(other) - len(unknown)


def _launched(a: Arguments) -> int:
    """GPUs by torchrun's own arguments."""
    each, nodes = a.number("nproc-per-node"), a.number("nnodes", 1)
    if each is None or nodes is None:
        raise InputError("--gpus is missing; Megatron-LM's arguments don't say how many GPUs the job has")
    return each * nodes


def _choices(a: Arguments, profile: Setup, gpus: int, notes: list[str]) -> dict[str, Any]:
    """The layout's choices but for the split of layers."""
    tp, pp, cp = (a.number(f"{kind}-parallel-size", 1) or 1 for kind in ("tensor-model", "pipeline-model", "context"))
    if gpus % (tp * pp * cp):
        raise LayoutError(f"{gpus} GPUs aren't a multiple of tp {tp} * pp {pp} * cp {cp}")
    dp = gpus // (tp * pp * cp)
    micro = a.needed("micro-batch-size")
    if "global-batch-size" not in a:
        notes.append(f"no --global-batch-size, so Megatron-LM trains micro-batch {micro} x dp {dp} = {micro * dp} "
                     "sequences per step; give it if your run has another")  # fmt: skip
    v, zero = virtual_stages(a, int(profile.model.num_layers), pp), _zero(a)
    precision = _precision(a, notes)
    etp, ep = a.number("expert-tensor-parallel-size", tp), a.number("expert-model-parallel-size", 1) or 1
    return {
        "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ulysses": _ulysses(a, cp, notes),
        "ep": ep if profile.model.num_experts else 1, "etp": etp if profile.model.num_experts else tp,
        "virtual_stages": v, "schedule": "interleaved" if v > 1 else "1f1b", "micro_batch": micro,
        "global_batch": a.number("global-batch-size", micro * dp) or micro * dp, "zero": zero,
        "dp_replicate": (a.number("num-distributed-optimizer-instances", 1) or 1) if zero else 1,
        "recompute": _recompute(a, profile.model, notes), "recompute_layers": _recompute_layers(a, profile, pp * v),
        "attention": _attention(a), "precision": precision, "cuda_graphs": _graphs(a),
        "dispatcher": dispatcher(a, notes) if profile.model.num_experts and ep > 1 else None,
        **_gradients(a, precision, profile.framework), "optimizer": _optimizer(a, notes),
        "pipeline_layout": (a.text(LAYOUT) or "") if pp > 1 else "",
        "sequence_parallel": "sequence-parallel" in a and tp > 1, "offload_optimizer": "optimizer-cpu-offload" in a,
        "capacity_factor": a.real("moe-expert-capacity-factor", 0.0, 64) if profile.model.num_experts else 0.0,
        "offload_layers": a.number("cpu-offloading-num-layers", 0, least=0),
        "offload_modules": _modules(a),
        "offload_fraction": a.real("optimizer-offload-fraction", 1.0, 1) if "optimizer-cpu-offload" in a else 1.0,
    }  # fmt: skip


def _modules(a: Arguments) -> str:
    """What waits in host memory of each layer; the fused group of experts' products keeps what both of its modules do.

    Raises InputError if no module is named, or one that has no such name.
    """
    if "fine-grained-activation-offloading" not in a:
        return "none"
    a.text("offload-modules")
    named = " ".join(a.words.get("offload-modules", [])).replace("fused_group_mlp", "expert_fc1 moe_act").split()
    if not named:
        raise InputError(f"--offload-modules is missing; allowed: {ALLOWED_MODULES.replace('+', ' ')}")
    return modules_text(read_modules("+".join(named)))


def _graphs(a: Arguments) -> bool:
    graph_scope(a)
    how = a.one_of("cuda-graph-impl", ("none", "local", "transformer_engine", "full_iteration"))
    return how not in (None, "none") or "enable-cuda-graph" in a or "external-cuda-graph" in a


def _ulysses(a: Arguments, cp: int, notes: list[str]) -> int:
    """Context ranks that exchange heads for tokens."""
    how = a.one_of("cp-comm-type", ("p2p", "a2a", "all_gather", "a2a+p2p"))
    if how == "all_gather" and cp > 1:
        notes.append("--cp-comm-type all_gather: counted as a ring, p2p")
    if how == "a2a+p2p":
        words = a.words.get("hierarchical-context-parallel-sizes") or []
        sizes = [n for n in map(number, words) if isinstance(n, int)]
        if len(words) != 2 or len(sizes) != 2 or sizes[0] * sizes[1] != cp:
            raise LayoutError(
                f"--hierarchical-context-parallel-sizes is {shown(' '.join(words)) if words else 'missing'}; "
                f"allowed: two numbers whose product is cp {cp}"
            )
        return sizes[0]
    return cp if how == "a2a" else 1


def _zero(a: Arguments) -> int:
    if "use-torch-fsdp2" in a:
        return 2 if "torch-fsdp2-no-reshard-after-forward" in a else 3
    if "use-megatron-fsdp" in a:
        return SHARDING[a.one_of("data-parallel-sharding-strategy", tuple(SHARDING)) or "no_shard"]
    return 1 if "use-distributed-optimizer" in a or a.text("optimizer") == "dist_muon" else 0


def _recompute(a: Arguments, model: Transformer, notes: list[str]) -> str:
    mode = a.one_of("recompute-granularity", ("full", "selective"))
    if mode is None:
        return "none"
    if mode == "full":
        if (
            a.one_of("recompute-method", ("block", "uniform")) != "block"
            and (a.number("recompute-num-layers") or 1) > 1
        ):
            notes.append("--recompute-num-layers with uniform: counted as 1, each layer's input kept")
        return "full"
    named = a.each_of("recompute-modules", MODULES) or ["core_attn"]
    own = modules("fine", model) if model.has_experts_or_latents else []
    if other := _uncounted(a, model):
        said = "not counted, so that the run takes less memory and more time than said here"
        notes.append(f"--recompute-modules {' '.join(other)}: {said}")
    if not set(named) & set(own):
        return "selective" if "core_attn" in named else "none"
    if missing := [name for name in own if name not in named]:
        notes.append(f"--recompute-modules without {' '.join(missing)}: counted as with, which takes less memory")
    return "fine"


def _uncounted(a: Arguments, model: Transformer) -> list[str]:
    """The modules repeated that planner doesn't know: it knows attention's core, and a mixture's or latents' own."""
    known = {"core_attn", *(modules("fine", model) if model.has_experts_or_latents else [])}
    selective = a.text("recompute-granularity") == "selective"
    return sorted(set(a.each_of("recompute-modules", MODULES)) - known) if selective else []


def _recompute_layers(a: Arguments, profile: Setup, stages: int) -> int:
    """Layers of each virtual stage that are repeated; 0 where all are."""
    if a.text("recompute-granularity") != "full" or a.text("recompute-method") != "block":
        return 0
    layers = a.number("recompute-num-layers")
    if layers is None:
        raise InputError("--recompute-method block needs --recompute-num-layers")
    return 0 if layers * stages >= int(profile.model.num_layers) else layers


def _attention(a: Arguments) -> str | None:
    """The kernel; None for the cluster's default, the fastest flash attention."""
    backend = a.one_of("attention-backend", ("flash", "fused", "unfused", "local", "auto"))
    slow = backend in ("unfused", "local") or (a.text("transformer-impl") == "local" and backend is None)
    if slow and "use-flash-attn" not in a:
        return "unfused" if "no-masked-softmax-fusion" in a else "fused"
    return None


def _precision(a: Arguments, notes: list[str]) -> str:
    if "fp8-format" in a or "fp4-format" in a:
        return "fp8" if "fp8-format" in a else "nvfp4"
    if "bf16" not in a and "fp16" not in a:
        notes.append("neither --bf16 nor --fp16 is there: Megatron-LM then trains in fp32")
        return "fp32"
    return "bf16" if "bf16" in a else "fp16"


def _gradients(a: Arguments, precision: str, f: Framework) -> dict[str, str]:
    """The number format in which gradients are kept and reduced, where the profile has another.

    With --bf16 Megatron-LM keeps and reduces gradients in fp32 unless --grad-reduce-in-bf16 or bf16 main gradients are
    asked for, and says so when it starts (megatron/training/arguments.py); with --fp16 it does with
    --accumulate-allreduce-grads-in-fp32.
    """
    fp32 = "accumulate-allreduce-grads-in-fp32" in a
    of_main = a.one_of("main-grads-dtype", MOMENTS[:3])
    half = of_main == "bf16" and "use-precision-aware-optimizer" in a and not fp32
    half = half or "grad-reduce-in-bf16" in a or (precision == "fp16" and not fp32)
    dtype = "bf16" if half else "fp32"
    own = [a.one_of(f"megatron-fsdp-{name}-dtype", (*MOMENTS[:3], "auto")) for name in ("main-grads", "grad-comm")]
    kept, sent = (None if one in ("auto", None) else "fp32" if one == "fp32" else "bf16" for one in own)
    return stated_gradients(f, precision, kept or dtype, sent or kept or dtype)


def _optimizer(a: Arguments, notes: list[str]) -> str:
    """The optimizer; moments of two formats count as the wider one."""
    name = a.text("optimizer", "adam") or "adam"
    if name == "sgd" and "use-distributed-optimizer" in a:  # distrib_optimizer.py
        raise InputError(
            "--optimizer is sgd beside --use-distributed-optimizer, which Megatron-LM refuses; allowed: adam"
        )
    if name in ("muon", "dist_muon", "sgd"):
        return name.removeprefix("dist_")
    if name != "adam":
        notes.append(f"--optimizer {one_line(name)}: counted as adam")
    if "use-precision-aware-optimizer" not in a:
        return "adam"
    if (main := a.one_of("main-params-dtype", MOMENTS[:2])) not in (None, "fp32"):
        notes.append(f"--main-params-dtype {main}: counted as fp32")
    first, second = (a.one_of(f"{moment}-dtype", MOMENTS) or "fp32" for moment in ("exp-avg", "exp-avg-sq"))
    if first != second:
        notes.append(f"--exp-avg-dtype {first} and --exp-avg-sq-dtype {second}: both counted as the wider one")
    widest = min(MOMENTS.index(first), MOMENTS.index(second))
    return ("adam", "adam_bf16", "adam_bf16", "adam_8bit")[widest]


def _turned_off(a: Arguments, f: Framework, row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """The profile's fields as the run has them, and which argument would turn which of them on."""
    off: dict[str, tuple[str, ...]] = {}
    changes: dict[str, Any] = {}

    def missing(argument: str, **without: float) -> None:
        if argument not in a and any(getattr(f, name) != value for name, value in without.items()):
            off[f"--{argument}"] = tuple(without)
            changes.update(without)

    if row["dp"] * row["cp"] > 1 and row["optimizer"] != "muon":  # Muon excludes both
        missing("overlap-grad-reduce", overlap_grad_reduce=0.0, overlap_grad_reduce_pipelined=0.0)
        if row["zero"] > 0:
            missing("overlap-param-gather", overlap_param_gather=0.0)
    if row["precision"] == "fp8":
        if "fp8-param-gather" in a:
            changes.update(fp8_parameter_bytes=1.0, fp8_copy_bytes=1.0)
        elif f.fp8_parameter_bytes < 2:  # else the profile's own copies are those beside 16 bits
            missing(
                "fp8-param-gather", fp8_parameter_bytes=2.0, fp8_copy_bytes=f.fp8_copy_bytes + f.fp8_parameter_bytes
            )
    if row["sequence_parallel"] and "multi-latent-attention" not in a:  # which turns it off
        missing("tp-comm-overlap", overlap_tensor=0.0)
    return changes, off
