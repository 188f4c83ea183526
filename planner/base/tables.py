"""Tables of files as pydantic models: strict, with refusals that say what is allowed."""

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class StrictTable(BaseModel):
    """A table in which no unknown field passes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def refuse(allowed: str) -> PydanticCustomError:
    """A refusal whose whole message is what is allowed; braces would be read as a template's."""
    return PydanticCustomError("refused", "{allowed}", {"allowed": allowed})
