"""Every rule of legality beside the same rule told for one layout in plain numbers, on drawn layouts, legal or not."""

from collections import Counter
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from planner.api.frameworks import layout_under
from planner.base.errors import LayoutError
from planner.choices.enumerations import GradDtype, OptimizerKind
from planner.choices.training import TARGETS, read_training
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Dispatcher, Layouts, Precision, Recompute, Split
from planner.models import Transformer, from_shape, load_model
from planner.schedules import SCHEDULES, Pipeline, get_schedule
from planner.setup import Setup
from planner.step.legality import check_legal, first_broken, legal, rules

LAYERS_AT_A_TIME = ("breadth-first", "layered", "modular")
MODEL = from_shape(family="llama", layers=6, hidden=96, ffn=128, heads=12, kv_heads=4, vocab=256, seq_len=48)


def lies_on_one_node(x, gpus_per_node: int) -> bool:
    """Whether each group of ranks that exchange tokens lies on one node, where nodes are filled in equal parts."""
    gpus, group = x.dp * x.tp * x.pp * x.cp, x.ep * x.etp
    parts = [d for d in range(gpus_per_node // 2 + 1, gpus_per_node + 1) if gpus % d == 0]
    each = gpus if gpus <= gpus_per_node else max(parts, default=gpus_per_node)
    starts = [block + i for block in range(0, gpus, group) for i in range(x.etp)]
    return all(len({(start + x.etp * i) // each for i in range(x.ep)}) == 1 for start in starts)


def has_matrix(model, target: str) -> bool:
    """Whether a layer has the matrix that an adapter is for."""
    if target in ("fc1", "fc2"):
        return bool(model.num_layers > model.num_mixer_only_layers)
    attention = model.num_layers > model.num_ssm_layers + model.num_mlp_only_layers
    return bool(attention and not (target == "qkv" and model.kv_lora_rank))


def stage_rules(model, x, given) -> dict[str, bool]:
    """What is broken of how layers lie on stages; given: layers and modules of a pipeline layout, and these' stage."""
    schedule, stages, layers, heads = get_schedule(x.schedule), x.pp * x.virtual_stages, model.num_layers, 1
    heads += model.num_mtp_layers
    several, vocabulary = x.virtual_stages > 1, schedule.barriers > 0 and x.pp > 1
    each = -(-layers // stages)
    left = layers - each * (stages - 1)
    items, in_a_v = layers + 1 + heads, not schedule.looped_placement
    by_both = items % stages == 0 and items // stages >= heads
    filled = several and not in_a_v and x.layer_split == Split.BALANCED
    broken = {
        "pp * virtual_stages must not exceed": not given
        and stages > (items if x.layer_split == Split.ENDS else layers),
        "virtual stages need layers divisible": several and not in_a_v and not given and layers % stages != 0
        and x.layer_split not in (Split.ENDS, Split.LAST, Split.BALANCED),
        "virtual stages exclude": several and x.layer_split in (Split.PARAMETERS, Split.PRODUCTS),
        "layer_split balanced needs": filled and not (x.pp > 1 and schedule.has_ends),
        "layer_split ends needs": x.layer_split == Split.ENDS
        and not (x.pp > 1 and by_both and schedule.copies == 1),
        "layer_split last needs": x.layer_split == Split.LAST
        and not (x.pp > 1 and 0 < left < each and schedule.has_ends),
        "vocabulary parallelism excludes": vocabulary and (model.num_mtp_layers > 0 or x.train > 0),
        "layered and modular have one layer": schedule.one_layer_chunks and stages != layers,
        "recompute_layers needs virtual stages": x.recompute_layers > 0 and several
        and bool(given or x.layer_split == Split.LAST or (filled and x.pp > 1)
                 or (x.layer_split == Split.ENDS and heads > 1)),
        "recompute_layers must not exceed": x.recompute_layers
        > (each if x.layer_split == Split.EVEN and not given else layers),
        "offload_layers must be fewer": x.offload_layers > 0 and each - x.recompute_layers - x.offload_layers < 1,
    }  # fmt: skip
    if given:
        of_stages, modules, at = given
        broken |= {
            "pipeline_layout needs a pipeline": x.pp == 1 or schedule.copies > 1 or vocabulary
            or x.layer_split != Split.EVEN,
            "pipeline_layout must have pp *": len(of_stages) != stages,
            "pipeline_layout must have the model's layers": sum(of_stages) != layers,
            "pipeline_layout must have the model's modules": modules != model.num_mtp_layers,
            "pipeline_layout must have its modules m": not in_a_v and modules > 0 and at // x.pp < x.virtual_stages - 1,
        }  # fmt: skip
    return broken


def broken_rules(model, cluster, x, given) -> dict[str, bool]:
    """Of every rule, by how its sentence begins, whether a layout breaks it."""
    schedule, kv, tokens = get_schedule(x.schedule), model.num_kv_heads, model.seq_len
    shared = x.tp if x.sequence_parallel else 1
    ranks, sparse, state_space = x.tp * x.dp * x.cp, model.num_experts > 0, model.num_ssm_layers > 0
    ppmoe, named = x.dispatcher == Dispatcher.PPMOE, x.dispatcher != Dispatcher.FRAMEWORK
    flex = x.dispatcher in (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP)
    replicas, copies = max(ranks // (x.etp * x.ep), 1), x.dp_replicate
    copied = copies == 1 or (copies > 1 and x.zero != 0 and x.dp % copies == 0 and not (sparse and replicas % copies))
    adapters, muon = [t for i, t in enumerate(TARGETS) if x.train % 16 >> i & 1], x.optimizer == OptimizerKind.MUON
    low = x.precision in (Precision.FP32, Precision.TF32, Precision.FP16)
    return stage_rules(model, x, given) | {
        "degrees, micro-batch": False,
        "global_batch must be divisible": x.global_batch not in range(0, x.global_batch + 1, x.dp * x.micro_batch),
        "tp must divide the attention heads": model.num_heads % x.tp != 0,
        "tp must divide the key-value heads": kv % x.tp != 0 and x.tp % kv != 0,
        "cp must divide half": x.cp > 1 and tokens / 2 % x.cp != 0,
        "ulysses must divide": x.cp % x.ulysses != 0 or (x.ulysses > 1 and max(kv / x.tp, 1) % x.ulysses != 0),
        "inner_ring must divide": x.inner_ring > 1
        and x.cp / (x.ulysses * x.inner_ring) not in range(2, x.cp),
        "sequence slices exclude": x.sequence_slices > 1 and x.cp > 1,
        "sequence slices must divide": x.sequence_slices > 1 and tokens % (x.sequence_slices * shared) != 0,
        "cp above 1 needs a flash": x.cp > 1 and x.attention in (Attention.UNFUSED, Attention.FUSED),
        "sequence parallelism needs": x.sequence_parallel and tokens % (x.tp * x.cp) != 0,
        "ep must divide the experts": model.num_experts % x.ep != 0 if sparse else x.ep > 1,
        "tp must divide the heads and the groups": state_space
        and (model.ssm_heads % x.tp != 0 or model.ssm_groups % x.tp != 0),
        "context parallelism and sequence slices": state_space and (x.cp > 1 or x.sequence_slices > 1),
        "etp must be tp": x.etp != x.tp and not (x.etp == 1 and sparse and x.sequence_parallel != ppmoe),
        "ep * etp must divide": ranks % (x.ep * x.etp) != 0,
        "zero must be": x.zero not in (0, 1, 2, 3),
        "zero 2 and 3": x.zero > 1 and x.pp > 1 and x.schedule not in LAYERS_AT_A_TIME,
        "dp_replicate must be": not copied,
        "dispatcher, expert_imbalance": not sparse and (named or x.expert_imbalance != 1 or x.capacity_factor > 0),
        "expert_imbalance must not": x.expert_imbalance > x.ep,
        "dispatcher ppmoe needs": ppmoe
        and not (x.ep == x.tp > 1 and x.etp == 1 and not x.sequence_parallel),
        "capacity_factor needs": ppmoe and x.capacity_factor > 0,
        "deepep and hybridep run on": flex and cluster.accelerator.efficiency.name == "volta",
        "deepep has settings": x.dispatcher == Dispatcher.DEEPEP and x.ep * x.etp > 1
        and x.ep * x.etp not in {2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160},
        "deepep does not run": x.dispatcher == Dispatcher.DEEPEP and cluster.gpus_per_node > 8,
        "hybridep between": x.dispatcher == Dispatcher.HYBRIDEP and not lies_on_one_node(x, cluster.gpus_per_node)
        and x.micro_batch * tokens / (x.cp * shared) * 3 >= 65_535,
        "deepep and hybridep need": flex and x.ep == x.etp == 1,
        "fine recomputation": x.recompute == Recompute.FINE and not (sparse or model.kv_lora_rank > 0),
        "recompute_layers needs recompute": x.recompute_layers > 0 and x.recompute != Recompute.FULL,
        "offload_parameters needs": x.offload_parameters and x.zero != 3,
        "offload_layers excludes": x.offload_layers > 0
        and (schedule.splits_backward or x.sequence_slices > 1),
        "a split backward": schedule.splits_backward and x.recompute == Recompute.FULL,
        "the accelerator has no": Precision(x.precision).name.lower() not in cluster.accelerator.peak_flops,
        "muon updates": muon and (x.zero > 1 or x.offload_optimizer),
        "bf16 gradients": low and GradDtype.BF16 in (x.grad_dtype, x.grad_reduce_dtype),
        "train lora needs": x.train > 0 and x.train // 16 % x.tp != 0,
        "train lora must": x.train > 0 and not any(has_matrix(model, t) for t in adapters),
        "train lora excludes": x.train > 0 and (muon or x.offload_optimizer),
        "more accelerators": x.dp * x.tp * x.pp * x.cp > (cluster.max_gpus or 10**9),
    }  # fmt: skip


def drawn_model(rng) -> Transformer:
    """A small model: dense, sparse, hybrid, with latents or modules of multi-token prediction."""
    layers, seq_len = int(rng.integers(4, 13)), int(rng.choice([48, 64, 72, 20_000, 21_845 * 2]))
    model = replace(MODEL, num_layers=layers, num_dense_layers=layers, seq_len=seq_len,
                    num_kv_heads=int(rng.choice([1, 2, 4, 6, 12])))  # fmt: skip
    kind = rng.choice(["dense", "sparse", "latent", "hybrid", "mixers"])
    if kind in ("sparse", "latent"):
        model = replace(model, num_experts=8, top_k=2, moe_ffn=32, num_dense_layers=1)
    if kind == "latent":
        model = replace(model, num_experts=0, num_dense_layers=layers, kv_lora_rank=16, v_head_dim=8,
                        qk_rope_head_dim=4)  # fmt: skip
    if kind in ("hybrid", "mixers"):
        alone = layers if kind == "mixers" else 1
        model = replace(model, num_ssm_layers=alone, ssm_heads=12, ssm_head_dim=8,
                        ssm_groups=int(rng.choice([2, 4])), ssm_state=8,
                        ssm_conv=4, num_mixer_only_layers=alone, num_dense_layers=layers - alone)  # fmt: skip
    return replace(model, num_mtp_layers=int(rng.choice([0, 0, 1, 2])))


def drawn_stages(rng, model, pp: int, v: int):
    """A pipeline layout's text with what it has, mostly of as many stages, layers and modules as it must."""
    stages = max(pp * v + int(rng.choice([-1, 0, 0, 0, 0, 1])), 2)
    layers = rng.multinomial(max(model.num_layers + int(rng.choice([-1, 0, 0, 0, 1])), 0), [1 / stages] * stages)
    modules, last = model.num_mtp_layers + int(rng.choice([0, 0, 0, 1])), np.flatnonzero(layers)[-1]
    at = int(rng.integers(last, stages))
    texts = ["t" * n + ("m" * modules if s == at else "") for s, n in enumerate(layers)]
    return "E" + "|".join(texts) + "L", (layers.tolist(), modules, at)


def drawn_layout(rng, model):
    """One layout's choices, most of them at their default, and its pipeline layout."""

    def mostly(usual, *others):
        return usual if rng.random() < 0.75 else others[int(rng.integers(len(others)))]

    def pick(*values):
        return values[int(rng.integers(len(values)))]

    name, dispatcher = pick(*SCHEDULES), pick(*Dispatcher)
    tp = pick(1, 1, 2, 3, 4, 5)
    degrees = {
        "dp": pick(1, 2, 3, 4, 8), "tp": tp, "pp": pick(1, 2, 2, 3, 4), "cp": mostly(1, 2, 3, 4),
        "ep": pick(1, 1, 2, 3, 4, tp), "etp": mostly(tp, 1, 2),
    }  # fmt: skip
    if dispatcher == Dispatcher.HYBRIDEP:  # groups that lie on nodes evenly
        degrees = {key: 1 << n.bit_length() - 1 for key, n in degrees.items()}
    pp, micro_batch, chunks = degrees["pp"], pick(1, 1, 2, 3), SCHEDULES[name].chunks
    v = mostly(chunks, 1, 2, 3) if chunks else pick(1, 2, 3, 4, max(model.num_layers // pp, 1))
    text, given = drawn_stages(rng, model, pp, v) if rng.random() < 0.25 else ("", None)
    return degrees | {
        "schedule": name, "virtual_stages": v, "pipeline_layout": text, "ulysses": mostly(1, 2, 4),
        "inner_ring": mostly(1, 2, 3),
        "sequence_slices": mostly(1, 2, 3, 4), "micro_batch": micro_batch,
        "global_batch": max(degrees["dp"] * micro_batch * pick(1, 2, 4, 6) + mostly(0, -1, 1), 1),
        "zero": mostly(1, -1, 0, 2, 3, 4), "dp_replicate": mostly(1, 0, 2, 3, 4),
        "sequence_parallel": pick(False, True), "recompute": pick(*Recompute), "recompute_layers": mostly(0, 1, 2),
        "attention": pick(*Attention), "precision": mostly(Precision.BF16, *Precision),
        "layer_split": mostly(Split.EVEN, *Split), "offload_optimizer": mostly(False, True),
        "offload_parameters": mostly(False, True),
        "offload_layers": mostly(0, 1, 2, 3), "grad_dtype": mostly(0, *GradDtype),
        "grad_reduce_dtype": mostly(0, *GradDtype), "optimizer": mostly(OptimizerKind.ADAM, *OptimizerKind),
        "dispatcher": dispatcher, "expert_imbalance": mostly(1.0, 1.5, 2.0, 4.0),
        "capacity_factor": mostly(0.0, 1.25),
        "train": mostly(0, read_training("lora:12"), read_training("lora:8:qkv"), read_training("lora:8:fc1+fc2")),
    }, given  # fmt: skip


CLUSTERS = [replace(load_cluster(name), host_memory_bytes=None, max_gpus=most) for name, most in
            (("dgx-a100-80gb", None), ("dgx-1-v100", 64), ("gb200-nvl72", 96))]  # fmt: skip


OF_ONE_CLUSTER = {
    "degrees, micro-batch", "deepep and hybridep run on", "deepep does not run", "more accelerators",
    "the accelerator has no",
}  # fmt: skip
"""Rules that no draw breaks, or none on some of the clusters."""


@cache
def of_schedules() -> set[str]:
    """The sentences of rules that schedules have of their own, which their tests hold."""
    one = Pipeline(p=2, m=1, v=1, k=1)
    return {rule.text for name in SCHEDULES for rule in get_schedule(name).rules(one)}


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda c: c.name)
def test_every_rule_is_broken_where_its_sentence_says(cluster):
    rng = np.random.default_rng(14)
    broken: Counter[str] = Counter()
    for _ in range(25):
        model = drawn_model(rng)
        rows = [drawn_layout(rng, model) for _ in range(120)]
        table = Layouts.of(**{name: [row[name] for row, _ in rows] for name in rows[0][0]})
        every = [r for r in rules(model, cluster, table) if r.text not in of_schedules()]
        found = [(r.text, np.broadcast_to(r.broken, (len(rows),))) for r in every]
        for i, (row, given) in enumerate(rows):
            plain = broken_rules(model, cluster, SimpleNamespace(**row), given)
            said = [text for text, where in found if where[i]]
            ours = [start for start, is_broken in plain.items() if is_broken]
            assert [t for t in said if not t.startswith(tuple(ours))] == [], (row, model)
            assert [s for s in ours if not any(t.startswith(s) for t in said)] == [], (row, model)
            broken.update(ours)
        assert legal(model, cluster, table).tolist() == [not text for text in first_broken(model, cluster, table)]
    assert set(plain) - set(broken) <= OF_ONE_CLUSTER


@pytest.mark.parametrize("name", ["tp", "pp", "cp", "ep", "etp", "global_batch", "virtual_stages", "sequence_slices"])
def test_nothing_is_fewer_than_one(name):
    some = {"tp": 2, "pp": 2, "cp": 2, "sequence_parallel": True, "global_batch": 4, "virtual_stages": 1}
    assert first_broken(MODEL, CLUSTERS[0], Layouts.of(**some)) == [""]
    (text,) = first_broken(MODEL, CLUSTERS[0], Layouts.of(**some | {name: 0}))
    assert text.startswith("degrees, micro-batch")


@pytest.mark.parametrize(
    ("choices", "got"),
    [
        ({"dp": 64, "micro_batch": 3, "global_batch": 512}, "dp 64, micro_batch 3, global_batch 512"),
        ({"tp": 5}, "tp 5, num_heads 12"),
        ({"zero": 3, "pp": 2}, "pp 2, zero 3"),
        ({"recompute": "full", "recompute_layers": 9, "pp": 2},
         "pp 2, virtual_stages 1, recompute_layers 9, num_layers 6"),
        ({"cp": 32, "global_batch": 1}, "cp 32, seq_len 48"),
        ({"virtual_stages": 2, "global_batch": 4},
         "schedule interleaved (usual where none is named), pp 1, virtual_stages 2, sequence_slices 1, "
         "micro_batches 4"),
    ],
)  # fmt: skip
def test_a_layout_that_is_not_legal_shows_what_the_rule_names(choices, got):
    layouts = layout_under(Setup(MODEL, CLUSTERS[0], load_framework("megatron-lm")), **{"global_batch": 8} | choices)
    with pytest.raises(LayoutError) as error:
        check_legal(MODEL, CLUSTERS[0], layouts)
    assert str(error.value).partition("; got ")[2] == got


def test_a_fault_says_none_of_a_choice_that_is_empty():
    x = Layouts.of(
        dp=1, pp=4, virtual_stages=2, schedule="interleaved", recompute=Recompute.FULL, recompute_layers=1,
        layer_split=Split.LAST, global_batch=8,
    )  # fmt: skip
    with pytest.raises(LayoutError, match=r"; got .*pipeline_layout none"):
        check_legal(replace(load_model("llama3-8b"), num_layers=31), load_cluster("dgx-h100"), x)
