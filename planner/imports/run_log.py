"""Logs that training runs leave, read line by line in bounded memory: steady step time, its spread, memory, rates.

`log_formats.toml` says in which formats frameworks print iterations, and what its fields mean.
"""

import math
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, TypeAdapter

from planner.base.arrays import Array, Bools
from planner.base.errors import FileFormatError, InputError
from planner.base.files import read_toml
from planner.base.tables import StrictTable
from planner.base.units import counted
from planner.imports.trace_kinds import opened

LONGEST_LINE = 2**16
MOST_STEPS = 100_000  # kept, the last ones
LEAST_STEPS = 3
LEAST_STEADY = 2
WARM = 0.1
"""An iteration this much beyond the median of the second half is still warming up."""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")
WITHOUT_BAR = ("{'loss': ", "{'train_runtime': ")
ROUNDED = 0.005
"""Batches nearer than this are one: nanotron rounds to three digits."""
UNITS = {"K": 1e3, "M": 1e6}
# What a fact counts in, in SI: rates keep their name.
PER_STEP = {"time_s": 1.0, "time_ms": 1e-3}
MEMORY = {"memory_gib": 2.0**30, "memory_mib": 2.0**20}
RATES = ("steps_per_s", "samples_per_s", "tokens_per_s_per_gpu")
NUMBER = r"[0-9][0-9,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?"
Expression = Annotated[re.Pattern[str], BeforeValidator(lambda text: re.compile(text.replace("NUMBER", NUMBER)))]


class LogFormat(StrictTable):
    """How one framework's log is read: a table of the file."""

    marks: tuple[str, ...]
    begins: Expression
    facts: tuple[Expression, ...]
    anywhere: tuple[Expression, ...] = ()
    states: tuple[Expression, ...] = ()
    families: tuple[str, ...]
    source: str


@cache
def log_formats() -> dict[str, LogFormat]:
    """The formats by the framework's name, in the order in which they are tried."""
    shipped = read_toml(Path(__file__).with_name("log_formats.toml"))
    return TypeAdapter(dict[str, LogFormat]).validate_python(shipped)


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """Facts of a log. kind: how its speed is said, `time_s` or one of `RATES`; values: steady ones, shape (steps,).

    halves: medians of the first and the second half of all iterations. warm_up: those left out at starts. tflops: a
    GPU's, the median; memory_bytes: the highest peak of a rank; batch: sequences per step. None: the log doesn't say.
    other_batch: iterations left out, of another batch than the run's.
    """

    framework: str
    kind: str
    values: Array
    halves: tuple[float, float]
    warm_up: int
    tflops: float | None
    memory_bytes: float | None
    batch: int | None
    other_batch: int

    @property
    def median(self) -> float:
        """Median of the steady iterations."""
        return float(np.median(self.values))

    @property
    def spread(self) -> float:
        """Their standard deviation over the median, from the median of the distances: outliers don't count."""
        return float(1.4826 * np.median(np.abs(self.values - self.median)) / self.median)

    @property
    def slow_share(self) -> float:
        """Share of the steady iterations that took over 1.5 times the median."""
        ratio = self.values / self.median if self.kind == "time_s" else self.median / self.values
        return float(np.mean(ratio > 1.5))

    def step_time_s(self, *, gpus: int, batch: int, seq_len: int) -> float:
        """Seconds of a step of so many sequences on so many GPUs."""
        work = {"time_s": 1.0, "steps_per_s": 1.0, "samples_per_s": float(batch)}
        amount = work.get(self.kind, batch * seq_len / gpus)
        return self.median if self.kind == "time_s" else amount / self.median


@dataclass
class _Found:
    """The facts that one format has found so far."""

    speed: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    kind: str = ""
    steps: int = 0
    tflops: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    memory_bytes: float = 0.0
    batch: int | None = None
    other_batch: int = 0
    starts: list[int] = field(default_factory=lambda: [0])
    """How many steps came before each header."""

    def take(self, facts: dict[str, float], batch: int | None = None) -> None:
        """Keep an iteration's facts, if it is of that batch. Of ranks that report one step the slowest counts."""
        if "batch" in facts:
            self.batch = int(facts["batch"])
            if batch is not None and abs(facts["batch"] / batch - 1.0) > ROUNDED:
                self.other_batch += 1
                return
        if "tflops" in facts:
            self.tflops.append(facts["tflops"])
        for name, unit in MEMORY.items():
            self.memory_bytes = max(self.memory_bytes, facts.get(name, 0.0) * unit)
        value = next((facts[name] * unit for name, unit in PER_STEP.items() if name in facts), None)
        kind = "time_s" if value is not None else next((name for name in RATES if name in facts), "")
        if value is None:
            value = facts.get(kind, 0.0)
        if not kind or value <= 0.0 or self.kind not in ("", kind):
            return
        step, self.kind = int(facts.get("step", self.steps)), kind
        if self.speed and self.speed[-1][0] == step:
            worse = max if kind == "time_s" else min
            self.speed[-1] = (step, worse(value, self.speed[-1][1]))
        else:
            self.speed.append((step, value))
            self.steps += 1


def read_log(path: Path, run: Mapping[str, Any] | None = None) -> RunLog:
    """Reads a training run's log.

    run: what is known of it, `batch` and what formats state; iterations of another batch are left out.

    Raises FileFormatError if the file can't be read, is no text, or is no known framework's log; InputError if it has
    fewer than three iterations with a time, or says another size than the run's.
    """
    formats = log_formats()
    found = {name: _Found() for name in formats}
    number, no_bar, batch = 0, False, None if run is None else run["batch"]
    for line in _lines(path):
        number, no_bar = number + 1, no_bar or line.lstrip().startswith(WITHOUT_BAR)
        for name, log_format in formats.items():
            if not any(mark in line for mark in log_format.marks):
                continue
            pieces = _pieces(log_format, line)
            for piece in pieces:
                found[name].take(_facts(log_format.facts, piece), batch)
            if pieces:
                break
            if log_format.anywhere:
                found[name].take(_facts(log_format.anywhere, line))
            stated = [pair for x in log_format.states for m in x.finditer(line) for pair in m.groupdict().items()]
            if stated:
                found[name].starts.append(found[name].steps)
            if run is not None:
                _check_stated(f"{path}: line {number}", stated, run)
    best = max(formats, key=lambda name: (found[name].steps, found[name].other_batch))
    its = found[best]
    if not its.steps and its.other_batch:
        raise InputError(f"{path}: global batch size is {its.batch}, the run's is {batch}; allowed: a log of that run")
    if not its.steps and no_bar:
        lacks = "not its progress bar, which alone says what each step takes"
        allowed = "allowed: a log with the bar (disable_tqdm=False)"
        raise FileFormatError(f"{path}: has what Hugging Face's Trainer logs, but {lacks}; {allowed}")
    if not its.steps:
        names = ", ".join(formats)
        raise FileFormatError(f"{path}: none of its {number:,} lines is an iteration's; allowed: a log of {names}")
    if len(its.speed) < LEAST_STEPS:
        few = f"{counted(its.steps, 'iteration')} with a time"
        few += f" at global batch {batch}" if its.other_batch else ""
        raise InputError(f"{path}: a log of {best} with {few}; allowed: {LEAST_STEPS} or more")
    values = np.array([value for _, value in its.speed])
    steady = _steady(values, sorted({max(at - its.steps + len(values), 0) for at in its.starts}))
    first = int(np.argmax(steady))
    return RunLog(
        framework=best, kind=its.kind, values=values[steady], warm_up=int(np.sum(~steady)),
        halves=(float(np.median(values[: len(values) // 2])), float(np.median(values[len(values) // 2 :]))),
        tflops=float(np.median(list(its.tflops)[min(first, len(its.tflops) - 1) :])) if its.tflops else None,
        memory_bytes=its.memory_bytes or None, other_batch=its.other_batch,
        batch=its.batch if batch is None or not its.other_batch else batch,
    )  # fmt: skip


def _check_stated(where: str, stated: Iterable[tuple[str, str]], run: Mapping[str, Any]) -> None:
    """Raises InputError if a log states a size or a choice that isn't the run's; of None nothing is known."""
    for name, value in stated:
        if run[name] is not None and value.lower() != str(run[name]).lower():
            raise InputError(f"{where} says {name} {value}, the run's is {run[name]}; allowed: a log of that run")


def _lines(path: Path) -> Iterator[str]:
    """Lines without colours and control characters; a progress bar's rewritten lines one by one.

    What is over `LONGEST_LINE` in one line comes in pieces, so that no file takes more memory than that.
    """
    try:
        with opened(path) as stream:
            while data := stream.readline(LONGEST_LINE):
                if b"\x00\x00\x00\x00" in data:
                    raise FileFormatError(f"{path}: has binary data; allowed: a log's text")
                for part in data.decode("utf-8", errors="replace").split("\r"):
                    yield ESCAPES.sub("", part)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "gzip packed it, and it is cut off or damaged"
        raise FileFormatError(f"{path}: can't be read: {reason}") from None


def _pieces(log_format: LogFormat, line: str) -> list[str]:
    """The texts of iterations in a line: more than one where several processes wrote into it."""
    at = [m.start() for m in log_format.begins.finditer(line)]
    return [line[a:b] for a, b in pairwise([*at, len(line)])]


def _facts(patterns: Iterable[re.Pattern[str]], text: str) -> dict[str, float]:
    """The numbers of the named groups."""
    out: dict[str, float] = {}
    for pattern in patterns:
        if match := pattern.search(text):
            for name, value in match.groupdict().items():
                number = float((value or "nan").rstrip("KM").replace(",", "")) * UNITS.get((value or " ")[-1], 1.0)
                if math.isfinite(number):
                    out[name] = number
    return out


def _steady(values: Array, starts: Iterable[int]) -> Bools:
    """Whether each iteration counts: none up to the first, after every start, that is as the second half's are.

    At least two count.
    """
    usual, counts = np.median(values[len(values) // 2 :]), np.ones(len(values), dtype=np.bool_)
    for start, end in pairwise([*starts, len(values)]):
        near = np.flatnonzero(np.abs(values[start:end] / usual - 1.0) <= WARM)
        warm = int(near[0]) if len(near) else 0
        counts[start : start + min(warm, int(counts.sum()) - LEAST_STEADY)] = False
    return counts
