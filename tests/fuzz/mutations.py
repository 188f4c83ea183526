"""Ways to spoil a file: structural mutations of tables and grids by Hypothesis, and random edits of bytes."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

__all__ = ["ODD_NUMBERS", "ODD_TEXTS", "broken_bytes", "csv_text", "mutated_grid", "mutated_tree", "toml_text"]

ODD_NUMBERS: list[Any] = [
    0, -1, 1, 2, 3, 7, 10**9, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**30, -(10**30), 0.0, -0.0, 0.5, 1e-300, 5e-324,
    1e300, 1e308, float("nan"), float("inf"), float("-inf"),
]  # fmt: skip
ODD_TEXTS = [
    "", " ", "\t", "0", "-1", "nan", "1e400", "9" * 400, "true", "None", "a,b", "[/red]", "$\\frac$", "[bold]x",
    ":smile:", "%s%n",
    "\x1b[31mred", "\x1b]0;title\x07", "\x00", "\x7f", "\u202eevil", "\u200b", "\u05e2\u05d1\u05e8\u05d9\u05ea",
    "\u6a21\u578b", "\U0001f4a5", "e\u0301", "../../etc/passwd", "/etc/passwd", "/dev/zero", "/dev/stdin.toml",
    "file:///etc/passwd", "$(id)", "`id`", "';DROP TABLE", "<script>alert(1)</script>", "{0}", "{value}", "\\", '"',
    "a" * 3000, "../" * 50 + "x.toml", "con", "~", "*", "!!python/object/apply:os.system [id]", "__import__('os')",
]  # fmt: skip
ODD = st.one_of(
    st.sampled_from(ODD_NUMBERS),
    st.sampled_from(ODD_TEXTS),
    st.sampled_from([True, False, None, [], {}, [1], [[]], {"value": 1}, {"a": {"b": {"c": 1}}}]),
    st.integers(),
    st.integers(-10, 5000),
    st.floats(),
    st.text(max_size=20),
)


@st.composite
def mutated_tree(draw: st.DrawFn, tree: dict[str, Any]) -> dict[str, Any]:
    """A table of tables with one to three faults: a value replaced, dropped, renamed, moved, or nested."""
    tree = deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(tree))
        if not places:
            return tree
        table, key = draw(st.sampled_from(places))
        how = draw(st.sampled_from(["value", "value", "value", "drop", "rename", "copy", "nest", "scale", "type"]))
        if how == "value":
            table[key] = deepcopy(draw(ODD))  # else a table of ODD could come to hold itself
        elif how == "drop":
            del table[key]
        elif how == "rename" and isinstance(table, dict):
            table[draw(st.sampled_from([str(key) + "s", str(key).upper(), "", "a.b", "\x1b", "name"]))] = table.pop(key)
        elif how == "copy":
            table[key] = deepcopy(draw(st.sampled_from(places))[0])
        elif how == "nest":
            for _ in range(draw(st.sampled_from([1, 5, 30]))):
                table[key] = [table[key]] if draw(st.booleans()) else {"value": table[key]}
        elif how == "scale" and isinstance(table[key], (int, float)):
            table[key] *= draw(st.sampled_from([-1, 0, 1000, 10**6, 1e-9, 0.5]))
        elif how == "type":
            table[key] = str(table[key])
    return tree


def _places(tree: Any) -> Any:
    """Every (container, key) within a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key
        yield from _places(value)


@st.composite
def mutated_grid(draw: st.DrawFn, grid: list[list[str]]) -> list[list[str]]:
    """Rows of cells with one to three faults: a cell replaced or swapped, a row or column dropped, doubled or cut."""
    grid = [list(row) for row in grid]
    for _ in range(draw(st.integers(1, 3))):
        if not grid or not any(grid):
            return grid
        row = draw(st.sampled_from([r for r in grid if r]))
        column = draw(st.integers(0, len(row) - 1))
        how = draw(st.sampled_from(["cell", "cell", "cell", "swap", "row", "double", "column", "cut", "longer"]))
        if how == "cell":
            row[column] = str(draw(ODD))
        elif how == "swap":
            other = draw(st.sampled_from([r for r in grid if r]))
            place = draw(st.integers(0, len(other) - 1))
            row[column], other[place] = other[place], row[column]
        elif how == "row":
            grid.remove(row)
        elif how == "double":
            grid.append(list(row))
        elif how == "column":
            for each in grid:
                del each[column : column + 1]
        elif how == "cut":
            del row[column:]
        else:
            row += [str(draw(ODD))] * draw(st.sampled_from([1, 2, 50]))
    return grid


TOKENS = [
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\r\n", b"\n\n", b"\x1b[2J", b"\xe2\x80\xae", b"\xed\xa0\x80",
    b'"""', b"'''", b"[" * 3000, b"{" * 3000, b"[[", b"]", b"=", b",", b'"', b"'", b"#", b"\\u0000", b"1e400", b"-1",
    b"nan", b"inf", b"9" * 5000, b"0x", b"1979-05-27T07:32:00Z", b"true", b"null", b"!!python/object:os.system",
    b"&a [*a]",
]  # fmt: skip


def broken_bytes(data: bytes, chance: random.Random) -> bytes:
    """The bytes after one to eight random edits: flips, cuts, copies, tokens that parsers trip over."""
    text = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        i = chance.randrange(len(text) + 1)
        j = min(i + chance.choice([1, 1, 2, 8, 64]), len(text))
        how = chance.randrange(7)
        if how == 0 and i < len(text):
            text[i] ^= 1 << chance.randrange(8)
        elif how == 1 and i < len(text):
            text[i] = chance.randrange(256)
        elif how == 2:
            del text[i:j]
        elif how == 3:
            text[i:i] = text[chance.randrange(len(text) + 1) :][: j - i]
        elif how == 4:
            text[i:i] = chance.choice(TOKENS)
        elif how == 5:
            del text[i:]
        else:
            digits = [k for k in range(len(text)) if 48 <= text[k] <= 57]
            if digits:
                k = chance.choice(digits)
                text[k : k + 1] = chance.choice([b"0", b"-1", b"99999999999", b"1e9", b"1e400", b".5", b"nan"])
    return bytes(text)


def toml_text(tables: dict[str, Any]) -> str:
    """TOML of a tree, as valid as the tree allows: what TOML has no form for is written as text."""
    lines, later = [], []
    for key, value in tables.items():
        if isinstance(value, dict) and any(isinstance(v, dict) for v in value.values()) and set(value) != {"value"}:
            later.append((key, value))
        else:
            lines.append(f"{_toml_key(key)} = {_toml_value(value)}")
    for key, value in later:
        lines.append(f"[{_toml_key(key)}]")
        lines += [f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items()]
    return "\n".join(lines) + "\n"


def _toml_key(key: Any) -> str:
    return str(key) if str(key).isidentifier() and str(key).isascii() else json.dumps(str(key), ensure_ascii=False)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(v) for v in value) + "]"
    if isinstance(value, (int, float)):
        return repr(value)
    return json.dumps(str(value)).replace("\\ud83d\\udca5", "\U0001f4a5")


def csv_text(grid: list[list[str]]) -> str:
    """CSV of a grid; cells with commas or quotes are quoted."""
    return "\n".join(",".join(_csv_cell(c) for c in row) for row in grid) + "\n"


def _csv_cell(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if any(c in cell for c in ',"\n\r') else cell
