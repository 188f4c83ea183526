"""Views as HTML for a notebook's cell: what a command prints, tables as tables; what comes from a file is escaped."""

from __future__ import annotations

from html import escape

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.report.plain_table import plain_cell, plain_text


def html_of(*views: RenderableType) -> str:
    """Views under each other; a drawing, which has lines of its own, as it is printed."""
    return f"<div>{''.join(map(_html, views))}</div>"


def _html(view: RenderableType) -> str:
    if isinstance(view, Group):
        return "".join(map(_html, view.renderables))
    if isinstance(view, Padding):
        return f'<div style="margin-left:{view.left}ch">{_html(view.renderable)}</div>'
    if isinstance(view, Table):
        return _table(view)
    if not isinstance(view, (str, Text)) or "\n" in plain_cell(view):
        return f"<pre>{escape(plain_text(view))}</pre>"
    text = escape(plain_cell(view)) or "&nbsp;"
    return f"<div>{f'<b>{text}</b>' if isinstance(view, Text) and 'bold' in str(view.style) else text}</div>"


def _table(view: Table) -> str:
    """A table, its figures right, with a head where it has one."""
    sides = [f'style="padding:1px .6em;text-align:{"right" if c.justify == "right" else "left"}"' for c in view.columns]

    def row(cells: list[RenderableType], tag: str, style: str = "") -> str:
        inner = "".join(f"<{tag} {side}>{escape(plain_cell(c))}</{tag}>" for side, c in zip(sides, cells, strict=True))
        return f'<tr style="font-weight:{"bold" if "bold" in style else "inherit"}">{inner}</tr>'

    heads = [column.header for column in view.columns]
    head = f"<thead>{row(heads, 'th')}</thead>" * any(map(plain_cell, heads))
    cells = zip(*(list(column.cells) for column in view.columns), strict=True)
    body = "".join(row(list(c), "td", str(r.style or "")) for r, c in zip(view.rows, cells, strict=True))
    return f"<table>{head}<tbody>{body}</tbody></table>"
