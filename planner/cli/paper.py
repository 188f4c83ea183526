"""`planner paper`: a seed paper's claims beside what our models give."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import completion as complete
from planner.cli import options as o


def command(
    name: Annotated[
        str,
        typer.Argument(
            help="lamy-poirier-2021, -2022, narayanan-2021, hagemann-2023, seq1f1b, pipedream-2bw, published-runs.",
            autocompletion=complete.papers,
        ),
    ],
    json: o.Json = False,
) -> None:
    """Reproduce a paper: its claims, how we know them, our figures under its assumptions and under ours, agree or not.

    Example: planner paper lamy-poirier-2021
    """
    from planner.report.papers import paper_record, paper_view
    from planner.reproductions import get_paper

    with o.working("computing the paper's claims"):
        paper = get_paper(name)
    if json:
        o.print_json(paper_record(paper))
    else:
        o.print_view(paper_view(paper))
