"""The notebooks run on their small settings, from a copy, and draw what they save."""

import ast
import os
import random
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

import planner
from tests.hang import HANG_S
from tests.notebooks.printed import NOTEBOOKS, answered, code, every

EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=int(sys.argv[2])).execute()
print("".join(o["text"] for c in notebook.cells for o in c.get("outputs", []) if o["output_type"] == "stream"))
"""
# What each says: a piece of its printed output, and the pictures that it saves.
SAYS = {
    "01_recommend_a_layout": ("legal layouts", 2),
    "02_scaling_limits": ("2.09 times faster", 7),
    "03_schedules": ("", 7),
    "04_how_accurate": ("fits or not right in", 3),
    "05_your_own_cluster": ("field gpus_per_node", 1),
    "06_critical_batch": ("nats per byte: measured", 1),
}


@pytest.mark.parametrize("name", SAYS)
def test_a_notebook_imports_from_planner_alone(name):
    trees = [ast.parse("".join(cell["source"])) for cell in code(NOTEBOOKS / f"{name}.ipynb")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {m for m in modules if m and m.split(".")[0] == "planner"} == {"planner"}
    names = {
        a.name for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "planner" for a in node.names
    }
    assert names <= {*planner.__all__}


def test_the_commands_under_a_figure_print_its_points():
    """Of each kind of command a drawn one or two; benchmarks/notebook_commands.py runs all of them."""
    points = {command: lines for _, command, lines in every()}
    assert len(points) > 70
    kinds = {
        "a layout": [c for c in points if c.startswith("recommend")],
        "intensities": [c for c in points if c.endswith("--json")],
        "few GPUs": [c for c in points if "--paper" in c and "--max-gpus" in c],
        "node sizes": [c for c in points if "--paper" in c and "--node-size 16" not in c],
        "strategies": [c for c in points if "--paper" in c and "--node-size 16" in c and not c.endswith("--json")],
        "our costs": [c for c in points if c.startswith(("fastest x-40 ", "fastest x-64 ")) and "--paper" not in c],
        "the largest": [c for c in points if c.startswith("largest")],
    }
    draw = random.Random(" ".join(points))  # another draw whenever a notebook prints something else
    for kind, commands in kinds.items():
        assert commands, kind
        command = draw.choice(commands)
        assert answered(command) == points[command], command


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.skipif(find_spec("nbclient") is None, reason="needs pip install '.[notebooks]'")
@pytest.mark.parametrize("name", SAYS)
def test_a_notebook_runs_and_draws(name, tmp_path):
    copy = shutil.copy(NOTEBOOKS / f"{name}.ipynb", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, copy, str(HANG_S)], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PLANNER_NOTEBOOKS": "small"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said, pictures = SAYS[name]
    assert said in done.stdout
    drawn = sorted((tmp_path / "figures").glob("*.png"))
    assert len(drawn) == pictures
    from matplotlib.image import imread

    for path in drawn:
        assert imread(path)[..., :3].std() > 0.05  # not a blank page


def test_the_notebooks_are_kept_with_their_pictures_and_no_errors():
    """What is committed was run whole: every code cell has its output, every saved picture lies beside."""
    assert sorted(p.stem for p in NOTEBOOKS.glob("*.ipynb")) == sorted(SAYS)
    for path in NOTEBOOKS.glob("*.ipynb"):
        cells = code(path)
        assert all(c["execution_count"] for c in cells), path.name
        assert not [o for c in cells for o in c["outputs"] if o["output_type"] == "error"], path.name
        assert len(list((NOTEBOOKS / "figures").glob(f"{path.stem[:2]}_*.png"))) == SAYS[path.stem][1], path.name
