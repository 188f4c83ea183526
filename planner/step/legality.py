"""The rules that make a layout legal, each with its text and where it is broken. Array-first."""

import re
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from planner.base.arrays import Bools
from planner.base.errors import LayoutError
from planner.choices.choice import value_text
from planner.choices.offload import waits
from planner.choices.pipeline_layout import PipelineLayout, parse_pipeline_layout
from planner.choices.table import CHOICES, DEGREES
from planner.choices.training import adapter_rank, adapts
from planner.costs.layer.expert_routing import (
    DEEPEP_RANKS,
    FLEX,
    LARGEST_SERVER,
    MOST_RDMA_TOKENS,
    crowds_queues,
    lacks_deepep_settings,
)
from planner.costs.optimizer import offloaded_bytes
from planner.costs.shapes import is_latent
from planner.hardware import Cluster
from planner.layouts import Attention, Dispatcher, GradDtype, Layouts, OptimizerKind, Precision, Recompute, Split
from planner.models import Transformer, mix
from planner.schedules import Rule, get_schedule, usual_schedule
from planner.step.given_stages import filled_one_by_one, is_given
from planner.step.pipelines import by_schedule, pipeline, shares_ends, trait, weight_copies
from planner.step.splits import has_short_last, shared_by_ends

HOST_MEMORY = "the states that a job offloads must fit in the memory of its hosts"
EMPTY = PipelineLayout((0,), (0,))
MODEL_FIGURES = ("num_layers", "num_heads", "num_kv_heads", "num_experts", "seq_len")
WORDS = {
    "degrees": (*DEGREES, "ep", "etp"), "pipeline": ("pp",), "ZeRO": ("zero",), "context parallelism": ("cp",),
    "sequence parallelism": ("sequence_parallel",), "split": ("layer_split",), "layers": ("num_layers",),
    "attention heads": ("num_heads",), "key-value heads": ("num_kv_heads",), "experts": ("num_experts",),
    "sequence divisible": ("seq_len",), "the sequence": ("seq_len",), "recomputation": ("recompute",),
}  # fmt: skip
"""Words of the rules that mean choices, or figures of the model, of other names."""
UNEVEN_CHUNKS = (
    "virtual stages need layers divisible by pp * virtual_stages, or layers + 2 with layer_split ends, a short last "
    "one with layer_split last, layer_split balanced, stages of a V with a layer each, or a pipeline_layout"
)


Table = list[tuple[str, Any]]
"""Rules: the sentence of each, and where it is broken."""


def _schedule_rules(layouts: Layouts) -> list[Rule]:
    out = []
    for schedule, rows in by_schedule(layouts):
        pipe = pipeline(layouts, rows)
        for rule in schedule.rules(replace(pipe, m=np.maximum(pipe.m, 1))):
            broken = np.zeros(layouts.shape[-1], dtype=bool)
            broken[rows] = rule.broken
            out.append(Rule(text=rule.text, broken=broken))
    return out


def _given_rules(model: Transformer, x: Layouts, given: Any, looped: Any) -> Table:
    """Rules of stages that a layout gives (Megatron-Core, pipeline_parallel_layer_layout.py); none where none does."""
    if not np.any(given):
        return []
    parsed = [parse_pipeline_layout(name) if name else EMPTY for name in x.pipeline_layout_names]
    count, layers, modules, at = (
        np.array(column)[x.pipeline_layout]
        for column in (
            [len(p.layers) for p in parsed],
            [sum(p.layers) for p in parsed],
            [sum(p.modules) for p in parsed],
            [int(np.argmax(p.modules)) for p in parsed],
        )
    )
    early = (modules > 0) & (at < x.pp * (x.virtual_stages - 1))
    table = (
        ("pipeline_layout needs a pipeline whose every rank has its weights once, and layer_split even",
         (x.pp == 1) | (weight_copies(x) > 1) | shares_ends(x) | (x.layer_split != Split.EVEN)),
        ("pipeline_layout must have pp * virtual_stages stages", count != x.pp * x.virtual_stages),
        ("pipeline_layout must have the model's layers, a t each", layers != np.asarray(model.num_layers)),
        ("pipeline_layout must have the model's modules of multi-token prediction, an m each",
         modules != np.asarray(model.num_mtp_layers)),
        ("pipeline_layout must have its modules m on a rank's last virtual stage", looped & early),
    )  # fmt: skip
    return [(text, given & broken) for text, broken in table]


def _dispatcher_rules(model: Transformer, cluster: Cluster, x: Layouts) -> Table:
    """Rules of a dispatcher that is named, and of the experts' load; none where a layout has neither."""
    named, uneven = x.dispatcher > Dispatcher.FRAMEWORK, (x.expert_imbalance != 1.0) | (x.capacity_factor > 0.0)
    if not np.any(named | uneven):
        return []
    flex, experts = x.dispatcher > Dispatcher.ALLTOALL, np.asarray(model.num_experts)
    picks = x.dispatcher == Dispatcher.PPMOE
    return [
        ("dispatcher, expert_imbalance and capacity_factor need experts", (named | uneven) & (experts == 0)),
        ("expert_imbalance must not exceed ep: one rank can't have more than all copies", x.expert_imbalance > x.ep),
        ("dispatcher ppmoe needs whole experts on all ranks of a tensor group that share its tokens: ep tp, etp 1, no "
         "sequence parallelism", picks & ((x.ep != x.tp) | (x.etp != 1) | (x.tp == 1) | x.sequence_parallel)),
        ("capacity_factor needs another dispatcher than ppmoe, which drops no tokens",
         picks & (x.capacity_factor > 0.0)),
        ("deepep and hybridep run on Ampere, Hopper and Blackwell",
         flex & (cluster.accelerator.efficiency.name not in FLEX)),
        ("deepep does not run on racks of one NVLink domain (GB200, GB300); hybridep does",
         (x.dispatcher == Dispatcher.DEEPEP) & (cluster.gpus_per_node > LARGEST_SERVER)),
        (f"deepep has settings for groups, ep * etp, of {', '.join(map(str, DEEPEP_RANKS))}",
         (x.dispatcher == Dispatcher.DEEPEP) & lacks_deepep_settings(x)),
        (f"hybridep between NVLink domains takes micro-batches of fewer than {MOST_RDMA_TOKENS:,} tokens per rank: "
         "InfiniBand's queues end at 65,535 entries, and a token takes three",
         (x.dispatcher == Dispatcher.HYBRIDEP) & crowds_queues(cluster, model, x)),
        ("deepep and hybridep need experts on several ranks: ep * etp greater than 1", flex & (x.ep * x.etp == 1)),
    ]  # fmt: skip


def rules(model: Transformer, cluster: Cluster, layouts: Layouts) -> list[Rule]:
    """Every rule with where it is broken, boolean of shape (n,), or of a grid as far as it depends on its choices."""
    table = [
        *_size_rules(model, layouts),
        *_stage_rules(model, layouts),
        *_sequence_rules(model, layouts),
        *_expert_rules(model, layouts),
        *_sharding_rules(model, layouts),
        *_dispatcher_rules(model, cluster, layouts),
        *_numeric_rules(model, cluster, layouts),
        *_adapter_rules(model, layouts),
        *_capacity_rules(model, cluster, layouts),
    ]
    return [Rule(text=text, broken=np.asarray(broken)) for text, broken in table] + _schedule_rules(layouts)


def _size_rules(model: Transformer, x: Layouts) -> Table:
    """Rules of the degrees, the batch and the heads."""
    heads, kv = np.asarray(model.num_heads), np.asarray(model.num_kv_heads)
    return [
        ("degrees, micro-batch, global batch, virtual stages and sequence slices are at least 1",
         reduce(np.minimum, [x.dp, x.tp, x.pp, x.cp, x.ep, x.etp, x.micro_batch, x.global_batch,
                             x.virtual_stages, x.sequence_slices]) < 1),
        ("global_batch must be divisible by dp * micro_batch",
         x.global_batch % np.maximum(x.dp * x.micro_batch, 1) != 0),
        ("tp must divide the attention heads", heads % np.maximum(x.tp, 1) != 0),
        ("tp must divide the key-value heads or be a multiple of them",
         (kv % np.maximum(x.tp, 1) != 0) & (x.tp % np.maximum(kv, 1) != 0)),
    ]  # fmt: skip


def _stage_rules(model: Transformer, x: Layouts) -> Table:
    """Rules of how the layers lie on virtual stages."""
    layers, heads_out = np.asarray(model.num_layers), np.asarray(model.output_heads)
    ends, last, by_cost = (x.layer_split == split for split in (Split.ENDS, Split.LAST, Split.BALANCED))
    chunks, given, looped = np.maximum(x.pp * x.virtual_stages, 1), is_given(x), trait(x, "looped_placement")
    return [
        ("pp * virtual_stages must not exceed the layers (with layer_split ends layers, embedding and heads)",
         ~given & (x.pp * x.virtual_stages > layers + ends * (1 + heads_out))),
        (UNEVEN_CHUNKS,
         (x.virtual_stages > 1) & (layers % chunks != 0) & ~ends & ~last & ~by_cost & ~given & looped),
        ("virtual stages exclude a split by parameters or products",
         (x.virtual_stages > 1) & (x.layer_split != Split.EVEN) & ~ends & ~last & ~by_cost),
        ("layer_split balanced needs, with virtual stages, a V or a pipeline with embedding and head on its first and "
         "last rank", (x.virtual_stages > 1) & by_cost & looped & ((x.pp == 1) | ~trait(x, "has_ends"))),
        ("layer_split ends needs a pipeline of layers + 2 (and one a module of multi-token prediction) divisible by "
         "pp * virtual_stages, with embedding and head on its first and last stage",
         ends & ((x.pp == 1) | ~shared_by_ends(layers, chunks, heads_out) | (weight_copies(x) > 1))),
        ("layer_split last needs a pipeline that can't share the layers evenly and leaves some to its last virtual "
         "stage, with embedding and head on its first and last rank",
         last & ((x.pp == 1) | ~has_short_last(layers, chunks) | ~trait(x, "has_ends"))),
        ("vocabulary parallelism excludes multi-token prediction and train lora",
         shares_ends(x) & ((heads_out > 1) | (x.train > 0))),
        *_given_rules(model, x, given, looped),
    ]  # fmt: skip


def _sequence_rules(model: Transformer, x: Layouts) -> Table:
    """Rules of what cuts a sequence: context ranks, slices, sequence parallelism."""
    kv, sequence = np.asarray(model.num_kv_heads), np.asarray(model.seq_len)
    return [
        ("cp must divide half the sequence (causal balance takes two chunks per rank)",
         (x.cp > 1) & (sequence % np.maximum(2 * x.cp, 1) != 0)),
        ("ulysses must divide cp and the key-value heads of a tensor rank",
         (x.cp % np.maximum(x.ulysses, 1) != 0)
         | ((x.ulysses > 1) & (np.maximum(kv, x.tp) % np.maximum(x.ulysses * x.tp, 1) != 0))),
        ("inner_ring must divide cp / ulysses, and be less: an outer ring joins several inner ones",
         (x.inner_ring > 1)
         & ((x.cp % np.maximum(x.ulysses * x.inner_ring, 1) != 0) | (x.cp <= x.ulysses * x.inner_ring))),
        ("sequence slices exclude context parallelism", (x.sequence_slices > 1) & (x.cp > 1)),
        ("sequence slices must divide the sequence, in multiples of tp with sequence parallelism",
         (x.sequence_slices > 1)
         & (sequence % np.maximum(x.sequence_slices * np.where(x.sequence_parallel, x.tp, 1), 1) != 0)),
        ("cp above 1 needs a flash attention kernel", (x.cp > 1) & (x.attention < Attention.FLASH1)),
        ("sequence parallelism needs a sequence divisible by tp * cp",
         x.sequence_parallel & (sequence % np.maximum(x.tp * x.cp, 1) != 0)),
    ]  # fmt: skip


def _expert_rules(model: Transformer, x: Layouts) -> Table:
    """Rules of models with experts or state-space layers."""
    experts, state_space = np.asarray(model.num_experts), np.asarray(model.num_ssm_layers)
    has = f"{experts} here" if experts.ndim == 0 and experts else "1 for a dense model"
    return [
        (f"ep must divide the experts ({has})",
         np.where(experts > 0, experts % np.maximum(x.ep, 1) != 0, x.ep != 1)),
        ("tp must divide the heads and the groups of state-space layers",
         (state_space > 0) & ((np.asarray(model.ssm_heads) % np.maximum(x.tp, 1) != 0)
                              | (np.asarray(model.ssm_groups) % np.maximum(x.tp, 1) != 0))),
        ("context parallelism and sequence slices need attention in every layer that mixes tokens",
         (state_space > 0) & ((x.cp > 1) | (x.sequence_slices > 1))),
        ("etp must be tp, or 1 with experts and sequence parallelism (with dispatcher ppmoe without it)",
         (x.etp != x.tp)
         & ((x.etp != 1) | (experts == 0) | (x.sequence_parallel == (x.dispatcher == Dispatcher.PPMOE)))),
        ("ep * etp must divide tp * dp * cp", (x.tp * x.dp * x.cp) % np.maximum(x.ep * x.etp, 1) != 0),
    ]  # fmt: skip


def _sharding_rules(model: Transformer, x: Layouts) -> Table:
    """Rules of ZeRO and of copies of what it shards."""
    experts = np.asarray(model.num_experts)
    return [
        ("zero must be 0, 1, 2 or 3", (x.zero < 0) | (x.zero > 3)),
        ("zero 2 and 3 exclude a pipeline (gradients live across micro-batches) but where all micro-batches pass a "
         "layer before the next (breadth-first, modular)", (x.zero > 1) & (x.pp > 1) & ~trait(x, "layer_at_a_time")),
        ("dp_replicate must be 1 without ZeRO, else divide dp, and the replicas of an expert",
         (x.dp_replicate < 1) | (x.dp % np.maximum(x.dp_replicate, 1) != 0) | ((x.zero == 0) & (x.dp_replicate > 1))
         | ((experts > 0) & (x.expert_replicas % np.maximum(x.dp_replicate, 1) != 0))),
    ]  # fmt: skip


def _numeric_rules(model: Transformer, cluster: Cluster, x: Layouts) -> Table:
    """Rules of recomputation, number formats and optimizers."""
    several_heads = np.asarray(model.output_heads) > 1
    chunk_layers = np.ceil(np.asarray(model.num_layers) / np.maximum(x.pp * x.virtual_stages, 1))
    lacks = np.array([p.name.lower() not in cluster.accelerator.peak_flops for p in Precision])
    return [
        ("fine recomputation needs experts or latent attention",
         (x.recompute == Recompute.FINE) & ~model.has_experts_or_latents),
        ("recompute_layers needs recompute full", (x.recompute_layers > 0) & (x.recompute != Recompute.FULL)),
        ("recompute_layers needs virtual stages that share a rank's layers alike: several exclude layer_split last, "
         "balanced but in a V, a pipeline_layout, and layer_split ends with multi-token prediction",
         (x.recompute_layers > 0) & (x.virtual_stages > 1)
         & (is_given(x) | (x.layer_split == Split.LAST) | filled_one_by_one(x)
            | ((x.layer_split == Split.ENDS) & several_heads))),
        ("recompute_layers must not exceed layers / (pp * virtual_stages)",
         x.recompute_layers > np.where((x.layer_split == Split.EVEN) & ~is_given(x), chunk_layers, model.num_layers)),
        ("offload_layers must be fewer than a virtual stage's layers, with recompute_layers too: its last one's "
         "activations are needed at once",
         (x.offload_layers > 0) & (x.recompute_layers + x.offload_layers >= chunk_layers)),
        ("offload_parameters needs zero 3: other stages keep parameters whole on every GPU",
         x.offload_parameters & (x.zero != 3)),
        ("offload_layers excludes a split backward and sequence slices",
         (x.offload_layers > 0) & (trait(x, "splits_backward") | (x.sequence_slices > 1))),
        ("offload_modules excludes offload_layers, recompute full, a split backward and sequence slices",
         (x.offload_modules > 0) & ((x.offload_layers > 0) | (x.recompute == Recompute.FULL)
                                    | trait(x, "splits_backward") | (x.sequence_slices > 1))),
        ("offload_modules expert_fc1 and moe_act need experts", (np.asarray(model.num_experts) == 0)
         & (waits(x.offload_modules, "expert_fc1") | waits(x.offload_modules, "moe_act"))),
        ("a split backward (I and W) excludes full recomputation: what W keeps is more than it saves",
         trait(x, "splits_backward") & (x.recompute == Recompute.FULL)),
        ("layered and modular have one layer a virtual stage", trait(x, "one_layer_chunks")
         & (x.virtual_stages * x.pp != np.asarray(model.num_layers))),
        ("the accelerator has no arithmetic of that precision", lacks[x.precision]),
        ("muon updates whole matrices on the accelerator: zero 0 or 1, without offload_optimizer",
         (x.optimizer == OptimizerKind.MUON) & ((x.zero > 1) | x.offload_optimizer)),
        ("bf16 gradients (grad_dtype, grad_reduce_dtype) need precision bf16, fp8 or nvfp4",
         ((x.grad_dtype == GradDtype.BF16) | (x.grad_reduce_dtype == GradDtype.BF16)) & (x.precision < Precision.BF16)),
        ("main_dtype bf16 needs precision bf16, fp8 or nvfp4, and gradients kept in bf16 (grad_dtype)",
         x.all_in_bf16 & ((x.precision < Precision.BF16) | (x.grad_dtype == GradDtype.FP32))),
    ]  # fmt: skip


def _adapter_rules(model: Transformer, x: Layouts) -> Table:
    """Rules of adapters beside frozen weights; none where all is trained."""
    some = x.train > 0
    if not np.any(some):
        return []
    attention, mlps = np.asarray(model.num_attention_layers) > 0, mix.shares(model).dense + mix.shares(model).sparse
    has = {"qkv": attention & ~np.asarray(is_latent(model)), "proj": attention, "fc1": mlps > 0, "fc2": mlps > 0}
    meets = reduce(np.logical_or, [adapts(x.train, target) & has[target] for target in has])
    return [
        ("train lora needs a rank that tp divides: tensor ranks cut it", some & (adapter_rank(x.train) % x.tp != 0)),
        ("train lora must name a matrix that the model has: latent attention has no qkv, a layer without MLP no fc1 "
         "and fc2", some & ~meets),
        ("train lora excludes muon, which no framework has for adapters, and offload_optimizer: their state is small",
         some & ((x.optimizer == OptimizerKind.MUON) | x.offload_optimizer)),
    ]  # fmt: skip


def _capacity_rules(model: Transformer, cluster: Cluster, x: Layouts) -> Table:
    """Rules of how many accelerators and how much host memory the cluster has."""
    table: Table = [("more accelerators than the cluster has", x.gpus > (cluster.max_gpus or np.inf))]
    if cluster.host_memory_bytes is not None and np.any(x.offload_optimizer | x.offload_parameters):
        nodes = np.ceil(x.gpus / cluster.gpus_per_node)
        table.append((HOST_MEMORY, offloaded_bytes(model, x, weight_copies(x)) > nodes * cluster.host_memory_bytes))
    return table


def legal(model: Transformer, cluster: Cluster, layouts: Layouts) -> Bools:
    """Whether a layout breaks no rule: boolean of shape (n,), or of the grid's."""
    broken: dict[tuple[int, ...], Any] = {}
    # In a grid most rules depend on few axes: those of a shape first, then all together.
    for rule in rules(model, cluster, layouts):
        shape = rule.broken.shape
        broken[shape] = broken[shape] | rule.broken if shape in broken else rule.broken
    return ~np.broadcast_to(reduce(np.logical_or, broken.values()), layouts.shape)


def first_broken(model: Transformer, cluster: Cluster, layouts: Layouts, but: tuple[str, ...] = ()) -> list[str]:
    """The first rule that each layout breaks, or an empty text; `but`: texts of rules that don't count."""
    out = [""] * len(layouts)
    for rule in reversed([r for r in rules(model, cluster, layouts) if r.text not in but]):
        for i in np.flatnonzero(rule.broken):
            out[i] = rule.text
    return out


def check_legal(model: Transformer, cluster: Cluster, layouts: Layouts, *, scheduled: bool = True) -> None:
    """Raises LayoutError for the first layout that is not legal, with the rule that it breaks and what the rule names.

    scheduled: the layout's schedule orders the step, not a user's own, which its rules are not of.
    """
    own = () if scheduled else tuple(rule.text for rule in _schedule_rules(layouts))
    for i, text in enumerate(first_broken(model, cluster, layouts, own)):
        if text:
            raise LayoutError(f"illegal layout: {text}; got {_named(model, text, layouts.row(i))}")


def _named(model: Transformer, text: str, row: dict[str, Any]) -> str:
    """What a layout, and its model, have of what a rule's text names; the degrees where it names nothing."""
    words = {name for name in CHOICES if re.search(rf"\b{name.replace('_', '[_ -]')}\b(?! heads)", text)}
    words |= {name for said, names in WORDS.items() if said in text for name in names}
    if text.split(" ")[0] == row["schedule"]:
        words |= {"schedule", "pp", "micro_batches", *get_schedule(row["schedule"]).least_size}
        if row["schedule"] == usual_schedule(row["virtual_stages"], row["sequence_slices"]):
            row = row | {"schedule": f"{row['schedule']} (usual where none is named)"}
    figures = {"micro_batches": row["global_batch"] // max(row["dp"] * row["micro_batch"], 1)} | {
        name: int(getattr(model, name)) for name in MODEL_FIGURES
    }
    if given := row["pipeline_layout"]:
        has = parse_pipeline_layout(given)
        row = row | {
            "pipeline_layout": f"of {len(has.layers)} stages, {sum(has.layers)} layers and {sum(has.modules)} modules"
        }
    return ", ".join(
        f"{name} {value_text(value)}" for name, value in (row | figures).items() if name in (words or DEGREES)
    )
