"""Multi-token prediction worked out by hand: a module's projection, layer and head (DeepSeek-V3, arXiv 2412.19437).

On the toy LLaMA, 48 tokens of 8 channels: a layer of 1,040 parameters, a table of 256 rows.
"""

from dataclasses import replace

import numpy as np
import pytest

from planner.base.errors import InputError
from planner.costs.layer.embedding_head import embedding_head_cost, with_modules
from planner.costs.memory.rank import activations, rank_memory
from planner.costs.network.traffic import layer_traffic, traffic
from planner.costs.optimizer import offloaded_bytes
from planner.costs.parameters import RankParts
from planner.layouts import Split
from planner.models import mix
from planner.models.counts import expert_params, total_params
from planner.models.possible import check
from planner.setup import Setup
from planner.step.step_costs import step_costs
from tests.costs.toy import BYTES, CLUSTER, FLOP, FRAMEWORK, GPT, HYBRID, LLAMA, MOE, case, device, layout, own

ONE = replace(LLAMA, num_mtp_layers=1)


def head(of, model, **choices):
    chosen = layout(**choices)
    cost = embedding_head_cost(case(of, model, chosen))
    forward, backward = cost.head_forward_s + cost.module_forward_s, cost.head_backward_s + cost.module_backward_s
    return float(forward[0]), float(backward[0])


def test_a_module_is_a_projection_and_a_head_more():
    product, project = 2 * 48 * 8 * 256, 2 * 48 * 16 * 8
    assert head(FLOP, ONE) == (2 * product + project, 2 * (2 * product + project))
    assert head(FLOP, ONE, tp=2) == (product + project / 2, 2 * product + project)
    assert head(FLOP, replace(LLAMA, num_mtp_layers=3)) == (4 * product + 3 * project, 8 * product + 6 * project)
    forward, backward = head(BYTES, LLAMA)
    # The embedding's look-up; two norms, a copy of both side by side and the norm before the head; the projection.
    joined, project = 10 * 2 * 384, 2 * (48 * 16 + 16 * 8 + 48 * 8)
    assert head(BYTES, ONE) == (
        2 * forward + 4 * 384 + joined + project,
        2 * backward + 8 * 384 + 2 * joined + 2 * project,
    )


def test_its_layer_takes_what_a_layer_takes():
    chosen = layout()
    ends = embedding_head_cost(case(FLOP, ONE, chosen))
    with_layer = with_modules(ONE, ends, np.array([5.0]), np.array([7.0]))
    assert with_layer.module_forward_s - ends.module_forward_s == 5.0
    assert with_layer.module_backward_s - ends.module_backward_s == 7.0
    assert with_modules(LLAMA, ends, np.array([5.0]), np.array([7.0])) is ends
    costs = step_costs(Setup(ONE, CLUSTER, FRAMEWORK), chosen)
    alone = embedding_head_cost(case(costs.case.device, ONE, chosen))
    assert costs.ends.module_forward_s - alone.module_forward_s == pytest.approx(costs.layer.forward_s)
    assert costs.ends.module_backward_s - alone.module_backward_s == pytest.approx(costs.layer.backward_s)


def parameters(model, layers, first, last, **choices):
    own = RankParts(model=model, layouts=layout(**choices)).rank(layers, first, last)
    return float(own.layers[0]), float(own.experts[0]), float(own.ends[0])


def test_its_parameters_lie_with_the_head():
    """A layer, 2 x 8 x 8 of the projection, three norms; the embedding's table again where another rank holds it."""
    module, table = 1040 + 128 + 3 * 8, 256 * 8
    assert parameters(ONE, 2, True, True) == (2 * 1040 + module, 0, 2 * table + 8)
    assert parameters(ONE, 1, True, False) == (1040, 0, table)
    assert parameters(ONE, 0, False, True) == (module, 0, 2 * table + 8)
    assert parameters(replace(LLAMA, num_mtp_layers=2), 0, False, True) == (2 * module, 0, 2 * table + 8)
    assert parameters(ONE, 0, False, True, tp=2) == (1024 / 2 + 16 + 128 / 2 + 24, 0, table + 8)
    tied = 872 + 128 + 3 * 16
    assert parameters(replace(GPT, num_mtp_layers=1), 0, False, True) == (tied, 0, table + 16)
    # Of layers dense and with four experts the module's has experts: one shared, a router, and the four routed.
    dense, expert = 256 + 16 + 384 + 8 * 4 + 128 + 24, 3 * 8 * 16
    assert parameters(replace(MOE, num_mtp_layers=1), 0, False, True) == (dense, 4 * expert, 2 * table + 8)
    assert parameters(replace(MOE, num_mtp_layers=1), 0, False, True, dp=2, ep=2)[1] == 2 * expert


def test_what_it_keeps():
    chosen = layout()
    of = device(BYTES, chosen)
    plain, one = (activations(case(of, m, chosen)) for m in (LLAMA, ONE))
    assert plain.modules.tolist() == [0.0]
    assert one.modules == plain.layer + 4 * 384 * 2  # embedding and state, before their norms and behind
    # Two bytes and two fp32 copies; the first head's logits are gone, but for the copies.
    assert one.logits == plain.logits * (2 + 2 * 8) / (2 + 8)
    assert one.layer == plain.layer

    def memory(model, last):
        return rank_memory(case(of, model, chosen), layers=1, in_flight=2, first=0.0, last=last)

    assert memory(ONE, 0.0).total_bytes == memory(LLAMA, 0.0).total_bytes
    more = memory(ONE, 1.0).activations_bytes - memory(LLAMA, 1.0).activations_bytes
    assert more == 2 * one.modules
    assert memory(ONE, 1.0).logits_bytes == 1.8 * memory(LLAMA, 1.0).logits_bytes


def test_its_collectives():
    """Losses and gradients of two heads over the tensor ranks; the table that both ends hold is summed between them."""
    chosen = layout(tp=2, pp=2)
    of = device(BYTES, chosen)
    plain, one = (layer_traffic(case(of, m, chosen)) for m in (LLAMA, ONE))
    assert one.ends_s == 2 * plain.ends_s > 0
    each = [traffic(case(of, m, chosen), t, own(1.0)) for m, t in ((LLAMA, plain), (ONE, one))]
    assert each[0].tied_s.tolist() == [0.0]
    tied = traffic(case(of, replace(LLAMA, tied=True), chosen), plain, own(1.0))
    assert each[1].tied_s == tied.tied_s > 0


# A hybrid of a state-space and an MLP alone; its module has attention and that MLP, as any layer of this model has.
WHOLE = replace(LLAMA, family="hybrid", gated=False, rotary=False)


def test_a_hybrid_s_module_is_attention_and_an_mlp():
    further, whole = replace(HYBRID, num_mtp_layers=1), replace(WHOLE, num_mtp_layers=1)
    assert check(further) is further
    chosen = layout(tp=2, dp=2, zero=3)
    slow_host = replace(FRAMEWORK, host_layer_forward_s=1e9, host_layer_backward_s=2e9)
    adding = replace(FRAMEWORK, bf16_accumulate_bytes=7.0)
    for of, framework in ((FLOP, FRAMEWORK), (BYTES, FRAMEWORK), (BYTES, slow_host), (BYTES, adding)):
        cluster = replace(CLUSTER, accelerator=of)
        got, plain, one = (step_costs(Setup(m, cluster, framework), chosen) for m in (further, HYBRID, whole))
        assert got.layer.forward_s == plain.layer.forward_s
        alone, of_whole = (
            embedding_head_cost(case(c.case.device, m, chosen, framework=framework))
            for c, m in ((got, further), (one, whole))
        )
        for side in ("module_forward_s", "module_backward_s"):
            module = getattr(got.ends, side) - getattr(alone, side)
            assert module == pytest.approx(getattr(one.ends, side) - getattr(of_whole, side))
            assert module > 0
    windowed = replace(HYBRID, num_layers=3, num_mixer_only_layers=2, num_window_layers=1, window=4)
    assert mix.module_layer(windowed).num_window_layers == 0  # it attends to all
    assert parameters(further, 0, False, True) == parameters(whole, 0, False, True)
    kept = [activations(case(BYTES, m, layout())) for m in (further, whole)]
    assert kept[0].modules == kept[1].modules
    with pytest.raises(InputError, match="num_mtp_layers is 1; allowed: 0, for no layer has an MLP"):
        check(replace(further, num_mixer_only_layers=2, num_mlp_only_layers=0, num_ssm_layers=2, num_dense_layers=0))


def test_a_module_used_twice_has_its_weights_once():
    """Two predictions by one module: seconds, bytes kept and logits of two, parameters of one."""
    twice, two, chosen = replace(ONE, num_mtp_layers=2, mtp_shared=True), replace(ONE, num_mtp_layers=2), layout(pp=2)
    assert head(FLOP, twice) == head(FLOP, two)
    assert parameters(twice, 0, False, True) == parameters(ONE, 0, False, True)
    kept = [activations(case(BYTES, m, chosen)) for m in (twice, two)]
    assert kept[0].modules == kept[1].modules
    assert kept[0].logits == kept[1].logits
    # What ZeRO gathers at once, and a split by parameters, go by the weights.
    gathered = layout(dp=2, zero=3)
    buffers = [
        rank_memory(case(BYTES, m, gathered), layers=1, in_flight=1, first=0.0, last=1.0) for m in (twice, ONE, two)
    ]
    assert buffers[0].buffers_bytes == buffers[1].buffers_bytes
    many = replace(ONE, num_layers=12, num_dense_layers=12)
    by_size = layout(pp=2, layer_split=Split.PARAMETERS)
    lasts = [
        step_costs(Setup(replace(many, num_mtp_layers=n, mtp_shared=shared), CLUSTER, FRAMEWORK), by_size)
        for n, shared in ((1, False), (4, True), (4, False))
    ]
    of_last = [float(one.stages.last.layers[0]) for one in lasts]
    assert of_last[0] == of_last[1] > of_last[2]


def test_its_offloaded_experts_have_an_experts_replicas():
    # Four ranks, each with its own experts: of a module's experts one copy, of the rest of it four; 16 bytes each.
    chosen = layout(dp=4, ep=4, etp=1, zero=0, offload_optimizer=True)
    further = replace(MOE, num_mtp_layers=1)
    module = float(total_params(further) - total_params(MOE))
    experts = float(MOE.num_experts * expert_params(MOE))
    more = offloaded_bytes(further, chosen, 1) - offloaded_bytes(MOE, chosen, 1)
    assert more.tolist() == [16 * (4 * (module - experts) + experts)]
