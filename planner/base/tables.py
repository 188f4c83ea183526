"""Tables of files as pydantic models."""

from pydantic import BaseModel, ConfigDict


class StrictTable(BaseModel):
    """A table in which no unknown field passes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
