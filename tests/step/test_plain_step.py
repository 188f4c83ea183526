"""What a step shows of its parts beside the same told for one layout in plain numbers, on drawn seconds and layouts."""

from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest

from planner.costs.layer.host_launches import host_s
from planner.costs.layer.layer_cost import LayerCost
from planner.costs.network.traffic import Traffic
from planner.layouts import Layouts, Recompute
from planner.models import mix
from planner.schedules import SCHEDULES, get_schedule
from planner.setup import Setup
from planner.step.data_comm import data_comm
from planner.step.layer_time import layer_time
from planner.step.passes import rank_passes
from planner.step.pipelines import end_shares
from planner.step.step_costs import step_costs
from planner.step.step_time import step_time
from tests.costs.test_plain_network import MODELS, at
from tests.costs.toy import CLUSTER, FRAMEWORK, accelerator, case
from tests.step.plain_step import Rank, Shown

CHIP = accelerator(flops=2e3, bandwidth=500.0, kernel_latency_s=0.05)
NAMES = [name for name, s in SCHEDULES.items() if not s.barriers]


def drawn_framework(rng):
    """Every share that hides, and the host's launches, on or off."""
    shares = ("overlap_grad_reduce", "overlap_grad_reduce_pipelined", "overlap_param_gather", "overlap_pipeline",
              "overlap_tensor", "overlap_tensor_backward", "overlap_experts")  # fmt: skip
    flags = (
        "gathered_context",
        "sdpa_context",
        "compiled_layers",
        "selective_operations",
        "zero2_by_layer",
        "defers_scatter",
    )
    return replace(
        FRAMEWORK, **{name: rng.choice([0.0, 0.4, 1.0]) for name in shares},
        **{name: bool(rng.random() < 0.3) for name in flags}, tensor_slowdown=rng.choice([1.0, 1.5]),
        host_layer_forward_s=rng.choice([0.0, 9.0, 30.0]), host_layer_backward_s=rng.choice([0.0, 15.0, 60.0]),
        blocking_launches=bool(rng.random() < 0.1),
    )  # fmt: skip


def drawn_layout(rng, layers):
    def pick(*values):
        return values[int(rng.integers(len(values)))]

    pp, name, cp = pick(1, 1, 2, 4), pick(*NAMES), pick(1, 1, 2, 4)
    schedule = get_schedule(name)
    chunks = schedule.chunks or pick(1, 2)
    if schedule.one_layer_chunks:
        chunks = layers // pp
    return {
        "dp": pick(1, 2, 4), "pp": pp, "tp": pick(1, 2), "cp": cp, "ulysses": pick(1, cp), "schedule": name,
        "virtual_stages": chunks, "micro_batch": 1, "global_batch": 16 * pick(1, 2, 3), "zero": pick(0, 1, 2, 3),
        "sequence_parallel": pick(False, True), "recompute": pick(*Recompute), "capacity_factor": pick(0.0, 1.25),
        "ep": pick(1, 2),
    }  # fmt: skip


def drawn_seconds(rng, kind, n):
    return kind(**{f.name: rng.choice([0.0, 1.0, 1.0], n) * rng.uniform(0.0, 20.0, n) for f in fields(kind)})


def of_row(record, i, n):
    return {f.name: float(at(getattr(record, f.name), i, n)) for f in fields(record)}


def plain(row, model, f):
    """A layout's choices, what of its schedule counts here, and the model's modules of multi-token prediction.

    once: whether layers scatter gradients in a step's last micro-batch alone.
    """
    in_layers = row["zero"] == 3 or (row["zero"] == 2 and f.zero2_by_layer)
    once = f.defers_scatter and in_layers and row["pp"] == 1 and row["dp"] * row["cp"] > 1
    micro_batches = row["global_batch"] // row["dp"] // row["micro_batch"]
    at_a_time = get_schedule(row["schedule"]).layer_at_a_time
    modules = model.num_mtp_layers
    latent = model.kv_lora_rank > 0
    return SimpleNamespace(
        **row, micro_batches=micro_batches, at_a_time=at_a_time, modules=modules, latent=latent, once=once
    )


@pytest.mark.parametrize("model", MODELS, ids=range(len(MODELS)))
def test_a_layer_shows_what_its_sentences_say(model):
    rng, n = np.random.default_rng(35), 60
    for _ in range(6):
        rows = [drawn_layout(rng, 8) for _ in range(n)]
        of = case(model=model, layouts=Layouts.of(**{name: [row[name] for row in rows] for name in rows[0]}),
                  framework=drawn_framework(rng))  # fmt: skip
        cost, wire = drawn_seconds(rng, LayerCost, n), drawn_seconds(rng, Traffic, n)
        found, launches = layer_time(of, cost, wire), host_s(of, of.by_layer)
        for i, row in enumerate(rows):
            told = Shown(
                of.framework, plain(row, model, of.framework), SimpleNamespace(**of_row(cost, i, n)),
                SimpleNamespace(**of_row(wire, i, n)), tuple(float(at(s, i, n)) for s in launches),
                bool(mix.shares(model).sparse > 0),
            ).told()  # fmt: skip
            assert of_row(found, i, n) == pytest.approx(told, rel=1e-9, abs=1e-9), (row, of.framework)


def seconds_of(costs, i, n):
    """What a rank's passes are made of, by name."""
    parts = of_row(costs.layer, i, n) | of_row(costs.ends, i, n)
    of_costs = ("send_s", "reduce_s", "gather_s", "gather_taken_s")
    parts |= {name: float(at(getattr(costs, name), i, n)) for name in of_costs}
    parts |= {name: float(at(getattr(costs.traffic, name), i, n)) for name in ("ends_s", "ends_sharding_s")}
    return SimpleNamespace(**parts, weight_grad_s=float(at(costs.cost.weight_grad_s, i, n)))


@pytest.mark.parametrize("model", [replace(m, num_layers=8, num_dense_layers=4 * m.num_dense_layers)
                                   for m in MODELS if not m.num_ssm_layers], ids=lambda m: m.family)  # fmt: skip
def test_a_step_is_made_of_what_its_sentences_say(model):
    rng, n = np.random.default_rng(36), 40
    chip = replace(CLUSTER, accelerator=CHIP)
    for _ in range(4):
        framework = drawn_framework(rng)
        rows = [drawn_layout(rng, 8) for _ in range(n)]
        layouts = Layouts.of(**{name: [row[name] for row in rows] for name in rows[0]})
        costs = step_costs(Setup(model, chip, framework), layouts)
        loads, ends, stages = rank_passes(costs), end_shares(layouts), costs.stages
        slowest = loads.slowest(layouts.pp)
        data = data_comm(costs, slowest[0], slowest[1] + slowest[2], model.num_layers / layouts.pp)
        time = step_time(costs)
        for i, row in enumerate(rows):
            x, parts = plain(row, model, framework), seconds_of(costs, i, n)
            held = [
                SimpleNamespace(layers=float(at(layers, i, n)), first=first, last=last, modules=modules)
                for layers, first, last, modules in (
                    (stages.first.layers, float(ends[0, i]), float(ends[1, i]), float(at(stages.first.modules, i, n))),
                    (stages.early.layers, 0.0, 0.0, 0.0), (stages.late.layers, 0.0, 0.0, 0.0),
                    (stages.last.layers, float(ends[2, i]), float(ends[3, i]), float(at(stages.last.modules, i, n))),
                )
            ]  # fmt: skip
            ranks = [Rank(framework, x, parts, one) for one in held]
            got = [[float(at(s, i, n)) for s in kind] for kind in (loads.first, loads.early, loads.late, loads.last)]
            if all(float(at(kind.dense, i, n)) == 0.0 for kind in stages.kinds):
                assert got == [pytest.approx(rank.passes(), rel=1e-9, abs=1e-9) for rank in ranks], (row, framework)
            if row["pp"] == 1:
                want = ranks[0].data()
                assert [float(at(s, i, n)) for s in vars(data).values()] == pytest.approx(want, rel=1e-9), row
                own = sum(ranks[0].passes()) * x.micro_batches
                step = own + want[0] - want[1] + want[2] - want[3] + float(at(costs.update_s, i, n))
                assert float(at(time.total_s, i, n)) == pytest.approx(step, rel=1e-9), (row, framework)
            parts_s = [float(at(getattr(time, f.name), i, n)) for f in fields(time)]
            assert min(parts_s) >= -1e-9
            assert sum(parts_s) == pytest.approx(float(at(time.total_s, i, n)))
