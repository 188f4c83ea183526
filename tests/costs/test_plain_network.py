"""Every collective's seconds beside the same told for one layout in plain numbers, on drawn layouts and machines."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from planner.choices.enumerations import GradDtype, OptimizerKind
from planner.choices.training import read_training
from planner.costs.adapters import adapters_gathers, trained
from planner.costs.layer.expert_routing import dispatchers
from planner.costs.network.data_parallel import data_traffic
from planner.costs.network.traffic import layer_traffic, traffic
from planner.costs.parameters import RankParameters
from planner.layouts import Dispatcher, Layouts, Recompute
from planner.models import mix
from tests.costs.plain_network import CHOICES, Told
from tests.costs.toy import (
    ACCELERATOR,
    CLUSTER,
    FRAMEWORK,
    GPT,
    HYBRID,
    IDEAL,
    LLAMA,
    MLA,
    MOE,
    case,
    device,
    number_formats,
)

GROUPED = replace(MOE, num_experts=32, top_k=6, expert_groups=8, top_k_groups=3, num_shared_experts=0)
LATENT = replace(MOE, num_experts=16, moe_latent=4, num_mtp_layers=2)
PARALLEL = replace(LLAMA, parallel_block=True, num_kv_heads=1, num_mtp_layers=1)
UNGATED = replace(MOE, gated=False, tied=True, dropout=True, rms_norm=False, num_shared_experts=0)
MODELS = (GPT, LLAMA, MOE, MLA, HYBRID, GROUPED, LATENT, PARALLEL, UNGATED)
CHIP = replace(ACCELERATOR, efficiency=replace(IDEAL, kernel_latency_s=0.3), memory_bandwidth_bytes_per_s=40.0)


def drawn_cluster(rng):
    """Links of odd rates, at times with host bridges, no switch or one that sums, small messages, slow scatters."""

    def link(of, **more):
        rates = {"bandwidth_bytes_per_s": 20 * rng.random() + 1, "fraction": rng.uniform(0.3, 0.9)}
        rates |= {"send_fraction": rng.uniform(0.2, 0.8), "latency_s": rng.random(), "ring_step_s": rng.random() / 9}
        return replace(of, **rates, gather_passes=rng.choice([1.0, 1.5]), scatter_passes=rng.choice([1.0, 2.0]), **more)

    small, direct, sums = rng.random() < 0.5, bool(rng.random() < 0.3), rng.random() < 0.3
    node = link(CLUSTER.node_link, small_latency_s=0.1 if small else None, small_fraction=0.15 if small else None,
                sum_latency_s=0.2 if sums else None, sum_fraction=0.5 if sums else None,
                bridge_fraction=None if direct else rng.choice([None, 0.4]), bridge_flows=rng.choice([0.0, 0.7]),
                direct=direct, partial_fraction=rng.choice([None, 0.1]))  # fmt: skip
    size, nics = rng.choice([(4, 2), (8, 8), (8, 1), (6, 3)])
    return replace(CLUSTER, node_link=node, network=link(CLUSTER.network), gpus_per_node=int(size),
                   nics_per_node=int(nics), pod_nodes=int(rng.integers(1, 4)), accelerator=CHIP,
                   oversubscription=float(rng.choice([1.0, 1.0, 1.7, 9.0])),
                   neighbour_flows=int(rng.choice([0, 3])),
                   neighbour_bandwidth_bytes_per_s=float(rng.uniform(0, 5)))  # fmt: skip


def drawn_framework(rng):
    """Every figure that a collective reads, on or off."""
    flags = ("copied_sequences", "gathered_logits", "sdpa_context", "gathered_context", "flat_copies", "flat_gradients",
             "zero2_by_layer", "ends_gathered_twice", "selective_operations",
             "one_sharded_copy", "reduces_by_policy", "defers_scatter")  # fmt: skip
    return replace(
        FRAMEWORK, **{name: bool(rng.random() < 0.4) for name in flags}, send_turns=rng.choice([1.0, 2.0]),
        whole_reduces=rng.choice([0.0, 1.0, 2.0]),
        whole_sends=rng.choice([0.0, 0.5, 1.0]), sent_mask_bytes=rng.choice([0.0, 2.0]),
        gate_reduces=rng.choice([0.0, 1.0]), apart_inputs=bool(rng.random() < 0.4),
        network_startup_s=rng.choice([0.0, 0.7]), overlap_param_gather=rng.choice([0.0, 0.4, 1.0]),
        deepep_bytes_per_s=0.9,
        sharded_nodes=rng.choice([1e6, 1.0, 3.0]), sharded_stage=rng.choice([1.0, 3.0]), fp8_parameter_bytes=1.0,
        reduce_bucket_bytes=rng.choice([0.0, 300.0]), grad_reduce_bytes=rng.choice([2.0, 4.0]),
        bf16_scattered_bytes=rng.choice([2.0, 4.0]),
        overlap_tensor=rng.choice([0.0, 0.5]),
    )  # fmt: skip


def drawn_layout(rng):
    def pick(*values):
        return values[int(rng.integers(len(values)))]

    tp, dp, cp = pick(1, 1, 2, 4), pick(1, 2, 4, 8), pick(1, 1, 2, 4)
    ulysses = pick(1, cp)
    return {
        "tp": tp, "dp": dp, "cp": cp, "pp": pick(1, 1, 2, 3), "ep": pick(1, 2, 4, 8), "etp": pick(tp, 1),
        "ulysses": ulysses, "inner_ring": pick(1, 2) if cp == 4 and ulysses == 1 else 1,
        "sequence_slices": pick(1, 1, 2), "micro_batch": pick(1, 3), "global_batch": 6 * dp,
        "zero": pick(0, 1, 2, 3), "dp_replicate": pick(1, 1, *(n for n in (2, 4) if dp % n == 0)),
        "sequence_parallel": pick(False, True), "recompute": pick(*Recompute),
        **number_formats(pick),
        "dispatcher": pick(*(d for d in Dispatcher if tp > 1 or d != Dispatcher.PPMOE)),
        "expert_imbalance": pick(1.0, 1.5), "capacity_factor": pick(0.0, 0.0, 1.25),
        "optimizer": pick(*OptimizerKind), "grad_reduce_dtype": pick(0, *GradDtype),
        "train": pick(0, 0, 0, read_training("lora:8")), "offload_optimizer": pick(False, True),
        "offload_fraction": pick(1.0, 0.75), "offload_parameters": pick(False, False, True),
    }  # fmt: skip


def drawn_parameters(rng, n, experts):
    amounts = [rng.uniform(10, 2000, n), rng.uniform(10, 2000, n) * experts, rng.uniform(10, 500, n)]
    return RankParameters(layers=amounts[0], experts=amounts[1], ends=amounts[2])


def at(x, i, n):
    return np.broadcast_to(x, (n,))[i]


def one_rank(params, i):
    one = SimpleNamespace(**{name: float(getattr(params, name)[i]) for name in ("layers", "experts", "ends")})
    one.dense = one.layers + one.ends
    one.total = one.dense + one.experts
    return one


@pytest.mark.parametrize("model", MODELS, ids=range(len(MODELS)))
def test_collectives_last_as_long_as_their_sentences_say(model):
    rng = np.random.default_rng([32, MODELS.index(model)])
    for _ in range(10):
        rows = [drawn_layout(rng) for _ in range(40)]
        table = Layouts.of(**{name: [row[name] for row in rows] for name in rows[0]})
        of = case(device(CHIP, table), model, table, framework=drawn_framework(rng), cluster=drawn_cluster(rng))
        n, sparse = len(rows), model.num_experts > 0
        own, ranks = (drawn_parameters(rng, n, sparse) for _ in range(2))
        moves, found = trained(of, own), traffic(of, layer_traffic(of), own)
        gathers = adapters_gathers(of)
        copies, full = int(rng.integers(1, 3)), replace(table, train=np.zeros(n, dtype=np.int64))
        step = data_traffic(replace(of, layouts=full), ranks, copies)
        for i, row in enumerate(rows):
            x = SimpleNamespace(**{name: row[name] for name in CHOICES}, micro_batches=6 // row["micro_batch"])
            told = Told(of, x, mix.shares(model), tuple(float(at(g, i, n)) for g in gathers),
                        int(at(dispatchers(of), i, n)))  # fmt: skip
            layer = told.layer(one_rank(own, i), one_rank(moves, i))
            say = dict(zip(("layer_forward_s", "layer_backward_s"), told.tensor(), strict=True))
            say |= dict(zip(("context_forward_s", "context_backward_s"), told.context(), strict=True))
            names = ("context_gather_forward_s", "context_gather_backward_s")
            say |= dict(zip(names, told.context(gathers=True), strict=True))
            say |= dict(zip(("exchange_forward_s", "exchange_backward_s"), told.exchanged(), strict=True))
            say |= dict(zip(("expert_forward_s", "expert_backward_s"), told.experts(), strict=True))
            say |= dict(zip(("ends_s", "logits_s"), told.ends(), strict=True))
            say |= dict(zip(("send_s", "tied_s"), told.sent(), strict=True))
            say |= {"layer_gather_s": layer.gather, "layer_reduce_s": layer.reduce, "ends_sharding_s": layer.ends,
                    "layer_gather_taken_s": layer.gather_taken, "layer_reduce_taken_s": layer.reduce_taken,
                    "ends_reduce_s": layer.ends_reduce,
                        "layer_copy_out_s": layer.out, "layer_copy_in_s": layer.into}  # fmt: skip
            got = {name: float(at(getattr(found, name), i, n)) for name in vars(found)}
            assert got == pytest.approx(say, rel=1e-9), (row, of.framework, of.cluster)
            want = told.step(one_rank(ranks, i), copies)
            assert [float(at(s, i, n)) for s in step] == pytest.approx(want, rel=1e-9), row
