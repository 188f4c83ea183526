"""Tables and sentences that fit the screen: they fold between words, or show row under row, and never cut a figure.

In a notebook's cell they are HTML; what comes from a file is escaped.
"""

import io
import re
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from html import escape
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.containers import Lines
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

View = RenderableType
"""What answers are shown as: text, a table, or several of them."""
GAP = 2  # columns between columns
SIGNALS = {"careful:": "yellow", "DOES NOT FIT": "bold red", "does not fit": "red", "Nothing fits": "bold red"}
"""Words that colour makes easier to find; without it they say the same."""
UNITS = "%|s|ms|us|min|h|days|[KMGT]iB|[GM]b/s|USD|TFLOP/s/GPU|tokens/s/GPU"
GLUED, GLUE = re.compile(rf"(?<=\d) (?=(?:{UNITS})(?![\w-]))"), "\ue000"
"""The space between a figure and its unit, where no line ends; and what stands for it meanwhile."""
WORD = re.compile(r"^\s*\S+|\S+")  # a cell's indent folds with its first word
MOST_LINES = 6  # of a folded cell: beyond, a row is better read from top to bottom


class PlainTable(Table):
    """An unframed table. On a narrow screen text folds between words; where words don't fit, rows become blocks."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table at its natural widths, folded, or as blocks."""
        widths = self._widths(options.max_width)
        if widths is None:
            yield from self._blocks()
            return
        fitted = copy(self)
        fitted.columns = [
            replace(column, width=width, no_wrap=False, overflow="fold")
            for column, width in zip(self.columns, widths, strict=True)
        ]
        fitted.show_header = any(plain_cell(column.header) for column in self.columns)
        yield from Table.__rich_console__(fitted, console, options)

    def _texts(self) -> list[list[str]]:
        """Header and cells of each column."""
        return [[plain_cell(column.header), *map(plain_cell, column.cells)] for column in self.columns]

    def _widths(self, room: int) -> list[int] | None:
        """Widths that fit: natural, or fewest folded lines; None where a word would be cut or a cell grow long."""
        texts = self._texts()
        natural = [max(map(cell_len, column)) for column in texts]
        room -= GAP * (len(natural) - 1)
        if sum(natural) <= room:
            return natural
        widths = []
        for column, texts_of in zip(self.columns, texts, strict=True):
            figures = texts_of[1:] if column.no_wrap else []
            words = [word for text in texts_of for word in WORD.findall(text)]
            widths.append(max(map(cell_len, [*figures, *words]), default=0))
        for _ in range(room - sum(widths)):
            lines = [-(-full // max(width, 1)) for full, width in zip(natural, widths, strict=True)]
            longest = max(range(len(widths)), key=lambda i: (lines[i], -natural[i]))
            widths[longest] += 1
        fits = sum(widths) <= room and all(
            full <= MOST_LINES * width for full, width in zip(natural, widths, strict=True)
        )
        return widths if fits else None

    def _blocks(self) -> RenderResult:
        """Each row from top to bottom: its first cell, then a line a column."""
        texts = self._texts()
        for r, row in enumerate(self.rows):
            first, *rest = (column[r + 1] for column in texts)
            yield Text(f"{texts[0][0]}: {first}" if texts[0][0] else first, style="bold", overflow="fold")
            inner = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=False)
            inner.add_column(no_wrap=True, style="dim")
            inner.add_column(overflow="fold", style=row.style or "")
            for column, cell in zip(texts[1:], rest, strict=True):
                if cell:
                    inner.add_row(column[0], cell)
            yield Padding(inner, (0, 0, 0, GAP), expand=False)


def plain_table(*columns: str, numbers: tuple[int, ...] = (), rows: Iterable[Iterable[View]] = ()) -> PlainTable:
    """An unframed table with these rows; `numbers` are right-aligned columns, which never fold."""
    table = PlainTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i in numbers else "left", no_wrap=i in numbers)
    for cells in rows:
        table.add_row(*cells)
    return table


def bold(text: str) -> Text:
    """A line that stands out."""
    return Text(text, style="bold")


def stacked(*parts: View) -> Group:
    """Parts under each other; a sentence keeps its indent where it folds."""
    lines: list[View] = []
    for part in parts:
        lines += map(_sentence, part.split("\n")) if isinstance(part, str) else [part]
    return Group(*lines)


class Sentence(Text):
    """Text that folds between words, and never between a figure and its unit."""

    def wrap(self, console: Console, width: int, **how: Any) -> Lines:
        """The lines."""
        glued = self.copy()
        glued.plain = GLUED.sub(GLUE, self.plain)
        lines = glued.wrap(console, width, **how)
        for line in lines:
            line.plain = line.plain.replace(GLUE, " ")
        return lines


def _sentence(line: str) -> View:
    text = line.lstrip(" ")
    indent = len(line) - len(text)
    shown = Sentence(text)
    for word, style in SIGNALS.items():
        shown.highlight_words([word], style)
    return Padding(shown, (0, 0, 0, indent), expand=False) if indent else shown


def plain_text(*views: View, width: int = 120) -> str:
    """Views as lines without colour, trailing spaces or a final newline, as Python prints an object."""
    out = io.StringIO()
    console = Console(file=out, highlight=False, width=width, no_color=True, markup=False, force_terminal=False)
    for view in views:
        console.print(view)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def plain_cell(cell: View) -> str:
    """A cell's text."""
    return cell.plain if isinstance(cell, Text) else str(cell)


def html_of(*views: View) -> str:
    """Views under each other; a drawing, which has lines of its own, as it is printed."""
    return f"<div>{''.join(map(_html, views))}</div>"


def _html(view: View) -> str:
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
    right, left = "right;white-space:nowrap", "left"
    sides = [f'style="padding:1px .6em;text-align:{right if c.justify == "right" else left}"' for c in view.columns]

    def row(cells: list[View], tag: str, style: str = "") -> str:
        inner = "".join(f"<{tag} {side}>{escape(plain_cell(c))}</{tag}>" for side, c in zip(sides, cells, strict=True))
        return f'<tr style="font-weight:{"bold" if "bold" in style else "inherit"}">{inner}</tr>'

    heads = [column.header for column in view.columns]
    head = f"<thead>{row(heads, 'th')}</thead>" * any(map(plain_cell, heads))
    cells = zip(*(list(column.cells) for column in view.columns), strict=True)
    body = "".join(row(list(c), "td", str(r.style or "")) for r, c in zip(view.rows, cells, strict=True))
    return f"<table>{head}<tbody>{body}</tbody></table>"
