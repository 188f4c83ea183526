"""Shared by all tests."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Each pytest worker has one core. More threads of a matrix product than cores wait for each other and burn both: a tiny
# training takes twenty times the processor's time. Set before numpy is loaded; commands that tests start inherit it.
for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("planner", deadline=None)
settings.load_profile("planner")


ALONE = ("tests/notebooks/", "tests/calibration/test_probe.py")
PREDICTIONS = ("tests/validation/", "tests/reproductions/", "tests/cli/test_cli.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests run in one worker of `-n`, which prepares their inputs once; files of many tests come first.

    What looks at predictions of all measured runs is one file here: they are made once (`tests/predictions.py`). Long
    tests of processes of their own share nothing: each is a file, so that no worker has all of them at the end.
    """
    from xdist.scheduler import LoadFileScheduling

    class ByInputs(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(ALONE):
                return nodeid
            return PREDICTIONS[0] if nodeid.startswith(PREDICTIONS) else str(super()._split_scope(nodeid))

    return ByInputs(config, log)


@pytest.fixture(scope="session")
def reference_runs() -> Callable[[str], Path]:
    """The path of a shipped set of measured runs."""
    return lambda name: Path(__file__).parents[1] / "measured_runs" / name


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, where there is one: one for the reports and for planner serve, for a process can have one alone."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install '.[browser]'")
    with api.sync_playwright() as play:
        own = Path(play.chromium.executable_path)
        names = ("chromium", "chromium-browser", "google-chrome")
        found = str(own) if own.exists() else next(filter(None, map(shutil.which, names)), None)
        if found is None:
            pytest.skip("no Chromium: playwright install chromium, or install the system's")
        chromium = play.chromium.launch(executable_path=found)
        yield chromium
        chromium.close()
