"""A plan as a file: the question and a chosen layout, as `planner recommend --save` writes it, validated on reading.

Its format is what `--json` prints (docs/json.md): the model travels in `shape`, so that a plan made from a file of one's
own can be read anywhere; cluster and framework are named, never read from a path that a plan gives.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from planner.errors import FileFormatError, InputError, UnknownNameError
from planner.files import is_path, read_json
from planner.hardware import load_cluster, load_framework
from planner.layouts import ENUMS, Layouts
from planner.legality import check_legal
from planner.models import Transformer, load_model
from planner.models.transformer import FLAGS, NOT_NEGATIVE, POSITIVE, check, with_seq_len
from planner.question import LARGEST, Question, one_layout

__all__ = ["Plan", "read_plan"]

SUFFIXES = (".toml", ".json")
FIGURES = ("step_time_s", "mfu", "memory_gib", "tokens_per_s_per_gpu", "memory_gib_per_gpu")


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A question and the layout chosen for it.

    layouts: a table of one, legal. record: the layout's own record in the file: its figures, where it has some.
    gpus_per_node: of the cluster.
    """

    question: Question
    layouts: Layouts
    record: dict[str, Any]

    @property
    def row(self) -> dict[str, Any]:
        """The layout's choices by name."""
        return self.layouts.row(0)

    @property
    def gpus(self) -> int:
        """Accelerators that the layout uses."""
        return int(self.layouts.gpus[0])


def read_plan(
    path: Path, *, number: int = 1, cluster: str | None = None, network: str | None = None, framework: str | None = None
) -> Plan:
    """The plan in a file.

    number: which of the best layouts, counted from 1. cluster, network, framework: instead of those that the plan names.

    Raises:
        FileFormatError: not a plan; names the field, its value and what is allowed.
        LayoutError: a layout that is not legal for the model and the cluster.
        UnknownNameError: a cluster or framework that is not shipped, and no other given.
    """
    record = read_json(path)
    chosen = _chosen(record, number, path)
    model = _model(record, path)
    named, _, over = _name(record, "cluster", path).partition(" over ")
    hardware = load_cluster(
        cluster or _shipped(named, "cluster", path),
        network=network or (_shipped(over, "network", path) if over and cluster is None else None),
    )
    stack = load_framework(framework or _shipped(_name(record, "framework", path), "framework", path))
    layouts = _layouts(chosen["layout"], hardware, path)
    check_legal(model, hardware, layouts)
    for key in FIGURES:
        if key in chosen and not _number(chosen[key]):
            raise FileFormatError(f"{path}: field {key} is {_shown(chosen[key])}; allowed: a finite number")
    question = Question(model=model, cluster=hardware, framework=stack)
    return Plan(question=question, layouts=layouts, record=chosen)


def _chosen(record: dict[str, Any], number: int, path: Path) -> dict[str, Any]:
    """The record of one layout: of the best ones by its number, or the file's only one."""
    best = record.get("best")
    if best is None and number == 1:
        chosen: Any = record
    elif isinstance(best, list) and 1 <= number <= len(best):
        chosen = best[number - 1]
    else:
        count = len(best) if isinstance(best, list) else 1
        raise FileFormatError(f"{path}: has {count} layouts, not a number {number}; allowed: one that it has")
    if not isinstance(chosen, dict) or not isinstance(chosen.get("layout"), dict):
        raise FileFormatError(
            f"{path}: no plan; allowed: what planner recommend --save, recommend --json or estimate --json writes"
        )
    return chosen


def _model(record: dict[str, Any], path: Path) -> Transformer:
    """The model of a plan: its shape, or a preset by name."""
    shape = record.get("shape")
    if shape is None:
        name = _name(record, "model", path)
        if is_path(name, SUFFIXES):
            raise FileFormatError(f"{path}: field model is {_shown(name)}; allowed: a preset's name, or a field shape")
        length = record.get("seq_len")
        model = load_model(name)
        return model if length is None else with_seq_len(model, length)
    sizes, flags = (*POSITIVE, *NOT_NEGATIVE), FLAGS
    known = {f.name for f in fields(Transformer)}
    if not isinstance(shape, dict):
        raise FileFormatError(f"{path}: field shape is {_shown(shape)}; allowed: an object with a model's sizes")
    if unknown := sorted(set(shape) - known):
        raise FileFormatError(f"{path}: unknown field shape.{_one_line(unknown[0])}; allowed: {', '.join(sorted(known))}")
    for key in ("name", "family", *POSITIVE, "ffn"):
        if key not in shape:
            raise FileFormatError(f"{path}: field shape.{key} is missing")
    for key, value in shape.items():
        kind = int if key in sizes else bool if key in flags else str
        if type(value) is not kind:
            raise FileFormatError(f"{path}: field shape.{key} is {_shown(value)}; allowed: a {kind.__name__}")
    try:
        return check(Transformer(**(shape | {"name": _one_line(shape["name"])})))
    except InputError as error:
        raise FileFormatError(f"{path}: field shape: {error}") from None


def _layouts(row: dict[str, Any], hardware: Any, path: Path) -> Layouts:
    """The table of one layout that a plan holds; fields that it lacks have their defaults."""
    default = Layouts.of(global_batch=1).row(0)
    if unknown := sorted(set(row) - set(default)):
        raise FileFormatError(f"{path}: unknown field layout.{_one_line(unknown[0])}; allowed: {', '.join(default)}")
    for key, value in row.items():
        kind = type(default[key])
        if type(value) is not kind:
            raise FileFormatError(f"{path}: field layout.{key} is {_shown(value)}; allowed: a {kind.__name__}")
        if key in ENUMS and value.upper() not in ENUMS[key].__members__:
            names = ", ".join(m.name.lower() for m in ENUMS[key])
            raise FileFormatError(f"{path}: field layout.{key} is {_shown(value)}; allowed: {names}")
    if "global_batch" not in row:
        raise FileFormatError(f"{path}: field layout.global_batch is missing; allowed: a whole number from 1 to {LARGEST}")
    try:
        return one_layout(hardware, **(default | row))
    except UnknownNameError as error:
        raise FileFormatError(f"{path}: field layout.schedule: {error}") from None
    except InputError as error:
        raise FileFormatError(f"{path}: field layout: {error}") from None


def _name(record: dict[str, Any], key: str, path: Path) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value:
        state = "is missing" if value is None else f"is {_shown(value)}"
        raise FileFormatError(f"{path}: field {key} {state}; allowed: a name")
    return value


def _shipped(name: str, kind: str, path: Path) -> str:
    """The name, if it is no path: a plan that somebody sends must not make planner read a file of its choice."""
    if is_path(name):
        raise FileFormatError(f"{path}: field {kind} is {_shown(name)}, a path; give it yourself with --{kind}")
    return name


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _one_line(text: str) -> str:
    """The text without control characters, shortened: names travel into scripts and tables."""
    clean = re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in text)).strip()
    return clean if len(clean) <= 100 else clean[:97] + "..."


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        text = "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."
