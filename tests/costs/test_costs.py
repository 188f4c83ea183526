"""Cost models: FLOP conserved, paper formulas, published layer memory, bounds and monotony."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.costs.kernels.device import Device, matmul_s, slowest_of
from planner.costs.layer.matmul_shapes import attention_products, expert_products, mlp_products
from planner.costs.memory.saved_activations import attention_core_bytes, saved_bytes
from planner.costs.network.collectives import all_gather_s, all_reduce_s, all_to_all_s
from planner.costs.network.groups import groups
from planner.hardware import load_accelerator, load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision, Recompute, Split
from planner.models import flops, load_model
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.splits import balanced_load, stages_between, virtual_stage_layers
from planner.step.step_costs import step_costs
from tests.costs.stages import stages_of
from tests.costs.toy import case, layer_bytes

A100 = load_accelerator("a100-sxm-80gb")
BF16 = Device.of(A100, np.array([int(Precision.BF16)]))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 20000), st.integers(1, 20000), st.integers(1, 20000))
def test_a_product_never_beats_peak_or_memory(rows, columns, depth):
    seconds = float(matmul_s(BF16, rows, columns, depth)[0])
    assert seconds > 2.0 * rows * columns * depth / A100.peak_flops["bf16"]
    moved = 2.0 * (rows * depth + depth * columns + rows * columns)
    assert seconds > moved / A100.memory_bandwidth_bytes_per_s
    assert matmul_s(BF16, 2 * rows, columns, depth)[0] >= seconds
    assert matmul_s(BF16, rows, columns, 2 * depth)[0] >= seconds


def test_the_slowest_of_n_is_the_mean_of_drawn_maxima():
    draws = np.random.default_rng(0).standard_normal((4000, 64))
    for n in (1, 2, 8, 64):
        assert float(slowest_of(n)) == pytest.approx(draws[:, :n].max(axis=1).mean(), abs=0.06)
    assert slowest_of(np.array([[1, 8], [8, 1]])).tolist() == slowest_of(np.array([[1, 8], [8, 1]])).T.tolist()


def test_weak_scaling_slows_with_the_spread_of_gpus():
    """The same work a GPU on 8 and 2,048 H100s: measured steps grow by 2 to 5 % (NVIDIA's dgxc recipes)."""
    model, cluster = load_model("llama3-8b"), load_cluster("dgx-h100")
    gpus = np.array([8, 64, 512, 2048])
    layouts = Layouts.of(dp=gpus, global_batch=16 * gpus, micro_batch=1, zero=1)
    step = estimate(Setup(model, cluster, load_framework(cluster.framework)), layouts).step_time_s
    assert np.all(np.diff(step) > 0)
    assert 1.02 < step[-1] / step[0] < 1.06


def test_small_products_are_less_efficient():
    def rate(n: int) -> float:
        return float(2.0 * n**3 / matmul_s(BF16, n, n, n)[0])

    assert rate(256) < 0.3 * rate(4096)
    assert rate(8192) < A100.peak_flops["bf16"]


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-8b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("tp", [1, 2])
def test_the_products_carry_the_model_s_flops(name, tp):
    """The sum over a layer's products is the model's FLOP by operation, shared by the tensor group."""
    model = load_model(name)
    layouts = Layouts.of(tp=tp, global_batch=1)
    per_token = sum(2.0 * c * d * k for c, d, k in attention_products(case(model=model, layouts=layouts)))
    mlps = mlp_products(case(model=model, layouts=layouts)) + expert_products(case(model=model, layouts=layouts))
    per_token += sum(2.0 * r * c * d * k for r, c, d, k in mlps)
    by_name = flops.forward_flops(model)
    names = ("qkv", "attention_output", "mlp", "router", "experts")
    expected = sum(by_name[n] for n in names) / model.seq_len / model.num_layers
    unshared = by_name["router"] / model.seq_len / model.num_layers
    if model.kv_lora_rank:  # the latent products down are done by every tensor rank
        unshared += 2.0 * model.hidden * (model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim)
    assert float(per_token[0]) == pytest.approx((expected - unshared) / tp + unshared, rel=1e-9)


@pytest.mark.parametrize(("tp", "sp"), [(1, False), (8, False), (8, True)])
def test_activations_follow_korthikanti(tp, sp):
    """Korthikanti et al. 2022, eqs. 1, 2 and 4: s b h (10 + 24/t + 5as/ht), and (34 + 5as/h)/t with sequence
    parallelism; our count differs from eq. 1 only in the output of the fused softmax dropout (as in Megatron-LM)."""
    model = load_model("megatron-22b")
    layouts = Layouts.of(tp=tp, sequence_parallel=sp, micro_batch=4, global_batch=4, attention=Attention.FUSED)
    s, b, h, a = model.seq_len, 4, model.hidden, model.num_heads
    outside = (34 / tp) if sp else (10 + 24 / tp)
    expected = s * b * h * (outside + 5 * a * s / h / tp)
    here = case(BF16, model, layouts)
    ours = layer_bytes(here) + attention_core_bytes(here)
    assert float(ours[0]) == pytest.approx(expected, rel=0.03)


KORTHIKANTI = list(csv.DictReader((Path(__file__).parent / "korthikanti_2022_memory.csv").read_text().splitlines()))
KORTHIKANTI_MODELS = {
    "22B": "megatron-22b",
    "175B (GPT-3)": "gpt3-175b",
    "530B (MT-NLG)": "megatron-530b",
    "1T": "megatron-1t",
}


def kept_bytes_a_layer(row: dict[str, str], sequence_parallel: bool, recompute: Recompute) -> float:
    """What a layer of a row of Korthikanti et al. 2022 keeps of a micro-batch."""
    layouts = Layouts.of(
        tp=int(row["tp"]), pp=int(row["pp"]), virtual_stages=int(row["vpp"]), micro_batch=int(row["micro_batch"]),
        global_batch=1024, attention=Attention.FUSED, sequence_parallel=sequence_parallel, recompute=recompute,
    )  # fmt: skip
    kept, _ = saved_bytes(case(BF16, load_model(KORTHIKANTI_MODELS[row["model"]]), layouts))
    return float(kept[0])


def test_activation_memory_of_figure_1():
    """Korthikanti et al. 2022, figure 1: activations of the first stage, two settings of four models, within 3 %."""
    rows = [r for r in KORTHIKANTI if r["figure"] == "Figure 1"]
    assert len(rows) == 8
    for r in rows:
        better = "selective" in r["mode"]
        kept = kept_bytes_a_layer(r, better, Recompute.SELECTIVE if better else Recompute.NONE)
        p, v = int(r["pp"]), int(r["vpp"])
        in_flight = p + (p - 1) / v if v > 1 else p
        gib = kept * load_model(KORTHIKANTI_MODELS[r["model"]]).num_layers / p * in_flight / 2**30
        assert gib == pytest.approx(float(r["activation_gib"]), rel=0.03), r


def test_activation_memory_of_figure_7():
    """Korthikanti et al. 2022, figure 7: five settings of four models in percent of the first, within 3 %."""
    settings_of = {
        "none": (False, Recompute.NONE),
        "seq": (True, Recompute.NONE),
        "sel": (False, Recompute.SELECTIVE),
        "seqsel": (True, Recompute.SELECTIVE),
        "full": (False, Recompute.FULL),
    }
    rows = [r for r in KORTHIKANTI if r["figure"] == "Figure 7"]
    assert len(rows) == 20
    for r in rows:
        share = kept_bytes_a_layer(r, *settings_of[r["mode"]]) / kept_bytes_a_layer(r, *settings_of["none"])
        assert 100 * share == pytest.approx(float(r["activation_pct_of_tp_baseline"]), rel=0.03), r


def test_recompute_keeps_less():
    model = load_model("gpt3-175b")
    modes = [Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL]
    layouts = Layouts.of(tp=8, recompute=np.array(modes), global_batch=1, attention=Attention.FUSED)
    device = Device.of(A100, layouts.precision)
    kept, _ = saved_bytes(case(device, model, layouts))
    assert kept[0] > kept[1] > kept[2] > 0


CLUSTER = load_cluster("dgx-a100-80gb")


def test_groups_lie_on_nodes_in_megatron_s_order():
    layouts = Layouts.of(dp=[8, 8, 4, 2], tp=[1, 2, 8, 4], pp=[1, 1, 2, 1], cp=[1, 1, 1, 2], global_batch=8)
    by = groups(CLUSTER, layouts)
    assert by["tensor"].local.tolist() == [1, 2, 8, 4]
    assert by["data"].local.tolist() == [8, 4, 1, 2]
    assert by["data"].ranks.tolist() == [8, 8, 4, 4]


def test_collectives_cost_what_rings_cost():
    group = groups(CLUSTER, Layouts.of(dp=16, global_batch=16))["data"]
    size = 1e9
    nics = 8 * CLUSTER.network.bandwidth_bytes_per_s * CLUSTER.network.fraction
    rate = min(nics, CLUSTER.node_link.bandwidth_bytes_per_s * CLUSTER.node_link.fraction)
    once = size * 15 / 16 / rate + group.latency_s
    assert all_gather_s(group, size) == pytest.approx(once + group.ring_latency_s)
    assert all_reduce_s(group, size) == pytest.approx(2 * (once + group.tree_latency_s))
    alone = groups(CLUSTER, Layouts.of(global_batch=1))["data"]
    assert all_reduce_s(alone, size) == all_gather_s(alone, size) == all_to_all_s(alone, size) == 0.0


def brute_force_load(L: int, p: int, e: float, g: float) -> float:
    """The least slowest load over all contiguous splits of L layers with e first and g last."""
    if p == 1:
        return L + e + g
    best = np.inf
    for first in range(L + 1):
        for last in range(L - first + 1):
            middle = L - first - last
            if p == 2 and middle:
                continue
            inner = int(np.ceil(middle / (p - 2))) if p > 2 else 0
            best = min(best, max(first + e, last + g, inner))
    return best


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.floats(0, 3), st.floats(0, 6))
def test_balanced_load_is_the_least(L, p, e, g):
    if p > L:
        return
    got = float(balanced_load(L, p, np.array(e), np.array(g)))
    assert got == pytest.approx(brute_force_load(L, p, e, g), abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 40), st.integers(2, 8), st.floats(0, 3), st.floats(0, 6))
def test_a_balanced_split_has_all_layers_and_the_least_load(L, p, e, g):
    """Of splits in which a rank between the ends has a layer: where there is none, no such layout is legal."""
    layouts = Layouts.of(pp=p, layer_split=Split.BALANCED, global_batch=8)
    layers = stages_of(layouts, L, np.array([e]), np.array([g])).layers(0, p)
    if layers.min() < 1:
        return
    assert layers.sum() == L
    load = layers + np.array([e, *[0.0] * (p - 2), g])
    assert load.max() == pytest.approx(brute_force_load(L, p, e, g), abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 6), st.integers(2, 6), st.integers(0, 30), st.floats(-1.5, 3), st.floats(0, 6))
def test_virtual_stages_filled_by_cost(p, v, more, e, g):
    """The least load of a virtual stage, and ranks as sums of theirs; e is below 0 with dense layers."""
    L = p * v + more
    layouts = Layouts.of(pp=p, layer_split=Split.BALANCED, virtual_stages=v, schedule="interleaved", global_batch=8)
    stages = stages_of(layouts, L, np.array([e]), np.array([g]), chunks=np.array([v]))
    layers = stages_between(L, p * v, *(int(x[0]) for x in stages.chunk_ends))
    assert layers.sum() == L
    load = layers + np.array([e, *[0.0] * (p * v - 2), g])
    assert load.max() == pytest.approx(brute_force_load(L, p * v, e, g), abs=1e-6)
    assert stages.layers(0, p).tolist() == layers.reshape(v, p).sum(axis=0).tolist()


def filled_from_the_first(L: int, p: int, e: float, g: float) -> list[int]:
    """Layers of each rank when ranks are filled one after another up to the least bound that all items fit under."""
    items = [e, *[1.0] * L, g]
    bounds = sorted({sum(items[i:j]) for i in range(len(items)) for j in range(i + 1, len(items) + 1)})
    for bound in bounds:
        ranks, at = [], 0
        for _ in range(p):
            start, held = at, 0.0
            while at < len(items) and held + items[at] <= bound + 1e-9:
                held += items[at]
                at += 1
            ranks.append(len([i for i in range(start, at) if 0 < i <= L]))
        if at == len(items):
            return ranks
    raise AssertionError("the whole is a bound")


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 8), st.integers(2, 60), st.floats(0, 3), st.floats(0, 3))
def test_a_split_by_parameters_fills_rank_after_rank(p, L, e, g):
    """Against a search over every bound, where each rank has a layer."""
    wanted = filled_from_the_first(L, p, e, g)
    if min(wanted) < 1:
        return
    layouts = Layouts.of(pp=p, layer_split=Split.PARAMETERS, global_batch=8)
    cost = (np.array([0.5]), np.array([2.5]))
    stages = stages_of(layouts, L, *cost, (np.array([e]), np.array([g])))
    assert stages.layers(0, p).tolist() == wanted


def test_splits_by_parameters_of_a_published_model():
    """LLaMA 65B with 128,000 tokens: embedding and head of 1.3 layers each (Aleph Alpha's trainer, balanced)."""
    model = replace(load_model("llama-65b"), vocab=128_000)
    layouts = Layouts.of(pp=[2, 4, 8], tp=2, layer_split=Split.PARAMETERS, global_batch=8, precision=Precision.BF16)
    stages = step_costs(Setup(model, CLUSTER, load_framework("aa-scaling")), layouts).stages
    assert [stages.layers(i, p).tolist() for i, p in enumerate((2, 4, 8))] == [
        [40, 40],
        [19, 21, 21, 19],
        [9, 11, 11, 11, 11, 11, 11, 5],
    ]


def test_a_split_by_ends_counts_embedding_and_head_as_layers():
    """LLaMA 405B on eight ranks of eight chunks: two layers each, but one on the first and the last."""
    layouts = Layouts.of(pp=[8, 2, 16], layer_split=Split.ENDS, global_batch=8)
    stages = stages_of(layouts, 126, np.full(3, 0.25), np.full(3, 1.5))
    assert stages.layers(0, 8).tolist() == [15, 16, 16, 16, 16, 16, 16, 15]
    assert stages.layers(1, 2).tolist() == [63, 63]
    assert virtual_stage_layers(126, 64, Split.ENDS).tolist() == [1, *[2] * 62, 1]
    assert virtual_stage_layers(126, 128, Split.ENDS).tolist() == [0, *[1] * 126, 0]
    assert virtual_stage_layers(80, 16, Split.EVEN).tolist() == [5] * 16
    # DeepSeek-V3 with a module of multi-token prediction: two heads on the last stage, as in its recipe for H100.
    assert virtual_stage_layers(61, 32, Split.ENDS, 2).tolist() == [1, *[2] * 30, 0]
    two = stages_of(Layouts.of(pp=8, layer_split=Split.ENDS, global_batch=8), 61, np.zeros(1), np.zeros(1), heads=2)
    assert two.layers(0, 8).tolist() == [7, *[8] * 6, 6]
    for p, v in ((8, 8), (16, 8), (2, 16), (4, 2)):
        rank_layers = virtual_stage_layers(126, p * v, Split.ENDS).reshape(v, p).sum(axis=0)
        one = stages_of(Layouts.of(pp=p, layer_split=Split.ENDS, global_batch=8), 126, np.zeros(1), np.zeros(1))
        assert rank_layers.tolist() == one.layers(0, p).tolist()


def test_a_split_with_a_short_last_stage():
    """DeepSeek-V3's 61 layers: 4 ranks of 16, 16, 16 and 13; as 16 virtual stages 15 times 4 and 1."""
    layouts = Layouts.of(pp=[4, 4, 16, 2], virtual_stages=[1, 4, 1, 3], layer_split=Split.LAST, global_batch=8)
    stages = stages_of(layouts, 61, np.full(4, 0.25), np.full(4, 1.5))
    assert [stages.layers(i, p).tolist() for i, p in enumerate((4, 4, 16, 2))] == [
        [16, 16, 16, 13], [16, 16, 16, 13], [*[4] * 15, 1], [33, 28],
    ]  # fmt: skip
    assert virtual_stage_layers(61, 16, Split.LAST).tolist() == [*[4] * 15, 1]
    for p, v in ((4, 4), (2, 3), (8, 2)):
        ranks = virtual_stage_layers(61, p * v, Split.LAST).reshape(v, p).sum(axis=0)
        split = Layouts.of(pp=p, virtual_stages=v, layer_split=Split.LAST, global_batch=8)
        assert ranks.tolist() == stages_of(split, 61, np.zeros(1), np.zeros(1)).layers(0, p).tolist()


def test_splits():
    layouts = Layouts.of(pp=[1, 4, 8, 8], layer_split=[0, 0, 0, Split.BALANCED], global_batch=8)
    stages = stages_of(layouts, 60, np.zeros(4), np.full(4, 2.0))
    assert stages.layers(3, 8).tolist() == [8, 7, 7, 8, 8, 8, 8, 6]  # the fuller ones where less is in flight
    assert stages.first.layers.tolist()[:3] == [60, 15, 8]


def test_a_split_by_products_fills_a_stage_beyond_its_share():
    """As nanotron goes over its blocks (models/base.py): one that goes beyond a rank's share is still that rank's."""

    def theirs(layers, head, p):
        cost = np.cumsum([1.0] * layers + [head])
        ranks, rank = [], 0
        for until in cost:
            ranks.append(rank)
            rank += until > cost[-1] * (rank + 1) / p
        return np.bincount(ranks[:-1], minlength=p).tolist()

    for layers, head in ((16, 4.0), (32, 536870912 / 243269632), (28, 402653184 / 113246208), (80, 0.7), (24, 0.0)):
        for p in (2, 3):
            layouts = Layouts.of(pp=p, layer_split=Split.PRODUCTS, global_batch=8)
            stages = stages_of(layouts, layers, np.zeros(1), np.zeros(1), head_products=head)
            assert stages.layers(0, p).tolist() == theirs(layers, head, p)
        for p in (4, 8):  # of those between the ends, how many have how many, where none is empty
            if 0 in theirs(layers, head, p)[:-1]:
                continue
            layouts = Layouts.of(pp=p, layer_split=Split.PRODUCTS, global_batch=8)
            ours = stages_of(layouts, layers, np.zeros(1), np.zeros(1), head_products=head).layers(0, p).tolist()
            expected = theirs(layers, head, p)
            assert (ours[0], ours[-1]) == (expected[0], expected[-1])
            assert sorted(ours) == sorted(expected)
    # Its benchmark's models: 1.34B, where ten layers have exactly half, 8.86B and 3.57B on two stages.
    assert theirs(16, 4.0, 2) == [11, 5]
    assert theirs(32, 536870912 / 243269632, 2) == [18, 14]
