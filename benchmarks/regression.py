"""Whether a commit made planner slower: ten commands and four searches, it and its parent in alternation.

    python benchmarks/regression.py                       # HEAD against HEAD~1
    python benchmarks/regression.py --commit main --parent 9e0b0fd --rounds 5 --only search
    python benchmarks/regression.py --bars --rounds 5     # HEAD against the commit that issue 15 was filed on, its bars

Each measure is a process of its own. What counts is its processor seconds, its children's too; a search reports its
own, without start-up. In each round the two take turns, so that other work on the machine hits both alike. Seconds and
MiB are the least of the rounds, a ratio is the median of the rounds' ratios. Only ratios mean anything. A search's
ratio is of seconds a layout, for a commit may search more of them. A command's first run, which compiles modules, does
not count. What changed by more than 3 % is printed, and every ratio is added to
`regression_history.csv` with date and machine, but those of bars.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
HISTORY = Path(__file__).with_name("regression_history.csv")
WORTH_SAYING = 0.03
ONE_CORE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
LLAMA = "llama3-8b --cluster dgx-h100"
COMMANDS = {
    "help": "--help",
    "recommend": f"recommend {LLAMA} --gpus 64 --global-batch 512",
    "recommend-530b": "recommend megatron-530b --cluster dgx-a100-80gb --gpus 5120 --global-batch 2560",
    "recommend-mixture": "recommend mixtral-8x7b --cluster dgx-h100 --gpus 64 --global-batch 512",
    "estimate": f"estimate {LLAMA} --dp 8 --tp 2 --pp 4 --global-batch 128",
    "simulate": f"simulate {LLAMA} --dp 2 --pp 8 --global-batch 256",
    "compare": f"compare {LLAMA} --pp 4 --virtual-stages 2 --global-batch 32",
    "fastest": "fastest llama3-70b --cluster dgx-h100 --max-gpus 4096",
    "time": f"time {LLAMA} --gpus 64 --tokens 1e12",
    "html": f"recommend {LLAMA} --gpus 64 --global-batch 512 --html {{out}}/report.html",
}
SEARCHES = {
    "search-13b": ("llama-13b", "dgx-a100-80gb", 64, 2048),
    "search-175b": ("gpt3-175b", "dgx-a100-80gb", 1024, 1536),
    "search-530b": ("megatron-530b", "dgx-a100-80gb", 5120, 2560),
    "search-deepseek-v3": ("deepseek-v3", "dgx-h100", 2048, 15360),
}
# The names of 2026-11-23 stand beside today's, so that the commit that issue 15 was filed on can be measured.
SEARCH = """
import json, sys
from time import process_time
from planner.hardware import load_cluster, load_framework
from planner.models import load_model
from planner.search import Fixed, default_attention, default_precision
name, where, gpus, batch = sys.argv[1:]
model, cluster = load_model(name), load_cluster(where)
framework = load_framework(cluster.framework)
question = {
    "gpus": int(gpus), "global_batch": int(batch), "fixed": Fixed(),
    "precision": default_precision(cluster), "attention": default_attention(cluster),
}
try:
    from planner.cli.process import keep_freed_memory
    keep_freed_memory()  # as a command does
except ImportError:
    pass
try:
    from planner.search.request import Request
    from planner.search.scan import search
    from planner.setup import Setup
    what = Setup(model, cluster, framework), Request.of(framework, **question)
except ImportError:
    from planner.search.passes import search
    from planner.search.space import Asked
    own = {"fine_recompute": framework.fine_recompute, "hybrid_sharding": framework.hybrid_sharding}
    what = model, cluster, framework, Asked(**question, **own)
for first in (True, False):
    start = process_time()
    found = search(*what, prune=False)
    seconds = process_time() - start
print(json.dumps({"seconds": seconds, "layouts": found.legal}))
"""
FILED = "d8b2d25b"  # 2026-11-23, the last commit before issue 15
# Issue 15's: of the commit that it was filed on, at most so much of the seconds (and of the memory).
BARS = {
    **dict.fromkeys(SEARCHES, (0.25, 1.0)), "recommend-530b": (0.45, 1.0), "recommend": (0.6, 1.0), "html": (0.4, 1.0),
    "fastest-x160": (0.4, 0.5), "sweep": (0.4, 1.0),
}  # fmt: skip
OF_BARS = {
    "fastest-x160": "fastest x-160 --cluster dgx-a100-80gb --max-gpus 100000",
    "sweep": f"sweep {ROOT}/benchmarks/sweep_scaling.toml -o {{out}}/sweep.parquet --workers 1",
}


def measured(tree: Path, name: str) -> tuple[float, float, int]:
    """Processor seconds, peak MiB and layouts (1 where they aren't counted) of one measure with a tree's package."""
    with tempfile.TemporaryDirectory() as folder:
        if name in SEARCHES:
            line = [sys.executable, "-c", SEARCH, *map(str, SEARCHES[name])]
        else:
            line = [sys.executable, "-m", "planner", *(COMMANDS | OF_BARS)[name].format(out=folder).split()]
        env = os.environ | ONE_CORE | {"PYTHONPATH": str(tree)}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's modules are compiled once
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
            child = subprocess.Popen(line, stdout=said, stderr=errors, text=True, env=env, cwd=folder)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            said.seek(0)
            errors.seek(0)
            if child.returncode:
                sys.exit(f"{name} failed in {tree}:\n{errors.read()[-2000:]}")
            record = json.loads(said.read()) if name in SEARCHES else {}
    seconds = record["seconds"] if name in SEARCHES else usage.ru_utime + usage.ru_stime
    return seconds, usage.ru_maxrss / 1024, record.get("layouts", 1)


def commit_of(name: str) -> str:
    """A commit's short hash."""
    line = ["git", "-C", str(ROOT), "rev-parse", "--short=10", f"{name}^{{commit}}"]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


def compared(names: list[str], trees: list[Path], rounds: int, bars: bool) -> list[dict[str, object]]:
    """Of each measure the least seconds and MiB of both trees and the median of their ratios, printed as they come."""
    print(f"{'':20s} {'parent':>9s} {'commit':>9s} {'ratio':>6s}  {'MiB':>5s} {'MiB':>5s} {'ratio':>6s}", flush=True)
    out: list[dict[str, object]] = []
    for name in names:
        for tree in trees if name not in SEARCHES else ():
            measured(tree, name)
        found: list[list[tuple[float, float, int]]] = [[], []]
        for turn in range(rounds):
            for i in (0, 1) if turn % 2 == 0 else (1, 0):
                found[i].append(measured(trees[i], name))
        (before, size), (after, new) = ([min(row[i] for row in rows) for i in (0, 1)] for rows in found)
        turns = list(zip(*found, strict=True))
        slower = median((b[0] / b[2]) / (a[0] / a[2]) for a, b in turns)
        larger = median(b[1] / a[1] for a, b in turns)
        if bars:
            kept = (slower <= BARS[name][0], larger <= BARS[name][1])
            note = f"  bar {BARS[name][0]:.2f} {'met' if kept[0] else 'missed'}"
            note += f", of memory {BARS[name][1]:.2f} {'met' if kept[1] else 'missed'}"
        else:
            note = "  <-- changed" if any(abs(r - 1.0) > WORTH_SAYING for r in (slower, larger)) else ""
        seconds = f"{before:8.3f}s {after:8.3f}s {slower:6.3f}"
        print(f"{name:20s} {seconds}  {size:5.0f} {new:5.0f} {larger:6.3f}{note}", flush=True)
        figures = {"seconds_ratio": round(slower, 4), "memory_ratio": round(larger, 4)}
        out.append({"measure": name, "seconds": round(after, 4), "mib": round(new, 1)} | figures)
    return out


def main() -> None:
    """Measure, print, add to the history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--parent", default=None, help="Default: the commit's first parent.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bars", action="store_true", help="Issue 15's measures, against the commit it was filed on.")
    parser.add_argument("--only", default="", help="Measures whose name begins so.")
    asked = parser.parse_args()
    parent = asked.parent or (FILED if asked.bars else f"{asked.commit}~1")
    commits = [commit_of(parent), commit_of(asked.commit)]
    names = [name for name in (BARS if asked.bars else COMMANDS | SEARCHES) if name.startswith(asked.only)]
    with tempfile.TemporaryDirectory() as folder:
        trees = [Path(folder) / commit for commit in commits]
        for tree, commit in zip(trees, commits, strict=True):
            tree.mkdir()
            packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True)
            subprocess.run(["tar", "x", "-C", str(tree)], check=True, input=packed.stdout)
        print(f"{commits[0]} (parent) and {commits[1]}, {asked.rounds} rounds", flush=True)
        found = compared(names, trees, asked.rounds, asked.bars)
    if asked.bars:
        return
    machine = f"{platform.machine()} {platform.system()} {os.cpu_count()} cores, Python {platform.python_version()}"
    about = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "machine": machine, "commit": commits[1],
             "parent": commits[0], "rounds": asked.rounds}  # fmt: skip
    with HISTORY.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*about, *found[0]])
        if file.tell() == 0:
            writer.writeheader()
        writer.writerows(about | row for row in found)


if __name__ == "__main__":
    main()
