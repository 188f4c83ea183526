"""Figures of a training by our cost models: of one layout, or of the best that a search finds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.errors import LayoutError
from planner.base.units import DAY, GBIT, GIB, GIGA, TERA
from planner.choices.table import CHOICES, SETTLED
from planner.hardware import Cluster, changed_cluster, load_accelerator, load_framework
from planner.layouts import Layouts
from planner.models import Transformer, load_model, with_seq_len
from planner.models.counts import total_params
from planner.models.description import from_description
from planner.models.flops import step_flops
from planner.scaling.training import training_time
from planner.search import Fixed, default_attention, default_precision, recommend
from planner.setup import Setup
from planner.step.estimate import Estimate, estimate
from planner.step.legality import check_legal
from planner.training_time.assumptions import assume
from planner.training_time.sites import over_links

DEGREES = ("tp", "pp", "micro_batch", "schedule", "recompute", "zero")
"""A layout that says all of these, one value each, is estimated as it stands; else the rest is searched."""


def layout_figure(
    *, quantity: str, model: str | Mapping[str, Any], cluster: str, gpus: int, batch: int, layout: Mapping[str, Any],
    network: str | None = None, accelerator: str | None = None, framework: str | None = None,
    framework_changes: Mapping[str, float] | None = None, seq_len: int | None = None, vocab: int | None = None,
    tokens: float = 0.0, figures: Mapping[str, float] | None = None, sites: Mapping[str, float] | None = None,
) -> tuple[float, str]:  # fmt: skip
    """A figure of a training step, or of a training of so many tokens.

    model: a preset's name, or what a model's file says, of a GPT where it says no family. layout: choices, a list where
    a search may take any of them. figures: of the cluster, in place of its profile's. sites: `number` of them, on which
    the stages lie in order, joined by links of `gbit` Gb/s and `latency_ms` one way.
    quantity: a choice that the search made, travel over work (a micro-batch's seconds to the next site over its
    compute on a stage), or seconds, sequences per second, tokens per second, MFU, TFLOP/s (of a
    GPU, recomputation counted), GiB, activations (GiB), state (parameters, gradients and optimizer, GB), share of
    memory, days, days without failures, GPU-hours.

    Raises PlannerError for an unknown name or an illegal layout, or if nothing fits.
    """
    hardware = changed_cluster(cluster, figures or {}, network=network)
    if accelerator is not None:
        hardware = replace(hardware, accelerator=load_accelerator(accelerator))
    changes: dict[str, Any] = dict(framework_changes or {})
    software = replace(load_framework(framework or hardware.framework), **changes)
    setup = Setup(_model(model, seq_len, vocab), hardware, software)
    result, i = _estimated(setup, gpus, batch, layout)
    step_s = float(result.step_time_s[i])
    if sites is not None:
        number, link, wait = int(sites["number"]), sites["gbit"] * GBIT, sites["latency_ms"] / 1e3
        compute_s = step_s - float(result.time.bubble_s[i])
        step_s, travel_s, _ = over_links(setup, result, number, link, wait, 1.0)
        if quantity == "travel over work":
            return travel_s * float(result.layouts.micro_batches[i]) / compute_s, ""
    row = result.layouts.row(i)
    note = "" if _is_whole(layout) else f"tp {row['tp']} pp {row['pp']} mb {row['micro_batch']} {row['recompute']}"
    if quantity in CHOICES:
        return float(row[quantity]), note
    return _figures(setup, result, i, step_s, tokens)[quantity], note


def _figures(setup: Setup, result: Estimate, i: int, step: float, tokens: float) -> dict[str, float]:
    """Every figure of one layout of an estimate."""
    memory = float(result.memory_bytes[i])
    gpus, batch = int(result.layouts.gpus[i]), int(result.layouts.global_batch[i])
    length, room = int(setup.model.seq_len), setup.cluster.accelerator.memory_bytes
    again = result.layouts.row(i)["recompute"] == "full"
    flop = float(np.asarray(step_flops(setup.model, batch, "megatron", recompute=again)))
    m = result.memory
    state = m.parameters_bytes + m.gradients_bytes + m.optimizer_bytes
    a = assume(setup.cluster, None)
    run = training_time(
        step, gpus, float(batch * length), tokens or 1.0,
        reliability=a.reliability, storage=a.storage(float(total_params(setup.model))), prices=a.prices,
    )  # fmt: skip
    return {
        "seconds": step, "sequences per second": batch / step, "tokens per second": batch * length / step,
        "MFU": float(result.mfu[i]), "TFLOP/s": flop / step / gpus / TERA, "GiB": memory / GIB,
        "activations": float(m.activations_bytes[i]) / GIB, "state": float(state[i]) / GIGA,
        "share of memory": memory / room,
        "days": float(run.wall_s[0]) / DAY, "days without failures": float(run.busy_s[0]) / DAY,
        "GPU-hours": float(run.gpu_hours[0]),
    }  # fmt: skip


def _model(model: str | Mapping[str, Any], seq_len: int | None, vocab: int | None) -> Transformer:
    if isinstance(model, str):
        shape = load_model(model)
    else:
        shape = from_description({"family": "gpt", **model}, "the claim's model", "gpt")
    shape = shape if seq_len is None else with_seq_len(shape, seq_len)
    return shape if vocab is None else replace(shape, vocab=vocab)


def _is_whole(layout: Mapping[str, Any]) -> bool:
    return all(name in layout and not isinstance(layout[name], list) for name in DEGREES)


def _estimated(setup: Setup, gpus: int, batch: int, layout: Mapping[str, Any]) -> tuple[Estimate, int]:
    """The estimate that holds the layout, and its row there."""
    cluster: Cluster = setup.cluster
    own = {"precision": default_precision(cluster), "attention": default_attention(cluster)}
    choices = {k: [CHOICES[k].coded(x) for x in (v if isinstance(v, list) else [v])] for k, v in layout.items()}
    numerics: dict[str, Any] = {name: choices.get(name, [value])[0] for name, value in own.items()}
    if _is_whole(layout):
        one = {name: values[0] for name, values in choices.items()} | numerics
        shards = one["tp"] * one["pp"] * one.get("cp", 1)
        table = Layouts.of(**{"dp": gpus // shards, **one}, global_batch=batch)
        check_legal(setup.model, cluster, table)
        return estimate(setup, table), 0
    fixed: dict[str, Any] = {name: tuple(values) for name, values in choices.items() if name in SETTLED}
    if "tp" in fixed:
        fixed = {"cp": (1,), "sequence_parallel": (False,)} | fixed
    shared = tuple((name, v[0]) for name, v in choices.items() if CHOICES[name].shared and name not in own)
    found = recommend(
        setup, gpus=gpus, global_batch=batch, fixed=Fixed(**fixed, shared=shared), top=1, plainest=True, **numerics
    )  # fmt: skip
    if not len(found.best):
        raise LayoutError(f"no layout of {setup.model.name} on {gpus} GPUs fits in memory")
    return found.estimate, int(found.best[0])
