"""`planner doctor`: what is installed, what works, and the command that installs what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.cli import options as o

if TYPE_CHECKING:
    from planner.cli.installation import Finding, Requirement


def command(json: o.Json = False) -> None:
    """Look at this installation: versions, processors, memory, GPU, MPI, optional parts; what works, what mends it.

    Example: planner doctor
    """
    from dataclasses import asdict
    from pathlib import Path

    import planner
    from planner.api.answer import Answer
    from planner.cli.installation import findings, machine, requirements
    from planner.report.plain_table import stacked

    about = {"planner": f"{planner.__version__} at {Path(planner.__file__).parent}"} | machine()
    with o.working("looking"):
        found, needs = findings(), requirements()
    record = {"about": about, "findings": [asdict(f) for f in found], "requirements": [asdict(r) for r in needs]}
    o.show(Answer("", record, stacked(*_view(about, found, needs))), json)


def _view(about: dict[str, str], found: list[Finding], needs: list[Requirement]) -> list[Any]:
    """Facts, what works, packages by extra, and the commands."""
    from rich.text import Text

    from planner.cli.installation import install_command
    from planner.report.plain_table import plain_table

    facts = plain_table("", "", rows=about.items())
    works = plain_table("part", "works", "seen", "to mend it")
    for f in found:
        verdict = Text("yes", "green") if f.works else Text("no", "yellow") if f.optional else Text("NO", "red")
        works.add_row(f.name, verdict, f.seen, "" if f.works else f.remedy)
    packages = plain_table("for", "packages", "to install what is missing")
    for extra in sorted({r.extra for r in needs}):
        mine = [r for r in needs if r.extra == extra]
        said = ", ".join(
            f"{r.package} {r.installed or 'MISSING'}{f', TOO OLD: {r.asked}' if r.installed and not r.enough else ''}"
            for r in mine
        )
        ready = all(r.enough for r in mine)
        packages.add_row(extra or "planner", said, "" if ready else install_command(extra))
    unknown = "planner runs from a folder that pip did not install: its packages are not listed."
    return [facts, "", works, "", packages if needs else unknown]
