"""Runs the command line in this process as a user would, and says what about the outcome breaks its promises.

The promises: exit code 0, 1 or 2; within the time limit; with 2 one printable line on stderr and nothing on stdout;
with 0 or 1 nothing on stderr that warns; no control character ever; JSON that parses, without NaN; no file changed,
left over or half written.
"""

from __future__ import annotations

import gc
import io
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from planner.cli import main
from tests.fuzz.kept import kept

__all__ = ["Outcome", "faults", "run"]

PROGRESS = ("train", "calibrate")
"""Commands that print progress on stderr."""
SAID = re.compile(
    r".+: [\d.,]+ k?B|planner: (not in|WARNING:|sweep:) .+"
    r"|planner: .+ (is not counted|goes in the next release|sets the training's|takes any number of sequences)"
)
"""Said on stderr beside an answer: a report's file and size, what an export can't express, a sweep's progress,
what of a model's config is not counted or stands for the training's, an option's former name, the batch that tokens
make."""
LONGEST_LINE = 2_100
WAITING_S = 0.05
"""Of the processor between two looks: less is waiting."""
GRACE_S = 60.0
"""From one signal that ends a case to the next, where something has swallowed it."""


class TimedOut(BaseException):
    """A case ran past its limit; no `except Exception` may take it."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command did. code: its exit code, or None after a traceback or the time limit, said in `crash`."""

    argv: tuple[str, ...]
    code: int | None
    stdout: str
    stderr: str
    crash: str = ""


def run(argv: list[str] | tuple[str, ...], limit_s: float = 30.0) -> Outcome:
    """The command line with these arguments, its streams captured."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    crash = ""
    with mock.patch.object(sys, "argv", ["planner", *argv]), redirect_stdout(out), redirect_stderr(err), kept():
        try:
            with _time_limit(limit_s):
                main()
        except SystemExit as leaving:
            code = leaving.code
        except TimedOut:
            crash = f"no end within {limit_s:g} s\n{''.join(traceback.format_exc(limit=-3))}"
        except BaseException:  # whatever it is, a user would see its traceback
            crash = traceback.format_exc(limit=-6)
    gc.unfreeze()  # `main` ends as a process does, which collects nothing more
    return Outcome(argv=tuple(argv), code=code, stdout=out.getvalue(), stderr=err.getvalue(), crash=crash)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Of this process's processor; and where it computes next to nothing for ten times as long, which is a wait.

    A loaded machine may give a second of its processor in minutes, so the clock alone says nothing.
    """
    used = time.process_time()

    def stop(number: int, _frame: Any) -> None:
        nonlocal used
        before, used = used, time.process_time()
        if number == signal.SIGPROF or used - before < WAITING_S:
            for _, timer, _ in kinds:  # or on a slow machine the next signal meets the block that ends them
                signal.setitimer(timer, GRACE_S, GRACE_S)
            raise TimedOut

    kinds = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, 10.0 * seconds))
    before = [signal.signal(number, stop) for number, _, _ in kinds]
    for _, timer, limit_s in kinds:
        signal.setitimer(timer, limit_s, limit_s)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(kinds, before, strict=True):
            signal.setitimer(timer, 0.0)
            signal.signal(number, handler)


def faults(outcome: Outcome, folder: Path, before: dict[str, bytes], outputs: tuple[str, ...] = ()) -> list[str]:
    """What breaks a promise, an empty list where nothing does.

    folder: where the command's files lie; before: their contents by name when it started; outputs: names of files that
    it was asked to write there.
    """
    if outcome.crash:
        return [outcome.crash]
    found = []
    if outcome.code not in (0, 1, 2):
        found.append(f"exit code {outcome.code}")
    found += _bad_refusal(outcome) if outcome.code == 2 else _bad_answer(outcome, before)
    found += [f"stdout has {c!r}" for c in _controls(outcome.stdout)]
    found += [f"stderr has {c!r}" for c in _controls(outcome.stderr)]
    after = snapshot(folder)
    kept = {name: data for name, data in before.items() if ".parts/" not in name}  # a sweep's own until it is done
    found += [f"{name} was changed" for name, data in kept.items() if after.get(name) != data]
    # Exit code 1: a page says that nothing fits; other commands than recommend have a layout, which keeps nothing.
    answered = outcome.code == 0 or (outcome.code == 1 and ("--html" in outcome.argv or outcome.argv[0] != "recommend"))
    asked = set(outcome.argv) | set(outputs) if answered else set()
    if outcome.argv[:1] == ("probe",) and "--run" in outcome.argv:
        asked |= {"probe.json", *outcome.argv}  # kept by design, also of a probe that fails or is killed
    asked |= {part for text in asked for part in Path(text).parts[:1]}  # "--profile [/x]": into the folder "["
    new = [name for name in after if name not in before and "--checkpoint" not in outcome.argv]
    new = [name for name in new if ".parts/" not in name and not {".", str(folder)} & asked]  # "--profile .": into it
    found += [f"{name} was left behind" for name in new if Path(name).parts[0] not in asked]
    if outcome.code == 0:
        found += [f"{name} wasn't written" for name in outputs if name not in after]
    return found


def _bad_refusal(outcome: Outcome) -> list[str]:
    found = []
    lines = outcome.stderr.splitlines()
    if outcome.argv and outcome.argv[0] in PROGRESS:
        lines = [line for line in lines if not line.startswith(("step ", "going on"))]
    if len(lines) != 1 or not lines[0].startswith("planner: ") or not 12 < len(lines[0]) < LONGEST_LINE:
        found.append(f"exit code 2 without one line that says why: {outcome.stderr[:500]!r}")
    if outcome.stdout:
        found.append(f"exit code 2, but stdout has {outcome.stdout[:200]!r}")
    return found


def _bad_answer(outcome: Outcome, before: dict[str, bytes]) -> list[str]:
    found = []
    said = [line for line in outcome.stderr.splitlines() if not SAID.fullmatch(line)]
    if said and outcome.argv[0] not in PROGRESS:
        found.append(f"an answer, but stderr has {outcome.stderr[:300]!r}")
    if not outcome.stdout.strip() and not {"-o", "--output"} & set(outcome.argv):
        found.append("no answer")
    if "--json" in outcome.argv and "--help" not in outcome.argv:
        try:
            json.loads(outcome.stdout, parse_constant=_no_constant)
        except ValueError as error:
            found.append(f"--json printed no JSON: {error}")
    elif any(f" {word} " in _without_quoted(outcome.stdout, before) for word in ("nan", "inf", "-inf")):
        found.append("the answer has a nan or inf")
    return found


def _without_quoted(said: str, before: dict[str, bytes]) -> str:
    """What was said without the sentences that stand quoted in the files, such as a figure's source."""
    for data in before.values():
        for sentence in re.findall(r'"([^"\n]+ [^"\n]+)"', data.decode(errors="ignore")):
            said = said.replace(sentence, "")
    return said


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _controls(text: str) -> list[str]:
    return sorted({c for c in text if not c.isprintable() and c != "\n"})[:3]


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file beneath a folder with its content; devices, pipes and broken links with none."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            found[str(path.relative_to(folder))] = b""
            if path.is_file() and not path.is_symlink():
                with suppress(OSError):
                    found[str(path.relative_to(folder))] = path.read_bytes()
    return found
