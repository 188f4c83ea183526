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
from pathlib import Path

import numpy as np
from cross_validate import mean_of

from planner.validation.errors import columns_in, errors_in, text_of

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


def print_batches() -> None:
    """Each commit's sets, alike: their mean error as first predicted, and today. One of two commits is of the last."""
    columns = columns_in(Path(__file__).with_name("first_predictions.csv").read_text())
    first, today = errors_in(columns), errors_in(columns_in(text_of("unseen.csv")))
    last = dict(zip(columns["source"], columns["commit"], strict=True))
    commits, now = np.array(columns["commit"]), np.array([last.get(str(source), "") for source in today.source])
    print(f"{'commit':9s} {'kind':9s} {'sets':>5s} {'first %':>8s} {'today %':>8s}")
    for commit, experts in dict.fromkeys(zip(columns["commit"], first.experts.tolist(), strict=True)):
        then = first.where((commits == commit) & (first.experts == experts))
        both = (then, today.where((now == commit) & (today.experts == experts)))
        means = [100.0 * mean_of(of.source, np.abs(np.expm1(-of.error))) for of in both if len(of.error)]
        kind = "mixtures" if experts else "dense"
        print(f"{commit:9s} {kind:9s} {len(set(then.source)):5d} " + " ".join(f"{value:8.1f}" for value in means))


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
