"""Many layouts run side by side: each has the step and the memory that it has alone, whatever stands beside it."""

import numpy as np
import pytest

from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts, Recompute, Split
from planner.models import load_model
from planner.schedules import SCHEDULES
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import legal
from planner.step.timeline.many import simulate_all
from planner.step.timeline.step import simulate
from planner.step.timeline.timed import timed_estimate


@pytest.mark.parametrize(
    ("model", "framework", "choices"),
    [
        ("llama-13b", "megatron-core", {"tp": 2, "zero": 1, "sequence_parallel": True}),
        ("llama-13b", "megatron-core", {"tp": 2, "zero": 1, "sequence_parallel": True, "layer_split": Split.BALANCED}),
        ("mixtral-8x7b", "megatron-core", {"dp": 4, "ep": 4, "recompute": Recompute.SELECTIVE}),
    ],
)
def test_every_schedule_beside_all_others_is_as_alone(model, framework, choices):
    setup = Setup(load_model(model), load_cluster("dgx-h100"), load_framework(framework))
    table = []
    for name, schedule in SCHEDULES.items():
        for chunks in (1, 2, 4):
            one = Layouts.of(**{"pp": 4, "global_batch": 32} | choices, schedule=name, virtual_stages=chunks)
            if schedule.chunks in (None, chunks) and legal(setup.model, setup.cluster, one)[0]:
                table.append(one)
    assert len({one.row(0)["schedule"] for one in table}) >= 20
    seconds, peak_bytes = simulate_all(setup, Layouts.concatenate(table))
    alone = [simulate(setup, one) for one in table]
    assert np.array_equal(seconds, [step.step_time_s for step in alone])
    assert np.array_equal(peak_bytes, [step.peak_bytes.max() for step in alone])


def test_every_pipeline_has_the_timeline_s_step_and_what_has_none_the_closed_form_s():
    setup = Setup(load_model("llama-13b"), load_cluster("dgx-h100"), load_framework("megatron-core"))
    layouts = Layouts.of(pp=[1, 2, 4], tp=[8, 4, 2], global_batch=8, layer_split=Split.BALANCED)
    closed, told = estimate(setup, layouts), timed_estimate(setup, layouts)
    assert told.simulated.tolist() == [False, True, True]
    exact = [float(simulate(setup, layouts.take([i])).step_time_s) for i in (1, 2)]
    assert told.step_time_s == pytest.approx([closed.step_time_s[0], *exact], rel=1e-12)
    assert np.all(told.step_time_s[1:] != closed.step_time_s[1:])
