"""Framework profiles, checked and turned into plain data."""

from __future__ import annotations

from pathlib import Path

from planner.hardware.changes import Changes
from planner.hardware.read import figure_value, read_profile, sources_of
from planner.hardware.types import Framework, Unstated
from planner.units import GIB, MIB, MICRO

__all__ = ["framework_figures", "load_framework"]

# Of a logit, forward and backward, where a profile doesn't say: Megatron-LM's passes.
EAGER_ENTROPY_BYTES = (38.0, 14.0)


def load_framework(name: str, *, beside: Path | None = None, changes: Changes | None = None) -> Framework:
    """A framework profile by name or TOML path; raises as `load_efficiency`."""
    from planner.hardware.schema import FrameworkFile

    f, _ = read_profile("frameworks", FrameworkFile, name, beside, changes)
    return Framework(
        name=f.name,
        gradient_bytes=f.gradient_bytes.value,
        bf16_gradient_bytes=(f.bf16_gradient_bytes or f.gradient_bytes).value,
        grad_reduce_bytes=f.grad_reduce_bytes.value,
        bf16_grad_reduce_bytes=f.bf16_grad_reduce_bytes.value,
        reduce_pass_bytes=figure_value(f.reduce_pass_bytes, 0.0),
        accumulate_bytes=figure_value(f.accumulate_bytes, 0.0),
        bf16_accumulate_bytes=figure_value(f.bf16_accumulate_bytes, 0.0),
        overlap_grad_reduce=f.overlap_grad_reduce.value,
        overlap_grad_reduce_pipelined=f.overlap_grad_reduce_pipelined.value,
        overlap_param_gather=f.overlap_param_gather.value,
        overlap_pipeline=f.overlap_pipeline.value,
        overlap_tensor=f.overlap_tensor.value,
        overlap_tensor_backward=f.overlap_tensor_backward.value,
        tensor_slowdown=f.tensor_slowdown.value,
        gate_reduces=figure_value(f.gate_reduces, 0.0),
        whole_sends=figure_value(f.whole_sends, 0.0) > 0,
        whole_reduces=figure_value(f.whole_reduces, 0.0) > 0,
        send_turns=figure_value(f.send_turns, 1.0),
        fine_recompute=figure_value(f.fine_recompute, 0.0) > 0,
        hybrid_sharding=figure_value(f.hybrid_sharding, 0.0) > 0,
        zero2_by_layer=figure_value(f.zero2_by_layer, 0.0) > 0,
        recompute_stops_early=figure_value(f.recompute_stops_early, 0.0) > 0,
        kept_expert_outputs=figure_value(f.kept_expert_outputs, 1.0) > 0,
        node_dispatch=figure_value(f.node_dispatch, 0.0) > 0,
        overlap_experts=figure_value(f.overlap_experts, 0.0),
        fused_experts=figure_value(f.fused_experts, 0.0) > 0,
        fp8_attention=figure_value(f.fp8_attention, 0.0) > 0,
        fused_routing=figure_value(f.fused_routing, 0.0) > 0,
        fused_rotary=figure_value(f.fused_rotary, 0.0) > 0,
        network_startup_s=f.network_startup_us.value * MICRO,
        host_layer_forward_s=f.host_layer_forward_us.value * MICRO,
        host_layer_backward_s=f.host_layer_backward_us.value * MICRO,
        host_step_s=f.host_step_us.value * MICRO,
        blocking_launches=f.blocking_launches,
        gather_piece_s=figure_value(f.gather_piece_us, 0.0) * MICRO,
        reduce_bucket_bytes=figure_value(f.reduce_bucket_mib, 0.0) * MIB,
        sharded_nodes=f.sharded_nodes.value,
        sharded_stage=figure_value(f.sharded_stage, 1.0),
        update_bytes=figure_value(f.update_bytes, 0.0),
        pass_gradient_bytes=figure_value(f.pass_gradient_bytes, 0.0),
        bucket_bytes=figure_value(f.bucket_bytes, 0.0),
        fp8_parameter_bytes=figure_value(f.fp8_parameter_bytes, 2.0),
        fp8_copy_bytes=figure_value(f.fp8_copy_bytes, 0.0),
        gather_copy_bytes=figure_value(f.gather_copy_bytes, 0.0),
        gathered_inputs=figure_value(f.gathered_inputs, 0.0),
        gate_tensors=figure_value(f.gate_tensors, 4.0),
        entropy_forward_bytes=figure_value(f.entropy_forward_bytes, EAGER_ENTROPY_BYTES[0]),
        entropy_backward_bytes=figure_value(f.entropy_backward_bytes, EAGER_ENTROPY_BYTES[1]),
        gathered_logits=figure_value(f.gathered_logits, 0.0) > 0,
        recomputed_head=figure_value(f.recomputed_head, 0.0) > 0,
        logit_copies=figure_value(f.logit_copies, 1.0),
        reserved_bytes=f.reserved_gib.value * GIB,
        fragmentation=f.fragmentation.value,
        layer_split=f.layer_split,
        unstated=Unstated(**f.unstated.model_dump()),
        sources=sources_of(f),
    )


def framework_figures(name: str) -> dict[str, float]:
    """Every figure of a framework profile by its name, in the profile's units; raises as `load_efficiency`."""
    from planner.hardware.schema import FrameworkFile, figures

    f, _ = read_profile("frameworks", FrameworkFile, name, None)
    return {key: figure.value for key, figure in figures(f)}
