"""The run that an import makes of a configuration, and a configuration file's fields by dotted name: which were
read, and faults that name a field."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError, shown
from planner.choices.choice import LARGEST
from planner.hardware import Framework
from planner.layouts import Layouts
from planner.setup import Setup

FP32_BYTES = 4.0


@dataclass(frozen=True, kw_only=True, eq=False)
class ExistingRun:
    """A run that exists, as planner sees it.

    setup: the framework's profile is without what the run has turned off; profile: the same with everything on.
    layouts: a table of one. switches: what would turn on each thing that is off, with the profile's fields. notes: what
    was assumed, or can't be seen by the model. unknown: arguments that were not understood. ignored: how many were
    understood to change neither time nor memory. judged: whether its memory is counted, so that it fits or doesn't.
    misspelt: whether an argument that was not understood is probably one that planner reads.
    """

    title: str
    setup: Setup
    layouts: Layouts
    profile: Setup
    switches: dict[str, tuple[str, ...]]
    notes: tuple[str, ...]
    unknown: tuple[str, ...]
    ignored: int
    judged: bool = True
    misspelt: bool = False


def stated_gradients(f: Framework, precision: str, kept: str, sent: str) -> dict[str, str]:
    """The choices of a layout for gradients kept and sent in fp32 or bf16; none where the framework does the same.

    kept, sent: "fp32" or "bf16", which in fp16 training stands for its 16 bits.
    """
    if precision in ("bf16", "fp8"):
        sizes = (f.bf16_gradient_bytes, f.bf16_grad_reduce_bytes)
    elif precision == "fp16":
        sizes = (f.gradient_bytes, f.grad_reduce_bytes)
    else:
        return {}
    own = tuple("fp32" if size >= FP32_BYTES else "bf16" for size in sizes)
    if own == (kept, sent) or (precision == "fp16" and "bf16" in (kept, sent)):
        return {}
    return {"grad_dtype": kept} | ({"grad_reduce_dtype": sent} if sent != kept else {})


FORMATS = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16"}
"""DeepSpeed's and torchtitan's names of number formats, by their size."""


@dataclass(frozen=True)
class Fields:
    """A file's fields by dotted name, and which were read; kind: what its format calls a table. Faults name a field."""

    path: Path
    content: dict[str, Any]
    kind: str
    read: set[str] = field(default_factory=set)

    def get(self, name: str) -> Any:
        """The value of a field, None where it isn't given; a fault if what should hold it is no table."""
        self.read.add(name)
        above, _, last = name.rpartition(".")
        return (self.table(above) if above else self.content).get(last)

    def table(self, name: str) -> dict[str, Any]:
        """A table; empty where it isn't given."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, self.kind)
        return value or {}

    def number(self, name: str, default: int = 0, *, least: int = 1, most: int = LARGEST) -> int:
        """A whole number; the default where it isn't given."""
        value = self.get(name)
        if value == "auto":
            raise FileFormatError(f"{self.path}: field {name} is 'auto', which the trainer fills in; write the number")
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return default if value is None else int(value)

    def one_of(self, name: str, allowed: Iterable[Any], default: Any) -> Any:
        """One of the values allowed; the default where it isn't given."""
        value = self.get(name)
        if value is not None and value not in [*allowed]:
            raise self.wrong(name, ", ".join(str(x).lower() if isinstance(x, bool) else str(x) for x in allowed))
        return default if value is None else value

    def wrong(self, name: str, allowed: str) -> FileFormatError:
        """The fault of a field's value."""
        return FileFormatError(f"{self.path}: field {name} is {shown(self.get(name))}; allowed: {allowed}")
