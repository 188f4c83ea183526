"""`planner calibrate`: this machine measured for the trainer, or profiles fitted to measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MOST_SECONDS = 600
MACHINE, RUNS, PROBE = "Measuring this machine", "Fitting profiles to measured runs", "From a probe of a machine"

NEEDS = {MACHINE: "a file of prices", RUNS: "--from RUNS.csv", PROBE: "--probe FILE"}


def command(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None, typer.Argument(help="The file of prices to write; with --from more CSV files of runs.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.01, max=MOST_SECONDS, help="How long each model of the grid is stepped.", rich_help_panel=MACHINE
        ),
    ] = 0.4,
    quick: Annotated[
        bool, typer.Option(help="A small grid: rough prices in a few seconds.", rich_help_panel=MACHINE)
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or gpu.", rich_help_panel=MACHINE)] = "cpu",
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            "--profiles",
            help="Folder for hardware profiles: FOLDER/cluster.toml; with --from as in hardware_profiles/.",
        ),
    ] = None,
    from_: Annotated[
        list[Path] | None,
        typer.Option("--from", help="CSV files of measured runs (docs/measured-runs.md).", rich_help_panel=RUNS),
    ] = None,
    hold_out: Annotated[
        list[str] | None,
        typer.Option(
            help="A source to leave out of the fit, then score; the beginning of its name.", rich_help_panel=RUNS
        ),
    ] = None,
    cross_validate: Annotated[
        bool,
        typer.Option("--cross-validate", help="Fit without each publication in turn; score it.", rich_help_panel=RUNS),
    ] = False,
    architecture: Annotated[
        str | None, typer.Option(help="Of the GPUs, such as ampere; else that of most runs.", rich_help_panel=RUNS)
    ] = None,
    all_figures: Annotated[
        bool, typer.Option("--all-figures", help="Also those that the shipped fit leaves alone.", rich_help_panel=RUNS)
    ] = False,
    max_evaluations: Annotated[
        int, typer.Option(min=1, max=10_000, help="Steps of the least-squares fit.", rich_help_panel=RUNS)
    ] = 40,
    probe: Annotated[
        Path | None,
        typer.Option(help="What probe.py measured (planner probe): its figures as profiles.", rich_help_panel=PROBE),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="The cluster, or TOML file, that the probe ran on.", rich_help_panel=PROBE)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/json.md).")] = False,
) -> None:
    """Measure this machine for the trainer; or make profiles from measured training runs, or from a probe of a node.

    Example: mpirun -n 2 planner calibrate prices.toml, then mpirun -n 2 planner train --pp 2 --prices prices.toml

    Every rank measures at the same time, as ranks train at the same time; the first one's figures are written.

    Example: planner calibrate --from measured_runs/*.csv --architecture hopper --hold-out dgxc --profile mine

    Example: planner calibrate --probe probe.json --cluster dgx-h100 --profile mine

    Robust least squares within physical bounds, every source alike. Figures that the runs don't tell stay as they are.
    """
    from planner.base.errors import InputError

    given = [p for p in context.command.params if _was_given(context, p.name)]
    mine = RUNS if from_ else PROBE if probe else MACHINE
    for parameter in given:
        other = getattr(parameter, "rich_help_panel", None)
        if other in NEEDS and other != mine:
            rule = f"doesn't go with {NEEDS[mine]}" if mine != MACHINE and other == MACHINE else f"needs {NEEDS[other]}"
            raise InputError(f"{parameter.opts[0]} {rule}: it is for {other[0].lower()}{other[1:]}")
    if probe is not None:
        from planner.cli.probe import probe_to_profiles

        if paths:
            raise InputError(f"{paths[0]} stands beside --probe; allowed: --profile FOLDER to write profiles")
        probe_to_profiles(probe, cluster, profile, json)
        return
    if from_:
        from planner.cli.calibrate_runs import fit_runs

        fit_runs(
            [*from_, *(paths or [])],
            hold_out=hold_out or [],
            cross_validate=cross_validate,
            architecture=architecture,
            all_figures=all_figures,
            max_evaluations=max_evaluations,
            folder=profile,
            json=json,
        )
        return
    if json:
        raise InputError(f"--json needs {NEEDS[RUNS]}, or {NEEDS[PROBE]}")
    if paths is None or len(paths) != 1:
        raise InputError(
            f"{len(paths or [])} files to write prices to; allowed: one, or --from RUNS.csv to fit profiles"
        )
    from planner.cli.calibrate_machine import measure_machine

    measure_machine(paths[0], seconds=seconds, quick=quick, profile=profile, device=device)


def _was_given(context: typer.Context, name: str | None) -> bool:
    """Whether an option stands in the command line."""
    source = context.get_parameter_source(name) if name else None
    return source is not None and source.name == "COMMANDLINE"
