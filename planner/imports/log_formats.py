"""The formats in which frameworks print iterations, from `log_formats.toml`, which says what the fields mean."""

import re
from functools import cache
from pathlib import Path
from re import Pattern
from typing import Annotated

from pydantic import BeforeValidator, TypeAdapter

from planner.base.files import read_toml
from planner.base.tables import StrictTable

SHIPPED = Path(__file__).with_name("log_formats.toml")
NUMBER = r"[0-9][0-9,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?"
Expression = Annotated[Pattern[str], BeforeValidator(lambda text: re.compile(text.replace("NUMBER", NUMBER)))]


class LogFormat(StrictTable):
    """How one framework's log is read: a table of the file."""

    marks: tuple[str, ...]
    begins: Expression
    facts: tuple[Expression, ...]
    anywhere: tuple[Expression, ...] = ()
    source: str


@cache
def log_formats() -> dict[str, LogFormat]:
    """The formats by the framework's name, in the order in which they are tried."""
    return TypeAdapter(dict[str, LogFormat]).validate_python(read_toml(SHIPPED))
