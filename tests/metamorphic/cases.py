"""Drawn questions: a setup and a layout that is legal, the same for the same seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from planner.api.frameworks import layout_under
from planner.hardware import Cluster, Framework, load_cluster, load_framework
from planner.layouts import Layouts
from planner.models import Transformer, load_model
from planner.schedules import SCHEDULES
from planner.setup import Setup
from planner.step.legality import first_broken

MODELS = ("gpt2", "gpt3-6.7b", "llama2-7b", "llama3-8b", "llama-13b", "gpt-oss-20b", "mixtral-8x7b", "llama-65b")
CLUSTERS = ("dgx-a100-80gb", "dgx-h100", "dgx-1-v100")
FRAMEWORKS = ("megatron-core", "fsdp", "nanotron", "megatron-lm")
TRIES = 400

model_of = cache(load_model)
cluster_of = cache(load_cluster)
framework_of = cache(load_framework)


@dataclass(frozen=True)
class Drawn:
    """A setup and one legal layout's choices."""

    setup: Setup
    choices: dict[str, Any]

    @cached_property
    def layouts(self) -> Layouts:
        """The layout, a table of length one; where nothing is said as the framework has it."""
        return layout_under(self.setup, **self.choices)

    def changed(self, **choices: Any) -> Drawn | None:
        """The case with other choices, None where that is not legal."""
        return legal(Drawn(self.setup, self.choices | choices))

    def on(self, **parts: Any) -> Drawn | None:
        """The case with another model, cluster or framework, None where that is not legal."""
        return legal(Drawn(replace(self.setup, **parts), self.choices))

    def __str__(self) -> str:
        setup = self.setup
        return f"{setup.model.name} on {setup.cluster.name} with {setup.framework.name}: {self.choices}"


def legal(case: Drawn) -> Drawn | None:
    """The case, None where it is not legal."""
    return None if first_broken(case.setup.model, case.setup.cluster, case.layouts)[0] else case


def drawn(seed: int) -> Drawn:
    """The case of a seed."""
    rng = np.random.default_rng(seed)
    for _ in range(TRIES):
        case = legal(_any(rng))
        if case is not None:
            return case
    raise AssertionError(f"seed {seed} draws no legal layout in {TRIES} tries")


def _any(rng: np.random.Generator) -> Drawn:
    """A case, legal or not."""

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    model: Transformer = model_of(pick(*MODELS))
    cluster: Cluster = cluster_of(pick(*CLUSTERS))
    framework: Framework = framework_of(pick(*FRAMEWORKS))
    pp = pick(1, 2, 2, 4, 8)
    names = ["1f1b"] if pp == 1 else [n for n, s in SCHEDULES.items() if n != "layered" and s.quick]
    schedule = SCHEDULES[pick(*names)]
    chunks = schedule.chunks or pick(*[v for v in range(2, 9) if model.num_layers % (pp * v) == 0] or [2])
    if schedule.one_layer_chunks:
        chunks = model.num_layers // pp
    dp, micro_batch = pick(1, 2, 4, 8, 16), pick(1, 1, 2, 4)
    choices = {
        "dp": dp, "tp": pick(1, 2, 4, 8), "pp": pp, "cp": pick(1, 1, 1, 2),
        "ep": pick(1, 2, 4) if model.num_experts else 1,
        "schedule": schedule.name, "virtual_stages": chunks, "sequence_slices": pick(2, 4) if schedule.sliced else 1,
        "micro_batch": micro_batch, "global_batch": dp * micro_batch * pick(1, 2, 4, 8, 12, 16, 32),
        "zero": pick(0, 1, 1, 2, 3), "recompute": pick("none", "selective", "full", "fine"),
        "sequence_parallel": pick(False, True), "layer_split": pick("even", "even", "balanced"),
        "attention": "flash2" if cluster.name != "dgx-1-v100" else "fused",
        "precision": "fp16" if cluster.name == "dgx-1-v100" else "bf16",
    }  # fmt: skip
    return Drawn(Setup(model, cluster, framework), choices)
