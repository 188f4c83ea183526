"""A function is read at one glance: none is longer than 60 lines."""

import ast
from pathlib import Path

import planner

LONGEST = 60
SIGNATURES_ARE_TABLES = {"cli": "command"}
"""Of these the signature does not count: it is a table of data, an option a line with its type, default and help."""


def test_no_function_is_longer_than_sixty_lines():
    root = Path(planner.__file__).parent
    long, seen = {}, 0
    for path in root.rglob("*.py"):
        where = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                table = any(where.startswith(p) and node.name == name for p, name in SIGNATURES_ARE_TABLES.items())
                lines = node.end_lineno - (node.body[0].lineno if table else node.lineno) + 1
                seen += 1
                if lines > LONGEST:
                    long[f"{where}: {node.name}"] = lines
    assert seen > 2000
    assert long == {}
