"""`planner calibrate --from RUNS.csv`: profiles fitted to measured training runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli import options as o

if TYPE_CHECKING:
    from planner.calibration.identified import Calibration
    from planner.calibration.selection import Selection


def fit_runs(
    files: Sequence[Path],
    *,
    hold_out: Sequence[str],
    architecture: str | None,
    all_figures: bool,
    max_evaluations: int,
    folder: Path | None,
    json: bool,
) -> None:
    """Fit, print figures and scores, and write the profiles where a folder is given."""
    from planner.base.errors import InputError, one_line
    from planner.calibration.identified import calibrate
    from planner.calibration.profile_files import check_folder, fitted_profiles, write_profiles
    from planner.calibration.selection import select
    from planner.validation import read_runs

    runs = [run for path in files for run in read_runs(path)]
    if not runs:
        raise InputError(f"{', '.join(map(str, files))}: no runs in the file")
    chosen = select(runs, architecture, hold_out)
    if folder is not None:
        check_folder(folder)
    with o.working(f"fitting figures of {chosen.architecture} GPUs to {len(chosen.runs)} runs"):
        found = calibrate(*chosen.problem(all_figures), max_evaluations)
    sets = _scores(chosen, found)
    written = []
    if folder is not None:
        names = sorted({one_line(run.path.name) for run in chosen.runs})
        options = [*(f"--hold-out {x}" for x in hold_out), *(["--all-figures"] if all_figures else [])]
        command = " ".join(["planner calibrate --from", *names, "--architecture", chosen.architecture, *options])
        about = f"fitted by {command}, every source alike, to {found.fit.timed_runs} timed runs of {found.fit.sources}"
        about += f" source{'s' * (found.fit.sources != 1)} ({date.today().isoformat()})"
        written = write_profiles(folder, fitted_profiles(found.fit, *chosen.named(), about))
    if json:
        from planner.report.calibration import calibration_record, scores_records

        record = calibration_record(chosen, found) | scores_records(sets)
        o.print_json(record | {"written": [str(path) for path in written]})
        return
    _show(chosen, found, sets)
    if written:
        own = next(path for path in written if path.parent.name == "clusters")
        o.print_view("", f"Wrote {len(written)} profiles to {folder}; to plan with them: --cluster {own}")
        o.print_view(f"Errors with them: planner validate RUNS.csv --profiles {folder}")


def _scores(chosen: Selection, found: Calibration) -> dict[str, Any]:
    """Scores by source and overall: by the profiles as they are, and by the fit."""
    from planner.validation import predict, scores

    sets = {"before": scores(predict(chosen.runs)), "after": scores(found.fit.predict(chosen.runs))}
    if chosen.held:
        sets |= {"held_before": scores(predict(chosen.held)), "held_after": scores(found.fit.predict(chosen.held))}
    return sets


def _show(chosen: Selection, found: Calibration, sets: dict[str, Any]) -> None:
    from planner.report import calibration as report

    o.print_view(*report.selection_lines(chosen), "", report.calibration_view(found), "")
    if chosen.held and found.left:
        o.print_view("What was left as it is may have been fitted to the runs held out.", "")
    title = "Scores with the profiles as they are and now, errors in %"
    o.print_view(report.two_scores_view(title, sets["before"], sets["after"]))
    if chosen.held:
        o.print_view("", report.two_scores_view("Held out of the fit", sets["held_before"], sets["held_after"]))
