"""`planner paper`: papers' claims beside what our models give."""

from __future__ import annotations

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
    from planner.base.errors import InputError
    from planner.base.files import write_text
    from planner.report import papers as report
    from planner.report import papers_page as page
    from planner.reproductions import get_paper, paper_names, reproduce, reproduce_all, systems

    o.check_files({"--html": (html, ".html"), "--markdown": (markdown, ".md")})
    if name is None:
        if html or markdown:
            raise InputError("--html and --markdown need a paper's name, or all")
        papers = [get_paper(paper) for paper in paper_names()]
        listed = report.papers_record(papers, systems())
        o.print_json(listed) if json else o.print_view(report.papers_view(papers))
        return
    with o.working("computing the claims"):
        done = reproduce_all() if name == "all" else [reproduce(name)]
    for path, make in ((html, page.papers_html), (markdown, page.papers_markdown)):
        if path is not None:
            write_text(path, make(done, systems()))
    if json:
        records = [report.paper_record(d) for d in done]
        o.print_json({"papers": records} if name == "all" else records[0])
    else:
        o.print_view(report.all_view(done, systems()) if name == "all" else report.paper_view(done[0]))
