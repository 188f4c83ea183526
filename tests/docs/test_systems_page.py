"""The page of systems: what the command makes today, every test that it links is there, every cell is honest."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

from planner.reproductions import systems
from planner.schedules import SCHEDULES

ROOT = Path(__file__).parents[2]
PAGE = runpy.run_path(str(ROOT / "docs/systems_page.py"))
DATA = PAGE["data"]()
CELLS = [
    (part["name"], column, part[column]) for part in DATA["part"] for column in PAGE["COLUMNS"] if part.get(column)
]


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_it_is_what_the_command_makes():
    assert PAGE["PAGE"].read_text(encoding="utf-8") == PAGE["page"](), "run python docs/systems_page.py"


@pytest.mark.parametrize(("name", "column", "said"), CELLS, ids=str)
def test_every_cell_names_a_test_or_a_reason(name, column, said):
    test = PAGE["test_of"](said, DATA["tests"])
    if not test:
        assert len(said.split()) > 4, f"{name}, {column}: a dash needs a reason"
        return
    file, _, function = test.partition("::")
    assert function.startswith("test_")
    assert function in functions(ROOT / file)


def test_every_system_has_its_row_and_every_schedule_is_there():
    assert sorted({part["system"] for part in DATA["part"]}) == sorted(systems())
    named = {name for part in DATA["part"] for name in part.get("schedules", ())}
    assert named <= set(SCHEDULES)
    assert {"gpipe", "1f1b-v"} >= set(SCHEDULES) - named


def test_keys_are_known():
    known = {"system", "name", "schedules", "note", *PAGE["COLUMNS"]}
    assert all(set(part) <= known for part in DATA["part"])
    used = {said for _, _, said in CELLS}
    assert set(DATA["tests"]) <= used


def test_what_trains_no_gradients_is_not_said_to_be_executed():
    """A schedule is said to be executed by the test that proves its kind's gradients."""
    for part in DATA["part"]:
        for name in part.get("schedules", ()):
            if part.get("executed") in ("synchronous", "asynchronous"):
                assert SCHEDULES[name].synchronous == (part["executed"] == "synchronous")
