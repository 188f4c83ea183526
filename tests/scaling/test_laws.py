"""Scaling laws: published figures, inverses, identities."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.base.errors import FileFormatError, InputError, UnknownNameError
from planner.models import load_model
from planner.scaling.batch import (
    TrainingTarget,
    batch_scale_tokens,
    compute_optimal,
    critical_batch_tokens,
    extrapolations,
    samples_factor,
)
from planner.scaling.lamy_poirier import critical_batch
from planner.scaling.laws import (
    get_critical_batch_law,
    get_loss_law,
    read_laws,
)
from planner.scaling.loss import compute_optimal_tokens, least_loss, loss_at, tokens_for_loss
from planner.training_time.goal import goal


@pytest.mark.parametrize(
    ("law", "N", "D", "loss"),
    [
        # The formulas of papers.md, worked by hand: Chinchilla 70B on 1.4T, Gopher 280B on 300B.
        ("hoffmann-2022", 70e9, 1.4e12, 1.69 + 0.0835 + 0.1633),
        ("besiroglu-2024", 70e9, 1.4e12, 1.8172 + 0.0815 + 0.0757),
        ("hoffmann-2022", 280e9, 300e9, 1.69 + 0.0521 + 0.2515),
    ],
)
def test_loss_is_the_formulas(law, N, D, loss):
    assert loss_at(get_loss_law(law), N, D) == pytest.approx(loss, abs=1e-3)


def test_kaplan_by_hand():
    law = get_loss_law("kaplan-2020")
    # (8.8e13 / 1.5e9)^0.076 = 2.304; 2.5 leaves 0.196 = (2.1e3 / S)^0.76, S = 17,930; B_crit(2.5) = 2.55e6.
    tokens = float(tokens_for_loss(law, 1.5e9, 2.5))
    S = 2.1e3 / (2.5 - (8.8e13 / 1.5e9) ** 0.076) ** (1 / 0.76)
    assert tokens == pytest.approx(S * 2e8 * 2.5 ** (-1 / 0.21))


@pytest.mark.parametrize(("N", "low", "high"), [(1e9, 15, 30), (70e9, 15, 25), (1e12, 12, 22)])
def test_besiroglu_wants_about_twenty_tokens_a_parameter(N, low, high):
    assert low < compute_optimal_tokens(get_loss_law("besiroglu-2024"), N) / N < high


@given(st.sampled_from(list(read_laws().loss)), st.floats(6, 13), st.floats(9, 14))
def test_tokens_and_loss_are_inverse(name, log_n, log_d):
    law = get_loss_law(name)
    N, D = 10**log_n, 10**log_d
    loss = loss_at(law, N, D)
    assert tokens_for_loss(law, N, loss) == pytest.approx(D, rel=1e-4)
    assert loss_at(law, N, 2 * D) < loss
    assert least_loss(law, N) < loss


def test_a_loss_that_no_data_reaches_is_refused():
    with pytest.raises(InputError, match="allowed: above"):
        tokens_for_loss(get_loss_law("besiroglu-2024"), 1e9, 1.9)
    with pytest.raises(InputError, match="sum of powers"):
        compute_optimal_tokens(get_loss_law("kaplan-2020"), 1e9)


@pytest.mark.parametrize("alpha", [32, 108, 160, 1024])
def test_lamy_poirier_in_tokens_and_in_sequences_agree(alpha):
    law = get_critical_batch_law("lamy-poirier-2021")
    assert critical_batch_tokens(law, 12 * alpha**5) == pytest.approx(critical_batch(alpha) * 16 * alpha, rel=1e-3)


def test_critical_batches_at_published_sizes():
    assert critical_batch(160) == pytest.approx(2417, abs=0.6)
    by_parameters = get_critical_batch_law("lamy-poirier-2021")
    assert critical_batch_tokens(by_parameters, 175e9) == pytest.approx(3.2e6, rel=0.01)
    # DESIGN of the law: its two fits agree at 20 tokens per parameter (22.91 x 20^0.47 = 93.6 against 93.20).
    by_data = get_critical_batch_law("zhang-2024")
    assert critical_batch_tokens(by_data, 20e6 * 302) / 512 == pytest.approx(93.20 * 302**0.47, rel=0.01)
    front = compute_optimal(read_laws().compute_optimal["kaplan-2020"], 8.64e19)
    assert front["parameters"] == pytest.approx(1.3e9)
    assert front["steps"] == pytest.approx(5.4e3)


def test_a_batch_of_its_scale_takes_twice_the_fewest_samples():
    assert [float(samples_factor(ratio, 1.0)) for ratio in (0.0, 0.5, 1.0, 2.0)] == [1.0, 1.5, 2.0, 3.0]


@given(st.floats(1e-3, 1e3), st.floats(1.01, 10))
def test_a_larger_batch_never_takes_fewer_samples(batch, more):
    assert samples_factor(batch * more, 7.0) > samples_factor(batch, 7.0)


@pytest.mark.parametrize("name", list(read_laws().critical_batch))
def test_overhead_at_the_critical_batch_is_the_papers(name):
    law = get_critical_batch_law(name)
    x = law.fitted[0]
    assert samples_factor(critical_batch_tokens(law, x), batch_scale_tokens(law, x)) == pytest.approx(1 + law.overhead)


def test_extrapolation_is_said():
    loss, batch = get_loss_law("besiroglu-2024"), get_critical_batch_law("zhang-2024")
    inside = TrainingTarget(parameters=1e9, non_embedding=0.9e9, tokens=20e9, loss=2.5)
    assert extrapolations(inside, loss, batch) == []
    outside = TrainingTarget(parameters=1e12, non_embedding=1e12, tokens=20e12, loss=1.8)
    said = extrapolations(outside, loss, batch)
    assert len(said) == 3
    assert all("extrapolation" in s for s in said)


def test_unknown_names_and_bad_files(tmp_path):
    for get in (get_loss_law, get_critical_batch_law):
        with pytest.raises(UnknownNameError, match="kaplan-2020"):
            get("kaplan")
    path = tmp_path / "laws.toml"
    path.write_text('[loss.mine]\nform = "cubic"\nsource = "a guess"\nmark = "recalled"\n')
    with pytest.raises(FileFormatError, match=r"loss\.mine\.form is 'cubic'"):
        read_laws(path)


MINE = """
[critical_batch.mine]
source = "measured on my own runs"
mark = "derived"
variable = "tokens"
unit = 1.0
coefficient = 100.0
exponent = 0.5
overhead = 1.0
fitted = [1e9, 1e12]
"""


def test_a_law_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    law = get_critical_batch_law(str(path))
    assert law.name == "mine"
    assert critical_batch_tokens(law, 1e10) == pytest.approx(1e7)
    with pytest.raises(FileFormatError, match="0 tables"):
        get_loss_law(str(path))
    bad = tmp_path / "bad.toml"
    for line, fault in (("overhead = 1.0", "overhead"), ("exponent = 0.5", "exponent"), ('mark = "derived"', "mark")):
        bad.write_text(MINE.replace(line, ""))
        read_laws.cache_clear()
        with pytest.raises(FileFormatError, match=fault):
            get_critical_batch_law(str(bad))


def test_laws_broadcast():
    law = get_loss_law("besiroglu-2024")
    assert loss_at(law, np.array([1e9, 1e10]), 1e11).shape == (2,)
    assert math.isclose(loss_at(law, np.array([1e9]), np.array([1e11]))[0], loss_at(law, 1e9, 1e11))


def test_an_exponent_beyond_numbers_leaves_the_least_loss():
    beyond = {"parameters_exponent": 1e4, "data_exponent": 1e4}
    law = replace(get_loss_law("besiroglu-2024"), **beyond)
    assert least_loss(law, 1e9) == loss_at(law, 1e9, 1e12) == law.irreducible


def test_a_critical_batch_of_nothing_is_refused(monkeypatch):
    law = replace(get_critical_batch_law("zhang-2024"), exponent=-1e4)
    monkeypatch.setattr("planner.training_time.goal.get_critical_batch_law", lambda name: law)
    with pytest.raises(InputError, match=r"critical_batch_law .* gives a critical batch of 0 tokens; allowed: above 0"):
        goal(load_model("gpt2"), tokens=1e12)
