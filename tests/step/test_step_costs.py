"""How the parts of a step join, worked out by hand: what hides under what, which rank holds and does what."""

from dataclasses import fields, replace

import numpy as np
import pytest

from planner.costs.layer.layer_cost import LayerCost
from planner.costs.network.traffic import Traffic
from planner.layouts import Attention, Layouts, Precision, Recompute, Split
from planner.models.flops import step_flops
from planner.schedules import get_schedule
from planner.setup import Setup
from planner.step.estimate import estimate, totals
from planner.step.layer_time import layer_time
from planner.step.step_costs import step_costs
from planner.step.step_time import data_comm
from planner.step.timeline.step import simulate
from tests.costs.toy import CLUSTER, FRAMEWORK, GPT, MOE, accelerator, case, layout

# A layer of 10 + 4 + 1 + 1 s forward and 20 + 8 + 2 + 2 s backward, of which 12 s are weight gradients.
COST = LayerCost(
    forward_matmul_s=np.array([10.0]), forward_attention_s=np.array([4.0]), forward_scan_s=np.array([1.0]),
    forward_pointwise_s=np.array([1.0]), backward_matmul_s=np.array([20.0]), backward_attention_s=np.array([8.0]),
    backward_scan_s=np.array([2.0]), backward_pointwise_s=np.array([2.0]),
    recompute_s=np.array([0.0]), weight_grad_s=np.array([12.0]), launch_s=np.array([0.0]),
)  # fmt: skip


def time(framework=FRAMEWORK, chosen=None, **seconds):
    """The layer's time with these seconds on the wire."""
    wire = Traffic(**{f.name: np.array([seconds.get(f.name, 0.0)]) for f in fields(Traffic)})
    result = layer_time(case(model=GPT, layouts=chosen or layout(), framework=framework), COST, wire)
    return {f.name: float(getattr(result, f.name)[0]) for f in fields(result)}


def test_a_layer_alone():
    alone = time()
    assert (alone["forward_s"], alone["backward_s"]) == (16.0, 32.0)
    assert sum(alone.values()) == 48.0


def test_tensor_collectives_show_as_far_as_they_do_not_overlap():
    seconds = {"layer_forward_s": 6.0, "layer_backward_s": 8.0}
    shown = time(**seconds)
    assert (shown["forward_s"], shown["backward_s"], shown["tensor_s"]) == (22.0, 40.0, 14.0)
    half = time(replace(FRAMEWORK, overlap_tensor=0.5), **seconds)
    assert (half["forward_s"], half["backward_s"], half["tensor_s"]) == (19.0, 36.0, 7.0)
    over = time(replace(FRAMEWORK, overlap_tensor=0.5), layout(tp=8), **seconds)
    assert over["tensor_s"] == 14.0  # beyond the 4 GPUs that NVLink joins
    slow = time(replace(FRAMEWORK, tensor_slowdown=1.5), **seconds)
    assert (slow["forward_s"], slow["backward_s"]) == (25.0, 44.0)
    # Beside 7/12 of the weight gradient's 12 s hides what the backward pass proper reduces: 6 s.
    beside = replace(FRAMEWORK, overlap_tensor_backward=1.0)
    assert time(beside, **seconds)["backward_s"] == 34.0
    assert time(beside, layer_forward_s=9.0, layer_backward_s=9.0)["backward_s"] == 32 + 9 - 7
    with_sp = time(beside, layout(tp=2, sequence_parallel=True), **seconds)
    assert with_sp["backward_s"] == 37.0


def test_the_context_ring_hides_under_attention_but_for_a_tenth():
    shown = time(context_forward_s=10.0, context_backward_s=30.0)
    assert (shown["forward_s"], shown["backward_s"], shown["context_s"]) == (16 + 6, 32 + 22, 28.0)
    seconds = {"context_forward_s": 4.0, "context_backward_s": 8.0}
    hidden = time(**seconds, context_gather_forward_s=4.0, context_gather_backward_s=8.0)
    assert hidden["context_s"] == pytest.approx(1.2)
    assert hidden["backward_s"] == pytest.approx(32.8)
    # Between nodes a tenth of what a gather by all NICs would take.
    assert time(**seconds, context_gather_forward_s=1.0, context_gather_backward_s=2.0)["context_s"] == pytest.approx(
        0.3
    )


def test_pytorchs_gather_hides_under_the_first_part_alone():
    """Attention takes 4 s forward, the first of two parts 2; compiled layers wait for all."""
    ring, two = replace(FRAMEWORK, sdpa_context=True), layout(cp=2)
    alone, halved = (time(f, two, context_forward_s=10.0)["context_s"] for f in (FRAMEWORK, ring))
    assert halved - alone == 2.0
    compiled = time(replace(ring, compiled_layers=True), two, context_forward_s=10.0, context_backward_s=30.0)
    assert compiled["context_s"] == 40.0


def test_expert_exchanges_show():
    shown = time(expert_forward_s=3.0, expert_backward_s=5.0)
    assert (shown["forward_s"], shown["backward_s"], shown["expert_s"]) == (19.0, 37.0, 8.0)


def test_expert_exchanges_hide_beside_another_micro_batch():
    """Beside half of passes of 16 and 32 s; never more than half of the exchange."""
    two = replace(FRAMEWORK, overlap_experts=0.5)
    shown = time(two, layout(ep=2, dp=2), expert_forward_s=20.0, expert_backward_s=20.0)
    assert (shown["forward_s"], shown["backward_s"], shown["expert_s"]) == (16 + 12, 32 + 10, 22.0)


@pytest.mark.parametrize(
    ("more", "exchange_s"),
    [
        ({}, 22.0),
        ({"ep": 1}, 40.0),
        ({"pp": 2}, 40.0),
        ({"recompute": Recompute.FULL}, 40.0),
        ({"precision": Precision.TF32}, 40.0),
        ({"pp": 2, "virtual_stages": 2}, 22.0),
    ],
)
def test_exchanges_hide_only_where_two_micro_batches_can_take_turns(more, exchange_s):
    two = replace(FRAMEWORK, overlap_experts=0.5)
    assert (
        time(two, layout(**{"ep": 2, "dp": 2, **more}), expert_forward_s=20.0, expert_backward_s=20.0)["expert_s"]
        == exchange_s
    )


def test_the_host_s_launches_show_where_passes_are_shorter():
    slow = replace(FRAMEWORK, host_layer_forward_s=20.0, host_layer_backward_s=35.0)
    shown = time(slow)
    assert (shown["forward_s"], shown["backward_s"], shown["host_s"]) == (20.0, 35.0, 7.0)
    assert time(slow, layout(sequence_slices=2))["host_s"] == (40 - 16) + (70 - 32)
    assert time(slow, layout(recompute=Recompute.FULL))["host_s"] == (20 - 16) + (35 + 20 - 32)
    assert time(replace(slow, host_layer_forward_s=10.0, host_layer_backward_s=10.0))["host_s"] == 0.0


def test_a_host_that_waits_for_every_kernel_adds_its_time():
    waits = replace(FRAMEWORK, host_layer_forward_s=20.0, host_layer_backward_s=35.0, blocking_launches=True)
    shown = time(waits)
    assert (shown["forward_s"], shown["backward_s"], shown["host_s"]) == (16 + 20, 32 + 35, 55.0)
    assert time(waits, layout(recompute=Recompute.FULL))["host_s"] == 20 + 35 + 20
    assert time(replace(waits, host_layer_forward_s=0.0, host_layer_backward_s=0.0))["host_s"] == 0.0


def test_zero_3_hides_under_the_passes_as_far_as_the_framework_prefetches():
    seconds = {
        "layer_gather_s": 10.0,
        "layer_reduce_s": 20.0,
        "layer_gather_taken_s": 5.0,
        "layer_reduce_taken_s": 10.0,
    }
    three = layout(zero=3)
    shown = time(FRAMEWORK, three, **seconds)
    assert (shown["forward_s"], shown["backward_s"], shown["sharding_s"]) == (26.0, 62.0, 40.0)
    # With ZeRO-2 what was gathered stays until the backward pass.
    two = time(FRAMEWORK, layout(zero=2), **seconds)
    assert (two["forward_s"], two["backward_s"], two["sharding_s"]) == (26.0, 52.0, 30.0)
    half = time(replace(FRAMEWORK, overlap_param_gather=0.5), three, **seconds)
    # Passes of 16 and 32 s are long enough for 10 and 30 s, but these take 5 and 15 s from them.
    assert (half["forward_s"], half["backward_s"]) == (21.0, 47.0)
    late = time(replace(FRAMEWORK, overlap_param_gather=0.5), three, layer_gather_s=40.0, layer_gather_taken_s=4.0)
    assert (late["forward_s"], late["backward_s"]) == (16 + 24, 32 + 8)
    bound = time(replace(FRAMEWORK, overlap_param_gather=1.0), three, layer_gather_s=20.0, layer_reduce_s=20.0)
    assert (bound["forward_s"], bound["backward_s"]) == (16 + 4, 32 + 8)
    # Layer at a time: once for both micro-batches, the half of it to each.
    once = time(FRAMEWORK, layout(schedule="layered", virtual_stages=2, zero=3), **seconds)
    assert once["sharding_s"] == 20.0
    # In a pipeline the ranks wait for it (test_chunk_gathers).
    assert time(FRAMEWORK, layout(schedule="modular", pp=2, zero=3), **seconds)["sharding_s"] == 0.0


@pytest.mark.parametrize("name", ["1f1b-v", "zb-v", "v-half", "v-min", "hanayo", "dualpipev"])
def test_a_tied_table_on_one_rank_is_not_summed_between_two(name):
    chosen = layout(pp=2, schedule=name, virtual_stages=get_schedule(name).chunks or 2, global_batch=24)
    four = replace(GPT, num_layers=4, num_dense_layers=4)
    apart = layout(pp=2, schedule="interleaved", virtual_stages=2)
    assert step_costs(Setup(four, TOY, FRAMEWORK), chosen).traffic.tied_s.tolist() == [0.0]
    assert step_costs(Setup(four, TOY, FRAMEWORK), apart).traffic.tied_s[0] > 0
    assert simulate(Setup(four, TOY, FRAMEWORK), chosen).tied_s.tolist() == [0.0, 0.0]
    assert simulate(Setup(four, TOY, FRAMEWORK), apart).tied_s.min() > 0


def collectives(framework, reduce_s=10.0, gather_s=6.0, forward_s=4.0, backward_s=8.0, taken=0.5, **choices):
    chosen = layout(**choices)
    costs = step_costs(Setup(GPT, TOY, framework), chosen)
    gather = np.array([gather_s])
    costs = replace(costs, reduce_s=np.array([reduce_s]), gather_s=gather, gather_taken_s=taken * gather)
    found = data_comm(costs, np.array([forward_s]), np.array([backward_s]), GPT.num_layers)
    return [float(getattr(found, f.name)[0]) for f in fields(found)]


TOY = replace(CLUSTER, accelerator=accelerator(flops=1e3, bandwidth=1e3, kernel_latency_s=0.25))
OVERLAP = replace(
    FRAMEWORK, overlap_grad_reduce=0.75, overlap_grad_reduce_pipelined=0.25, overlap_param_gather=0.5
)  # fmt: skip


def test_data_parallel_collectives_hide_under_one_micro_batch():
    # Of 10 s a share of 0.75 may hide, under 0.75 of the 8 s of backward; of 6 s half, under the 4 s of forward.
    assert collectives(OVERLAP, dp=2) == [10.0, 6.0, 6.0, 3.0]
    assert collectives(OVERLAP, dp=2, reduce_s=4.0, gather_s=2.0) == [4.0, 3.0, 2.0, 1.0]
    assert collectives(OVERLAP, dp=2, pp=2) == [10.0, 2.0, 6.0, 3.0]
    # ZeRO-2 scatters after each of the two micro-batches.
    assert collectives(OVERLAP, dp=2, zero=2) == [20.0, 12.0, 6.0, 3.0]
    # On a slow network no more shows than outlasts the pass, or than what is taken from it.
    assert collectives(OVERLAP, dp=2, taken=0.125)[3] == 4.0
    assert collectives(OVERLAP, dp=2, taken=0.125, gather_s=4.0)[3] == 3.5
    assert collectives(FRAMEWORK, dp=2, taken=0.125)[3] == 0.0


def test_layer_at_a_time_leaves_one_chunk_s_collectives():
    by_layer = collectives(OVERLAP, dp=2, pp=2, schedule="modular", virtual_stages=1)
    assert by_layer == [10.0, 0.0, 6.0, 0.0]
    wide = replace(OVERLAP, overlap_grad_reduce=1.0, overlap_param_gather=1.0)
    chunks = collectives(wide, dp=2, pp=2, schedule="breadth-first", virtual_stages=2, reduce_s=100.0, gather_s=100.0)
    # Two micro-batches, two chunks: the other chunk's passes, 2 x 1/2 of 8 s and of 4 s, hide so much of 100 s.
    assert chunks == [100.0, 8.0, 100.0, 4.0]
    short = collectives(wide, dp=2, pp=2, schedule="breadth-first", virtual_stages=2, zero=2)
    assert short == [10.0, 5.0, 6.0, 3.0]


def test_the_parts_of_a_step_are_the_average_rank_s():
    """Each part of the step from the parts of a layer, for a pipeline with everything switched on."""
    chosen = layout(dp=2, tp=2, pp=2, recompute=Recompute.FULL, attention=Attention.FUSED, zero=1)
    slow = replace(OVERLAP, overlap_pipeline=0.5, host_layer_forward_s=1e3)
    costs = step_costs(Setup(GPT, TOY, slow), chosen)
    found = estimate(Setup(GPT, TOY, slow), chosen)
    t, m, layers, p = found.time, 2, 2, 2

    def close(part, expected):
        assert float(part[0]) == pytest.approx(float(np.ravel(expected)[0]))
        assert float(part[0]) > 0.0

    each = m * layers / p
    close(t.matmul_s, each * (costs.cost.forward_matmul_s + costs.cost.backward_matmul_s))
    close(t.attention_s, each * (costs.cost.forward_attention_s + costs.cost.backward_attention_s))
    close(t.pointwise_s, each * (costs.cost.forward_pointwise_s + costs.cost.backward_pointwise_s))
    close(t.recompute_s, each * costs.cost.recompute_s)
    close(t.host_s, each * costs.layer.host_s)
    close(t.tensor_comm_s, each * costs.layer.tensor_s + m / p * costs.traffic.ends_s)
    ends = costs.ends
    close(t.embedding_head_s, m / p * (ends.embedding_forward_s + ends.embedding_backward_s
                                       + ends.head_forward_s + ends.head_backward_s))  # fmt: skip
    # A rank of two sends or receives once a micro-batch and direction, half of it hidden.
    close(costs.send_s, costs.traffic.send_s / 2)
    close(t.pipeline_comm_s, m * costs.send_s)
    close(t.optimizer_s, costs.update_s)
    forward, backward = _last_rank(costs)
    data = data_comm(costs, forward, backward, layers / p)
    close(t.data_comm_s, data.reduce_s - data.reduce_hidden_s + data.gather_s - data.gather_hidden_s
          + costs.traffic.tied_s)  # fmt: skip
    # 1F1B: the slowest rank's work, and p - 1 micro-batches of the others' while it waits.
    first = _first_rank(costs)
    slowest = float((forward + backward)[0])
    mean = (slowest + sum(float(x[0]) for x in first)) / 2
    close(t.imbalance_s, [m * (slowest - mean)])
    assert float(found.step_time_s[0]) == pytest.approx(sum(float(getattr(t, f.name)[0]) for f in fields(t)))
    assert float(t.total_s[0]) == float(found.step_time_s[0])


def _first_rank(costs):
    quarter = costs.traffic.ends_s / 4
    return (costs.layer.forward_s + costs.ends.embedding_forward_s + quarter,
            costs.layer.backward_s + costs.ends.embedding_backward_s + quarter + costs.send_s)  # fmt: skip


def _last_rank(costs):
    quarter = costs.traffic.ends_s / 4
    return (costs.layer.forward_s + costs.ends.head_forward_s + quarter + costs.send_s,
            costs.layer.backward_s + costs.ends.head_backward_s + quarter)  # fmt: skip


def test_step_time_mfu_and_tokens():
    chosen = layout(dp=2, tp=2, pp=2)
    found = estimate(Setup(GPT, TOY, FRAMEWORK), chosen)
    step = float(found.step_time_s[0])
    assert float(found.tokens_per_s_per_gpu[0]) == pytest.approx(12 * 16 / step / 8)
    flop = float(step_flops(GPT, 12, "palm"))
    assert float(found.mfu[0]) == pytest.approx(flop / (step * 8 * 1e3))
    only = replace(TOY, accelerator=replace(TOY.accelerator, peak_flops={"bf16": 1e3}))
    assert np.isnan(estimate(Setup(GPT, only, FRAMEWORK), layout(precision=Precision.FP16)).mfu[0])
    full = replace(TOY, accelerator=replace(TOY.accelerator, memory_bytes=float(found.memory_bytes[0])))
    assert estimate(Setup(GPT, full, FRAMEWORK), chosen).fits.tolist() == [True]
    over = replace(full, accelerator=replace(full.accelerator, memory_bytes=float(found.memory_bytes[0]) - 1.0))
    assert estimate(Setup(GPT, over, FRAMEWORK), chosen).fits.tolist() == [False]


def test_two_copies_of_the_weights_are_reduced_between_their_ranks():
    """Chimera trains a copy in either direction: twice the update, and the gradients go there and back."""
    one = step_costs(Setup(GPT, TOY, FRAMEWORK), layout(pp=2))
    two = step_costs(Setup(GPT, TOY, FRAMEWORK), layout(pp=2, schedule="chimera"))
    params = float(two.busiest_params[0])
    # Each rank holds a layer of either copy; half of all embeddings and final norms, as one copy of it counts.
    assert params == 872 + (2048 + 128) / 2 + 16 / 2
    assert float(one.busiest_params[0]) == 872 + 2048 + 128
    assert float(two.update_s[0]) == pytest.approx(2 * (46 * params + 3 * 4 * params) / 1e3)
    # Inside a node: 4 bytes per parameter at 2 B/s and a start, twice; there are no other replicas.
    assert float(two.reduce_s[0]) == pytest.approx(2 * (params * 4 / 2 + 1))
    assert float(one.reduce_s[0]) == 0.0
    both = step_costs(
        Setup(GPT, TOY, FRAMEWORK), Layouts.of(schedule=["1f1b", "chimera"], pp=2, micro_batch=3, global_batch=6)
    )
    assert both.reduce_s.tolist() == [0.0, float(two.reduce_s[0])]
    assert both.update_s.tolist() == [float(one.update_s[0]), float(two.update_s[0])]


def test_the_update_is_of_the_shard_and_reductions_of_the_whole():
    whole = step_costs(Setup(GPT, TOY, FRAMEWORK), layout(dp=2, cp=2, zero=0))
    shard = step_costs(Setup(GPT, TOY, FRAMEWORK), layout(dp=2, cp=2, zero=1))
    params = float(whole.busiest_params[0])
    assert params == 2 * 872 + 2048 + 128 + 16
    assert float(whole.update_s[0] - shard.update_s[0]) == pytest.approx(params * 3 / 4 * 46 / 1e3)
    assert float(whole.reduce_s[0]) == pytest.approx(2 * (params * 4 * 3 / 4 / 5 + 4))


def test_the_update_is_of_what_a_rank_holds_of_experts_and_gradients():
    """46 bytes per parameter of optimizer state; 12 of gradient, sharded from ZeRO-2; experts over their replicas."""
    dense, experts = 256 + 768 + 16 + 688 + 2 * 2048 + 8, 2 * 384

    def update(zero):
        return float(step_costs(Setup(MOE, TOY, FRAMEWORK), layout(dp=4, ep=2, zero=zero)).update_s[0])

    whole, held = dense + experts, dense / 4 + experts / 2
    assert update(0) == pytest.approx((46 + 12) * whole / 1e3)
    assert update(1) == pytest.approx((46 * held + 12 * whole) / 1e3)
    assert update(2) == pytest.approx(update(3)) == pytest.approx((46 + 12) * held / 1e3)


def test_experts_are_a_share_of_the_rank_with_most():
    """Dense parameters are reduced over four replicas, experts over two; the ends are dense."""
    costs = step_costs(Setup(MOE, TOY, FRAMEWORK), layout(dp=4, ep=2, zero=0))
    dense, experts = 256 + 768 + 16 + 688 + 2 * 2048 + 8, 2 * 384
    expected = 2 * (4 * dense * 3 / 4 / 5 + 4) + 2 * (4 * experts / 2 / 5 + 2)
    assert float(costs.reduce_s[0]) == pytest.approx(expected)


@pytest.mark.parametrize("split", list(Split))
def test_a_grid_s_totals_are_its_table_s(split):
    table = Layouts.of(tp=[1, 2, 1, 2], pp=[1, 1, 2, 2], micro_batch=3, global_batch=12, layer_split=split)
    found, sums = estimate(Setup(GPT, TOY, FRAMEWORK), table), totals(Setup(GPT, TOY, FRAMEWORK), table)
    assert sums.step_time_s.tolist() == found.step_time_s.tolist()
    assert sums.memory_bytes.tolist() == found.memory_bytes.tolist()
    assert sums.bubble_s.tolist() == found.time.bubble_s.tolist()


@pytest.mark.parametrize(
    "choices",
    [
        {"tp": [1, 2]}, {"cp": [1, 2]}, {"dp": [2, 4], "ep": [1, 2]}, {"micro_batch": [3, 1]},
        {"sequence_slices": [1, 2], "schedule": "seq1f1b"}, {"recompute": [Recompute.NONE, Recompute.FULL]},
        {"attention": [Attention.FLASH2, Attention.FUSED]}, {"precision": [Precision.BF16, Precision.FP32]},
        {"tp": 2, "sequence_parallel": [False, True]}, {"fused_norm": [False, True]}, {"dp": [1, 16]},
    ],
    ids=str,
)  # fmt: skip
def test_a_table_s_rows_cost_what_they_cost_alone(choices):
    """Whatever is computed once for rows that share it, each choice that a layer's cost depends on tells rows apart."""
    spread = replace(TOY, accelerator=replace(TOY.accelerator, efficiency=replace(
        TOY.accelerator.efficiency, rate_spread=0.1)))  # fmt: skip
    table = Layouts.of(**{"micro_batch": 3, "global_batch": 48, "attention": Attention.FLASH2, **choices})
    together = step_costs(Setup(MOE, spread, FRAMEWORK), table)
    found = estimate(Setup(MOE, spread, FRAMEWORK), table)
    for i in (0, 1):
        alone = step_costs(Setup(MOE, spread, FRAMEWORK), table.take(np.array([i])))
        assert together.cost.forward_s[i] == alone.cost.forward_s[0]
        assert together.layer.backward_s[i] == alone.layer.backward_s[0]
        assert together.activations.layer[i] == alone.activations.layer[0]
        assert found.step_time_s[i] == estimate(Setup(MOE, spread, FRAMEWORK), table.take(np.array([i]))).step_time_s[0]
    differ = [x[0] != x[1] for x in (together.layer.total_s, together.activations.layer)]
    assert any(differ)


def test_costs_of_some_rows_are_those_of_a_table_of_them():
    table = Layouts.of(tp=[1, 2, 1, 2], pp=[1, 1, 2, 2], micro_batch=3, global_batch=12)
    some = step_costs(Setup(GPT, TOY, FRAMEWORK), table).take(np.array([1, 3]))
    alone = step_costs(Setup(GPT, TOY, FRAMEWORK), table.take(np.array([1, 3])))
    for name in ("reduce_s", "send_s", "update_s", "busiest_params"):
        assert getattr(some, name).tolist() == getattr(alone, name).tolist()
    assert some.layer.forward_s.tolist() == alone.layer.forward_s.tolist()
    assert some.stages.first.layers.tolist() == alone.stages.first.layers.tolist()


def test_gathered_logits_are_the_head_s_time():
    gathers = replace(FRAMEWORK, gathered_logits=True)
    full = layout(tp=2, recompute=Recompute.FULL)
    once, again, none = (
        step_costs(Setup(GPT, TOY, framework), full)
        for framework in (gathers, replace(gathers, recomputed_head=True), replace(FRAMEWORK, recomputed_head=True))
    )
    gather = float(once.traffic.logits_s[0])
    assert gather > 0
    # Cross-entropy of the other rank's half of 12,288 logits, and a kernel that copies all, 4 bytes each.
    rate = float(once.case.device.memory_rate)
    more = (6144 * 38 + 4 * 12288) / rate + once.case.device.latency_s
    assert float(once.ends.head_forward_s[0] - none.ends.head_forward_s[0]) == pytest.approx(gather + more)
    repeated = float(again.ends.head_backward_s[0] - once.ends.head_backward_s[0])
    product = float(once.ends.head_forward_s[0]) - 12288 * 38 / rate - 6 * once.case.device.latency_s
    assert repeated == pytest.approx(product)
