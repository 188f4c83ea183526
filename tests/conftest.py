"""Shared by all tests."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference_runs() -> Callable[[str], Path]:
    """The path of a shipped set of measured runs."""
    return lambda name: Path(__file__).parents[1] / "measured_runs" / name
