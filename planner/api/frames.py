"""pandas, imported only where a table is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.base.errors import MissingPackageError

if TYPE_CHECKING:
    import pandas


def frame(columns: dict[str, Any]) -> pandas.DataFrame:
    """A DataFrame of columns.

    Raises:
        MissingPackageError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise MissingPackageError("to_pandas needs pandas; pip install pandas") from None
    return pandas.DataFrame(columns)
