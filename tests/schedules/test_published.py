"""Published bubble rates and peaks, from published operation times, on our own orders. Sources: heads of the CSVs."""

import csv
from pathlib import Path

import numpy as np
import pytest

from planner.schedules import Pipeline, get_schedule
from planner.step.timeline.timeline import Timeline, durations, run

DATA = Path(__file__).parent / "data"


def table(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def simulate(name: str, times: dict[str, str], v: int = 1) -> Timeline:
    order = get_schedule(name).order(Pipeline(p=int(times["p"]), m=int(times["m"]), v=v))
    f, i, w, transfer = (float(times[k]) for k in ("forward", "input_grad", "weight_grad", "transfer"))
    return run(order, durations(order, f, i, w), transfer)


TIMES = {(t["source"], t["model"], t["m"]): t for t in table("op_times.csv")}
# Table 8 sets ZB-V beside the others on the times of its own runs, where a rank's operation is two chunks'.
SOURCE = {"5": "table-9", "8": "zb-v-runs"}
RATES = [(r, TIMES[SOURCE[r["table"]], r["model"], r["m"]]) for r in table("bubble_rates.csv")]


def published(*names: str) -> list:
    return [pytest.param(r, t, id="-".join(list(r.values())[:5])) for r, t in RATES if r["schedule"] in names]


@pytest.mark.parametrize(("rate", "times"), published("1F1B", "ZB-H1", "ZB-H2"))
def test_bubble_rates_of_zero_bubble(rate, times):
    if rate["table"] == "8":
        times = times | {k: str(2 * float(times[k])) for k in ("forward", "input_grad", "weight_grad")}
    name = rate["schedule"].lower()
    # 1F1B's ranks wait for one another at the end; the zero-bubble ones' don't (post-validation).
    timeline = simulate(name, times)
    bubble = timeline.bubble_fraction(span=name != "1f1b")
    assert round(bubble, 4) == pytest.approx(float(rate["bubble_rate"]), abs=1e-9)


LAYERS = {"1.5B": 24, "6.2B": 32, "14.6B": 48, "28.3B": 64}
"""Layers with the embedding's and the head's place counted: the paper's 1F1B-I has one layer a chunk."""


@pytest.mark.parametrize(("rate", "times"), published("1F1B-I"))
def test_bubble_rates_of_interleaved(rate, times):
    p, v = int(rate["p"]), LAYERS[rate["model"]] // int(rate["p"])
    scale = {"5": 1 / v, "8": 2 / v}[rate["table"]]
    times = times | {k: str(scale * float(times[k])) for k in ("forward", "input_grad", "weight_grad")}
    timeline = simulate("interleaved", times, v=v)
    # The published step is shorter by p transfers than an order in which every transfer delays (found, not stated).
    step = timeline.makespan_s - p * float(times["transfer"])
    assert round(1 - timeline.busy_s.mean() / step, 4) == pytest.approx(float(rate["bubble_rate"]), abs=1e-9)


@pytest.mark.parametrize(("rate", "times"), published("ZB-V"))
def test_bubble_rates_of_zb_v_by_hand(rate, times):
    # Published for the fitted list; the order by hand is as good to 0.0015.
    rate_of_ours = simulate("zb-v", times, v=2).bubble_fraction(span=True)
    assert rate_of_ours == pytest.approx(float(rate["bubble_rate"]), abs=0.0016)


SIZES = {"1.5B": (2304, 24), "6.2B": (4096, 32), "14.6B": (5120, 40), "28.3B": (6144, 48)}
"""Hidden size and heads; a micro-batch's activations are sb(34h + 5as) bytes, 32sbh of them for W (s = 1024)."""


@pytest.mark.parametrize(("rate", "times"), published("ZB-1p", "ZB-2p", "ZB-V"))
def test_bubble_rates_of_fitted_zero_bubble(rate, times):
    hidden, heads = SIZES[rate["model"]]
    kept = 32 * hidden / (34 * hidden + 5 * heads * 1024)
    schedule = get_schedule(rate["schedule"].lower())
    v = schedule.chunks
    pipe = Pipeline(p=int(rate["p"]), m=int(rate["m"]), v=v)
    # Whole microseconds, as the authors count: ties decide.
    f, i, w, transfer = (round(1e3 * float(times[k])) for k in ("forward", "input_grad", "weight_grad", "transfer"))
    order = schedule.fitted(pipe, (f, i, w), transfer, kept)
    timeline = run(order, durations(order, f, i, w), transfer)
    assert round(timeline.bubble_fraction(span=True), 4) == pytest.approx(float(rate["bubble_rate"]), abs=1e-9)
    assert timeline.peak(kept=kept).max() / v <= {"zb-2p": 2}.get(schedule.name, 1) * pipe.p + 1e-9


@pytest.mark.parametrize("case", table("controllable_memory.csv"), ids=lambda c: "-".join(list(c.values())[:4]))
def test_v_half_and_v_min_equal_their_authors_generator(case):
    p = int(case["p"])
    timeline = simulate(case["schedule"], case, v=2)
    assert timeline.span_s == pytest.approx(float(case["longest_s"]), abs=5e-4)
    assert timeline.bubble_fraction(span=True) == pytest.approx(float(case["bubble_rate"]), abs=5e-6)
    assert timeline.peak(kept=1.0).max() / 2 == float(case["peak_micro_batches"])
    assert timeline.peak(kept=1.0).max() / 2 == {"v-half": (p + 2) // 2, "v-min": (p + 4) // 3}[case["schedule"]]


@pytest.mark.parametrize(("name", "p", "m", "alone", "with_head"), [
    ("v-half-vocab-1", 2, 8, 11.0, 10.4), ("v-half-vocab-1", 4, 16, 18.0, 17.6), ("v-half-vocab-1", 5, 16, 20.0, 19.2),
    ("v-half-vocab-1", 8, 5, 34.0, 32.8), ("v-half-vocab-1", 8, 32, 32.0, 31.0),
    ("v-half-vocab-1", 16, 64, 60.0, 57.8),
    ("v-half-vocab-2", 2, 8, 8.0, 7.4), ("v-half-vocab-2", 4, 16, 15.0, 14.8), ("v-half-vocab-2", 5, 16, 17.0, 16.6),
    ("v-half-vocab-2", 8, 5, 30.0, 29.4), ("v-half-vocab-2", 8, 32, 29.0, 28.2),
    ("v-half-vocab-2", 16, 64, 57.0, 55.0),
])  # fmt: skip
def test_v_half_with_a_shared_head_equals_its_authors_generator(name, p, m, alone, with_head):
    """Idle slots of the rows that branch v-half-vocab makes (92895b9a), and ours; F = I = W = 1, a head of 0.6."""
    order = get_schedule(name).order(Pipeline(p=p, m=m, v=2))
    for head, idle in (((0.0, 0.0, 0.0, 0.0), alone), ((0.2, 0.4, 0.4, 0.2), with_head)):
        timeline = run(order, durations(order, 1.0, 1.0, 1.0, head))
        assert timeline.span_s - m * (6.0 + head[0] + head[1]) == pytest.approx(idle, abs=1e-9)


@pytest.mark.parametrize("p", range(2, 13))
@pytest.mark.parametrize(("name", "peak"), [("v-half", lambda p: (p + 2) // 2), ("v-min", lambda p: (p + 4) // 3)])
def test_v_half_and_v_min_hold_what_their_paper_says_on_any_number_of_ranks(name, peak, p):
    order = get_schedule(name).order(Pipeline(p=p, m=3 * p, v=2))
    assert run(order, durations(order, 1.0, 1.0, 1.0), 0.0).peak(kept=1.0).max() / 2 == peak(p)


@pytest.mark.parametrize("p", [4, 8])
@pytest.mark.parametrize(("waves", "near"), [(2, 0.07), (4, 0.015)])
def test_hanayo_is_near_its_paper_formula(p, waves, near):
    # arXiv 2308.15762: (2P - 2)/(3PW + P - 1) for B = 2F, m = P.
    fraction = float(get_schedule("hanayo").bubble_fraction(Pipeline(p=p, m=p, v=2 * waves)))
    assert fraction == pytest.approx((2 * p - 2) / (3 * p * waves + p - 1), rel=near)


@pytest.mark.parametrize("p", range(2, 17))
def test_one_wave_of_hanayo_idles_as_long_as_its_paper_says(p):
    """2P - 2 forwards, beside 3P of work: the paper's fraction has them over 3P + P - 1, less than both together."""
    hanayo, pipe = get_schedule("hanayo"), Pipeline(p=p, m=p, v=2)
    assert float(hanayo.bubble_s(pipe, 1.0, 1.0, 1.0)) == pytest.approx(2 * p - 2)
    assert float(hanayo.bubble_fraction(pipe)) == pytest.approx((2 * p - 2) / (3 * p + 2 * p - 2))


@pytest.mark.parametrize(("name", "p", "m", "fraction"), [
    # The closed forms, F = I = W: (p - 1)/(m + p - 1), its v-th part, and zero-bubble's.
    ("gpipe", 4, 8, 3 / 11), ("1f1b", 4, 8, 3 / 11), ("interleaved", 4, 8, 3 / 19), ("breadth-first", 4, 8, 3 / 19),
    ("zb-h1", 4, 8, 1 / 9), ("zb-h2", 4, 8, 0.0), ("zb-v", 4, 8, 0.0), ("2bw", 4, 8, 0.0),
    # Chimera, Table 2 (F = B) and B = 2F; BitPipe the same over twice the stages; DualPipe's README.
    ("chimera", 4, 4, 2 / (3 / 2 * 4 + 2)), ("bitpipe", 4, 4, 2 / (3 * 4 + 2)),
    ("dualpipe", 4, 8, 2 / (3 * 8 + 2)), ("dualpipev", 4, 8, 3 / (3 * 8 + 3)),
])  # fmt: skip
def test_published_bubble_fractions(name, p, m, fraction):
    schedule = get_schedule(name)
    pipe = Pipeline(p=p, m=m, v=schedule.chunks or 2)
    assert float(schedule.bubble_fraction(pipe)) == pytest.approx(fraction, abs=1e-12)


def test_chimera_with_equal_passes():
    # Table 2: (D - 2)/(2N + D - 2) where F = B.
    fraction = get_schedule("chimera").bubble_fraction(Pipeline(p=8, m=16), 1.0, 0.5, 0.5)
    assert float(fraction) == pytest.approx(6 / (2 * 16 + 6))


@pytest.mark.parametrize("p", [4, 6, 8, 10, 16, 32])
def test_chronospipe_holds_three_quarters_of_1f1b(p):
    """And half a micro-batch: .875 of 1F1B's peak on 4 ranks, .78 on 16, the paper's .75 of ever more."""
    chronos, plain = get_schedule("chronospipe"), get_schedule("1f1b")
    size, one = Pipeline(p=p, m=2 * p, v=2), Pipeline(p=p, m=2 * p)
    assert float(chronos.in_flight(size, 0)) == 0.75 * p + 0.5
    assert float(chronos.bubble_s(size, 1.0, 1.0, 1.0)) == float(plain.bubble_s(one, 1.0, 1.0, 1.0))


@pytest.mark.parametrize("p", [4, 7, 10, 16])
def test_1f1b_v_holds_two_thirds_of_1f1b(p):
    folded, plain = get_schedule("1f1b-v"), get_schedule("1f1b")
    size, one = Pipeline(p=p, m=2 * p, v=2), Pipeline(p=p, m=2 * p)
    assert float(folded.in_flight(size, np.arange(p)).max()) == (2 * p + 1) / 3
    assert float(folded.bubble_s(size, 1.0, 1.0, 1.0)) == float(plain.bubble_s(one, 1.0, 1.0, 1.0))
