"""Views as plain text: no colour, no width of a terminal, for logs and for what Python prints of an object."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType


def plain_text(*views: RenderableType, width: int = 120) -> str:
    """The views as lines without trailing spaces or a final newline."""
    out = io.StringIO()
    console = Console(file=out, highlight=False, width=width, no_color=True, markup=False, force_terminal=False)
    for view in views:
        console.print(view)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
