"""Scripts of benchmarks and documentation import what the package has: nothing else runs them on each change."""

import ast
import inspect
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from planner.schedules.chimera import Chimera

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "docs").glob("*.py")])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_what_a_script_imports_from_planner_exists(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "planner":
            module = import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}"), (
                    f"{node.module}.{name.name}"
                )


def test_there_are_scripts():
    assert len(SCRIPTS) > 10


def test_a_fault_in_a_default_is_put_in(monkeypatch):
    """Of a file that postpones no annotations, as the benchmark itself does: its functions' code is the same."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    mutation, path = import_module("mutation"), Path(inspect.getfile(Chimera))
    monkeypatch.setattr(mutation, "ROOT", path.parents[2])
    text = path.read_text(encoding="utf-8")
    for default in (1.0, 0.0):
        code = text.replace("kept: Any = 0.0", f"kept: Any = {default}")
        one = mutation.Mutant(path=path, function="Chimera.in_flight", original=text, make=lambda code=code: code)
        mutation.put_in(one)
        assert Chimera.in_flight.__defaults__ == (default,)
