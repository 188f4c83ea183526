"""Tables of files as pydantic models: strict, with refusals that say what is allowed."""

from collections.abc import Callable
from typing import Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from planner.base.checks import kept


class StrictTable(BaseModel):
    """A table in which no unknown field passes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def rule(holds: Callable[[Any], Any], allowed: str) -> AfterValidator:
    """A rule that a field's value keeps, refused with what is allowed."""
    return AfterValidator(kept(holds, allowed))
