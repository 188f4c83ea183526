"""An answer of any use case: a title, a record for machines, a view for people."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.base.errors import InputError
from planner.base.files import check_writable, given_path, write_bytes
from planner.report.plain_table import View, html_of, plain_text

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from planner.api.plan import Plan


PICTURES = (".svg", ".png", ".html")
"""How a picture's path ends."""


class Shown(ABC):
    """An answer that prints as a command does, and as JSON."""

    kept: bool = True
    """Whether something is as was asked for; where nothing is, a command ends with exit code 1."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values; docs/json.md has the keys."""

    @property
    @abstractmethod
    def lines(self) -> tuple[View, ...]:
        """The answer as a person reads it."""

    @abstractmethod
    def plot(self) -> Figure:
        """The answer as a figure of matplotlib."""

    def save_picture(self, path: str | os.PathLike[str]) -> None:
        """Saves `plot`'s picture as .svg or .png; as .html, a page with it above the printed text.

        Raises:
            InputError: Another suffix, or an answer that has nothing to draw.
            OutputError: The path can't be written.
        """
        from planner.report.pictures import page, picture

        target = given_path("path", path)
        if target.suffix not in PICTURES:
            raise InputError(f"path is {target}; allowed for a picture: one that ends in {', '.join(PICTURES)}")
        check_writable(target)
        html = target.suffix == ".html"
        write_bytes(target, page(self.plot, *self.lines) if html else picture(self.plot, target.suffix[1:]))

    def to_json(self) -> str:
        """`to_dict` as JSON: of a plan or a layout what `planner train` and other commands read."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def __repr__(self) -> str:
        return plain_text(*self.lines)

    def _repr_html_(self) -> str:
        return html_of(*self.lines)


@dataclass(frozen=True, repr=False, eq=False)
class Answer(Shown):
    """A use case's answer; it prints as the command of the same name does.

    Attributes:
        title: The question in one line; empty where the view says it.
        record: The answer as plain values, which `--json` prints (docs/json.md has the keys).
        view: The answer as a person reads it.
        draw: Makes the picture, a figure of matplotlib; None where there is nothing to draw.
        plan: The plan of its layout, where it is of one that was searched.
        kept: Whether something is as was asked for: a training that ends, or keeps the deadline, a script that fits.
    """

    title: str
    record: dict[str, Any]
    view: View
    draw: Callable[[], Figure] | None = None
    plan: Plan | None = None
    kept: bool = True

    def plot(self) -> Figure:
        """The picture as a figure of matplotlib. Raises InputError where there is nothing to draw."""
        if self.draw is None:
            raise InputError("a picture is asked for, of an answer that has nothing to draw")
        return self.draw()

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values."""
        return dict(self.record)

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each entry of the record's longest list of entries, inner keys after a dot; else one row.

        Of a list of one entry, such as one cluster's, its own longest list.
        """
        import pandas

        return pandas.json_normalize(_rows(self.record))

    @property
    def lines(self) -> tuple[View, ...]:
        """The title, where there is one, and the view."""
        return (self.title, "", self.view) if self.title else (self.view,)


def _rows(record: dict[str, Any]) -> Any:
    """The longest list of entries, or the record where it has none."""
    lists = [v for v in record.values() if isinstance(v, list) and v and all(isinstance(x, dict) for x in v)]
    longest = max(lists, key=len, default=[record])
    return _rows(longest[0]) if len(longest) == 1 and lists else longest
