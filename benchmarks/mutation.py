"""Mutation test of the cost models and schedules: of a random sample of small faults, how many does a test notice?

    python benchmarks/mutation.py --sample 200 --seed 1

Faults are mutmut's (github.com/boxed/mutmut: an operator swapped, a number one more, an argument dropped...),
within functions; mutations of texts are left out, since most are messages. mutmut's own runner takes no decorated
functions and compiles all faults of a file into one module behind switches. Here each fault is written into a copy of
the repository, one at a time, and the tests that run its line are run, the quickest first, each time in a forked
process that has the libraries imported, up to `BUDGET_S` of them. A fault that those miss counts as survived.

A folder given as --work keeps the copy and what was found, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import importlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
TARGETS = (
    "planner/costs",
    "planner/schedules",
    "planner/step/pipelines.py",
    "planner/step/step_costs.py",
    "planner/step/estimate.py",
)
TESTS = (
    "tests/costs", "tests/schedules", "tests/step/test_estimate.py", "tests/step/test_step_costs.py",
    "tests/step/test_pipelines.py", "tests/step/timeline",
    "tests/export/test_pytorch_orders.py", "tests/export/test_schedule_csv.py",
    "tests/trainer/test_cost_model_bytes.py", "tests/search/test_stage_split.py",
)  # fmt: skip
SLOW = "not test_bubble_rates_of_fitted_zero_bubble"
"""Left out: half a minute of a minute's tests."""
BUDGET_S = 60.0
"""Of tests against one fault, by the seconds that they took when their lines were traced."""
LIMIT_S = 600.0
"""A fault that makes them run so long is noticed."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A fault: the file, and one of its nodes changed."""

    path: Path
    original: str
    make: Callable[[], str]

    @cached_property
    def code(self) -> str:
        """The file's text with the fault."""
        return self.make()

    @property
    def line(self) -> int:
        """The first line that differs."""
        rows = zip(self.original.splitlines(), self.code.splitlines(), strict=False)
        return next((i for i, (was, now) in enumerate(rows, 1) if was != now), 1)

    @property
    def name(self) -> str:
        """The file's path in the repository."""
        return str(self.path.relative_to(ROOT))

    @property
    def diff(self) -> str:
        """The changed lines."""
        lines = difflib.unified_diff(self.original.splitlines(), self.code.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---"))


def mutants(path: Path) -> list[Mutant]:
    """All faults of a file: mutmut's of every node within a function, but for texts, annotations and decorators."""
    import libcst
    from mutmut.mutation.mutators import mutation_operators

    code = path.read_text(encoding="utf-8")
    module = libcst.parse_module(code)
    found: list[Mutant] = []

    def visit(node: libcst.CSTNode, inside: bool) -> None:
        if isinstance(node, (libcst.Annotation, libcst.Decorator, libcst.BaseString)):
            return
        for kind, operator in mutation_operators if inside else ():
            for changed in operator(node) if isinstance(node, kind) else ():
                make = partial(_with, module, node, changed)
                found.append(Mutant(path=path, original=code, make=make))
        for child in node.children:
            visit(child, inside or isinstance(node, libcst.FunctionDef))

    visit(module, inside=False)
    return found


def _with(module: Any, node: Any, changed: Any) -> str:
    return str(module.deep_replace(node, changed).code)


def copy_of_repository(folder: Path) -> None:
    """The tracked files."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, folder / name)


def tests_by_line(folder: Path) -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    """By file and line the tests that run it, from one run of all of them; each test's seconds."""
    from coverage import CoverageData

    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable, "-m", "pytest", *TESTS, "-q", "-m", "not slow", "-k", SLOW, "-p", "no:cacheprovider",
        "--junitxml=times.xml", "--cov=planner", "--cov-context=test", "--cov-report=",
    ]  # fmt: skip
    if not (folder / "times.xml").exists():
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=sys.stderr)
    subprocess.run([sys.executable, "-m", "coverage", "combine"], cwd=folder, check=False, capture_output=True)
    data = CoverageData(str(folder / ".coverage"))
    data.read()
    lines: dict[str, dict[int, list[str]]] = {}
    for name in data.measured_files():
        by_line = data.contexts_by_lineno(name)
        path = str(Path(name).relative_to(folder)) if Path(name).is_absolute() else name
        lines[path] = {
            line: sorted({c.partition("|")[0] for c in contexts if c.startswith("tests/")})
            for line, contexts in by_line.items()
        }
    seconds: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(folder / "times.xml").iter("testcase"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        seconds[f"{file}::{case.attrib['name']}"] += float(case.attrib["time"])
    return lines, seconds


def import_libraries() -> None:
    """What every test needs and no fault changes, once for all forks."""
    for name in ("hypothesis.strategies", "numpy", "pydantic", "pytest", "rich.table", "typer"):
        importlib.import_module(name)


def noticed(folder: Path, tests: list[str]) -> str:
    """'' where all tests pass, else how the fault was noticed."""
    child = os.fork()
    if child == 0:
        import pytest

        os.chdir(folder)
        os.setsid()
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(folder))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = 1
        try:
            # Plug-ins were imported with the libraries, too early for their asserts to be rewritten.
            quiet = ("-q", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider", "-p", "no:cov")
            code = int(pytest.main(["-x", *quiet, *tests]))
        finally:
            os._exit(code)
    start = time.monotonic()
    while time.monotonic() - start < LIMIT_S:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "" if code == 0 else "failed" if code in (1, 2) else f"ended with {code}"
        time.sleep(0.02)
    os.killpg(child, 9)
    os.waitpid(child, 0)
    return "timed out"


def within_budget(lines: dict[str, dict[int, list[str]]], seconds: dict[str, float], mutant: Mutant) -> list[str]:
    """The tests that run a fault's line, the quickest first."""
    tests, total = [], 0.0
    for test in sorted(lines.get(mutant.name, {}).get(mutant.line, []), key=lambda t: seconds.get(t, 0.0)):
        total += seconds.get(test, 0.0)
        if tests and total > BUDGET_S:
            break
        tests.append(test)
    return tests


def _ending(folder: Path, mutant: Mutant, tests: list[str], argued: dict[str, str]) -> str:
    """How a fault ended; kept in the folder beside the copy."""
    kept = folder / "endings" / hashlib.sha256(f"{mutant.name}{mutant.code}".encode()).hexdigest()
    if not kept.exists():
        (folder / mutant.name).write_text(mutant.code, encoding="utf-8")
        how = (noticed(folder, tests) if tests else "") or "survived"
        (folder / mutant.name).write_text(mutant.original, encoding="utf-8")
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(how)
    how = kept.read_text()
    return "equivalent" if how == "survived" and f"{mutant.name}\n{mutant.diff}" in argued else how


def main() -> int:
    """Print the survivors and the share that was noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="files whose path holds this text")
    parser.add_argument("--equivalent", type=Path, default=ROOT / "benchmarks" / "mutation_equivalent.json")
    parser.add_argument("--work", type=Path, help="a folder to keep")
    chosen = parser.parse_args()
    files = sorted(f for t in TARGETS for f in ([ROOT / t] if t.endswith(".py") else (ROOT / t).glob("*.py")))
    everything = [m for f in files if chosen.only in str(f) for m in mutants(f)]
    sample = random.Random(chosen.seed).sample(everything, min(chosen.sample, len(everything)))
    argued = json.loads(chosen.equivalent.read_text()) if chosen.equivalent.exists() else {}
    import_libraries()
    counts: dict[str, int] = defaultdict(int)
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.work or Path(temporary)
        if not (folder / "times.xml").exists():
            copy_of_repository(folder)
        lines, seconds = tests_by_line(folder)
        if how := noticed(folder, ["tests/costs"]):
            raise SystemExit(f"the tests {how} without any fault")
        for i, mutant in enumerate(sample):
            ending = _ending(folder, mutant, within_budget(lines, seconds, mutant), argued)
            counts[ending] += 1
            if ending in ("survived", "equivalent"):
                print(f"--- {ending}: {mutant.name}:{mutant.line}\n{mutant.diff}", flush=True)
            print(f"{i + 1}/{len(sample)} {ending} {mutant.name}:{mutant.line}", file=sys.stderr, flush=True)
    real = sum(counts.values()) - counts["equivalent"]
    killed = real - counts["survived"]
    print(*(f"{ending}: {count}" for ending, count in sorted(counts.items())), sep="\n")
    print(f"noticed {killed} of {real} ({killed / real:.1%}), seed {chosen.seed}, {len(everything):,} faults in all")
    return 0 if killed >= 0.85 * real else 1


if __name__ == "__main__":
    sys.exit(main())
