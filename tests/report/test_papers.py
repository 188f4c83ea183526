"""The page of papers: what a reader sees of claims."""

from html import escape

from planner.report.papers import DOTS, draw_claims, notes, page_view, papers_markdown
from planner.report.plain_table import html_of
from planner.reproductions import Claim, Outcome, Paper, Reproduction


def outcome(sentence, ours, why="its cards are slower") -> Outcome:
    about = {"sentence": sentence, "figure": 10.0, "unit": "s", "where": "table 2", "standing": "read"}
    return Outcome(claim=Claim(**about, by="layout", why=why), ours=ours)


ROWS = (outcome("first", 20.0), outcome("second", 10.0), outcome("third", 5.0), outcome("fourth", 5.0, "another"))


def test_a_reason_is_given_once_and_only_of_what_is_off():
    known, again = "cost models; its cards are slower", "cost models; as above"
    assert notes(ROWS) == [known, "cost models", again, "cost models; another"]
    assert notes(ROWS[1:]) == ["cost models", known, "cost models; another"]


def test_a_page_has_a_row_and_a_dot_for_each_claim():
    paper = Paper(name="a-paper", title="A paper", source="its authors", systems=(1,), claims=())
    done = [Reproduction(paper=paper, outcomes=ROWS)]
    page, text = html_of(page_view(done, {1: "a system"})), papers_markdown(done, {1: "a system"})
    (axis,) = draw_claims(done).axes
    assert [tuple(point) for dots in axis.collections for point in dots.get_offsets()] == [
        (1, 0),
        (0, 0),
        (-1, 0),
        (-1, 0),
    ]
    assert escape(DOTS) in page
    for o in ROWS:
        assert page.count(f">{o.claim.sentence}</td>") == 1
        assert text.count(f"| {o.claim.sentence} |") == 1
    assert page.count("its cards are slower") == text.count("its cards are slower") == 1
    assert page.count(">OFF<") == 3
