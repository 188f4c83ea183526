"""The seed papers' claims: computed, marked, and in agreement where they are known to be."""

from functools import cache

import pytest

from planner import reproductions as papers
from planner.base.errors import UnknownNameError
from planner.report.papers import paper_record
from planner.reproductions import PAPERS, Claim
from planner.reproductions.claims import OURS, THEIRS, near

get_paper = cache(papers.get_paper)
# The share of comparable claims that agree, at least; what disagrees is printed and explained in the claim's note.
AGREE = {
    "lamy-poirier-2021": 0.85, "lamy-poirier-2022": 1.0, "narayanan-2021": 1.0, "hagemann-2023": 10 / 12,
    "seq1f1b": 1.0, "pipedream-2bw": 0.5, "published-runs": 10 / 15,
}  # fmt: skip


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_agrees_as_far_as_it_is_known_to(name):
    paper = get_paper(name)
    verdicts = [c.agrees for c in paper.claims if c.agrees is not None]
    assert sum(verdicts) >= AGREE[name] * len(verdicts)
    assert all(c.mark in ("read", "recalled", "derived") for c in paper.claims)
    assert len({c.statement for c in paper.claims}) == len(paper.claims)
    assert paper_record(paper)["paper"] == name


def test_all_of_lamy_poiriers_claims_agree_under_its_own_assumptions():
    claims = [c for c in get_paper("lamy-poirier-2021").claims if c.basis == THEIRS]
    assert len(claims) >= 20
    assert [c.statement for c in claims if c.agrees is False] == []


def test_agreement_is_a_band():
    assert near("a", "s", "read", 10.0, 10.5, within=0.1).agrees is True
    assert near("a", "s", "read", 10.0, 12.0, within=0.1).agrees is False
    assert near("a", "s", "read", 10.0, None, within=0.1).agrees is None
    assert Claim(statement="a", unit="", mark="derived", theirs=None, ours=1.0, basis=OURS).agrees is None


def test_unknown_paper():
    with pytest.raises(UnknownNameError, match="lamy-poirier-2021"):
        get_paper("lamy-poirier")
