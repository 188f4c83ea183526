"""A plan as a file: the question and a chosen layout, as `planner recommend --save` writes it, validated on reading.

Its format is what `--json` prints (docs/json.md): the model travels in `shape`, so that a plan of one's own model can
be read anywhere; cluster and framework are named, never read from a path that a plan gives. What a file says beside
model and layout agrees with them: one that was edited in one place only is refused.
"""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError, InputError, one_line, shown
from planner.base.files import is_path, read_json
from planner.base.units import parse_number
from planner.choices.choice import LARGEST
from planner.choices.table import CHOICES
from planner.hardware import Cluster, changed_cluster, framework_on, load_cluster, profile_names
from planner.hardware.read import WITH
from planner.layouts import Layouts
from planner.models import Transformer, counts, load_model
from planner.models.from_shape import with_seq_len
from planner.models.possible import FLAGS, FRACTIONAL, NOT_NEGATIVE, POSITIVE, SHARES, check
from planner.question import one_layout
from planner.setup import Setup
from planner.step.legality import check_legal

SUFFIXES = (".toml", ".json")
FOLDERS = {"cluster": "clusters", "network": "links", "framework": "frameworks"}

KINDS = {int: "a whole number", float: "a number with a point", bool: "true or false", str: "a text"}


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedPlan:
    """A question and the layout chosen for it.

    layouts: a table of one, legal. record: the layout's own record in the file: its figures, where it has some.
    anchored: measured runs are in these figures, and not in the setup.
    """

    setup: Setup
    layouts: Layouts
    record: dict[str, Any]
    anchored: bool = False

    @property
    def row(self) -> dict[str, Any]:
        """The layout's choices by name."""
        return self.layouts.row(0)

    @property
    def gpus(self) -> int:
        """Accelerators that the layout uses."""
        return int(self.layouts.gpus[0])

    def figures(self) -> dict[str, Any]:
        """The file's figures of the layout's time and memory, all of them or nothing."""
        keys = (*FIGURES, *PARTS)
        return {key: self.record[key] for key in keys} if all(key in self.record for key in keys) else {}


def read_plan(
    path: Path, *, number: int = 1, cluster: str | None = None, network: str | None = None, framework: str | None = None
) -> SavedPlan:
    """The plan in a file.

    number: which of the best layouts, counted from 1. cluster, network, framework: instead of those in the plan, whose
    figures then don't count.

    Raises FileFormatError if it is no plan, naming the field, its value and what is allowed; LayoutError for a layout
    that is not legal for the model and the cluster; UnknownNameError for a cluster or framework that is not shipped,
    and no other given.
    """
    record = read_json(path)
    chosen = _chosen(record, number, path)
    model = _model(record, path)
    whole, _, other = _name(record, "cluster", path).partition(WITH)
    named, _, over = whole.partition(" over ")
    if cluster is None and (file := record.get("cluster_file")):  # the shipped one of its name is another
        of = one_line(str(file))
        raise FileFormatError(f"{path}: field cluster is {shown(named)} of {of}; give that file with --cluster")
    own = cluster or _shipped(named, "cluster", path)
    wire = network or (_shipped(over, "network", path) if over and cluster is None else None)
    hardware = load_cluster(own, network=wire)
    if other and cluster is None:
        try:
            hardware = changed_cluster(own, _figures(other, path), network=wire)
        except InputError as error:
            raise FileFormatError(f"{path}: field cluster: {error}") from None
    ran, stack = _name(record, "framework", path), framework_on(hardware, framework)
    if framework is None and stack.name != ran:
        stack = framework_on(hardware, _shipped(ran, "framework", path))
    if framework is None and stack.own_file is None and (file := record.get("framework_file")):
        of = one_line(str(file))
        raise FileFormatError(f"{path}: field framework is {shown(ran)} of {of}; give that file with --framework")
    row = _row(chosen, path)
    check_fields(record, chosen, model, row, path)
    layouts = _layouts(row, hardware, path)
    check_legal(model, hardware, layouts)
    check_figures(chosen, model, row, path)
    figures = chosen if (cluster, network, framework) == (None, None, None) else {}
    return SavedPlan(setup=Setup(model, hardware, stack), layouts=layouts, record=figures, anchored="anchor" in record)


def is_plan(name: str) -> bool:
    """Whether a model's name is that of a plan's file. Raises FileFormatError if it is of a JSON that can't be read."""
    if not name.endswith(".json") or Path(name).is_dir():
        return False
    return bool({"best", "layout", "shape"} & read_json(Path(name)).keys())


def read_choices(path: Path) -> tuple[Transformer, dict[str, Any]]:
    """The model and the layout of a plan as plain values, whatever cluster it is for; legal or not.

    Raises FileFormatError as `read_plan`.
    """
    record = read_json(path)
    chosen = _chosen(record, 1, path)
    model, row = _model(record, path), _row(chosen, path)
    check_fields(record, chosen, model, row, path)
    return model, row


def _chosen(record: dict[str, Any], number: int, path: Path) -> dict[str, Any]:
    """The record of one layout: of the best ones by its number, or the file's only one."""
    best, where = record.get("best"), ""
    if best is None and number == 1:
        chosen: Any = record
    elif best is not None and not (isinstance(best, list) and best):
        raise FileFormatError(f"{path}: field best is {shown(best)}; allowed: a list of one layout or more")
    elif best is not None and 1 <= number <= len(best):
        chosen, where = best[number - 1], f"best.{number - 1}."
    else:
        count = 1 if best is None else len(best)
        raise FileFormatError(f"number is {number}; allowed: 1 to {count}, the layouts of {path}")
    if not isinstance(chosen, dict) or not isinstance(chosen.get("layout"), dict):
        there = chosen.get("layout") if isinstance(chosen, dict) else None
        fault = "is missing" if there is None else f"is {shown(there)}"
        raise FileFormatError(
            f"{path}: no plan: field {where}layout {fault}; allowed: the table that planner recommend --save, "
            "recommend --json or estimate --json writes"
        )
    return chosen


def _model(record: dict[str, Any], path: Path) -> Transformer:
    """The model of a plan: its shape, or a preset by name."""
    shape = record.get("shape")
    if shape is None:
        name = _name(record, "model", path)
        if is_path(name, SUFFIXES) or Path(name).is_dir():
            raise FileFormatError(f"{path}: field model is {shown(name)}; allowed: a preset's name, or a field shape")
        length = record.get("seq_len")
        model = load_model(name)
        if length is not None and type(length) is not int:
            raise FileFormatError(f"{path}: field seq_len is {shown(length)}; allowed: a whole number")
        try:
            return model if length is None else with_seq_len(model, length)
        except InputError as error:
            raise FileFormatError(f"{path}: field seq_len: {error}") from None
    sizes, flags = (*POSITIVE, *NOT_NEGATIVE), FLAGS
    known = {f.name for f in fields(Transformer)}
    if not isinstance(shape, dict):
        raise FileFormatError(f"{path}: field shape is {shown(shape)}; allowed: an object with a model's sizes")
    if unknown := sorted(set(shape) - known):
        raise FileFormatError(f"{path}: unknown field shape.{unknown[0]}; allowed: {', '.join(sorted(known))}")
    for key in ("name", "family", *POSITIVE, "ffn"):
        if key not in shape:
            raise FileFormatError(f"{path}: field shape.{key} is missing")
    for key, value in shape.items():
        kind = int if key in sizes else bool if key in flags else float if key in SHARES else str
        if type(value) is not kind and not (key == FRACTIONAL and type(value) is float):
            raise FileFormatError(f"{path}: field shape.{key} is {shown(value)}; allowed: {KINDS[kind]}")
    if not shape["name"].isprintable():
        raise FileFormatError(
            f"{path}: field shape.name is {shown(shape['name'])}; allowed: text without control characters"
        )
    try:
        return check(Transformer(**{"dropout": shape.get("max_positions", 0) > 0} | shape))  # of older plans
    except InputError as error:
        raise FileFormatError(f"{path}: field shape: {error}") from None


def _row(chosen: dict[str, Any], path: Path) -> dict[str, Any]:
    """The choices of a layout by name; what the file lacks has its default."""
    row: dict[str, Any] = chosen["layout"]
    default = Layouts.of(global_batch=1).row(0)
    if unknown := sorted(set(row) - set(CHOICES)):
        raise FileFormatError(f"{path}: layout has unknown field {unknown[0]}; allowed: {', '.join(CHOICES)}")
    for key, value in row.items():
        choice = CHOICES[key]
        names_none = choice.enumeration is not None and str(value).upper() not in choice.enumeration.__members__
        too_far = (
            choice.kind in (int, float) and type(value) is choice.kind and not choice.least <= value <= choice.most
        )
        if type(value) is not choice.plain_kind or names_none or too_far:
            raise FileFormatError(f"{path}: layout.{key} is {shown(value)}; allowed: {choice.allowed}")
    if "global_batch" not in row:
        raise FileFormatError(f"{path}: layout.global_batch is missing; allowed: a whole number from 1 to {LARGEST}")
    return default | row


def _layouts(row: dict[str, Any], hardware: Cluster, path: Path) -> Layouts:
    """The table of that one layout."""
    try:
        return one_layout(hardware, **row)
    except InputError as error:
        raise FileFormatError(f"{path}: layout: {error}") from None


def _name(record: dict[str, Any], key: str, path: Path) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value:
        state = "is missing" if value is None else f"is {shown(value)}"
        raise FileFormatError(f"{path}: field {key} {state}; allowed: a name")
    return value


def _figures(text: str, path: Path) -> dict[str, float]:
    """The figures that a cluster's name says it has in place of its profile's."""
    try:
        words = (word.partition("=") for word in text.split(","))
        return {name.strip(): parse_number(value, float) for name, _, value in words}
    except ValueError:
        raise FileFormatError(f"{path}: field cluster says figures {shown(text)}; allowed: name=number,...") from None


def _shipped(name: str, kind: str, path: Path) -> str:
    """The name, if it is no path: a plan that somebody sends must not make planner read a file of its choice."""
    if is_path(name):
        raise FileFormatError(f"{path}: field {kind} is {shown(name)}, a path; give it yourself with --{kind}")
    if name not in profile_names(FOLDERS[kind]):
        raise FileFormatError(
            f"{path}: field {kind} is {shown(name)}, which isn't shipped; give its file with --{kind}"
        )
    return name


PARTS = {"time_s": "step_time_s", "memory_parts_gib": "memory_gib"}
"""Objects of parts, and the figure that each adds up to."""
FIGURES = ("step_time_s", "mfu", "memory_gib", "tokens_per_s_per_gpu")
COUNTS = ("searched", "fitting", "ties_within_1_percent")


def check_fields(
    record: dict[str, Any], chosen: dict[str, Any], model: Transformer, row: dict[str, Any], path: Path
) -> None:
    """Raises FileFormatError for the first field that is not what model and layout (`row`) make it, with its value."""
    replicas, batch = row["dp"] * row["micro_batch"], row["global_batch"]
    agreed: dict[str, tuple[Any, str]] = {
        "model": (model.name, "the name in shape"),
        "seq_len": (int(model.seq_len), "that of shape"),
        "parameters": (int(counts.total_params(model)), "those of shape"),
        "gpus": (row["dp"] * row["tp"] * row["pp"] * row["cp"], "dp * tp * pp * cp of the layout"),
        "global_batch": (batch, "that of the layout"),
    }
    own = dict(agreed)
    if batch % replicas == 0:  # else the layout is not legal, which is for the caller to say
        own["micro_batches"] = (batch // replicas, "global_batch / (dp * micro_batch) of the layout")
    for holder, expected in ((record, agreed), (chosen, own)):
        for key, (value, reason) in expected.items():
            given = holder.get(key)
            if given is not None and (type(given) is not type(value) or given != value):
                raise FileFormatError(f"{path}: field {key} is {shown(given)}; allowed: {shown(value)}, {reason}")
    for key in COUNTS:
        if (given := record.get(key)) is not None and (type(given) is not int or given < 0):
            raise FileFormatError(f"{path}: field {key} is {shown(given)}; allowed: a whole number from 0")
    memory = record.get("memory_gib_per_gpu")
    if memory is not None and not (is_number(memory) and memory > 0):
        raise FileFormatError(f"{path}: field memory_gib_per_gpu is {shown(memory)}; allowed: a number above 0")


def check_figures(chosen: dict[str, Any], model: Transformer, row: dict[str, Any], path: Path) -> None:
    """Raises FileFormatError for the first figure of a layout that is no number above 0, or that others contradict."""
    for key in FIGURES:
        if key in chosen and not is_number(chosen[key]):
            raise FileFormatError(f"{path}: field {key} is {shown(chosen[key])}; allowed: a finite number")
        if key in chosen and chosen[key] <= 0:
            raise FileFormatError(f"{path}: field {key} is {shown(chosen[key])}; allowed: a number above 0")
    for key, total in PARTS.items():
        parts = chosen.get(key)
        if parts is None:
            continue
        if not isinstance(parts, dict) or not all(is_number(value) for value in parts.values()):
            raise FileFormatError(f"{path}: field {key} is {shown(parts)}; allowed: an object of finite numbers")
        if total in chosen and not math.isclose(sum(parts.values()), chosen[total], rel_tol=1e-6, abs_tol=1e-9):
            raise FileFormatError(f"{path}: field {key} adds up to {sum(parts.values()):.6g}, not to {total}")
    if "fits" in chosen and not isinstance(chosen["fits"], bool):
        raise FileFormatError(f"{path}: field fits is {shown(chosen['fits'])}; allowed: true or false")
    if "step_time_s" in chosen and "tokens_per_s_per_gpu" in chosen:
        tokens = row["global_batch"] * int(model.seq_len)
        rate = tokens / (row["dp"] * row["tp"] * row["pp"] * row["cp"] * chosen["step_time_s"])
        if not math.isclose(rate, chosen["tokens_per_s_per_gpu"], rel_tol=1e-6):
            raise FileFormatError(
                f"{path}: field tokens_per_s_per_gpu is {shown(chosen['tokens_per_s_per_gpu'])}; allowed: {rate:.6g}, "
                "the tokens of a step over step_time_s and gpus"
            )


def is_number(value: Any) -> bool:
    """Finite, and no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
