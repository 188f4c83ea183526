"""Claims as data: what counts as agreement, what the files say, and every claim at the deviation that it has today."""

import csv
from functools import cache

import pytest

from planner import reproductions
from planner.base.errors import UnknownNameError
from planner.reproductions import Claim, Outcome, get_paper, paper_names, preset_of, systems
from planner.reproductions.claims import AGREES, MISSING, OFF, SHOWN, merged
from planner.reproductions.evaluate import EVALUATORS, evaluate
from tests.reproductions.write_deviations import FILE

SLACK = 0.005  # a claim may move by so much of the paper's figure, to either side, before a test says so
reproduce = cache(reproductions.reproduce)
with FILE.open(encoding="utf-8") as lines:
    TODAY = list(csv.DictReader(lines))


def claim(**fields) -> Claim:
    return Claim(
        **({"sentence": "a", "figure": 10.0, "unit": "s", "where": "", "standing": "read", "by": "x"} | fields)
    )


def outcome(ours, **fields) -> Outcome:
    return Outcome(claim=claim(**fields), ours=ours)


@pytest.mark.parametrize("name", paper_names())
def test_every_claim_is_where_it_was(name):
    known = {row["sentence"]: row for row in TODAY if row["paper"] == name}
    found = {o.claim.sentence: o for o in reproduce(name).outcomes}
    assert set(found) == set(known), "python -m tests.reproductions.write_deviations"
    for sentence, o in found.items():
        then, verdict = known[sentence]["deviation"], known[sentence]["verdict"]
        assert (o.deviation is None) == (then == ""), sentence
        assert o.verdict == verdict, f"{sentence}: {o.verdict}, was {verdict}"
        if then:
            assert abs(o.deviation - float(then)) <= SLACK, f"{sentence}: {o.deviation:+.4f}, was {then}"


def test_the_files_are_whole():
    for name in paper_names():
        paper = get_paper(name)
        assert paper.claims
        assert set(paper.systems) <= set(systems())
        assert len({c.sentence for c in paper.claims}) == len(paper.claims), name
        for c in paper.claims:
            assert c.standing in ("read", "recalled", "derived")
            assert c.says in ("about", "at most", "at least")
            assert c.by in ("", *EVALUATORS)
            assert c.where, c.sentence
            assert c.by or c.why, f"{c.sentence}: not reproduced, without a reason"


def test_every_system_has_a_paper():
    assert set(systems()) == set(range(1, 25))
    assert {n for name in paper_names() for n in get_paper(name).systems} == set(systems())


def test_what_is_off_or_missing_says_why():
    for row in TODAY:
        if row["verdict"] in (OFF, MISSING):
            found = {c.sentence: c for c in get_paper(row["paper"]).claims}[row["sentence"]]
            assert found.why, row["sentence"]


def test_no_formula_is_compared_with_itself():
    """What is derived here agrees with nothing, and a schedule's own closed form is no evaluator."""
    for name in paper_names():
        for o in reproduce(name).outcomes:
            if o.claim.standing == "derived":
                assert o.verdict in (SHOWN, MISSING)
    assert outcome(10.0, standing="derived").verdict == SHOWN


def test_agreement_is_a_band():
    assert outcome(11.4).verdict == AGREES
    assert outcome(11.6).verdict == OFF
    assert outcome(11.4, unit="x").verdict == OFF
    assert outcome(10.9, unit="").verdict == AGREES
    assert outcome(None).verdict == MISSING
    assert outcome(3.0, figure=None).verdict == SHOWN


def test_bounds_are_kept_or_not():
    assert outcome(9.0, says="at most").verdict == AGREES
    assert outcome(10.1, says="at most").verdict == OFF
    assert outcome(99.0, says="at least").verdict == AGREES
    assert outcome(9.9, says="at least").verdict == OFF
    assert outcome(0.0, figure=0.0, says="at most").verdict == AGREES
    assert outcome(2.0, figure=0.0, says="at most").verdict == OFF


def test_tables_are_merged_and_taken_away():
    first = {"a": 1, "layout": {"tp": 1, "pp": 2}}
    assert merged(first, {"layout": {"pp": 4, "tp": "-"}, "a": "-"}) == {"layout": {"pp": 4}}


def test_a_ratio_divides_by_what_over_changes():
    about = {"quantity": "step", "schedule": "1f1b", "p": 4, "m": 8}
    ratio = evaluate(claim(by="timeline", arguments=about | {"over": {"m": 16}}))
    assert ratio.ours == pytest.approx((8 + 3) / (16 + 3))


def test_what_can_not_be_computed_is_not_reproduced():
    o = evaluate(claim(by="timeline", arguments={"quantity": "step", "schedule": "1f2b", "p": 4, "m": 8}))
    assert (o.ours, o.verdict) == (None, MISSING)
    assert "1f1b" in o.note


def test_unknown_papers():
    with pytest.raises(UnknownNameError, match="lamy-poirier-2021"):
        get_paper("lamy-poirier")
    with pytest.raises(UnknownNameError, match="lamy-poirier-2021"):
        preset_of("seq1f1b")
