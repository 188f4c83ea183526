"""Every choice of a plan's layout is run by `planner train`, refused, or named as not run."""

from __future__ import annotations

import pytest

from planner.base.errors import InputError
from planner.choices.enumerations import names
from planner.choices.table import CHOICES
from planner.cli.train_plan import Choices, left_out, make_training
from planner.layouts import Layouts
from planner.models import load_model

OTHERS = {
    "tp": [1], "pp": [4], "virtual_stages": [4], "sequence_slices": [4], "sequence_parallel": [False],
    "zero": [0, 2, 3], "schedule": ["gpipe"],
    "pipeline_layout": ["Et*16|t*16L"], "train": ["lora:8"], "offload_modules": ["attn_proj"],
    "offload_fraction": [0.5],
}  # fmt: skip
"""Values to try, where they aren't all the others, or 2."""
BESIDE = {
    "ulysses": {"cp": 2}, "inner_ring": {"cp": 4}, "dp_replicate": {"zero": 3},
    "recompute_layers": {"recompute": "full"}, "virtual_stages": {"schedule": "interleaved", "virtual_stages": 2},
    "sequence_slices": {"schedule": "seq1f1b", "sequence_slices": 2}, "offload_fraction": {"offload_optimizer": True},
    "offload_parameters": {"offload_optimizer": True, "zero": 3},
}  # fmt: skip
"""What makes a choice mean something."""
ALWAYS = ("fp32", "alltoall")
"""What the trainer does anyhow."""


def values(name: str) -> list[object]:
    choice = CHOICES[name]
    if choice.enumeration:
        return [one for one in names(choice.enumeration) if one not in (choice.plain(choice.default), *ALWAYS)]
    return OTHERS.get(name, [not choice.default] if choice.kind is bool else [2])


def trained(row: dict[str, object]) -> tuple[object, str]:
    """What is run of a layout, and what is said not to be; or nothing, and why."""
    model = load_model("mixtral-8x7b" if row["sequence_slices"] == 1 else "gpt2")
    try:
        training = make_training(model, row, Choices(scale="tiny", steps=1), None, optimizer="adamw")
    except InputError as refused:
        return None, str(refused)
    samples = training.samples
    ran = (training.task, samples.micro_batch, samples.micro_batches, samples.dp)
    return ran, ", ".join(left_out(row, training, "fp32"))


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in CHOICES for value in values(name)])
def test_a_choice_is_run_refused_or_named(name, value):
    base = Layouts.of(global_batch=64).row(0) | {"dp": 4, "tp": 2, "pp": 2, "sequence_parallel": True}
    base |= {"ep": 2, "sequence_parallel": False} if value == "ppmoe" else BESIDE.get(name, {})
    ran, said = trained(base | {name: value})
    named = name.replace("parallel", "parallelism").replace("_", " ") in said.replace("_", " ").replace("-", " ")
    assert named or (ran is not None and ran != trained(base)[0])
