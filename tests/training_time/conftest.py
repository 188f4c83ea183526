"""Shared by the tests of plans: one call from names to a plan."""

from collections.abc import Callable
from typing import Any

import pytest

from planner.hardware import load_cluster, load_framework
from planner.models import load_model
from planner.search import Fixed, default_attention, default_precision
from planner.search.request import Request
from planner.setup import Setup
from planner.training_time.assumptions import assume
from planner.training_time.fastest import Fastest, plan_fastest
from planner.training_time.goal import goal
from planner.training_time.joint import strategy
from planner.training_time.training import TrainingCase

NEVER_FAILS = {"mtbf_hours": 1e12}


def usual(setup: Setup, fixed: Fixed | None = None, **numerics: Any) -> Request:
    """What a search of any size is asked in the cluster's usual numerics, unless told otherwise."""
    own = {"precision": default_precision(setup.cluster), "attention": default_attention(setup.cluster)}
    return Request.of(setup.framework, **(own | numerics), fixed=fixed or Fixed())


@pytest.fixture(scope="session")
def fastest() -> Callable[..., Fastest]:
    """The shortest time of a model on a cluster by names; further options are the goal's."""

    def search(
        model: str, cluster: str, max_gpus: int, plan: str = "3d", given: Any = None, max_cost: Any = None,
        fixed: Any = None, **aim: Any,
    ) -> Fastest:  # fmt: skip
        shape, hardware = load_model(model), load_cluster(cluster)
        setup = Setup(shape, hardware, load_framework(hardware.framework))
        case = TrainingCase(setup=setup, goal=goal(shape, **aim), assumptions=assume(hardware, given))
        return plan_fastest(case, strategy(plan), usual(setup, fixed), max_gpus=max_gpus, max_cost=max_cost)

    return search
