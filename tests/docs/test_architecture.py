"""The way from the command to a formula that docs/architecture.md shows is the way through the code."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import planner

ROOT = Path(planner.__file__).parent
MOST_HOPS = 8


def _called(file: str, function: str) -> set[str]:
    """Names that a function of a file calls or hands over; one imported under another name by its own."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    own = {a.asname: a.name for x in ast.walk(tree) if isinstance(x, ast.ImportFrom) for a in x.names if a.asname}
    (body,) = (x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name == function)
    return {own.get(x.id, x.id) for x in ast.walk(body) if isinstance(x, ast.Name)}


def test_each_function_on_the_way_to_an_all_reduce_calls_the_next():
    text = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    way = re.findall(r"^([a-z_/]+\.py) +(\w+)$", text, re.MULTILINE)
    assert way[0] == ("cli/recommend.py", "command")
    assert way[-1] == ("costs/network/collectives.py", "all_reduce_s")
    assert len(way) - 1 <= MOST_HOPS
    for (file, function), (_, after) in pairwise(way):
        assert after in _called(file, function), f"{file}: {function} does not call {after}"
