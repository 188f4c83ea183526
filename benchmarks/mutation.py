"""Mutation test of the cost models, steps, searches and schedules: of a random sample of small faults, how many does a
test notice?

    python benchmarks/mutation.py --sample 400 --seed 1 --work mutants/

Faults are mutmut's (github.com/boxed/mutmut: an operator swapped, a number one more, an argument dropped...), within
functions; mutations of texts are left out, since most are messages. Tests are collected once. Each fault is put into
the running functions of a forked process (their code is exchanged, so no file is changed and nothing is imported again)
and the tests that call its function run there, the quickest first, up to `--budget` of them; what cached functions keep
is forgotten before. A fault that those miss counts as survived, and runs again where the budget is larger. What a
module computes when it is imported is computed without the fault: `--slowly` runs survivors once more with their file
changed in a copy of the repository.

A folder given as --work keeps what was found, so that an interrupted run goes on, and a larger sample of the same seed
goes on from a smaller one.
"""

from __future__ import annotations

import argparse
import cProfile
import difflib
import gc
import hashlib
import importlib
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import _lru_cache_wrapper, cached_property, partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("planner/costs", "planner/step", "planner/search", "planner/schedules")
PACKAGES = tuple(target.replace("/", ".") for target in TARGETS)
TESTS = (
    "tests/costs", "tests/schedules", "tests/step", "tests/search", "tests/metamorphic",
    "tests/export/test_pytorch_orders.py", "tests/export/test_schedule_csv.py",
    "tests/trainer/test_cost_model_bytes.py", "tests/training_time/test_fastest.py", "tests/api",
)  # fmt: skip
SLOW = "not (test_bubble_rates_of_fitted_zero_bubble or test_more_machines_never_hurt or test_the_order_of_the_groups)"
"""Left out: a minute of four minutes' tests."""
KEPT = ("_compiled",)
"""Results that are kept though a fault may lie in what they are of: to compile anew takes longer than a test."""
LIMIT_S = 120
"""Of the processor: a fault that makes them run so long is noticed."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A fault: the file, the function that it lies in, and one of its nodes changed."""

    path: Path
    function: str
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

    @property
    def key(self) -> str:
        """The same for the same fault of the same file."""
        return hashlib.sha256(f"{self.name}{self.code}".encode()).hexdigest()


def mutants(path: Path) -> list[Mutant]:
    """All faults of a file: mutmut's of every node within a function, but for texts, annotations and decorators."""
    import libcst
    from mutmut.mutation.mutators import mutation_operators

    code = path.read_text(encoding="utf-8")
    module = libcst.parse_module(code)
    found: list[Mutant] = []

    def visit(node: libcst.CSTNode, where: tuple[str, ...], inside: bool) -> None:
        if isinstance(node, (libcst.Annotation, libcst.Decorator, libcst.BaseString)):
            return
        for kind, operator in mutation_operators if inside else ():
            for changed in operator(node) if isinstance(node, kind) else ():
                make = partial(_with, module, node, changed)
                found.append(Mutant(path=path, function=".".join(where), original=code, make=make))
        named = isinstance(node, (libcst.FunctionDef, libcst.ClassDef)) and not inside
        at = (*where, node.name.value) if named else where  # type: ignore[attr-defined]
        for child in node.children:
            visit(child, at, inside or isinstance(node, libcst.FunctionDef))

    visit(module, (), inside=False)
    return found


def _with(module: Any, node: Any, changed: Any) -> str:
    return str(module.deep_replace(node, changed).code)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def put_in(mutant: Mutant) -> None:
    """Exchange the code of the running functions of the fault's file; defaults too, where the fault is in one."""
    file = str(mutant.path)
    new = {code.co_qualname: code for code in _codes(compile(mutant.code, file, "exec", dont_inherit=True))}
    living = [f for f in gc.get_objects() if type(f) is FunctionType and f.__code__.co_filename == file]
    changed = False
    for f in living:
        code = new.get(f.__code__.co_qualname)
        if code is not None and code != f.__code__ and len(code.co_freevars) == len(f.__code__.co_freevars):
            f.__code__ = code
            changed = True
    if not changed:
        _put_in_defaults(mutant, living)


def _put_in_defaults(mutant: Mutant, living: list[FunctionType]) -> None:
    name = mutant.name.removesuffix(".py").replace("/", ".")
    scratch = {"__name__": name, "__file__": str(mutant.path), "__package__": name.rpartition(".")[0]}
    exec(compile(mutant.code, str(mutant.path), "exec", dont_inherit=True), scratch)
    found = {f.__qualname__: f for f in gc.get_objects() if type(f) is FunctionType and f.__globals__ is scratch}
    for f in living:
        if f.__qualname__ in found:
            f.__defaults__, f.__kwdefaults__ = found[f.__qualname__].__defaults__, found[f.__qualname__].__kwdefaults__


def forget() -> None:
    """Forget what cached functions of the package have kept, so that a test calls what it relies on."""
    for kept in gc.get_objects():
        if type(kept) is _lru_cache_wrapper and kept.__module__.startswith(PACKAGES) and kept.__name__ not in KEPT:
            kept.cache_clear()


def forked(work: Callable[[], int]) -> int:
    """The exit code of some work in a forked process that prints nothing; below 0 where a signal ended it."""
    child = os.fork()
    if child == 0:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = 3
        try:
            code = work()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


class Runner:
    """A plug-in of pytest that runs the collected tests against one fault after another."""

    def __init__(self, sample: list[Mutant], folder: Path, budget_s: float, argued: Container[str] = ()) -> None:
        """budget_s: of the processor against one fault, by what the tests took without any; argued: not run."""
        self.sample, self.folder, self.budget_s, self.argued = sample, folder, budget_s, argued
        self.endings: dict[str, str] = {}
        self.log = folder / "endings.jsonl"
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            key, ending, spent_s = json.loads(line)
            self.endings[key] = ending
            if ending == "survived" and spent_s < budget_s:
                del self.endings[key]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of running the tests once."""
        items = {item.nodeid: item for item in session.items}
        kept = self.folder / "tests.json"
        if not kept.exists():
            forked(partial(self._look, session, kept))
        callers, seconds = json.loads(kept.read_text())
        for number, mutant in enumerate(self.sample, 1):
            if mutant.key in self.endings or f"{mutant.name}\n{mutant.diff}" in self.argued:
                continue
            tests = within_budget(callers.get(f"{mutant.name}::{mutant.function}", []), seconds, self.budget_s)
            ending = self._ending(session, mutant, [items[t] for t in tests if t in items])
            self.endings[mutant.key] = ending
            with self.log.open("a") as log:
                log.write(json.dumps([mutant.key, ending, self.budget_s]) + "\n")
            where = f"{mutant.name}:{mutant.line}"
            print(f"{number}/{len(self.sample)} {ending} {where} ({len(tests)} tests)", file=sys.stderr, flush=True)
        return True

    def _look(self, session: pytest.Session, kept: Path) -> int:
        """Which tests call which function, and how long they take; those that fail are left out."""
        callers: dict[str, list[str]] = {}
        seconds: dict[str, float] = {}
        root = str(ROOT) + os.sep
        for item, following in zip(session.items, [*session.items[1:], None], strict=True):
            forget()
            profiler, begin, failed = cProfile.Profile(builtins=False), time.process_time(), session.testsfailed
            profiler.enable()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            profiler.disable()
            if session.testsfailed > failed:
                continue
            seconds[item.nodeid] = time.process_time() - begin
            called = {
                f"{entry.code.co_filename.removeprefix(root)}::{entry.code.co_qualname.split('.<locals>')[0]}"
                for entry in profiler.getstats()
                if isinstance(entry.code, CodeType) and entry.code.co_filename.startswith(root + "planner")
            }
            for name in called:
                callers.setdefault(name, []).append(item.nodeid)
        kept.write_text(json.dumps([callers, seconds]))
        return 0

    def _ending(self, session: pytest.Session, mutant: Mutant, items: list[Any]) -> str:
        if not items:
            return "survived"

        def work() -> int:
            used = math.ceil(time.process_time())
            resource.setrlimit(resource.RLIMIT_CPU, (used + LIMIT_S, used + LIMIT_S + 5))
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            put_in(mutant)
            forget()
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    return 1
            return 0

        code = forked(work)
        return "survived" if code == 0 else "failed" if code in (1, 3) else f"ended by signal {-code}"


def within_budget(tests: list[str], seconds: dict[str, float], budget_s: float) -> list[str]:
    """The tests that call a fault's function, the quickest first."""
    chosen, total = [], 0.0
    for test in sorted(tests, key=lambda t: seconds[t]):
        total += seconds[test]
        if chosen and total > budget_s:
            break
        chosen.append(test)
    return chosen


def slowly(mutant: Mutant, folder: Path, budget_s: float) -> str:
    """How a survivor ends whose file is changed, in a copy of the repository: all is imported with the fault."""
    copy = folder / "copy"
    if not copy.exists():
        names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        for name in names:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    callers, seconds = json.loads((folder / "tests.json").read_text())
    everything = [test for name, tests in callers.items() if name.startswith(f"{mutant.name}::") for test in tests]
    tests = within_budget(sorted(set(everything)), seconds, budget_s)
    (copy / mutant.name).write_text(mutant.code, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    code = subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False).returncode
    (copy / mutant.name).write_text(mutant.original, encoding="utf-8")
    return "survived" if code == 0 else "failed"


def report(sample: list[Mutant], endings: dict[str, str], argued: dict[str, str]) -> tuple[int, int]:
    """Print the survivors and the counts; how many were noticed, of how many that change something."""
    counts: Counter[str] = Counter()
    for mutant in sample:
        ending = endings.get(mutant.key, "not run")
        if f"{mutant.name}\n{mutant.diff}" in argued:
            ending = "equivalent"
        counts[ending] += 1
        if ending == "survived":
            print(f"--- survived: {mutant.name}:{mutant.line}\n{mutant.diff}")
    print(*(f"{ending}: {count}" for ending, count in sorted(counts.items())), sep="\n")
    real = sum(counts.values()) - counts["equivalent"] - counts["not run"]
    return real - counts["survived"], real


def main() -> int:
    """Print the survivors and the share that was noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="files whose path holds this text")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests against one fault")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="those that are run")
    parser.add_argument("--equivalent", type=Path, default=ROOT / "benchmarks" / "mutation_equivalent.json")
    parser.add_argument("--work", type=Path, help="a folder to keep")
    parser.add_argument("--slowly", action="store_true", help="survivors once more, with all imported anew")
    chosen = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    files = sorted(f for t in TARGETS for f in (ROOT / t).rglob("*.py") if chosen.only in str(f))
    everything = [m for f in files for m in mutants(f)]
    random.Random(chosen.seed).shuffle(everything)
    sample = everything[: chosen.sample]
    argued = json.loads(chosen.equivalent.read_text()) if chosen.equivalent.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        runner = Runner(sample, folder, chosen.budget, argued)
        for file in files:
            importlib.import_module(str(file.relative_to(ROOT)).removesuffix(".py").replace("/", "."))
        quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", "-m", "not slow", "-k", SLOW]
        pytest.main([*quiet, *chosen.tests], plugins=[runner])
        for mutant in sample if chosen.slowly else ():
            if runner.endings.get(mutant.key) == "survived":
                runner.endings[mutant.key] = slowly(mutant, folder, chosen.budget)
    killed, real = report(sample, runner.endings, argued)
    share = killed / max(real, 1)
    error = math.sqrt(share * (1.0 - share) / max(real, 1))
    print(f"noticed {killed} of {real}: {share:.1%}, standard error {error:.1%}; seed {chosen.seed}, "
          f"{len(everything):,} faults in all")  # fmt: skip
    return 0 if share >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
