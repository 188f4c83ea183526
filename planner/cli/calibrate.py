"""`planner calibrate`: profiles fitted to measured runs, or made of a probe of a node."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o

RUNS, PROBE = "Fitting profiles to measured runs", "From a probe of a machine"
fitting, probing = (partial(o.in_group, group) for group in (RUNS, PROBE))
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
    json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/json.md).")] = False,
) -> None:
    """Make profiles from measured training runs, or from a probe of a node.

    Example: planner calibrate --from measured_runs/*.csv --architecture hopper --hold-out dgxc --profile mine

    Example: planner calibrate --probe probe.json --cluster dgx-h100 --profile mine

    Robust least squares within physical bounds, every source alike. Figures that the runs don't tell stay as they are.
    """
    from planner.base.errors import InputError

    sources = {p: context.get_parameter_source(p.name or "") for p in context.command.params}
    given = [p for p, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if from_ and probe:
        raise InputError("--probe stands beside --from; allowed: one of them")
    mine = RUNS if from_ else PROBE if probe else ""
    for parameter in given:
        other = getattr(parameter, "rich_help_panel", None)
        if other in NEEDS and other != mine:
            raise InputError(f"{parameter.opts[0]} needs {NEEDS[other]}: it is for {other[0].lower()}{other[1:]}")
    if probe is not None:
        from planner.cli.probe import probe_to_profiles

        if paths:
            raise InputError(f"{paths[0]} stands beside --probe; allowed: --profile FOLDER to write profiles")
        probe_to_profiles(probe, cluster, framework, profile, json)
        return
    if not from_:
        raise InputError(f"nothing says what to make profiles of; allowed: {NEEDS[RUNS]} or {NEEDS[PROBE]}")
    from planner.cli.calibrate_runs import fit_runs

    fit_runs(
        [*from_, *(paths or [])],
        hold_out=hold_out or [],
        architecture=architecture,
        all_figures=all_figures,
        max_evaluations=max_evaluations,
        folder=profile,
        json=json,
    )
