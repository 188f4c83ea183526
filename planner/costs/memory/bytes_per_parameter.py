"""Bytes of a parameter, and of its gradient as a framework keeps it and as it sends it, by precision. Array-first."""

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.case import Case
from planner.costs.parameters import RankParameters, state_parameters
from planner.costs.summed_gradients import as_stated, from_bf16, summed_bytes, summed_in
from planner.layouts import GradDtype, Layouts, OptimizerKind, Precision


def parameter_bytes(layouts: Layouts) -> Array:
    """Bytes of a parameter as products take it and ranks gather it: 2 in mixed precision."""
    return np.asarray(np.where(layouts.precision <= Precision.TF32, 4.0, 2.0))


def layer_parameter_bytes(case: Case) -> Array:
    """`parameter_bytes` of a layer's parameter, which a framework may keep in fp8; embedding and head stay in 16 bits.

    Without ZeRO no rank has another copy of it to update, and it stays in 16 bits (Megatron-LM, arguments.py:
    fp8-param-gather needs the distributed optimizer).
    """
    return np.asarray(
        np.where(_kept_in_fp8(case.layouts), case.framework.fp8_parameter_bytes, parameter_bytes(case.layouts))
    )


def fp8_copy_bytes(case: Case) -> Array:
    """Bytes per parameter of the fp8 copies that products keep beside a layer's parameter.

    The copies are the transpose, and the value unless the parameter itself is in fp8. In nvfp4 the parameter stays in
    16 bits, and both copies are in nvfp4.
    """
    value = case.framework.fp8_parameter_bytes if case.framework.fp8_parameter_bytes < 2.0 else 0.0
    beside = case.framework.fp8_copy_bytes + np.where(_kept_in_fp8(case.layouts), 0.0, value)
    return np.asarray(np.where(case.layouts.precision >= Precision.FP8, beside * case.device.matrix_bytes, 0.0))


def parameters_on_host(case: Case) -> Array:
    """The share of a rank's sharded parameters that waits in host memory for every gather, shape (n,).

    A framework that shards the optimizer's copy alone moves it with the state (FSDP2, _fsdp_param.py,
    all_gather_inputs).
    """
    with_state = case.framework.one_sharded_copy * case.layouts.host_share
    return np.asarray(np.maximum(case.layouts.offload_parameters, with_state))


def fetched_bytes(case: Case, own: Any) -> Array:
    """Bytes of a parameter that crosses the host link on its way to a gather: its `own`, or the optimizer's fp32."""
    wide = case.framework.one_sharded_copy & (main_bytes(case) > 0)
    return np.asarray(np.where(wide, 4.0, own))


def _kept_in_fp8(layouts: Layouts) -> Array:
    return np.asarray((layouts.precision == Precision.FP8) & (layouts.zero > 0))


def rank_parameter_bytes(own: RankParameters, case: Case) -> RankParameters:
    """Bytes of one rank's parameters before ZeRO shards them, split into layers, experts and ends."""
    of_layer = layer_parameter_bytes(case)
    return RankParameters(
        layers=own.layers * of_layer, experts=own.experts * of_layer, ends=own.ends * parameter_bytes(case.layouts)
    )


def gradient_bytes(case: Case) -> Array:
    """Bytes of the gradient that adds up micro-batches in mixed precision: the user's format, else the framework's.

    A framework may keep the pass's own gradient beside an fp32 sum (`kept_pass_gradient_bytes`).
    """
    return summed_bytes(case) + kept_pass_bytes(case)


def kept_pass_bytes(case: Case) -> Array:
    """Bytes of the pass's own gradient that stays beside an fp32 sum."""
    layouts, kept = case.layouts, case.framework.kept_pass_gradient_bytes
    if kept == 0:
        return np.zeros(1)
    whole = (layouts.zero < 2) & ~layouts.offload_optimizer & (layouts.precision >= Precision.BF16)
    return np.asarray(np.where(whole & (summed_bytes(case) >= 4.0), kept, 0.0))


def gradients_on_host(case: Case) -> Array:
    """The share of the gradients that waits in host memory for an offloaded update, shape (n,)."""
    layouts, framework = case.layouts, case.framework
    if not np.any(layouts.offload_optimizer):
        return np.zeros(1)
    wide = (summed_bytes(case) >= 4.0) | (layouts.precision <= Precision.TF32)
    least = np.where(wide, framework.host_fp32_gradients_zero, framework.host_gradients_zero)
    return np.asarray(np.where(layouts.zero >= least, layouts.host_share, 0.0))


def reduced_bytes(case: Case) -> Any:
    """Bytes of the gradient that data-parallel ranks sum: the user's format, else that kept, else the framework's."""
    layouts = case.layouts
    f = case.framework
    of_bf16 = np.where(case.by_layer, f.bf16_scattered_bytes, f.bf16_grad_reduce_bytes)
    own = from_bf16(layouts, f.grad_reduce_bytes, of_bf16)
    if not f.reduces_by_policy:
        own = np.where(layouts.all_in_bf16, np.minimum(own, 2.0), own)
    stated = np.where(layouts.grad_reduce_dtype == GradDtype.FRAMEWORK, layouts.grad_dtype, layouts.grad_reduce_dtype)
    mixed = as_stated(stated, own)
    return np.where(case.layouts.precision <= Precision.TF32, 4.0, mixed)


# Bytes of the moments by optimizer: two in fp32, two in bf16, two of 8 bits with a fp32 scale for each block of 256
# (bitsandbytes, torchao), Muon's and SGD's one momentum in fp32.
MOMENTS = np.array([8.0, 4.0, 2.0 + 2.0 * 4.0 / 256.0, 4.0, 4.0])
IN_BF16 = np.array([4.0, 4.0, MOMENTS[OptimizerKind.ADAM_8BIT], 2.0, 2.0])  # beside weights in bf16


def moment_bytes(layouts: Layouts, of_ends: bool = False) -> Array:
    """Bytes of the optimizer's moments. of_ends: those of embedding and head, which Muon leaves to Adam."""
    adam = of_ends & (layouts.optimizer == OptimizerKind.MUON)
    kind = np.where(adam, OptimizerKind.ADAM, layouts.optimizer)
    return np.asarray(np.where(layouts.all_in_bf16, IN_BF16[kind], MOMENTS[kind]))


def main_bytes(case: Case) -> Array:
    """Bytes of the optimizer's copy of a parameter in mixed precision; fp32 training has no second copy.

    Nor has training in bf16 alone, unless the framework updates a shard of its own (DeepSpeed, stage_1_and_2.py and
    stage3.py, whose flat groups are copies in the master weights' format).
    """
    alone = 0.0 if case.framework.one_sharded_copy else 2.0
    mixed = np.where(case.layouts.all_in_bf16, alone, 4.0)
    return np.asarray(np.where(case.layouts.precision <= Precision.TF32, 0.0, mixed))


def optimizer_bytes(own: RankParameters, case: Case) -> RankParameters:
    """Bytes of a rank's optimizer states before ZeRO's sharding: fp32 parameters and moments."""
    layouts, framework = case.layouts, case.framework
    kept = (layouts.precision == Precision.BF16) | (layouts.precision == Precision.NVFP4)
    remainders = framework.param_remainders & kept & ~layouts.all_in_bf16
    each = main_bytes(case) - 2.0 * (remainders & (layouts.optimizer == OptimizerKind.ADAM_BF16))
    matrices, ends = (each + moment_bytes(layouts, of_ends) for of_ends in (False, True))
    return RankParameters(layers=own.layers * matrices, experts=own.experts * matrices, ends=own.ends * ends)


def cast_bytes(own: RankParameters, case: Case) -> Array:
    """Bytes of the gradients that a rank's update casts to fp32, where they add up in fewer bits, shape (n,)."""
    layouts, framework = case.layouts, case.framework
    if framework.update_bytes == 0:
        return np.zeros(1)
    cast = (layouts.precision > Precision.TF32) & (summed_bytes(case) < 4.0) & ~layouts.all_in_bf16
    at_most = np.where(layouts.zero == 3, framework.update_parameters or np.inf, np.inf)
    return np.asarray(np.minimum(state_parameters(own, layouts, 1), at_most) * cast * framework.update_bytes)


def updated_bytes(own: RankParameters, layouts: Layouts) -> RankParameters:
    """Bytes that a rank's update moves through memory, before ZeRO's sharding.

    It reads and writes fp32 parameter and moments, reads a fp32 gradient and writes a 16-bit parameter: 14 bytes and
    twice the moments. With all in bf16 it reads and writes the parameter and reads the gradient: 6. Muon also writes
    the 16-bit matrix that it orthogonalises, and reads the result: 4 bytes.
    """
    muon = np.where(layouts.optimizer == OptimizerKind.MUON, 4.0, 0.0)
    weights = np.where(layouts.all_in_bf16, 6.0, 14.0)
    matrices, ends = (weights + 2.0 * moment_bytes(layouts, of_ends) for of_ends in (False, True))
    matrices = matrices + muon
    return RankParameters(layers=own.layers * matrices, experts=own.experts * matrices, ends=own.ends * ends)


def accumulated_bytes(case: Case) -> Array:
    """Bytes per parameter that adding one micro-batch's gradient to the sum moves through memory.

    A sharded gradient (ZeRO-2 and 3) is a replica's part. The first micro-batch of a step has nothing to add to. Whole
    gradients are cast where they add up in more bits (PyTorch, _fsdp_param.py, to_accumulated_grad_if_needed).
    """
    layouts, of_16_bits, of_bf16 = case.layouts, case.framework.accumulate_bytes, case.framework.bf16_accumulate_bytes
    own, both = from_bf16(layouts, of_16_bits, of_bf16), (of_16_bits, of_bf16)
    moved = as_stated(summed_in(layouts), own, max(both), min(both))
    shards = np.where(layouts.zero >= 2, layouts.shards, 1)
    later = 1.0 - 1.0 / layouts.micro_batches
    sharded = np.asarray(moved / shards * later)
    if not case.framework.defers_scatter:
        return sharded
    one, summed = parameter_bytes(layouts), reduced_bytes(case)
    whole = later * (one + 2.0 * summed) + (1.0 - later) * (summed > one) * (one + summed)
    return np.asarray(np.where(case.scattering < 1.0, whole, sharded))
