"""What is built from the tree installs and works anywhere; what the tree says of itself is true."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import planner

ROOT = Path(__file__).parents[1]
SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist from the tree, and the wheel from the sdist: what it lacks the wheel would lack."""
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_the_wheel_holds_profiles_runs_types_and_licence(built):
    names = set(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())
    for folder in ("hardware_profiles", "measured_runs"):
        for path in (ROOT / folder).rglob("*.*"):
            assert f"planner/{path.relative_to(ROOT)}" in names
    assert "planner/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    for path in (ROOT / "planner").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert str(path.relative_to(ROOT)) in names
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]


@pytest.mark.slow
def test_the_sdist_holds_what_its_tests_and_documentation_need(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for name in ("LICENSE", "CITATION.cff", "README.md", "CHANGELOG.md", "mkdocs.yml", "docs/index.md",
                 "docs/pictures/1f1b.svg", "tests/test_packaging.py", "benchmarks/calibrate.py",
                 "notebooks/figures/03_1f1b.png", ".ci/run"):  # fmt: skip
        assert name in names


@pytest.mark.slow
def test_the_wheel_works_in_a_fresh_environment_from_another_folder(built, tmp_path):
    """What it needs is this environment's. That pip brings it is what README's first command shows (`.ci/run`)."""
    home = tmp_path / "environment"
    venv.create(home)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def run(*command):
        done = subprocess.run(command, cwd=elsewhere, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr[-2000:])
        return done.stdout

    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--disable-pip-version-check")
    run(*pip, "--no-deps", str(next(built.glob("*.whl"))))
    shared = [path for path in sys.path if Path(path).name == "site-packages"]
    (Path(run(python, "-c", SITE).strip()) / "needs.pth").write_text("\n".join(shared))
    program = python.with_name("planner")
    ask = ("llama-13b", "--cluster", "dgx-a100-80gb", "--gpus", "64", "--global-batch", "2048", "--json")
    assert json.loads(run(program, "recommend", *ask))["best"]
    runs = "from planner.validation import *; print(sum(len(read_runs(p)) for p in shipped_files()))"
    assert int(run(python, "-c", runs)) == sum(
        len(path.read_text().splitlines()) - 1 for path in (ROOT / "measured_runs").glob("*.csv")
    )
    where = run(python, "-c", "import planner; planner.recommend; print(planner.__file__)")
    assert Path(where.strip()).is_relative_to(home)


def test_the_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["version"] == planner.__version__ == str(citation["version"])


def test_the_citation_has_what_its_format_requires():
    """Citation File Format 1.2.0: cff-version, message, title and authors; an entity's author is a name."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert citation["type"] in ("software", "dataset")
    assert all({"name"} == set(author) or "family-names" in author for author in citation["authors"])
    assert citation["license"] == PROJECT["license"]


def test_every_documented_extra_is_there():
    extras = PROJECT["optional-dependencies"]
    assert {"mpi", "gpu", "dask", "report", "docs", "test", "pandas", "sweep"} <= set(extras)
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "planner").rglob("*.py")]
    for page in pages:
        for names in re.findall(r"(?:planner|'\.|\"\.)\[([a-z,]+)\]", page.read_text(encoding="utf-8")):
            assert set(names.split(",")) <= set(extras), page


def test_the_classifiers_exist_and_name_the_versions_that_are_supported():
    trove = pytest.importorskip("trove_classifiers")
    assert set(PROJECT["classifiers"]) <= trove.classifiers
    assert PROJECT["requires-python"] == ">=3.11"
    for minor in (11, 12, 13):
        assert f"Programming Language :: Python :: 3.{minor}" in PROJECT["classifiers"]
