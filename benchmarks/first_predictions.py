"""First predictions: runs as they were predicted when their publication came in, before anything was changed for it.

    python benchmarks/first_predictions.py f8a56195 2c663964 --output benchmarks/first_predictions.csv
    python benchmarks/first_predictions.py

Each commit added runs to `measured_runs/unseen/`, with what states their machines. Its own planner predicts them here
again, in a work tree of that commit. Errors of today (`planner/validation/unseen.csv`) are smaller: what their scripts
say was stated later, and what they taught was counted. A reader's own run is predicted as these were. Without a commit
it prints, of each commit's dense sets and of its mixtures, the mean error at first and today.
"""

from __future__ import annotations

import argparse
import csv
import io
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parents[1]
OF_COMMIT = """
import csv, sys
from pathlib import Path
import numpy as np
from planner.validation import predict, read_runs
from planner.validation.errors import COLUMNS, likeness_of_runs
before = set(sys.argv[2].split("|"))
out = csv.writer(sys.stdout, lineterminator="\\n")
out.writerow(["commit", *COLUMNS])
for path in sys.argv[3:]:
    p = predict([run for run in read_runs(Path(path)) if f"{run['source']} {run['run']}" not in before])
    rows = np.flatnonzero(p.ok & np.isfinite(p.measured_s) & np.isfinite(p.step_time_s))
    likes, traits = likeness_of_runs([p.runs[i] for i in rows])
    for i, like, its in zip(rows, likes, traits):
        sizes = [f"{number:.6g}" for number in (*like, p.step_time_s[i], p.measured_s[i])]
        out.writerow([sys.argv[1], p.runs[i]["source"], p.runs[i]["run"], *its, *sizes])
"""


def git(*words: str) -> str:
    """What git prints."""
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout


def runs_before(commit: str) -> set[str]:
    """Set and name of every unseen run of the commit before."""
    listed = git("ls-tree", "--name-only", f"{commit}^", "measured_runs/unseen/").split()
    tables = [git("show", f"{commit}^:{path}") for path in listed if path.endswith(".csv")]
    return {f"{row['source']} {row['run']}" for text in tables for row in csv.DictReader(io.StringIO(text))}


def first_predictions(commit: str) -> str:
    """The runs that a commit added as its own planner predicts them, as CSV."""
    added = git("show", "--name-only", "--format=", commit, "--", "measured_runs/unseen/*.csv").split()
    with tempfile.TemporaryDirectory() as folder:
        git("worktree", "add", "--detach", folder, commit)
        try:
            words = [sys.executable, "-c", OF_COMMIT, commit, "|".join(sorted(runs_before(commit))), *added]
            # Python puts its working directory first where it runs a text: the commit's planner is the one that runs.
            return subprocess.run(words, check=True, capture_output=True, text=True, cwd=folder).stdout
        finally:
            git("worktree", "remove", "--force", folder)


Errors = dict[tuple[str, str], dict[str, list[float]]]


def errors_in(path: Path, batches: dict[str, str] | None = None) -> Errors:
    """The errors of a table's runs by commit and kind, then by set.

    batches: the commit of each set, where no column has it. A set that came in two commits counts in the last.
    """
    found: Errors = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader(io.StringIO(path.read_text())):
        batch = row["commit"] if batches is None else batches.get(row["source"], "")
        error = float(row["held_out_step_time_s"]) / float(row["measured_step_time_s"]) - 1.0
        found[batch, "mixtures" if row["kind"] == "experts" else "dense"][row["source"]].append(abs(error))
    return found


def print_batches() -> None:
    """Each batch's sets, alike: their mean error as first predicted, and today."""
    table = Path(__file__).with_name("first_predictions.csv")
    first = errors_in(table)
    batches = {source: commit for (commit, _), sets in first.items() for source in sets}
    today = errors_in(ROOT / "planner/validation/unseen.csv", batches)
    print(f"{'commit':9s} {'kind':9s} {'sets':>5s} {'first %':>8s} {'today %':>8s}")
    for (commit, kind), sets in first.items():
        means = [100.0 * mean(map(mean, errors.values())) for errors in (sets, today[commit, kind]) if errors]
        print(f"{commit:9s} {kind:9s} {len(sets):5d} " + " ".join(f"{value:8.1f}" for value in means))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if not given.commits:
        print_batches()
    elif given.output is None:
        parser.error("--output is missing; allowed: a file to write the commits' predictions to")
    else:
        tables = [first_predictions(commit).splitlines() for commit in given.commits]
        given.output.write_text("\n".join([tables[0][0], *(row for table in tables for row in table[1:])]) + "\n")
        print(f"{sum(len(table) - 1 for table in tables)} runs of {len(tables)} commits")


if __name__ == "__main__":
    main()
