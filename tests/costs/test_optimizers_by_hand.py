"""Bytes and seconds of gradients and optimizers, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.memory.bytes_per_parameter import (
    accumulated_bytes,
    cast_bytes,
    gradient_bytes,
    optimizer_bytes,
    reduced_bytes,
    updated_bytes,
)
from planner.costs.memory.rank import _gradients_bytes, _parameters_bytes
from planner.costs.network.data_parallel import data_traffic
from planner.costs.optimizer import muon_s, optimizer_s, orthogonal_s
from planner.costs.parameters import RankParameters, state_parameters
from planner.layouts import GradDtype, Layouts, MainDtype, OptimizerKind, Precision
from planner.models.transformer import stack
from planner.step.legality import first_broken
from tests.costs.toy import BYTES, CLUSTER, FLOP, FRAMEWORK, GPT, MOE, case, device, layout

OWN, BF16, FP32 = GradDtype.FRAMEWORK, GradDtype.BF16, GradDtype.FP32
BF16_STATES = MainDtype.BF16
MOMENT_BYTES = {OptimizerKind.ADAM: 4, OptimizerKind.SGD: 2, OptimizerKind.ADAM_8BIT: 2 + 8 / 256}
RANK = RankParameters(layers=np.array([100.0]), experts=np.array([20.0]), ends=np.array([30.0]))


def one(array):
    return float(np.ravel(array)[0])


@pytest.mark.parametrize(
    ("kept", "sent", "figures", "precision", "expected"),
    [
        # The framework keeps and sends 4 bytes in bf16, 2 in fp16.
        (OWN, OWN, (4.0, 4.0), Precision.BF16, (4, 4)), (FP32, OWN, (4.0, 4.0), Precision.BF16, (4, 4)),
        (BF16, OWN, (4.0, 4.0), Precision.BF16, (2, 2)), (BF16, FP32, (4.0, 4.0), Precision.BF16, (2, 4)),
        (OWN, BF16, (4.0, 4.0), Precision.BF16, (4, 2)), (FP32, BF16, (4.0, 4.0), Precision.FP8, (4, 2)),
        (OWN, OWN, (4.0, 4.0), Precision.FP16, (2, 2)), (FP32, OWN, (4.0, 4.0), Precision.FP16, (4, 4)),
        # One that keeps a 16-bit gradient beside its fp32 sum, and sends 2 bytes.
        (OWN, OWN, (4.0, 2.0, 2.0), Precision.BF16, (6, 2)), (FP32, OWN, (2.0, 2.0, 2.0), Precision.BF16, (6, 4)),
        (BF16, OWN, (4.0, 2.0, 2.0), Precision.BF16, (2, 2)), (FP32, OWN, (4.0, 2.0, 2.0), Precision.FP16, (4, 4)),
    ],
)  # fmt: skip
def test_gradients_are_kept_and_summed_as_stated_else_as_the_framework_does(kept, sent, figures, precision, expected):
    names = ("bf16_gradient_bytes", "bf16_grad_reduce_bytes", "kept_pass_gradient_bytes")
    own = replace(FRAMEWORK, **dict(zip(names, figures, strict=False)))
    chosen = layout(grad_dtype=kept, grad_reduce_dtype=sent, precision=precision)
    of = case(BYTES, GPT, chosen, framework=own)
    assert (one(gradient_bytes(of)), one(reduced_bytes(of))) == expected


def test_adding_up_moves_what_its_format_moves():
    """Of two micro-batches one is added: half of 18 bytes in fp32, half of 6 in 16 bits."""
    own = replace(FRAMEWORK, accumulate_bytes=6.0, bf16_accumulate_bytes=18.0)
    moved = [one(accumulated_bytes(case(BYTES, GPT, layout(grad_dtype=d), framework=own))) for d in (OWN, FP32, BF16)]
    assert moved == [9.0, 9.0, 3.0]


@pytest.mark.parametrize(
    ("optimizer", "mixed", "whole", "moved"),
    [
        # 150 parameters: of 4 + 8 bytes; of 4 + 4; of 4 + 2 (1 + 4/256); 120 of 4 + 4 and 30 of 4 + 8; of 4 + 4.
        (OptimizerKind.ADAM, 1800.0, 1200.0, 4500.0), (OptimizerKind.ADAM_BF16, 1200.0, 600.0, 3300.0),
        (OptimizerKind.ADAM_8BIT, 904.6875, 304.6875, 2709.375), (OptimizerKind.MUON, 1320.0, 720.0, 4020.0),
        (OptimizerKind.SGD, 1200.0, 600.0, 3300.0),
    ],
)  # fmt: skip
def test_states_of_each_optimizer(optimizer, mixed, whole, moved):
    bf16, fp32 = (layout(optimizer=optimizer, precision=p) for p in (Precision.BF16, Precision.FP32))
    plain = replace(FRAMEWORK, update_bytes=0.0, param_remainders=False)
    states = [one(optimizer_bytes(RANK, case(BYTES, GPT, x, framework=plain)).total) for x in (bf16, fp32)]
    assert states == [mixed, whole]
    assert one(updated_bytes(RANK, bf16).total) == moved


def test_remainders_of_parameters_save_two_bytes_beside_bf16_moments():
    """Megatron-Core's store_param_remainders: 2 + 2 + 2 bytes; in fp8 the whole fp32 parameter stays."""
    framework = replace(FRAMEWORK, update_bytes=0.0, param_remainders=True)

    def states(**choices):
        return one(optimizer_bytes(RANK, case(BYTES, GPT, layout(**choices), framework=framework)).total)

    assert states(optimizer=OptimizerKind.ADAM_BF16) == 150 * 6
    assert states(optimizer=OptimizerKind.ADAM_BF16, precision=Precision.FP8) == 150 * 8
    assert states() == 150 * 12


@pytest.mark.parametrize(
    ("sharded", "optimizer", "zero", "expected"),
    [
        # 150 parameters, 2 bytes each of weight, gradient and either moment; DeepSpeed's shard of weights beside them.
        (True, OptimizerKind.ADAM, 0, (300, 300, 600)), (False, OptimizerKind.ADAM, 0, (300, 300, 900)),
        (True, OptimizerKind.SGD, 0, (300, 300, 300)), (True, OptimizerKind.ADAM_8BIT, 0, (300, 300, 304.6875)),
        # Over two replicas: what is gathered for a pass beside the shard; the shard alone with ZeRO 3.
        (True, OptimizerKind.ADAM, 2, (450, 150, 300)), (False, OptimizerKind.ADAM, 2, (300, 150, 450)),
        (True, OptimizerKind.ADAM, 3, (150, 150, 300)), (False, OptimizerKind.ADAM, 3, (150, 150, 450)),
    ],
)  # fmt: skip
def test_all_states_in_bf16(sharded, optimizer, zero, expected):
    own = replace(FRAMEWORK, bf16_gradient_bytes=4.0, update_bytes=4.0, one_sharded_copy=sharded)
    of = case(BYTES, GPT, layout(main_dtype=BF16_STATES, optimizer=optimizer, zero=zero, dp=2), framework=own)
    held = [
        _parameters_bytes(of, RANK, RANK, 1, 1),
        _gradients_bytes(of, RANK),
        state_parameters(optimizer_bytes(RANK, of), of.layouts, 1),
    ]
    assert [one(x) for x in held] == list(expected)
    assert one(cast_bytes(RANK, of)) == 0
    assert one(updated_bytes(RANK, of.layouts).total) == 150 * 6 + 2 * 150 * MOMENT_BYTES[optimizer]


@pytest.mark.parametrize(("policy", "sent"), [(False, 2), (True, 4)])
def test_gradients_of_bf16_weights_are_reduced_in_bf16_but_by_policy(policy, sent):
    own = replace(FRAMEWORK, bf16_gradient_bytes=4.0, bf16_grad_reduce_bytes=4.0, reduces_by_policy=policy)
    of = case(BYTES, GPT, layout(main_dtype=BF16_STATES), framework=own)
    assert (one(gradient_bytes(of)), one(reduced_bytes(of))) == (2, sent)


def test_newton_schulz_of_one_matrix():
    """4 x 6 in either direction at 1 FLOP/s, five times: 4 x 6 x 4, 4 x 4 x 4 and 4 x 4 x 6 multiply-adds."""
    of = device(FLOP, layout())
    assert one(orthogonal_s(of, 4.0, 6.0)) == one(orthogonal_s(of, 6.0, 4.0)) == 5 * 2 * (96 + 64 + 96)


def test_muon_shares_whole_matrices():
    """A layer has 24 x 8, 8 x 8, 32 x 8 and 8 x 32: 35,840, 15,360 and twice 46,080 FLOP."""
    own = RankParameters(layers=np.array([2 * 768.0]), experts=np.zeros(1), ends=np.zeros(1))

    def seconds(**choices):
        return one(muon_s(case(FLOP, GPT, layout(optimizer=OptimizerKind.MUON, **choices)), own))

    assert seconds() == seconds(dp=2, zero=0) == pytest.approx(286_720)
    assert seconds(dp=2, zero=1) == pytest.approx(143_360)
    assert seconds(dp=64, zero=1) == 46_080


def test_muon_takes_experts_one_by_one():
    """An expert has 32 x 8 and 8 x 16: 46,080 and 5 (4 x 64 x 16 + 2 x 512) = 25,600 FLOP; a rank has two of four."""
    experts = RankParameters(layers=np.zeros(1), experts=np.array([2 * 384.0]), ends=np.zeros(1))
    chosen = layout(optimizer=OptimizerKind.MUON, dp=2, ep=2, zero=1)
    assert one(muon_s(case(FLOP, MOE, chosen), experts)) == pytest.approx(2 * (46_080 + 25_600))


def test_muon_of_a_table_of_models_is_each_one_s_alone():
    """A dense model beside one with experts, whose dense MLP is half as often there."""
    models, held = (GPT, MOE), ((1536.0, 0.0), (1000.0, 768.0))

    def of(numbers, zero):
        layers, experts = (np.array([held[i][part] for i in numbers]) for part in (0, 1))
        own = RankParameters(layers=layers, experts=experts, ends=np.zeros(len(numbers)))
        table = Layouts.concatenate([layout(optimizer=OptimizerKind.MUON, dp=2, zero=zero) for _ in numbers])
        model = models[numbers[0]] if len(numbers) == 1 else stack(models, np.array(numbers))
        return muon_s(case(FLOP, model, table), own).tolist()

    for zero in (0, 1):
        assert of([0, 1], zero) == pytest.approx([*of([0], zero), *of([1], zero)])


def test_muon_adds_its_products_to_the_update():
    own = RankParameters(layers=np.array([2 * 768.0]), experts=np.zeros(1), ends=np.array([10.0]))
    framework = replace(FRAMEWORK, host_step_s=0.0)
    muon, adam = (
        one(optimizer_s(case(FLOP, GPT, layout(optimizer=o), framework=framework), own))
        for o in (OptimizerKind.MUON, OptimizerKind.ADAM)
    )
    assert muon - adam == pytest.approx(286_720, rel=1e-6)


def test_muons_replicas_sum_whole_gradients():
    own = RankParameters(layers=np.array([768.0]), experts=np.zeros(1), ends=np.zeros(1))
    muon, adam = (layout(dp=4, zero=1, optimizer=o) for o in (OptimizerKind.MUON, OptimizerKind.ADAM))
    whole, scattered = (replace(FRAMEWORK, whole_reduces=stage) for stage in (1, 0))
    as_muon = data_traffic(case(BYTES, GPT, muon, framework=scattered), own)
    as_whole = data_traffic(case(BYTES, GPT, adam, framework=whole), own)
    assert one(as_muon[0]) == one(as_whole[0]) > one(data_traffic(case(BYTES, GPT, adam, framework=scattered), own)[0])
    assert one(as_muon[1]) == one(as_whole[1])


@pytest.mark.parametrize(
    ("choices", "rule"),
    [
        ({"optimizer": OptimizerKind.MUON, "zero": 2, "dp": 2}, "muon updates whole matrices"),
        (
            {"optimizer": OptimizerKind.MUON, "zero": 1, "dp": 2, "offload_optimizer": True},
            "muon updates whole matrices",
        ),
        ({"grad_dtype": BF16, "precision": Precision.FP16}, "bf16 gradients"),
        ({"grad_reduce_dtype": BF16, "precision": Precision.FP32}, "bf16 gradients"),
        ({"optimizer": OptimizerKind.MUON, "zero": 1, "dp": 2}, ""),
        ({"grad_dtype": FP32, "precision": Precision.FP16}, ""),
        ({"main_dtype": BF16_STATES, "precision": Precision.FP16}, "main_dtype bf16 needs"),
        ({"main_dtype": BF16_STATES, "grad_dtype": FP32}, "main_dtype bf16 needs"),
        ({"main_dtype": BF16_STATES, "grad_dtype": BF16}, ""),
    ],
)
def test_what_has_no_meaning_is_illegal(choices, rule):
    assert first_broken(GPT, CLUSTER, layout(**choices))[0].startswith(rule)
    assert bool(first_broken(GPT, CLUSTER, layout(**choices))[0]) == bool(rule)
