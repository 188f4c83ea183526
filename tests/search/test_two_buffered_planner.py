"""PipeDream-2BW's planner (Narayanan et al. 2021, arXiv 2006.09503, Algorithm 1) as a case of our search."""

import numpy as np
import pytest

from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision, Recompute
from planner.models import load_model
from planner.search import Fixed, recommend
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import legal


@pytest.mark.parametrize(("gpus", "batch"), [(8, 64), (16, 128), (32, 128)])
def test_algorithm_1_is_our_search_without_tensor_parallelism(gpus, batch):
    """For every width and depth: micro-batches that are powers of two, recomputation or not; keep the best that fits.

    Width is dp, depth is pp, stages hold equal numbers of layers; our search, told so, must find the same time.
    """
    model, cluster = load_model("gpt2-xl"), load_cluster("dgx-1-v100")
    framework = load_framework(cluster.framework)
    best, at = np.inf, None
    powers = [1, 2, 4, 8, 16, 32, 64, 128]
    for depth in (d for d in range(2, gpus + 1) if gpus % d == 0):
        width = gpus // depth
        for micro in (b for b in powers if batch % (width * b) == 0 and batch // (width * b) >= depth):
            for mode in (Recompute.NONE, Recompute.FULL):
                one = Layouts.of(
                    schedule="2bw", dp=width, pp=depth, micro_batch=micro, global_batch=batch, zero=0, recompute=mode,
                    precision=Precision.FP16, attention=Attention.FUSED,
                )  # fmt: skip
                if not legal(model, cluster, one)[0]:
                    continue
                result = estimate(Setup(model, cluster, framework), one)
                if result.fits[0] and result.step_time_s[0] < best:
                    best, at = float(result.step_time_s[0]), one.row(0)
    found = recommend(
        Setup(model, cluster, framework), gpus=gpus, global_batch=batch, precision=Precision.FP16,
        attention=Attention.FUSED,
        fixed=Fixed(
            schedule=("2bw",), tp=(1,), cp=(1,), zero=(0,), layer_split=(0,), micro_batch=tuple(powers),
            allow_async=True,
            recompute=(Recompute.NONE, Recompute.FULL), pp=tuple(d for d in range(2, gpus + 1) if gpus % d == 0),
        ),
    )  # fmt: skip
    chosen = found.estimate.layouts.row(int(found.best[0]))
    assert at is not None
    # The search runs its finalists on the exact timeline, within 2 % of the closed form.
    assert found.estimate.step_time_s[found.best[0]] == pytest.approx(best, rel=0.02)
    again = estimate(Setup(model, cluster, framework), found.estimate.layouts.take([int(found.best[0])]))
    assert again.step_time_s[0] == pytest.approx(best, rel=0.02), (chosen, at)
