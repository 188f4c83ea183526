"""`planner paper`: papers' claims beside what our models give."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from planner.cli import completion as complete
from planner.cli import options as o


def command(
    name: Annotated[
        str | None,
        typer.Argument(help="A paper, or all; without it the papers are listed.", autocompletion=complete.papers),
    ] = None,
    html: Annotated[Path | None, o.writes("--html", says="Write the claims as a page.")] = None,
    markdown: Annotated[Path | None, o.writes("--markdown", says="Write the claims as Markdown.")] = None,
    json: o.Json = False,
) -> None:
    """Reproduce papers: each claim, how we know it, what our models give, whether that agrees.

    Example: planner paper lamy-poirier-2021
    """
    from planner.api.answer import Answer
    from planner.base.errors import InputError
    from planner.base.files import write_text
    from planner.report import papers as report
    from planner.reproductions import get_paper, paper_names, reproduce, reproduce_all, systems

    o.check_files({"--html": (html, ".html"), "--markdown": (markdown, ".md")})
    if name is None:
        if html or markdown:
            raise InputError("--html and --markdown need a paper's name, or all")
        papers = [get_paper(paper) for paper in paper_names()]
        o.show(Answer("", report.papers_record(papers, systems()), report.papers_view(papers)), json)
        return
    with o.working("computing the claims"):
        done = reproduce_all() if name == "all" else [reproduce(name)]
    if html is not None:
        Answer("", {}, report.page_view(done, systems()), partial(report.draw_claims, done)).save_picture(html)
    if markdown is not None:
        write_text(markdown, report.papers_markdown(done, systems()))
    records = [report.paper_record(d) for d in done]
    if name == "all":
        o.show(Answer("", {"papers": records}, report.all_view(done, systems())), json)
    else:
        o.show(Answer("", records[0], report.paper_view(done[0])), json)
