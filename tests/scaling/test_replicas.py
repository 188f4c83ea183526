"""Replicas that exchange seldom: the published losses, limits, the tokens that make up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.base.errors import UnknownNameError
from planner.scaling.laws import get_loss_law, get_replica_law
from planner.scaling.loss import beyond_fit, loss_at, loss_ratio, tokens_ratio

LAWS = ("charles-2025", "rahman-2026")
# Charles et al. 2025, arXiv 2503.09799, tables 4 and 5: loss of data parallelism, and of DiLoCo with M = 2, 4, 8.
FITTED = {
    35e6: (3.485, 3.508, 3.554, 3.621), 90e6: (3.167, 3.182, 3.213, 3.265), 180e6: (2.950, 2.957, 2.981, 3.019),
    335e6: (2.784, 2.788, 2.808, 2.841), 550e6: (2.653, 2.657, 2.673, 2.698), 1.3e9: (2.460, 2.464, 2.472, 2.493),
    2.4e9: (2.326, 2.323, 2.332, 2.351),
}  # fmt: skip
BEYOND = {4e9: (2.224, 2.220, 2.230), 10e9: (2.090, 2.086, 2.096)}


@pytest.mark.parametrize(("law", "fitted", "beyond"), [("charles-2025", 0.011, 0.006), ("rahman-2026", 0.0073, 0.0062)])
def test_laws_meet_the_published_losses(law, fitted, beyond):
    for rows, bar in ((FITTED, fitted), (BEYOND, beyond)):
        worst = max(
            abs(float(loss_ratio(get_replica_law(law), N, M, 30)) / (value / dp) - 1)
            for N, (dp, *values) in rows.items()
            for M, value in zip((2, 4, 8), values, strict=False)
        )
        assert worst < bar


@given(st.sampled_from(LAWS), st.floats(1e7, 1e12), st.integers(1, 1000), st.integers(1, 1000))
def test_one_replica_or_every_step_is_data_parallelism(name, N, M, H):
    law = get_replica_law(name)
    assert loss_ratio(law, N, 1, H) == 1.0
    assert loss_ratio(law, N, M, 1) == 1.0


@given(st.sampled_from(LAWS), st.floats(1e7, 1e12), st.integers(2, 100), st.integers(2, 500))
def test_more_replicas_and_longer_apart_never_help(name, N, M, H):
    law = get_replica_law(name)
    base = loss_ratio(law, N, M, H)
    assert loss_ratio(law, N, M + 1, H) >= base
    assert loss_ratio(law, N, M, H + 1) >= base


@given(st.floats(1e8, 1e11), st.floats(1e9, 1e13), st.floats(0.98, 1.05))
def test_the_tokens_reach_the_loss_or_none_do(N, tokens, ratio):
    law = get_loss_law("besiroglu-2024")
    more = float(tokens_ratio(law, N, tokens, ratio))
    assert more >= 1.0
    if np.isinf(more):
        assert ratio * loss_at(law, N, 1e60) > loss_at(law, N, tokens)
    elif ratio > 1.0:
        assert ratio * loss_at(law, N, more * tokens) == pytest.approx(float(loss_at(law, N, tokens)), rel=1e-9)
    else:
        assert more == 1.0


def test_a_question_beyond_the_fit_is_said():
    law = get_replica_law("charles-2025")
    assert beyond_fit(law, 1e9, 4, 30) == []
    assert [text.split(": ")[1] for text in beyond_fit(law, 7e9, 16, 100)] == [
        "7e+09 parameters, fitted at 3.5e+07 to 2.4e+09", "16 sites, fitted at 1 to 8",
        "100 steps between exchanges, fitted at 30",
    ]  # fmt: skip
    with pytest.raises(UnknownNameError, match="charles-2025"):
        get_replica_law("charles")
