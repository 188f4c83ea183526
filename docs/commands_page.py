"""A hook of the site: the page of commands is what each says of itself with --help, as the site is built."""

from __future__ import annotations

from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from planner.cli import app


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The help of every command below the page's own text."""
    if page.file.src_uri != "reference/commands.md":
        return markdown
    runner = CliRunner(env={"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"})
    for name in get_command(app).commands:  # type: ignore[attr-defined]
        said = runner.invoke(app, [name, "--help"], prog_name="planner").stdout
        text = "\n".join(line.rstrip() for line in said.strip("\n").splitlines())
        markdown += f"\n## planner {name}\n\n```text\n{text}\n```\n"
    return markdown
