"""pandas, imported only where a table is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


def frame(columns: dict[str, Any]) -> pandas.DataFrame:
    """A DataFrame of columns."""
    import pandas

    return pandas.DataFrame(columns)
