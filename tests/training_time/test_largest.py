"""The largest training within a time: its model by the law, its point beside a brute force, limits, what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest

from planner import largest
from planner.base.errors import InputError
from planner.base.units import DAY, MONTH
from planner.hardware import load_cluster
from planner.models import counts
from planner.report.largest import largest_view
from planner.report.plain_table import plain_text
from planner.scaling.batch import sizes
from planner.scaling.laws import get_loss_law
from planner.scaling.loss import compute_optimal_size, compute_optimal_tokens
from planner.search import recommend
from planner.setup import Setup
from planner.training_time.assumptions import assume
from planner.training_time.goal import goal
from planner.training_time.largest import Largest, LargestTraining, Shape, shape_of
from planner.training_time.training import TrainingCase

DENSE = Shape(aspect=128, experts=0, seq_len=8192)


def test_the_size_is_the_one_whose_optimal_tokens_spend_the_compute():
    law = get_loss_law("besiroglu-2024")
    for flop in (1e20, 1e25, 1e31):
        n = compute_optimal_size(law, flop)
        assert 6 * n * compute_optimal_tokens(law, n) == pytest.approx(flop, rel=1e-9)


@pytest.mark.parametrize("experts", [0, 64])
@pytest.mark.parametrize("flop", [1e22, 1e25, 1e28, 1e32])
def test_a_token_meets_about_the_optimal_parameters_in_a_model_of_the_aspect(flop, experts):
    model = shape_of(flop, replace(DENSE, experts=experts))
    wanted = float(compute_optimal_size(get_loss_law("besiroglu-2024"), flop))
    assert sizes(model)[1] == pytest.approx(wanted, rel=0.15)
    assert 128 / 1.5 < model.hidden / model.num_layers < 128 * 1.5
    assert counts.total_params(model) > (4 if experts else 0.9) * wanted


@pytest.fixture(scope="module")
def few():
    return largest("dgx-h100", months=1, gpus=32, given={"mtbf_hours": 1e12}).to_dict()


def test_a_limit_of_gpus_is_named_and_kept(few):
    kind = few["kinds"][0]
    best = kind["largest"]
    assert kind["limit"] == "GPUs"
    assert f" at {best['utilisation']:.1%} utilisation" in plain_text(largest_view(few))
    assert best["gpus"] <= 32
    assert best["days"] <= MONTH / DAY
    assert [t["flop"] for t in kind["curve"]] == sorted(t["flop"] for t in kind["curve"])
    assert best["flop"] == max(t["flop"] for t in kind["curve"] if t["gpus"])
    more = [t for t in kind["curve"] if t["flop"] > best["flop"]]
    assert more
    assert all(t["gpus"] is None for t in more)
    assert min(t["flop"] for t in more) < 1.1 * best["flop"]


def test_virtual_stages_are_filled_by_cost_where_that_is_faster():
    """As `recommend` has them."""
    even, best = (
        largest("dgx-h100", months=3, gpus=4, **held).to_dict()["kinds"][0]["curve"][0]
        for held in ({"layer_split": "even"}, {})
    )
    assert best["layout"]["layer_split"] == "balanced"
    assert best["layout"]["virtual_stages"] > 1
    assert best["utilisation"] > even["utilisation"]


def test_utilisation_is_the_compute_over_what_the_gpus_could_do(few):
    peak = load_cluster("dgx-h100").accelerator.peak_flops["bf16"]
    for t in few["kinds"][0]["curve"]:
        if t["gpus"]:
            assert t["utilisation"] == pytest.approx(t["flop"] / (t["gpus"] * t["days"] * DAY * peak))


def test_the_point_is_the_time_of_the_search_of_layouts_on_as_many_gpus(few):
    """On its GPUs with its batch `recommend` finds a training as long, and on one node fewer none in time."""
    best = few["kinds"][0]["largest"]
    model, cluster = shape_of(best["flop"], DENSE), load_cluster("dgx-h100")
    from planner.question import careful, load_setup, numerics

    setup, fixed = careful(load_setup(model, cluster))
    aim = goal(model, tokens=best["tokens"])
    case = TrainingCase(setup=setup, goal=aim, assumptions=assume(cluster, {"mtbf_hours": 1e12}))
    number, kernel = numerics(cluster, None, None)

    def days(gpus, batch):
        found = recommend(
            Setup(model, setup.cluster, setup.framework), gpus=gpus, global_batch=batch, precision=number,
            attention=kernel, fixed=fixed, top=1,
        )  # fmt: skip
        i = found.best[:1]
        return float(case.runs(found.estimate.step_time_s[i], found.estimate.layouts.take(i)).wall_s[0]) / DAY

    assert days(best["gpus"], best["global_batch"]) == pytest.approx(best["days"], rel=0.03)
    if best["gpus"] > 8:
        fewer = best["gpus"] - 8
        batches = [fewer * k for k in (1, 2, 4, 8)]
        assert min(days(fewer, b) for b in batches) > 0.97 * MONTH / DAY


def test_more_time_more_gpus_and_fewer_failures_never_make_it_smaller(few):
    best = few["kinds"][0]["largest"]["flop"]
    failing = largest("dgx-h100", months=1, gpus=32, given={"mtbf_hours": 1e3}).to_dict()["kinds"][0]["largest"]["flop"]
    longer = largest("dgx-h100", months=2, gpus=32, given={"mtbf_hours": 1e12}).to_dict()["kinds"][0]["largest"]["flop"]
    assert failing <= best < longer


def test_power_and_money_are_limits_too():
    cluster = load_cluster("dgx-h100")
    each = assume(cluster, {}).prices
    mw = 16 * each.power_w * each.site_factor / 1e6
    kind = largest("dgx-h100", months=1, power_mw=mw).to_dict()["kinds"][0]
    assert kind["limit"] == "power"
    assert kind["largest"]["gpus"] <= 16
    kind = largest("dgx-h100", months=1, max_cost=30_000, given={"price_usd_per_hour": 2.0}).to_dict()["kinds"][0]
    assert kind["limit"] == "cost"
    assert 20_000 < kind["largest"]["cost_usd"] <= 30_000


def test_where_utilisation_falls_is_between_two_trainings():
    def trained(flop, share):
        return LargestTraining(flop=flop, model=None, goal=None, run=object(), utilisation=share)

    curve = Largest(
        trainings=tuple(trained(10.0**e, u) for e, u in ((22, 0.5), (23, 0.5), (24, 0.3))), best=None, limit=""
    )
    assert math.log10(curve.falls_at_flop) == pytest.approx(23.5)
    flat = Largest(trainings=(trained(1e22, 0.5), trained(1e23, 0.45)), best=None, limit="")
    assert flat.falls_at_flop is None


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"months": 0}, "months is 0.0; allowed"),
        ({"months": math.nan}, "months is nan; allowed"),
        ({"gpus": 0}, "gpus is 0; allowed"),
        ({"power_mw": 1e-9}, "power-mw is 1e-09; allowed"),
        ({"aspect": math.nan}, "aspect is nan; allowed"),
        ({"experts": [3]}, "experts is 3; allowed"),
        ({"experts": []}, "experts is empty"),
        ({"max_cost": 5.0}, "no price; give --price"),
        ({"seq_len": 0}, "seq_len is 0"),
    ],
)
def test_what_is_refused(asked, says):
    with pytest.raises(InputError, match=says):
        largest("dgx-h100", **asked)


def test_the_picture_draws_every_kind(tmp_path, few):
    answer = largest("dgx-h100", months=1, gpus=16, experts=[0, 16])
    answer.save_picture(tmp_path / "largest.svg")
    text = (tmp_path / "largest.svg").read_text()
    assert "dense models" in text
    assert "mixtures of 16 experts" in text
    assert np.isfinite(few["months"])


def test_the_answer_says_what_it_assumes_and_where_its_laws_are_stretched():
    answer = largest("dgx-h100", months=1, gpus=32, experts=[64], given={"mtbf_hours": 1e12})
    record, text = answer.to_dict(), repr(answer)
    best = record["kinds"][0]["largest"]
    assert "the laws were fitted to dense models" in best["extrapolations"][-1]
    for said in best["extrapolations"]:
        assert f"  careful: {said}" in text
    assert "--mtbf-hours" in text
    assert record["assumed"][0] == "8,192 tokens per sequence"
    assert f"How accurate: {record['accuracy']}" in " ".join(text.split())
    # What a token meets of the experts, times six, over the peak of all the days.
    met = best["flop"] / 6 / best["tokens"]
    assert met < 0.3 * best["parameters"]
    peak = 989.4e12 * best["gpus"] * best["days"] * 86400
    assert best["utilisation"] == pytest.approx(6 * met * best["tokens"] / peak, rel=0.01)
    assert "6 for each token and parameter that it meets" in " ".join(text.split())
