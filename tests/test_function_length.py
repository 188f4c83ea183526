"""A function is read at one glance: none is longer than 60 lines."""

import ast
from pathlib import Path

import planner

LONGEST = 60


def test_no_function_is_longer_than_sixty_lines():
    root = Path(planner.__file__).parent
    long, seen = {}, 0
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                seen += 1
                if lines > LONGEST:
                    long[f"{path.relative_to(root).as_posix()}: {node.name}"] = lines
    assert seen > 2000
    assert long == {}
