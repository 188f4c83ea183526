"""Matrix products as the A100's profile predicts them, beside single products measured by others (arXiv 2401.14489).

The profile was fitted to whole training runs; no fit has seen these (`benchmarks/aligned_products.py` has them).
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from planner.hardware import load_accelerator

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "aligned_products.py"


@pytest.fixture(scope="module")
def measured():
    spec = importlib.util.spec_from_file_location("aligned_products", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks its annotations up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("sizes", "number", "median", "nine_of_ten"),
    # Rows of 32 and 64 bytes are now and then as slow as those of 16.
    [((128, 256, 512, 1024, 2048), 60, 0.03, 0.05), ((32, 64), 200, 0.03, 0.17), ((16,), 270, 0.03, 0.07)],
)
def test_products_of_training_take_what_they_were_measured_to_take(measured, sizes, number, median, nine_of_ten):
    """Square ones from 4,096 on, by the bytes at whose multiples rows begin."""
    wide = [p for p in measured.products() if p.series == "sizing-square" and p.n >= 4096]
    kept = [p for p in wide if measured.alignment(p) in sizes]
    assert len(kept) >= number
    error = np.abs(measured.predicted_tflops(kept) / np.array([p.tflops for p in kept]) - 1.0)
    assert np.median(error) < median
    assert np.quantile(error, 0.9) < nine_of_ten


def test_the_profile_s_shares_are_the_measured_medians(measured):
    every = [p for p in measured.products() if 2.0 * p.batch * p.m * p.n * p.k >= measured.LEAST_FLOP]
    off = list(measured.shares(every))
    figures = load_accelerator("a100-sxm-40gb").efficiency.aligned_fraction
    for name, sizes in measured.CLASSES.items():
        medians = [
            np.median([r for p, r in off if p.kind == kind and measured.alignment(p) in sizes])
            for kind in ("linear", "scores", "values")
        ]
        assert figures[name] == pytest.approx(np.mean(medians), abs=0.005)


def test_measured_products_are_what_they_say(measured):
    """Rates that an A100 can have."""
    every = measured.products()
    assert len(every) == 1267
    assert all(0.0 < p.tflops < 312.0 for p in every)
