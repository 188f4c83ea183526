"""Fit one GPU's profiles to measured runs: `planner calibrate --from`, by cluster instead of architecture.

    python -m pip install '.[calibrate]'
    python benchmarks/calibrate.py --cluster dgx-a100 measured_runs/*.csv

Which figures, and their bounds: planner/calibration/figures.py.
"""

from __future__ import annotations

import argparse
import sys

from planner.cli import main as planner

ARCHITECTURES = {"dgx-a100": "ampere", "dgx-h100": "hopper"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--cluster", choices=sorted(ARCHITECTURES), required=True, help="prefix of the rows' clusters")
    parser.add_argument("--hold-out", help="leave out sources whose name begins so, then score them")
    parser.add_argument("--max-evaluations", default="20")
    parser.add_argument("--profile", help="folder for the fitted profiles, laid out as hardware_profiles/")
    args = parser.parse_args()
    sys.argv = ["planner", "calibrate", "--architecture", ARCHITECTURES[args.cluster]]
    for option in ("hold_out", "max_evaluations", "profile"):
        if getattr(args, option):
            sys.argv += [f"--{option.replace('_', '-')}", getattr(args, option)]
    sys.argv += ["--from", *args.files]
    planner()


if __name__ == "__main__":
    main()
