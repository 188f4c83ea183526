"""Sweeps: how they scale over processes, and a hundred million layouts, undisturbed, and killed.

python benchmarks/sweep.py scaling          the same sweep on one process, two, up to a process a core
python benchmarks/sweep.py 100m             a hundred million layouts on every core
python benchmarks/sweep.py killed           the same, killed five times at random and resumed: equal bytes?

The last two compare with what `100m` wrote, and run it first if it has not been. Linux only: memory is read from /proc.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = Path(tempfile.gettempdir()) / "planner-sweep-benchmark"
SWEEP = HERE / "sweep_100m.toml"
WHOLE = FOLDER / "100m.parquet"


def command(definition: Path, output: Path, *options: object) -> list[str]:
    return [sys.executable, "-m", "planner", "sweep", str(definition), "-o", str(output), *map(str, options)]


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
        except OSError:
            continue  # it has just ended
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += parents.get(found[-1], [])
    return found


def memory_bytes(pid: int) -> int:
    """Resident memory of a process and all that it started; shared pages count for each."""
    total = 0
    for member in family(pid):
        try:
            total += int(Path(f"/proc/{member}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue
    return total


class Peak(threading.Thread):
    """The most memory that a process and its children have at once, sampled five times a second."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self.process, self.most = process, 0
        self.start()

    def run(self) -> None:
        while self.process.poll() is None:
            self.most = max(self.most, memory_bytes(self.process.pid))
            time.sleep(0.2)


def measured(definition: Path, output: Path, *options: object) -> None:
    """Run a sweep to its end and print a line; processor seconds are of its own processes."""
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command(definition, output, *options, "--json"), stdout=subprocess.PIPE, text=True)
    peak = Peak(process)
    printed, _ = process.communicate()
    if process.returncode:
        sys.exit(f"the sweep failed with exit code {process.returncode}")
    seconds, record = time.perf_counter() - begun, json.loads(printed)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    made = record["layouts"] - record["layouts_kept"]
    print(
        f"{' '.join(map(str, options)) or 'every core':36s} {record['cases']:6,d} {made:12,d} {seconds:8.1f} "
        f"{busy:8.1f} {made / seconds:11,.0f} {peak.most / 2**20:6,.0f} MiB",
        flush=True,
    )


def heading() -> None:
    print(
        f"{'':36s} {'cases':>6s} {'layouts':>12s} {'seconds':>8s} {'CPU s':>8s} {'layouts/s':>11s} {'memory':>10s}",
        flush=True,
    )


def scaling() -> None:
    cores = len(os.sched_getaffinity(0))
    heading()
    for workers in sorted({1, *(2**i for i in range(1, cores.bit_length())), cores}):
        measured(HERE / "sweep_scaling.toml", FOLDER / "scaling.parquet", "--workers", workers, "--restart")


def hundred_million() -> None:
    heading()
    measured(SWEEP, WHOLE, "--restart")


def parts(output: Path) -> int:
    return len(list(output.with_name(f"{output.name}.parts").glob("part-*.json")))


def compared(output: Path) -> None:
    ours, theirs = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (output, WHOLE))
    print(f"{output.name}: {'equal to' if ours == theirs else 'NOT EQUAL TO'} the undisturbed one ({ours[:16]})")
    if ours != theirs:
        sys.exit(1)


def killed(seed: int) -> None:
    output, draw = FOLDER / "killed.parquet", random.Random(seed)
    output.unlink(missing_ok=True)
    for number in range(1, 6):
        process = subprocess.Popen(command(SWEEP, output), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(3, 20))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        print(f"killed {number} times: {parts(output)} of 240 cases are kept", flush=True)
    heading()
    measured(SWEEP, output)
    compared(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("scaling", "100m", "killed"))
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which `killed` kills")
    asked = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    if asked.what == "scaling":
        scaling()
        return
    if asked.what == "100m" or not WHOLE.exists():
        hundred_million()
    if asked.what == "killed":
        killed(asked.seed)


if __name__ == "__main__":
    main()
