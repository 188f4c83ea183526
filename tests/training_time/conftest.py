"""Shared by the tests of plans: one call from names to a plan."""

from collections.abc import Callable
from typing import Any

import pytest

from planner.hardware import load_cluster, load_framework
from planner.models import load_model
from planner.search import default_attention, default_precision
from planner.setup import Setup
from planner.training_time.assumptions import assume
from planner.training_time.fastest import Fastest, plan_fastest
from planner.training_time.goal import goal
from planner.training_time.joint import strategy

NEVER_FAILS = {"mtbf_hours": 1e12}


@pytest.fixture(scope="session")
def fastest() -> Callable[..., Fastest]:
    """The shortest time of a model on a cluster by names; further options are the goal's."""

    def search(
        model: str, cluster: str, max_gpus: int, plan: str = "3d", given: Any = None, max_cost: Any = None,
        fixed: Any = None, **aim: Any,
    ) -> Fastest:  # fmt: skip
        shape, hardware = load_model(model), load_cluster(cluster)
        return plan_fastest(
            Setup(shape, hardware, load_framework(hardware.framework)), goal(shape, **aim), assume(hardware, given),
            strategy(plan), max_gpus=max_gpus, max_cost=max_cost, precision=default_precision(hardware),
            attention=default_attention(hardware), fixed=fixed,
        )  # fmt: skip

    return search
