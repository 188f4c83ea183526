"""The page: the report's style, script and sections, with the form beside them. It loads nothing else."""

from __future__ import annotations

from pathlib import Path
from string import Template

from planner import __version__
from planner.report.html import page as report_page
from planner.serve.fields import form_record

ASSETS = Path(__file__).with_name("assets")


def page_html() -> tuple[str, str]:
    """The page, and the policy that lets it load nothing and ask nobody but its own server."""
    style = report_page.text_of("style.css") + (ASSETS / "serve.css").read_text(encoding="utf-8")
    script = report_page.wrapped([*report_page.drawing_parts(), *sorted(ASSETS.glob("*.js"))])
    policy = report_page.policy(style, script) + "; connect-src 'self'; img-src data:; frame-ancestors 'none'"
    html = Template((ASSETS / "page.html").read_text(encoding="utf-8")).substitute(
        version=__version__, style=style, script=script, sections=report_page.text_of("sections.html"),
        form=report_page.script_json(form_record()),
    )  # fmt: skip
    return html, policy
