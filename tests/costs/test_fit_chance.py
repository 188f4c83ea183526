"""The chance that a layout fits: a logistic distribution whose figures are given, by hand."""

from math import exp, log

import numpy as np
import pytest

from planner.costs.memory import fit_chance as module
from planner.costs.memory.fit_chance import fit_chance, kinds_of, safe_share, unmeasured
from planner.layouts import Layouts
from planner.question import careful, load_setup
from planner.step.estimate import estimate


@pytest.fixture(autouse=True)
def figures(monkeypatch):
    """Errors lie around e^-0.25 of the prediction, by a scale of a half, and of 1 where nothing was measured."""
    known = frozenset({"bf16", "megatron-core"})
    monkeypatch.setattr(module, "_figures", lambda: (-0.25, 0.5, 1.0, known))


def test_by_hand():
    """At e^0.25 of the capacity the odds are even; a scale more of the logarithm divides them by e."""
    even = exp(0.25)
    assert float(fit_chance(even * 80.0, 80.0)) == pytest.approx(0.5)
    assert float(fit_chance(even * exp(0.5) * 80.0, 80.0)) == pytest.approx(1 / (1 + exp(1)))
    assert float(fit_chance(even * exp(0.5) * 80.0, 80.0, wide=True)) == pytest.approx(1 / (1 + exp(0.5)))
    both = fit_chance(np.array([60.0, 60.0]), 80.0, np.array([False, True]))
    assert both == pytest.approx([1 / (1 + exp((log(0.75) - 0.25) / 0.5)), 1 / (1 + exp(log(0.75) - 0.25))])


def test_what_is_far_too_large_has_no_chance_and_no_warning():
    assert float(fit_chance(1e300, 1.0)) == 0.0
    assert float(fit_chance(1e-300, 1.0)) == 1.0


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("chance", [0.1, 0.5, 0.95])
def test_the_safe_share_has_the_chance_asked_for(chance, wide):
    assert float(fit_chance(safe_share(chance, wide) * 80.0, 80.0, wide)) == pytest.approx(chance)


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_what_just_fits_the_room_asked_for_has_the_chance_asked_for(model):
    """And where a layout may take all of the memory nothing is asked of its chance."""
    for asked, least in (({"fit_chance": 0.9}, 0.9), ({"fit_chance": 0.5}, 1.0), ({"headroom_gib": 0.0}, 0.95)):
        setup, _ = careful(load_setup(model, "dgx-h100"), **asked)
        assert estimate(setup, Layouts.of(tp=8, global_batch=8)).least_chance == pytest.approx(least)


def test_kinds_that_were_not_measured_are_named():
    dense, sparse = (load_setup(name, "dgx-h100") for name in ("llama3-8b", "mixtral-8x7b"))
    assert kinds_of(dense, "bf16") == ((dense.framework.name,), ("hopper GPUs",), ("bf16",))
    assert kinds_of(sparse) == ((sparse.framework.name,), ("hopper GPUs",), ("models with experts",))
    kinds = kinds_of(sparse, "bf16")
    assert unmeasured(kinds, {"megatron-core", "bf16"}) == ("hopper GPUs", "models with experts")


def test_a_framework_s_memory_is_known_where_that_of_its_base_is():
    bridge = load_setup("llama3-8b", "dgx-h100", framework="megatron-bridge")
    assert kinds_of(bridge)[0] == ("megatron-bridge", "megatron-bridge-alltoall", "nemo", "megatron-core")
    assert unmeasured(kinds_of(bridge), {"nemo", "hopper GPUs"}) == ()
    assert unmeasured(kinds_of(bridge), {"megatron-lm", "hopper GPUs"}) == ("megatron-bridge",)
