"""Lists of choices and figures stand once: what says something of several of them is a column of theirs."""

import ast
from collections.abc import Iterator
from pathlib import Path

import planner
from planner.choices.table import CHOICES
from planner.hardware import Accelerator, Cluster, Efficiency, Framework, Link
from planner.hardware.declared import declared

MOST = 2
MAY_LIST = {
    "choices/table.py": "the table itself",
    "cli/estimate.py": "what DeepSpeed's JSON can't say is DeepSpeed's to decide",
    "cli/train_plan.py": "what the trainer runs of a layout is its own to decide",
    "exporters/nearest.py": "the layout nearest to a plan that a framework runs",
    "imports/megatron.py": "a launch script as a layout",
    "reproductions/layout_figures.py": "what a paper says of a layout that it measured",
    "search/bounds.py": "the choices whose least that file's formulas take",
    "search/conflicts.py": "a layout that has what is wanted, to say which rule it breaks",
    "search/neighbours.py": "what is changed of a layout for each of its neighbours",
    "search/space.py": "what the other choices leave to be tried of some",
    "search/towers.py": "what one layout for all has in common, and what no tower shares with its language model",
    "trainer/checkpoint.py": "what must be as it was for a checkpoint to be read",
    "validation/defaults.py": "the layouts that a measured run may have had",
    "validation/runs.py": "the columns of a file, docs/measured-runs.md",
}
ROOT = Path(planner.__file__).parent


FIGURES = {name for record in (Accelerator, Cluster, Efficiency, Framework, Link) for name in declared(record)}
KNOWN = {*CHOICES, *FIGURES}
PARTS_OF_A_STEP = {"attention", "recompute", "optimizer"}
"""Names of choices that are also names of parts of a step, which `report/` gives words and colours."""


def named(tree: ast.Module) -> Iterator[tuple[int, set[str]]]:
    """The line of each tuple, list, set and dictionary, with the names that it lists."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            names = node.elts
        elif isinstance(node, ast.Dict):
            names = [key for key in node.keys if key is not None]
        else:
            continue
        yield node.lineno, {name.value for name in names if isinstance(name, ast.Constant) and str(name.value) in KNOWN}


def test_choices_and_figures_are_listed_once():
    found, seen = [], 0
    for path in sorted(ROOT.rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        for line, names in named(ast.parse(path.read_text(encoding="utf-8"))):
            seen += bool(names)
            several = len(names & CHOICES.keys()) > MOST or len(names & FIGURES) > MOST
            if several and where not in MAY_LIST and names != PARTS_OF_A_STEP:
                found.append(f"{where}:{line}: {', '.join(sorted(names))}")
    assert seen > 20
    assert found == []


def test_every_file_that_may_list_choices_does():
    listing = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for _, names in named(ast.parse(path.read_text(encoding="utf-8")))
        if len(names & CHOICES.keys()) > MOST or len(names & FIGURES) > MOST
    }
    assert MAY_LIST.keys() <= listing
