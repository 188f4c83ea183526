"""`planner calibrate`: this machine measured for the trainer, or profiles fitted to measured runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o

MOST_SECONDS = 600
MACHINE, RUNS, PROBE = "Measuring this machine", "Fitting profiles to measured runs", "From a probe of a machine"
measuring, fitting, probing = (partial(o.in_group, group) for group in (MACHINE, RUNS, PROBE))
NEEDS = {MACHINE: "a file of prices", RUNS: "--from RUNS.csv", PROBE: "--probe FILE"}


def command(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None, typer.Argument(help="The file of prices to write; with --from more CSV files of runs.")
    ] = None,
    seconds: Annotated[
        float, measuring("How long each model of the grid is stepped.", min=0.01, max=MOST_SECONDS)
    ] = 0.4,
    quick: Annotated[bool, measuring("A small grid: rough prices in a few seconds.")] = False,
    device: Annotated[str, measuring("cpu or gpu.")] = "cpu",
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            "--profiles",
            help="Folder for hardware profiles: FOLDER/cluster.toml; with --from as in hardware_profiles/.",
        ),
    ] = None,
    from_: Annotated[
        list[Path] | None, fitting("CSV files of measured runs (docs/measured-runs.md).", "--from")
    ] = None,
    hold_out: Annotated[
        list[str] | None, fitting("A source to leave out of the fit, then score; the beginning of its name.")
    ] = None,
    cross_validate: Annotated[
        bool, fitting("Fit without each publication in turn; score it.", "--cross-validate")
    ] = False,
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
    """Measure this machine for the trainer; or make profiles from measured training runs, or from a probe of a node.

    Example: mpirun -n 2 planner calibrate prices.toml, then mpirun -n 2 planner train --pp 2 --prices prices.toml

    Every rank measures at the same time, as ranks train at the same time; the first one's figures are written.

    Example: planner calibrate --from measured_runs/*.csv --architecture hopper --hold-out dgxc --profile mine

    Example: planner calibrate --probe probe.json --cluster dgx-h100 --profile mine

    Robust least squares within physical bounds, every source alike. Figures that the runs don't tell stay as they are.
    """
    from planner.base.errors import InputError

    sources = {p: context.get_parameter_source(p.name or "") for p in context.command.params}
    given = [p for p, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
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
        probe_to_profiles(probe, cluster, framework, profile, json)
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
