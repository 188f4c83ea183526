"""`planner calibrate`: profiles fitted to measured runs, or made of a probe of a node."""

from __future__ import annotations

from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.base.errors import InputError, one_line
from planner.cli import options as o
from planner.cli.unfold import typed

if TYPE_CHECKING:
    from planner.calibration.identified import Calibration
    from planner.calibration.selection import Selection

RUNS, PROBE = "Fitting profiles to measured runs", "From a probe of a machine"
fitting, probing = (partial(o.in_group, group) for group in (RUNS, PROBE))
WIDE = 0.2
"""Spread of a probe's figure, as a share of it, from which on it is said."""
NEEDS = {RUNS: "--from RUNS.csv", PROBE: "--probe FILE"}


def command(
    context: typer.Context,
    paths: Annotated[list[Path] | None, typer.Argument(help="With --from: more CSV files of runs.")] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", "--profiles", help="Folder for the profiles, as hardware_profiles/ is.")
    ] = None,
    from_: Annotated[
        list[Path] | None, fitting("CSV files of measured runs (docs/measured-runs.md).", "--from")
    ] = None,
    hold_out: Annotated[
        list[str] | None, fitting("A source to leave out of the fit, then score; the beginning of its name.")
    ] = None,
    architecture: Annotated[str | None, fitting("Of the GPUs, such as ampere; else that of most runs.")] = None,
    all_figures: Annotated[bool, fitting("Also those that the shipped fit leaves alone.", "--all-figures")] = False,
    max_evaluations: Annotated[int, fitting("Steps of the least-squares fit.", min=1, max=10_000)] = 40,
    probe: Annotated[Path | None, probing("What probe.py measured (planner probe): its figures as profiles.")] = None,
    cluster: Annotated[str | None, probing("The cluster, or TOML file, that the probe ran on.")] = None,
    framework: Annotated[
        str | None, probing("A framework, or TOML file, that gets the host times, beside the cluster's profiles.")
    ] = None,
    model: Annotated[str | None, probing("A model: what the probe changes in its recommendation.")] = None,
    gpus: Annotated[int | None, probing("With --model: GPUs to use.", min=1)] = None,
    global_batch: Annotated[int | None, probing("With --model: sequences per step; else about 4M tokens.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/json.md).")] = False,
) -> None:
    """Make profiles from measured training runs, or from a probe of a node.

    Example: planner calibrate --from measured_runs/*.csv --architecture hopper --hold-out dgxc --profile mine

    Example: planner calibrate --probe probe.json --cluster dgx-h100 --profile mine --model llama3-8b --gpus 64

    Robust least squares within physical bounds, every source alike. Figures that the runs don't tell stay as they are.
    """
    said = typed(context)
    given = [p for p in context.command.params if p.name in said]
    if from_ and probe:
        raise InputError("--probe stands beside --from; allowed: one of them")
    mine = RUNS if from_ else PROBE if probe else ""
    for parameter in given:
        other = getattr(parameter, "rich_help_panel", None)
        if other in NEEDS and other != mine:
            raise InputError(f"{parameter.opts[0]} needs {NEEDS[other]}: it is for {other[0].lower()}{other[1:]}")
    if probe is not None:
        if paths:
            raise InputError(f"{paths[0]} stands beside --probe; allowed: --profile FOLDER to write profiles")
        if (model is None) != (gpus is None) or (global_batch is not None and model is None):
            raise InputError(f"{'--gpus' if model else '--model'} is missing; allowed: --model and --gpus together")
        question = None if model is None else {"model": model, "gpus": gpus, "batch": global_batch}
        _probe_to_profiles(probe, cluster, framework, profile, question, json)
        return
    if not from_:
        raise InputError(f"nothing says what to make profiles of; allowed: {NEEDS[RUNS]} or {NEEDS[PROBE]}")
    from planner.calibration.selection import select
    from planner.validation.runs import runs_of

    chosen = select(runs_of([*from_, *(paths or [])]), architecture, hold_out or [])
    _fit_runs(chosen, hold_out or [], all_figures, max_evaluations, profile, json)


def _fit_runs(
    chosen: Selection, hold_out: list[str], all_figures: bool, max_evaluations: int, folder: Path | None, json: bool
) -> None:
    """Fit, print figures and scores, and write the profiles where a folder is given."""
    from planner.calibration.identified import calibrate
    from planner.calibration.profile_files import check_folder, fitted_profiles, write_profiles

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
        written = write_profiles(folder, fitted_profiles(found.fit.fitted, *chosen.named(), about))
    if json:
        from planner.report.calibration import calibration_record

        scored = {name: {"sources": by_source, "overall": overall} for name, (by_source, overall) in sets.items()}
        record = calibration_record(chosen, found) | scored
        o.print_json(record | {"written": [str(path) for path in written]})
        return
    _show(chosen, found, sets)
    if written:
        own = next(path for path in written if path.parent.name == "clusters")
        o.print_view("", one_line(f"Wrote {len(written)} profiles to {folder}; to plan with them: --cluster {own}"))
        o.print_view(one_line(f"Errors with them: planner validate RUNS.csv --profiles {folder}"))


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


def _probe_to_profiles(
    path: Path, cluster: str | None, framework: str | None, folder: Path | None, question: dict[str, Any] | None,
    json: bool,
) -> None:  # fmt: skip
    """Say how a probe's figures differ from the profile's, and write the profiles where a folder is given.

    question: whose answer is compared: model, GPUs and batch.
    """
    from tempfile import TemporaryDirectory

    from planner.api.probed import probe_changes
    from planner.calibration.probe import probe_profiles, probe_record, probed_figures
    from planner.calibration.probe_file import read_probe
    from planner.calibration.profile_files import check_folder, write_profiles
    from planner.hardware import load_cluster, load_framework
    from planner.search.request import default_precision

    if cluster is None:
        raise InputError("--cluster is missing; the probe's figures replace those of the cluster that it ran on")
    if folder is not None:
        check_folder(folder)
    probe = read_probe(path)
    found = probed_figures(probe, load_cluster(cluster), None if framework is None else load_framework(framework))
    record = probe_record(found, probe)
    texts = probe_profiles(found, probe, cluster, [framework] if framework else [])
    written = [] if folder is None else write_profiles(folder, texts)
    changes = None
    if question is not None:
        with TemporaryDirectory() as other, o.working("searching by both"):
            probed = next(p for p in written or write_profiles(Path(other), texts) if p.parent.name == "clusters")
            changes = probe_changes(cluster=cluster, probed=str(probed), framework=framework, **question)
    if json:
        o.print_json(record | {"files": [str(file) for file in written]} | (changes.record if changes else {}))
        return
    o.print_view(*_probe_view(record, cluster))
    o.print_view(*(["", changes.view] if changes else ["To see what that changes: add --model MODEL --gpus GPUS"]))
    o.print_view(*(one_line(f"wrote {file}") for file in written))
    for own in (path for path in written if path.parent.name == "clusters"):
        made = load_cluster(str(own))
        known = f"{default_precision(made).name.lower()} products, {Path(made.framework).stem}'s figures"
        o.print_view(one_line(f"To plan with them: --cluster {own}, by default with {known}"))


def _probe_view(record: dict[str, Any], cluster: str) -> list[Any]:
    from planner.report.plain_table import plain_table

    table = plain_table("figure", "profile", "probe", "change", "spread", "kernels", numbers=(1, 2, 3, 4, 5))
    for row in record["figures"]:
        if not row["kernels"]:
            table.add_row(row["figure"], f"{row['profile']:.3g}", "with the host", "", "", "")
            continue
        change = f"{row['probe'] / row['profile'] - 1.0:+.0%}" if row["profile"] else "new"
        table.add_row(
            row["figure"], f"{row['profile']:.3g}", f"{row['probe']:.3g}", change,
            f"{row['spread'] / row['probe']:.0%}", str(row["kernels"]),
        )  # fmt: skip
    machine = record["machine"]
    lines: list[Any] = [f"{machine['name']}, torch {machine['torch']}, beside the profile of {cluster}", table]
    lines += [
        f"{row['figure']}: its measurements spread by {row['spread'] / row['probe']:.0%}, so the profile's stands"
        for row in record["figures"]
        if row["unsteady"]
    ]
    wide = [row["figure"] for row in record["figures"] if WIDE * row["probe"] < row["spread"] and not row["unsteady"]]
    if wide:
        lines.append(f"Kernels differ by over {WIDE:.0%} in {', '.join(wide)}: was the machine busy, or its clock low?")
    lines += [
        f"rank {row['rank']} on {row['host']}: products {row['slower']:.0%} slower than the median's"
        for row in record["slow_ranks"]
    ]
    if record["hidden_share"] is not None:
        lines.append(f"A product and an all-reduce at once: {record['hidden_share']:.0%} of the shorter one hides.")
    if record["grouped_share"] is not None:
        lines.append(f"Experts' products at once take {record['grouped_share']:.0%} of their time one by one.")
    return lines + [
        f"All-reduces of {row['ranks']} ranks, each {row['stride']} after the last, in groups side by side: "
        f"{row['bytes_per_s'] / 1e9:.3g} GB/s from a rank"
        for row in record["groups"]
    ]
