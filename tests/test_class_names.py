"""A class name stands once in the package, so that a reader who meets it knows which one it is."""

import ast
from collections import defaultdict
from pathlib import Path

import planner

TWO_FACES = {"Cluster"}  # what a user of the Python API names, and the record that it loads


def test_no_class_name_stands_twice():
    files = defaultdict(set)
    for path in Path(planner.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].add(path.name)
    assert len(files) > 100
    assert {name: sorted(where) for name, where in files.items() if len(where) > 1 and name not in TWO_FACES} == {}
