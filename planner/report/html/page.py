"""The page: one file with its style, script and data inside, and a policy that lets it load nothing else."""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template

from planner.report.html.record import report_record
from planner.report.plan_report import PlanReport
from planner.report.tables import layout_text

ASSETS = Path(__file__).with_name("assets")


def html_page(report: PlanReport) -> str:
    """The report as one HTML file that needs no network; the same report gives the same text."""
    style, script = text_of("style.css"), wrapped([*drawing_parts(), ASSETS / "start.js"])
    best = report.found.best
    return Template(text_of("page.html")).substitute(
        policy=policy(style, script),
        title=escape(report.title),
        heading="Run this" if len(best) else "Nothing fits in memory",
        layout=escape(layout_text(report.found.estimate.layouts.row(int(best[0])))) if len(best) else "",
        command=escape(report.command),
        version=escape(report.version),
        sections=text_of("sections.html"),
        style=style,
        script=script,
        data=script_json(report_record(report)),
    )


def text_of(name: str) -> str:
    """A file that pages are made of."""
    return (ASSETS / name).read_text(encoding="utf-8")


def drawing_parts() -> list[Path]:
    """The script that draws an answer, a file a section, in order; what starts it is each page's own."""
    return sorted(ASSETS.glob("[0-9]*.js"))


def wrapped(parts: Sequence[Path]) -> str:
    """Files as one script that leaves no names behind."""
    return '"use strict";\n(() => {\n' + "".join(part.read_text(encoding="utf-8") for part in parts) + "})();\n"


def policy(style: str, script: str) -> str:
    """The content security policy of a page that has this style and script, and loads nothing."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )


def script_json(record: object) -> str:
    """JSON that can stand inside a script element: no text of it can end the element or begin a comment."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    """An inline text's hash for a content security policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
