"""Files' tables as schemas of pydantic's core, which loads in a tenth of pydantic's time; a checked one is a dict."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic_core import PydanticCustomError, SchemaValidator

Schema = dict[str, Any]
Check = Callable[[Any], Any]


def refuse(allowed: str) -> PydanticCustomError:
    """A refusal whose whole message is what is allowed; braces would be read as a template's."""
    return PydanticCustomError("refused", "{allowed}", {"allowed": allowed})


def kept(holds: Check, allowed: str) -> Check:
    """A check of a rule that a value keeps, refused with what is allowed."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise refuse(allowed)
        return value

    return check


def checked(schema: Schema, *checks: Check, when: str = "after") -> Schema:
    """The schema with checks after it, or before: each hands on what it makes of the value."""
    for check in checks:
        schema = {"type": f"function-{when}", "function": {"type": "no-info", "function": check}, "schema": schema}
    return schema


def optional(schema: Schema, default: Any = None) -> Schema:
    """A value that may be left out."""
    return {"type": "default", "schema": {"type": "nullable", "schema": schema}, "default": default}


def one_of(words: Iterable[str]) -> Schema:
    """One of these words."""
    return {"type": "literal", "expected": [*words]}


def table(schemas: Mapping[str, Schema]) -> Schema:
    """A table in which no unknown field passes."""
    known = {name: {"type": "typed-dict-field", "schema": schema, "required": schema["type"] != "default"}
             for name, schema in schemas.items()}  # fmt: skip
    return {"type": "typed-dict", "fields": known, "extra_behavior": "forbid"}


def record_table(kind: type) -> Schema:
    """A table that becomes a record: a dataclass whose fields are annotated with their schemas."""
    hints = get_type_hints(kind, include_extras=True)
    return checked(table({f.name: hints[f.name].__metadata__[0] for f in fields(kind)}), lambda given: kind(**given))


def named(kind: type) -> Schema:
    """Records by name, or none."""
    return optional({"type": "dict", "values_schema": record_table(kind)}, {})


class CheckedTable:
    """A table's schema that stands for a pydantic model in `planner.base.files.validate`."""

    def __init__(self, schema: Schema) -> None:
        self.__pydantic_core_schema__, self.model_validate = schema, SchemaValidator(schema).validate_python
