"""planner's figures of the same layer of the same configuration, by the same names as an oracle's.

Seconds become counts on a GPU of one FLOP/s and groups of one byte/s: what a formula returns then is the FLOP of its
matrix products, or the bytes that a rank sends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from planner.costs.case import Case
from planner.costs.kernels.device import Device
from planner.costs.layer.layer_cost import layer_cost
from planner.costs.memory.bytes_per_parameter import layer_parameter_bytes, reduced_bytes
from planner.costs.memory.rank import kept_bytes_of_layer
from planner.costs.network import expert_exchange, traffic
from planner.costs.network.data_parallel import gathered_twice
from planner.costs.parameters import state_parameters
from planner.hardware import load_accelerator, load_cluster, load_framework
from planner.layouts import Attention, GradDtype, Layouts, Precision, Recompute
from planner.models import counts, load_model

CHOICES = ("tp", "cp", "ep", "etp", "micro_batch", "zero", "dp_replicate", "sequence_parallel", "fused_norm")


def one_layer_model(asked: dict[str, Any]) -> Any:
    """The model of one layer, with experts where the configuration's model has any."""
    model = replace(load_model(asked["model"]), seq_len=asked["seq_len"], num_layers=1, window=0, num_window_layers=0)
    return replace(model, num_dense_layers=0 if model.num_experts else 1, **asked.get("model_fields", {}))


def layouts_of(asked: dict[str, Any]) -> Layouts:
    """The configuration as planner's layout; gradients are reduced in fp32 unless it says otherwise."""
    dp = asked["gpus"] // (asked.get("tp", 1) * asked.get("cp", 1))
    chosen = {"micro_batch": 1, "zero": 3, "fused_norm": True, "sequence_parallel": asked.get("tp", 1) > 1}
    chosen |= {name: asked[name] for name in CHOICES if name in asked}
    return Layouts.of(
        dp=dp,
        global_batch=dp * chosen["micro_batch"],
        recompute=int(Recompute[asked.get("recompute", "none").upper()]),
        attention=int(Attention[asked.get("attention", "flash2").upper()]),
        precision=int(Precision.BF16),
        grad_reduce_dtype=int(GradDtype[asked.get("grad_reduce_dtype", "fp32").upper()]),
        **chosen,
    )


def counting_case(asked: dict[str, Any], framework: str) -> Case:
    """The configuration on a GPU whose seconds are the FLOP of products."""
    known = load_accelerator("a100-sxm-80gb")
    ideal = replace(
        known.efficiency, matrix_fraction=dict.fromkeys(known.efficiency.matrix_fraction, 1.0), tile_rows=1.0,
        tile_columns=1.0, depth_half=0.0, kernel_latency_s=0.0, expert_product_s=0.0, wide_expert_product_s=0.0,
        memory_fraction=1e30, flash_forward=dict.fromkeys(("flash1", "flash2", "flash3"), 1e30), flash_half_tokens={},
        flash_backward=dict.fromkeys(("flash1", "flash2", "flash3"), 1e30), flash_tail_waves={}, aligned_fraction={},
        rate_spread=0.0, attention_matrix_fraction=1e30,
    )  # fmt: skip
    counting = replace(known, efficiency=ideal, peak_flops=dict.fromkeys(known.peak_flops, 1.0), num_compute_units=1)
    layouts, cluster = layouts_of(asked), load_cluster("dgx-a100-80gb")
    return Case(
        device=Device.of(counting, layouts.precision, 1),
        model=one_layer_model(asked),
        cluster=cluster,
        framework=load_framework(framework),
        layouts=layouts,
    )


def sent_bytes(case: Case) -> dict[str, float]:
    """Bytes that a rank sends of a layer, by group and pass: what the formulas give where a byte takes a second."""

    def once(group: Any, size: Any) -> Any:
        return size * (group.ranks - 1.0) / group.ranks

    def twice(group: Any, size: Any) -> Any:
        return 2.0 * once(group, size)

    fakes = {"all_gather_s": once, "reduce_scatter_s": once, "all_reduce_s": twice, "all_to_all_s": once}
    of_tokens = {name: fakes[name] for name in ("all_gather_s", "all_to_all_s")}
    with patch.multiple(traffic, **fakes), patch.multiple(expert_exchange, **of_tokens):
        layer = traffic.layer_traffic(case)
    own = case.ranks.rank(1.0, False, False)
    shards = case.layouts.shards
    dense = own.layers * (shards - 1.0) / shards
    of_experts = traffic.groups(case.cluster, case.layouts)["expert_data"].ranks
    params = dense + own.experts * (of_experts - 1.0) / of_experts
    gather = np.where(case.by_layer, params * layer_parameter_bytes(case), 0.0)
    found = {
        "forward tensor": layer.layer_forward_s,
        "backward tensor": layer.layer_backward_s,
        "forward context": layer.context_forward_s,
        "backward context": layer.context_backward_s,
        "forward expert": layer.expert_forward_s,
        "backward expert": layer.expert_backward_s,
        "forward gather": gather,
        "backward gather": gather * gathered_twice(case.layouts),
        "backward reduce": params * reduced_bytes(case) * (1.0 + (case.layouts.zero <= case.framework.whole_reduces)),
    }
    return {name: float(np.ravel(value)[0]) for name, value in found.items()}


def observe(asked: dict[str, Any], framework: str) -> dict[str, Any]:
    """planner's figures of one layer: parameters, FLOP of products by pass, bytes kept, bytes sent by group."""
    case = counting_case(asked, framework)
    own = case.ranks.rank(1.0, False, False)
    cost = layer_cost(case)
    kept, _ = kept_bytes_of_layer(case)

    def plain(value: Any) -> float:
        return float(np.ravel(value)[0])

    return {
        "parameters": float(counts.layers_params(case.model)),
        "rank_parameters": plain(own.total),
        "sharded_parameters": plain(state_parameters(own, case.layouts, 3)),
        "flops": {
            "forward": plain(cost.forward_matmul_s),
            "backward": plain(cost.backward_matmul_s + cost.recompute_s),
        },
        "kept_bytes": plain(kept),
        "sent_bytes": {name: size for name, size in sent_bytes(case).items() if size},
    }
