"""A model described by its sizes and family: the form of the presets and of a user's own TOML file."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from planner.base.checks import CheckedTable, Schema, one_of, optional, table
from planner.base.errors import FileFormatError, InputError, shown
from planner.base.files import validate
from planner.models.from_shape import FAMILIES, from_pattern
from planner.models.possible import FLAGS, FRACTIONAL, LARGEST, NOT_NEGATIVE, POSITIVE, SHARES, TEXTS, check
from planner.models.transformer import Transformer

SSM_SIZES = {"ssm_heads": None, "ssm_head_dim": 64, "ssm_groups": 8, "ssm_state": 128, "ssm_conv": 4}
"""Default sizes of a hybrid's state-space layers; as many heads as twice the width takes."""
NEEDED = ("hidden", "heads", "vocab", "seq_len")
LARGEST_OF = {
    "layers": 100_000, "hidden": 10_000_000, "heads": 1_000_000, "vocab": 100_000_000, "ffn": 100_000_000,
    "head_dim": 1_000_000, "experts": 1_000_000, "mtp_layers": 1000,
}  # fmt: skip
SHORT = {
    f: f.removeprefix("num_")
    for f in (*POSITIVE, *NOT_NEGATIVE, *SHARES, *FLAGS, *TEXTS)
    if f not in ("num_ssm_layers", "num_mixer_only_layers", "num_mlp_only_layers")
}
"""The fields of a `Transformer` that a file says, by their names there; a pattern says the others."""


def _size(field: str) -> Schema:
    """A size in its range: 1 or more of what every model or every state-space has, and of what follows the family."""
    name = SHORT[field]
    least = int(field in POSITIVE or name == "ffn" or name in SSM_SIZES)
    size = {"type": "int", "strict": True, "ge": least, "le": LARGEST_OF.get(name, LARGEST)}
    return size if name in NEEDED else optional(size, SSM_SIZES.get(name))


_FIELDS: dict[str, Schema] = {
    "name": optional({"type": "str"}),
    "family": one_of(("gpt", "llama", "nemotron", "moe", "hybrid")),
    "pattern": optional({"type": "str", "max_length": 100_000}),
    **{SHORT[field]: _size(field) for field in (*POSITIVE, *NOT_NEGATIVE) if field in SHORT},
    SHORT[FRACTIONAL]: optional({"type": "float", "strict": True, "ge": 0, "le": LARGEST}),
    **{field: optional({"type": "float", "ge": 0, "le": 1}) for field in SHARES},
    **{SHORT[field]: optional({"type": "bool", "strict": True}) for field in FLAGS},
    **{field: optional({"type": "str"}) for field in TEXTS},
}
Description: Any = CheckedTable(table(_FIELDS))
"""Fields of a `[model]` table; what is not said follows the family.

ffn defaults to 4 hidden, kv_heads to heads, head_dim to hidden / heads, max_positions to seq_len for the
gpt family (else 0), dropout to whether there are positions, dense_layers to all layers (none for the moe family).
The hybrid family has a pattern, one letter a layer (M state-space, * attention, - MLP, E experts), instead of
layers and dense_layers. window_layers with a window default to all with attention.
"""


def from_description(
    data: Any, path: Path | str, name: str, names: Mapping[str, str] = MappingProxyType({})
) -> Transformer:
    """The model that a `[model]` table describes. names: what the file calls a field, where it differs.

    Raises FileFormatError if a field is missing, misspelt, of a wrong type, out of range, or contradicts another.
    """
    try:
        return _described(data, path, name)
    except FileFormatError as error:
        before, _, fault = str(error).partition(f"{path}: ")
        raise FileFormatError(f"{before}{path}: {_FIELD.sub(lambda m: _file_name(m[0], names), fault)}") from None


_FIELD = re.compile(r"(?<=field )\w+|(?<=multiple of )\w+|\b(?:[a-z]+_\w+|hidden|ffn|vocab)\b")
"""Fields in a message: behind "field", or what is no English word."""


def _file_name(field: str, names: Mapping[str, str]) -> str:
    """The file's name for a field of a `Transformer` or a `Description`."""
    short = field.removeprefix("num_")
    field = short if short in _FIELDS else field
    return names.get(field, field)


def _described(data: Any, path: Path | str, name: str) -> Transformer:
    d: Any = SimpleNamespace(**validate(Description, data, path))
    if d.head_dim is None and d.hidden % d.heads:
        raise FileFormatError(f"{path}: field hidden is {d.hidden}; allowed: a multiple of heads {d.heads}")
    layers = _layers(d, path)
    sparse = d.family == "moe" or "E" in (d.pattern or "")
    told = {field: value for field, name in SHORT.items() if (value := getattr(d, name)) is not None}
    if layers.get("num_ssm_layers"):
        told["ssm_heads"] = _ssm_heads(d, path)
    else:
        told = {field: value for field, value in told.items() if field not in SSM_SIZES}
    learned = d.family == "gpt" and not told.get("rotary", FAMILIES[d.family].get("rotary"))
    positions = told.get("max_positions", d.seq_len if learned else 0)
    usual = {
        "ffn": 0 if sparse and not layers["num_dense_layers"] else 4 * d.hidden, "num_kv_heads": d.heads,
        "head_dim": d.hidden // d.heads, "max_positions": positions, "dropout": positions > 0,
    }  # fmt: skip
    model = Transformer(name=d.name or name, family=d.family, **(usual | FAMILIES[d.family] | told | layers))
    every = model.num_attention_layers if model.window else 0
    windows = told.get("num_window_layers", every)
    try:
        return check(
            replace(model, v_head_dim=model.v_head_dim if model.kv_lora_rank else 0, num_window_layers=windows)
        )
    except InputError as error:
        raise FileFormatError(f"{path}: {error}") from None


def _layers(d: Any, path: Path | str) -> dict[str, int]:
    """How many layers of each kind: from a hybrid's pattern, else all alike but for the dense ones."""
    if d.family == "hybrid":
        for name, value in (("layers", d.layers), ("dense_layers", d.dense_layers)):
            if value is not None:
                raise FileFormatError(
                    f"{path}: field {name} is {value}; allowed: none, the hybrid family has a pattern"
                )
        if d.pattern is None:
            raise FileFormatError(f"{path}: field pattern is missing; allowed: one letter a layer, such as M-M*-")
        try:
            return from_pattern(d.pattern)
        except InputError as error:
            raise FileFormatError(f"{path}: field {error}") from None
    if d.pattern is not None:
        raise FileFormatError(f"{path}: field pattern is {shown(d.pattern)}; allowed: none, but for the hybrid family")
    if d.layers is None:
        raise FileFormatError(f"{path}: field layers is missing; allowed: a whole number from 1 to 100000")
    dense = d.dense_layers if d.dense_layers is not None else (0 if d.family == "moe" else d.layers)
    return {"num_layers": d.layers, "num_dense_layers": dense}


def _ssm_heads(d: Any, path: Path | str) -> int:
    """Heads of the state-space layers."""
    if d.ssm_heads is not None:
        return int(d.ssm_heads)
    if 2 * d.hidden % d.ssm_head_dim:
        fault = f"{path}: field ssm_heads is missing, and twice hidden {d.hidden} isn't a multiple of ssm_head_dim"
        raise FileFormatError(f"{fault} {d.ssm_head_dim}")
    return int(2 * d.hidden // d.ssm_head_dim)
