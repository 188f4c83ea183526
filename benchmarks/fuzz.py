"""Hostile inputs through the command line: how many cases ended how. Exit code 1 where any broke a promise.

    python benchmarks/fuzz.py --cases 10000 --seed 1

A third are structural mutations by Hypothesis, a third random edits of bytes, a third options with odd values (all of
them where there are fewer). The promises are in tests/fuzz/harness.py. Memory is limited, so that a case which asks for
too much ends.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import re
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import FlakyStrategyDefinition

from planner.cli import COMMANDS
from tests.fuzz.cases import Case, byte_case, judge, option_case, structural_cases
from tests.fuzz.options import option_cases, several_options

LIMIT_S = 20.0
MOST_KIB = 2 * 2**20
INTERRUPTED = (130, 143)
BATCH = 250
MEMORY = Path("/dev/shm")
"""Where cases have their folders, if it is there: on a disk of layers a folder takes 20 ms to remove."""


class Tally:
    """Outcomes counted, faults kept; in a file too where one is given, so that a run that was ended goes on."""

    def __init__(self, work: Path | None) -> None:
        self.work, self.before = work, collections.Counter[str]()
        self.outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
        self.faults: list[tuple[str, list[str]]] = []
        self.messages: dict[str, str] = {}
        self.commands: collections.Counter[str] = collections.Counter()
        self.slowest: list[tuple[float, str]] = []
        for line in work.read_text().splitlines() if work is not None and work.exists() else ():
            how, ending, command, found = json.loads(line)
            self.before[how] += 1
            self._count(how, ending, command, found)

    def _count(self, how: str, ending: str, command: str, found: list[str]) -> None:
        self.outcomes[how, ending] += 1
        self.commands[command.partition(" ")[0]] += 1
        if found:
            self.faults.append((command, found))

    def add(self, how: str, case: Case) -> None:
        """Run one case."""
        start = time.process_time()
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        outcome, found = judge(case, LIMIT_S)
        if held <= MOST_KIB < (most := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss):
            found.append(f"{most / 2**20:.1f} GiB of memory")
        if outcome.code in INTERRUPTED:
            raise KeyboardInterrupt
        self.slowest = sorted([*self.slowest, (time.process_time() - start, case.command[:150])])[-5:]
        ending = "broken promise" if found else f"exit {outcome.code}"
        self._count(how, ending, case.command, found)
        if self.work is not None:
            with self.work.open("a") as log:
                log.write(json.dumps([how, ending, case.command, found]) + "\n")
        if outcome.code == 2:
            shape = re.sub(r"'[^']*'|\"[^\"]*\"|/\S+|[-\d.e+]*\d", "_", outcome.stderr.strip())
            self.messages.setdefault(shape[:160], outcome.stderr.strip())


def structural(tally: Tally, count: int, start: int) -> None:
    """Cases that Hypothesis draws, in batches: it remembers what it drew, and more slowly the more it drew."""

    def draw(case: Case) -> None:
        tally.add("structure", case)

    chosen = settings(
        max_examples=BATCH, deadline=None, database=None, phases=[Phase.generate], verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    batch = tally.before["structure"] // BATCH  # of one that was ended the rest is left out
    done = tally.before["structure"]
    while done < count:
        batch += 1
        test = settings(chosen, max_examples=min(BATCH, count - done))(given(case=structural_cases())(draw))
        try:
            seed(1_000 * start + batch)(test)()
        except FlakyStrategyDefinition:  # deep tables meet the recursion limit or not, by the depth of the stack
            print(f"batch {batch} of seed {start} ended early", file=sys.stderr)
        done = sum(number for (how, _), number in tally.outcomes.items() if how == "structure")


def run_all(tally: Tally, cases: int, start: int) -> None:
    """A third of each kind, the options first: half of them alone, half several at once."""
    options = option_cases()
    random.Random(start).shuffle(options)
    options = options[: cases // 6]
    options += [several_options(start * 1_000_003 + i) for i in range(cases // 3 - len(options))]
    rest = cases - len(options)
    for argv in options[tally.before["option"] :]:
        tally.add("option", option_case(argv))
    for i in range(tally.before["bytes"], rest // 2):
        tally.add("bytes", byte_case(start * 1_000_003 + i))
    structural(tally, rest - rest // 2, start)


def main() -> int:
    """Run the cases, print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--messages", action="store_true", help="print each kind of refusal once")
    parser.add_argument("--work", type=Path, help="a file of what was found, from which an ended run goes on")
    chosen = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30, 12 * 2**30))
    warnings.simplefilter("error")  # a warning would reach the user's terminal
    if MEMORY.is_dir():
        tempfile.tempdir = str(MEMORY)
    tally, began = Tally(chosen.work), time.process_time()
    try:
        run_all(tally, chosen.cases, chosen.seed)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    for command, found in tally.faults:
        print(f"--- {command[:300]!r}", *(fault[-1500:] for fault in found), sep="\n")
    if chosen.messages:
        print(*sorted(tally.messages.values()), sep="\n")
    for (how, ending), count in sorted(tally.outcomes.items()):
        print(f"{how:10} {ending:15} {count:7,}")
    total = sum(tally.outcomes.values())
    print("of each command:", ", ".join(f"{name} {count:,}" for name, count in tally.commands.most_common()))
    if lacking := [name for name in COMMANDS if name not in tally.commands]:
        print("of no case:", ", ".join(lacking))
    seconds = time.process_time() - began
    print(f"{total:,} cases, seed {chosen.seed}: {len(tally.faults)} broke a promise; {seconds:.0f} s of the processor")
    print("slowest:", "; ".join(f"{s:.1f} s {command}" for s, command in reversed(tally.slowest)))
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
