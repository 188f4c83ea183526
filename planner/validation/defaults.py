"""An empty cell of a measured run means the framework's usual setting, or what it would have chosen.

| empty | becomes |
| --- | --- |
| cp, ep, virtual_stages, seq_splits, dp_replicate; recompute_layers | 1; 0, all |
| dp | n_gpus / (tp pp cp); so too where a table lists dp beside ep: dp tp pp cp ep make n_gpus |
| schedule | interleaved where virtual_stages > 1, else 1f1b; seq1f1b and its interleaved form where seq_splits > 1 |
| zero | 1, the distributed optimizer; without pipeline stages the first that fits of those that the framework's profile
  has under `[unstated]` |
| sequence_parallel | where tp > 1 as the profile's `[unstated]`: on from Megatron-Core on, off before |
| attention | the profile's `[unstated]`: fused softmax for Megatron-LM's, flash3 (cuDNN's kernel) after; on AMD's GPUs
  PyTorch's own is flash1 (AOTriton) |
| fused_norm | the profile's `[unstated]`: no of Hugging Face's models, whose norms are several operations |
| cuda_graphs | on on the GPU architectures that the profile's `[unstated]` names: NVIDIA's recipes on Blackwell |
| recompute | the profile's `[unstated]`, of a framework that recomputes unless told; else none where that is likelier
  to fit than not, or the least that is: selective, fine (of mixtures and latent attention, where the framework has it),
  full |
| what no column has: a hybrid's state-spaces; a mixture's shared experts, dense layers, latent attention | the
  preset's of the same layers, widths, heads and experts; else Nemotron-H's state-spaces, a mixture without them |
| what no column has: whose peak memory; whether gradients, below ZeRO 3, and tensor ranks' collectives travel beside
  compute; whose cross-entropy; whether experts are met evenly | the profile's `[unstated]`, by what its framework does
  unless told |
| layer_split | the framework's; with virtual stages, or where it splits evenly, ends where that alone divides |
| etp | tp, Megatron's default; 1 where ep does not divide dp cp |
| micro_batch, and virtual_stages with it where the schedule is 1f1b or not said | the fastest predicted that fits |

No default looks at a measurement. The framework is what the file's optional column `framework` says, or what a source
is known to have run (`measured_runs/software.toml`; a name, no figure). Else runs with ZeRO-3 and flash attention are
taken as FSDP's; those with ZeRO-3 and without it, or with ZeRO 1 or 2, on clusters of Megatron-LM's years as
Megatron-DeepSpeed's; others as the cluster's usual framework.
"""

from itertools import product
from pathlib import Path
from typing import Any

from planner.choices.table import CHOICES
from planner.costs.layer.expert_routing import own_imbalance
from planner.hardware import Cluster, Framework
from planner.layouts import usual_etp
from planner.models import Transformer, load_model, model_names
from planner.schedules import get_schedule, usual_schedule
from planner.step.splits import has_short_last, shared_by_ends
from planner.validation.runs import COLUMNS, NEEDED, MeasuredRun, said

FILLED = tuple(column for column in COLUMNS if column in CHOICES and column not in NEEDED)
"""Cells of a layout that are filled by rule where a row says nothing."""
MICRO_BATCHES = (1, 2, 4, 8)


def framework_name(run: MeasuredRun, cluster: Cluster) -> str:
    """The framework profile of a run: what its file or its source says, else what the run's cells mean.

    In Megatron-LM's years before Megatron-Core ZeRO was DeepSpeed's; FSDP and flash attention both came in 2022.
    """
    if run["framework"]:
        return run.named("framework")
    used = said(run, "framework")
    if used is not None:
        return str(used)
    before_flash = run["attention"] in ("unfused", "fused")
    if run["zero"] == 3 and not before_flash:
        return "fsdp"
    if run["zero"] and Path(cluster.framework).stem == "megatron-lm":
        return "megatron-deepspeed"
    return cluster.framework


def same_preset(run: MeasuredRun) -> Transformer | None:
    """The preset of a hybrid or a mixture that has all the sizes that a run states of it, or None.

    A table of runs has no columns for state-spaces, shared experts, dense layers or latent attention.
    """
    family, layers, hidden, heads = run["family"], run["layers"], run["hidden"], run["heads"]
    for name in model_names() if family in ("hybrid", "moe") else ():
        m = load_model(name)
        if (m.family, m.num_layers, m.hidden, m.num_heads) != (family, layers, hidden, heads):
            continue
        if family == "hybrid" and (m.ffn, m.num_kv_heads) == (run["ffn"], run["kv_heads"] or heads):
            return m
        if family == "moe" and (m.num_experts, m.top_k) == (run["experts"], run["top_k"]):
            return m
    return None


def filled_cells(run: MeasuredRun) -> int:
    """How many cells of a run a default fills."""
    return sum(run[c] is None for c in FILLED)


def usual_split(model: Transformer, pp: int, v: int) -> str:
    """How layers lie on stages that can't share them evenly: embedding and head as layers, or a short last stage."""
    layers, stages = model.num_layers, pp * v
    if layers % stages == 0:
        return "even"
    if shared_by_ends(layers, stages, model.output_heads):
        return "ends"
    return "last" if v > 1 and has_short_last(layers, stages) else "even"


def virtual_stages(model: Transformer, pp: int) -> list[int]:
    """How many virtual stages each rank may have: layers shared by all, with embedding and head where those divide."""
    by_ends = usual_split(model, pp, 1) == "ends"
    share, rest = divmod(model.num_layers + by_ends * (1 + model.output_heads), pp)
    return [v for v in range(1, share + 1) if share % v == 0] if rest == 0 else [1]


def candidates(
    run: MeasuredRun, model: Transformer, framework: Framework, architecture: str = ""
) -> list[dict[str, Any]]:
    """The layouts that a run may have had on GPUs of an architecture: one where every cell is said."""
    tp, pp, cp = run["tp"], run["pp"], run["cp"] or 1
    ep = run["ep"] or 1
    dp = run["dp"] or max(run["n_gpus"] // (tp * pp * cp), 1)
    if dp * tp * pp * cp * ep == run["n_gpus"]:
        dp *= ep
    unstated, spread = framework.unstated, run["sequence_parallel"]
    kernel = (unstated.amd_attention if architecture.startswith("cdna") else "") or unstated.attention
    graphs = run["cuda_graphs"] if said(run, "graphs") is None else said(run, "graphs")
    own = bool(model.num_experts) and (said(run, "routing") or unstated.routing) == "own"
    base = {
        "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "global_batch": run["global_batch"],
        "sequence_slices": run["seq_splits"] or 1, "dp_replicate": run["dp_replicate"] or 1,
        "precision": run["precision"],
        "attention": said(run, "attention") or run["attention"] or kernel,
        "fused_norm": unstated.fused_norm if run["fused_norm"] is None else run["fused_norm"],
        "cuda_graphs": architecture in unstated.cuda_graphs if graphs is None else graphs,
        "recompute_layers": run["recompute_layers"] or 0,
        "expert_imbalance": float(own_imbalance(model, ep)) if own else 1.0,
        "capacity_factor": float(said(run, "capacity") or 0.0),
        "dispatcher": said(run, "dispatcher") if framework.node_dispatch and said(run, "dispatcher") else "framework",
        "grad_dtype": said(run, "gradients") or "framework",
        "main_dtype": said(run, "states") or (unstated.states if run["precision"] in ("bf16", "fp8") else "fp32"),
        "layer_split": framework.layer_split,
        "train": run["train"] or "full",
        "ulysses": cp if said(run, "context") == "heads" else 1,
        "sequence_parallel": unstated.sequence_parallel and tp > 1 if spread is None else spread,
    }  # fmt: skip
    micro = [run["micro_batch"]] if run["micro_batch"] else list(MICRO_BATCHES)
    finely = ["fine"] if framework.fine_recompute and model.has_experts_or_latents else []
    told = run["recompute"] or unstated.recompute
    modes = [told] if told else ["none", "selective", *finely, "full"]
    usual = unstated.zero if pp == 1 else (1,)
    shards = usual if run["zero"] is None else (run["zero"],)
    ranks = said(run, "sharded_over")
    if ranks:
        shards, base["dp_replicate"] = (3,), max(dp // ranks, 1)
    chunks = [run["virtual_stages"] or 1]
    named = None if run["schedule"] is None else get_schedule(run["schedule"]).name
    if run["micro_batch"] is None and run["virtual_stages"] is None and named in (None, "1f1b") and pp > 1:
        chunks = virtual_stages(model, pp)
    etp = run["etp"] or int(usual_etp(dp, tp, cp, ep))
    out = []
    for zero, b, mode, v in product(shards, micro, modes, chunks):
        schedule = named or usual_schedule(v, base["sequence_slices"])
        if schedule == "1f1b" and v > 1:
            schedule = "interleaved"
        choices = {"zero": zero, "micro_batch": b, "recompute": mode, "virtual_stages": v, "schedule": schedule}
        if run["layer_split"]:
            choices["layer_split"] = run["layer_split"]
        elif framework.layer_split == "even" or v > 1:
            choices["layer_split"] = usual_split(model, pp, v)
        out.append(base | choices | {"etp": etp})
    return out
