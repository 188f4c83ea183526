"""The fewest GPUs: beside every number tried one by one, and what is said where none is enough."""

import math
import re
from types import SimpleNamespace

import pytest

from planner.api.training import fewest_gpus
from planner.base.errors import InputError, LayoutError
from planner.base.units import DAY
from planner.question import load_setup
from planner.search import Fixed
from planner.training_time.assumptions import assume
from planner.training_time.fewest import fewest, first_that, job_sizes
from planner.training_time.goal import goal
from planner.training_time.time import plan_time
from planner.training_time.training import TrainingCase
from tests.training_time.conftest import usual


def test_sizes_of_a_job_divide_a_node_or_are_whole_nodes():
    assert job_sizes(8, 128) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128]
    assert job_sizes(72, 150) == [1, 2, 3, 4, 6, 8, 9, 12, 18, 24, 36, 72, 144]
    assert job_sizes(8, 7) == [1, 2, 4]


@pytest.mark.parametrize("least", [1, 3, 8, 9, 41, 100, 128, 129, 1000])
def test_the_first_number_that_is_enough_is_found(least):
    sizes = job_sizes(8, 1024)
    assert first_that(sizes, lambda n: n >= least) == next((n for n in sizes if n >= least), None)


def test_between_two_doublings_a_gap_is_no_matter():
    """32 is enough and 40 is not: found by the doublings."""
    asked = []
    assert first_that(job_sizes(8, 256), lambda n: asked.append(n) or n in (24, 32, 64, 128)) == 24
    assert len(asked) == len(set(asked))
    assert first_that([1, 2, 4], lambda _: False) is None
    assert first_that([], lambda _: True) is None


@pytest.fixture(scope="module")
def plan_of():
    setup = load_setup("llama-13b", "dgx-a100-80gb")
    assumed = assume(setup.cluster, {"price_usd_per_hour": 2.0})
    case = TrainingCase(setup=setup, goal=goal(setup.model, tokens=2e10), assumptions=assumed)
    asked = usual(setup, Fixed(schedule=("1f1b",), micro_batch=(1,), zero=(1,), cp=(1,)))

    def plan(gpus):
        return plan_time(case, asked, gpus=gpus, batch=960, exact_tokens=True)

    return plan


def brute(plan_of, sizes, days=math.inf, cost=math.inf):
    """The first number that keeps both, every one tried."""
    for gpus in sizes:
        try:
            run = plan_of(gpus).run
        except LayoutError:
            continue
        if run.wall_s[0] <= days * DAY and run.cost_usd[0] <= cost:
            return gpus
    return None


@pytest.mark.parametrize(("days", "cost"), [(None, None), (9.0, None), (4.0, None), (12.0, 20_000)])
def test_it_is_what_trying_every_number_finds(plan_of, days, cost):
    found = fewest(plan_of, 8, most=192, days=days, max_cost=cost)
    sizes = job_sizes(8, 192)
    assert found.fits.gpus == brute(plan_of, sizes)
    assert found.keeps.gpus == brute(plan_of, sizes, days or math.inf, cost or math.inf)
    assert list(found.tried) == sorted(found.tried)
    assert all(plan is None or plan.run.gpus[0] == gpus for gpus, plan in found.tried.items())


def test_a_number_that_no_doubling_meets_is_found():
    """tp 5 of 40 heads: 40 GPUs, between 32 and 64 which it does not divide."""
    made = {40: 1, 80: 1}

    def plan(gpus):
        if gpus not in made:
            raise LayoutError("tp must divide gpus")
        return SimpleNamespace(gpus=gpus, days=4e7 / gpus / DAY, cost_usd=1.0)

    assert fewest(plan, 8, most=128, days=None, max_cost=None).fits.gpus == 40
    assert fewest(plan, 8, most=128, days=6.0, max_cost=None).keeps.gpus == 80


def test_a_number_between_the_doublings_may_alone_keep_days_and_dollars():
    def plan(gpus):
        return SimpleNamespace(gpus=gpus, days=100.0 * (1 / gpus + gpus / 1e5), cost_usd=gpus)

    assert fewest(plan, 8, most=256, days=2.2, max_cost=50.0).keeps.gpus == 48
    assert not fewest(plan, 8, most=256, days=2.2, max_cost=50.0).missed
    assert fewest(plan, 8, most=4096, days=0.6326, max_cost=None).keeps.gpus == 320, "more than 316 take longer"


def test_a_number_under_the_last_doubling_comes_before_one_above_it():
    took = {56: 1.0, 96: 0.9}

    def plan(gpus):
        return SimpleNamespace(gpus=gpus, days=took.get(gpus, 100.0 / gpus), cost_usd=0.0)

    assert fewest(plan, 8, most=100, days=1.0, max_cost=None).keeps.gpus == 56


def test_failures_are_told_where_they_let_nothing_end():
    endless = fewest(lambda g: SimpleNamespace(gpus=g, days=math.inf, cost_usd=0), 8, most=8, days=1.0, max_cost=None)
    assert endless.missed.endswith("up to 8 keeps 1 day: failures let none end")


def test_what_keeps_a_deadline_surely_keeps_it_as_many_times_longer():
    def plan(gpus):
        return SimpleNamespace(gpus=gpus, days=80.0 / gpus, cost_usd=gpus)

    def found(times, **limits):
        asked = {"days": None, "max_cost": None} | limits
        return fewest(plan, 8, most=128, late=None if times is None else lambda _: times, **asked)

    assert (found(2.0, days=5.0).keeps.gpus, found(2.0, days=5.0).surely) == (16, 32)
    assert found(1.0, days=5.0).surely == 16
    assert found(4.1, days=5.0).surely is None, "of up to four times as many"
    assert found(None, days=5.0).surely is None
    assert found(2.0).surely is None
    assert found(2.0, days=0.1).surely is None


def test_the_first_line_promises_no_deadline():
    setup = load_setup("gpt2", "dgx-h100")
    ask = {"max_cost": None, "max_gpus": 64, "batch": lambda gpus: 64 * gpus, "exact_tokens": True}
    answer = fewest_gpus(setup, goal(setup.model, tokens=1e11), {}, days=0.5, **ask)
    record = answer.to_dict()
    keeps, surely = record["fewest_that_keep"], record["fewest_that_keep_in_90_percent"]
    assert keeps < surely
    first = f"gpt2 on dgx-h100 {keeps} GPUs stay within 0.5 days by the prediction; "
    first += f"{surely} do with a chance of 90 %; "
    fits, said = r"dp [\w ]+ \(fits in >99% of such cases\)", " ".join(repr(answer).split())
    least = f"the fewest GPUs on which a layout fits: 1, with {fits}"
    assert re.match(f"{first}on {keeps}: {fits} {least}", said), said
    asked = fewest_gpus(setup, goal(setup.model, tokens=1e11), {}, days=None, **ask)
    assert re.match(f"gpt2 on dgx-h100 {least}", " ".join(repr(asked).split()))


def test_each_size_has_its_own_batch():
    setup = load_setup("gpt2", "dgx-h100")
    answer = fewest_gpus(
        setup,
        goal(setup.model, tokens=1e9),
        {},
        days=1e-4,
        max_cost=None,
        max_gpus=8,
        batch=lambda gpus: 64 * gpus,
        exact_tokens=True,
    )
    tried = answer.to_dict()["tried"]
    assert [(row["gpus"], row["global_batch"]) for row in tried] == [(1, 64), (2, 128), (4, 256), (8, 512)]
    assert re.search(r"^ +8 +512 +[0-9.]+ (s|min) ", repr(answer), re.MULTILINE)


def test_of_the_nearly_shortest_the_fewest_gpus_are_named():
    made = {8: 10.0, 16: 6.2, 24: 6.1, 32: 6.0}

    def plan(gpus):
        if gpus not in made:
            raise LayoutError("none")
        return SimpleNamespace(gpus=gpus, days=made[gpus], cost_usd=0.0)

    found = fewest(plan, 8, most=32, days=1.0, max_cost=None)
    assert found.missed.endswith("the shortest takes 6.0 days on 32 GPUs; 6.2 days on 16")


def test_what_is_never_kept_says_what_comes_nearest(plan_of):
    found = fewest(plan_of, 8, most=32, days=0.01, max_cost=5.0)
    assert re.search(r"up to 32 keeps 0.01 days and 5 USD: the shortest takes .* on 32 GPUs", found.missed)
    assert found.keeps.gpus == 32
    with pytest.raises(LayoutError, match="nothing runs on up to 2 GPUs; on the last that were tried: no"):
        fewest(plan_of, 8, most=2, days=None, max_cost=None)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="days is"):
            fewest(plan_of, 8, most=2, days=bad, max_cost=None)
