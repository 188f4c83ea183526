"""A hook of the site, as it is built: each command's --help, and the tables of choices and of figures."""

from __future__ import annotations

from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from planner.choices.table import CHOICES
from planner.cli import app
from planner.hardware import Accelerator, Cluster, Efficiency, Framework, Link
from planner.hardware.declared import declared

RECORDS = (Cluster, Accelerator, Efficiency, Link, Framework)


def choices_table() -> str:
    """Every choice of a layout, as `planner.choices.table` declares it."""
    rows = [
        f"| `{c.name}` | {c.short} | {c.allowed} | {c.derived or c.plain(c.default)} | {c.says} |"
        for c in CHOICES.values()
    ]
    head = "| choice | in a line of text | allowed | default | what it is |\n| --- | --- | --- | --- | --- |"
    return "\n".join(["\n## Choices of a layout\n", head, *rows, ""])


def figures_table(record: type) -> str:
    """Every figure of a record's profile: its key, range, default with its reason, and sentence."""
    rows = []
    for name, (_, d) in declared(record).items():
        default = f"as `{d.like}`" if d.like else ""
        if d.default is not None:
            default = f"{d.default:g}{f' times `{d.each}`' if d.each else ''}: {d.because}"
        keys = " or ".join(f"`{key}`" for key in d.names(name)) + (f" by {', '.join(d.keys)}" if d.keys else "")
        rows.append(f"| {keys} | {d.least:g} to {d.most:g} | {'needed' if d.needed else default} | {d.says} |")
    head = "| key | range | where it isn't stated | what it is |\n| --- | --- | --- | --- |"
    return "\n".join([f"\n## Figures of a profile: {record.__name__}\n", head, *rows, ""])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The help of every command, or the declared choices and figures, below the page's own text."""
    if page.file.src_uri == "reference/inputs.md":
        return markdown + choices_table() + "".join(figures_table(record) for record in RECORDS)
    if page.file.src_uri != "reference/commands.md":
        return markdown
    runner = CliRunner(env={"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"})
    for name in get_command(app).commands:  # type: ignore[attr-defined]
        said = runner.invoke(app, [name, "--help"], prog_name="planner").stdout
        text = "\n".join(line.rstrip() for line in said.strip("\n").splitlines())
        markdown += f"\n## planner {name}\n\n```text\n{text}\n```\n"
    return markdown
