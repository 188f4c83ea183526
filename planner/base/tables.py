"""Tables of files as pydantic models: strict, with refusals that say what is allowed."""

from collections.abc import Callable
from typing import Any

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class StrictTable(BaseModel):
    """A table in which no unknown field passes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def refuse(allowed: str) -> PydanticCustomError:
    """A refusal whose whole message is what is allowed; braces would be read as a template's."""
    return PydanticCustomError("refused", "{allowed}", {"allowed": allowed})


def rule(holds: Callable[[Any], Any], allowed: str) -> AfterValidator:
    """A rule that a field's value keeps, refused with what is allowed."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise refuse(allowed)
        return value

    return AfterValidator(check)
