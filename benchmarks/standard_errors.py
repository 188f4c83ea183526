"""Are the standard errors of a calibration honest? Fits to runs made with known figures, and how far off they are.

    python -m pip install '.[calibrate]'
    python benchmarks/standard_errors.py --architecture hopper --sets 30

Each set is the architecture's shipped runs with other step times: those that the cost models predict with every fitted
figure drawn from the middle three fifths between its bounds, times noise. A fit should find the figures within one
standard error in 68 % of cases and within two in 95 %. What the shipped runs don't tell keeps its value; with
`--draw-all` it is drawn too, and the fit is blamed for what it left alone.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from planner.calibration.figures import predict_with
from planner.calibration.identified import calibrate
from planner.calibration.selection import select
from planner.validation import read_runs, shipped_files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", default="hopper")
    parser.add_argument("--sets", type=int, default=30)
    parser.add_argument("--noise", type=float, default=0.01, help="of a step time, relative")
    parser.add_argument("--draw-all", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    random = np.random.default_rng(args.seed)
    chosen = select([run for path in shipped_files() for run in read_runs(path)], args.architecture)
    problem, figures = chosen.problem()
    drawn = list(figures if args.draw_all else calibrate(problem, figures).fit.figures)
    low, span = np.array([(f.low, f.high - f.low) for f in drawn]).T
    off: dict[str, list[float]] = {f.label: [] for f in figures}
    for _ in range(args.sets):
        true = low + span * random.uniform(0.2, 0.8, len(drawn))
        times = predict_with(drawn, true, chosen.runs, chosen.base, closed_form=True).step_time_s
        times = times * np.exp(args.noise * random.standard_normal(len(times)))
        made = [
            replace(run, cells=run.cells | {"step_time_s": float(t)})
            for run, t in zip(chosen.runs, times, strict=True)
            if run["outcome"] == "ok"
        ]
        fit = calibrate(*replace(chosen, runs=made).problem()).fit
        known = dict(zip((f.label for f in drawn), true, strict=True))
        for f, value, error in zip(fit.figures, fit.value, fit.error, strict=True):
            if f.label in known:
                off[f.label].append(float((value - known[f.label]) / error))
    print(f"{'figure':50s} {'fits':>5s} {'< 1 s.e.':>9s} {'< 2 s.e.':>9s} {'rms':>6s}")
    for label, values in [*off.items(), ("all", [x for one in off.values() for x in one])]:
        x = np.abs(values)
        if len(x):
            within = f"{100 * np.mean(x < 1):8.0f}% {100 * np.mean(x < 2):8.0f}%"
            print(f"{label:50s} {len(x):5d} {within} {np.sqrt(np.mean(x**2)):6.2f}")


if __name__ == "__main__":
    main()
