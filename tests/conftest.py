"""Shared by all tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("planner", deadline=None)
settings.load_profile("planner")


@pytest.fixture(scope="session")
def reference_runs() -> Callable[[str], Path]:
    """The path of a shipped set of measured runs."""
    return lambda name: Path(__file__).parents[1] / "measured_runs" / name
