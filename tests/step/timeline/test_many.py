"""Many layouts run side by side: each has the step and the memory that it has alone, whatever stands beside it."""

from dataclasses import replace

import numpy as np
import pytest

from planner.base.cache import LruCache
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts, Recompute, Split
from planner.models import load_model
from planner.schedules import SCHEDULES
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import legal
from planner.step.timeline import many
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


def counted(monkeypatch, most=100):
    """Layouts that are simulated, in the order of the calls."""
    calls, own = [], many.simulate_each
    monkeypatch.setattr(many, "simulate_each", lambda *given: calls.append(len(given[1])) or own(*given))
    monkeypatch.setattr(many, "_STEPS", LruCache(most))
    return calls


def test_a_layout_that_was_simulated_is_not_simulated_again(monkeypatch):
    setup = Setup(load_model("llama-13b"), load_cluster("dgx-h100"), load_framework("megatron-core"))
    calls = counted(monkeypatch)
    few = Layouts.of(pp=[2, 4], tp=2, global_batch=32, schedule="1f1b")
    more = Layouts.concatenate([Layouts.of(pp=8, tp=2, global_batch=32, schedule="gpipe"), few])
    accelerator = replace(setup.cluster.accelerator, memory_bytes=2.0, room_bytes=1.0)
    less_room = replace(setup, cluster=replace(setup.cluster, name="less", accelerator=accelerator))
    first, second = simulate_all(setup, few), simulate_all(less_room, more)
    assert calls == [2, 1]
    assert np.array_equal(np.array(second)[:, 1:], first)
    alone = simulate(setup, more.take([0]))
    assert np.array_equal(np.array(second)[:, 0], [alone.step_time_s, alone.peak_bytes.max()])


@pytest.mark.parametrize("what", ["model", "cluster", "framework", "layout"])
def test_what_a_step_depends_on_sets_it_apart(monkeypatch, what):
    setup = Setup(load_model("llama-13b"), load_cluster("dgx-h100"), load_framework("megatron-core"))
    layouts = Layouts.of(pp=4, tp=2, dp=2, global_batch=32, zero=1)
    others = {
        "model": (replace(setup, model=load_model("llama-30b")), layouts),
        "cluster": (replace(setup, cluster=load_cluster("dgx-a100-80gb")), layouts),
        "framework": (replace(setup, framework=load_framework("megatron-deepspeed")), layouts),
        "layout": (setup, replace(layouts, micro_batch=np.array([2]))),
    }
    counted(monkeypatch)
    before = simulate_all(setup, layouts)
    seconds, peak_bytes = simulate_all(*others[what])
    alone = simulate(*others[what])
    assert (seconds[0], peak_bytes[0]) == (alone.step_time_s, alone.peak_bytes.max())
    assert seconds[0] != before[0][0]


def test_one_model_a_layout_is_simulated_each_time(monkeypatch):
    setup = Setup(load_model("llama-13b"), load_cluster("dgx-h100"), load_framework("megatron-core"))
    calls = counted(monkeypatch)
    layouts = Layouts.of(pp=[2, 4], tp=2, global_batch=32)
    both = replace(setup, model=replace(setup.model, num_layers=np.array([40, 80])))
    first, second = simulate_all(both, layouts), simulate_all(both, layouts)
    assert calls == [2, 2]
    assert np.array_equal(first, second)
    deeper = replace(setup, model=replace(setup.model, num_layers=80))
    assert first[0][1] == simulate(deeper, layouts.take([1])).step_time_s


def test_what_is_kept_of_a_setup_is_bounded(monkeypatch):
    setup = Setup(load_model("llama-13b"), load_cluster("dgx-h100"), load_framework("megatron-core"))
    calls = counted(monkeypatch, most=2)
    for pp in (2, 2, 4, 2, 2):
        simulate_all(setup, Layouts.of(pp=pp, tp=2, global_batch=32))
    assert calls == [1, 1, 1]
