"""Fit the figures of one GPU's profiles to the shipped runs: `planner calibrate --from` by cluster.

    python -m pip install '.[calibrate]'
    python benchmarks/calibrate.py --cluster dgx-a100 measured_runs/*.csv

Which figures, and their bounds: planner/calibration/parameters.py; all other options are those of the command, such as
`--hold-out narayanan-table1 --profile FOLDER`, which writes the profiles as they go into hardware_profiles/.
"""

from __future__ import annotations

import sys

from planner.cli import main as planner

ARCHITECTURES = {"dgx-a100": "ampere", "dgx-h100": "hopper"}


def main() -> None:
    arguments = sys.argv[1:]
    if "--cluster" in arguments[:-1]:
        at = arguments.index("--cluster")
        cluster = arguments[at + 1]
        arguments[at : at + 2] = ["--architecture", ARCHITECTURES.get(cluster, cluster)]
    sys.argv = ["planner", "calibrate", "--from", *arguments]
    planner()


if __name__ == "__main__":
    main()
