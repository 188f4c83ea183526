"""`planner calibrate PRICES`: what this machine takes for the trainer's passes and messages."""

from __future__ import annotations

import platform
from collections import defaultdict
from datetime import date
from pathlib import Path
from typing import Any

from planner.cli import options as o
from planner.cli.process import keep_freed_memory, share_processors, started_by_mpirun

ROUNDS = 3  # over the grid: what slows the machine for a while then spoils one time of three


def measure_machine(output: Path, *, seconds: float, quick: bool, profile: Path | None, device: str) -> None:
    """Time passes and messages, write their prices, and a hardware profile where one is asked for."""
    share_processors()
    keep_freed_memory()
    from planner.base.files import check_writable, make_folder, write_text
    from planner.calibration.machine import TimedLayer, fit_machine, write_profile
    from planner.trainer.arrays import xp_for
    from planner.trainer.microbenchmarks import collectives, copy_rate, fastest, grid, passes
    from planner.trainer.prices import FEATURES, fit

    o.check_finite(seconds=seconds)
    check_writable(output)
    if profile is not None:
        make_folder(profile)
    xp = xp_for(device)
    communicator: Any = None
    if started_by_mpirun():
        from planner.trainer.mpi import MPICommunicator

        communicator = MPICommunicator(xp)
    samples, layers = [], []
    wait = communicator.barrier if communicator else lambda: None
    with o.working("timing passes of the trainer's layers"):
        rounds = [[passes(xp, model, b, seconds / ROUNDS, wait) for model, b in grid(quick)] for _ in range(ROUNDS)]
    for (model, b), *repeated in zip(grid(quick), *rounds, strict=True):
        found = fastest(repeated)
        time_s = {sample.key.split()[-1]: sample.time_s for sample in found if " layer " in sample.key}
        layers.append(TimedLayer(model=model, b=b, forward_s=time_s["F"], backward_s=time_s["B"]))
        samples += found
    rate = copy_rate(xp)
    if communicator and communicator.size > 1 and communicator.size % 2 == 0:
        samples += collectives(communicator)
    if communicator and communicator.rank:
        return
    by_key = defaultdict(list)
    for sample in samples:
        by_key[sample.key].append(sample)
    fits = {key: fit([s.row for s in group], [s.time_s for s in group]) for key, group in sorted(by_key.items())}
    lines = [
        "# Written by planner calibrate: seconds per unit of each size, by pass of the trainer's parts.",
        f"# {', '.join(f'{part}: {names}' for part, names in FEATURES.items())}; messages: fixed, megabytes",
        f"ranks = {communicator.size if communicator else 1}",
        "[seconds]",
        *(f'"{key}" = [{", ".join(f"{x:.6g}" for x in f.seconds)}]' for key, f in fits.items()),
        "[median_error]",
        *(f'"{key}" = {f.median_error:.4f}' for key, f in fits.items()),
        "[worst_error]",
        *(f'"{key}" = {f.worst_error:.4f}' for key, f in fits.items()),
    ]
    write_text(output, "\n".join(lines) + "\n")
    _show(fits)
    if profile is not None:
        messages: dict[str, Any] = {key: fits[key].seconds for key in ("all_reduce", "send") if key in fits}
        machine = fit_machine(layers, rate)
        about = f"{len(layers)} shapes on {platform.node() or 'this machine'}, {date.today().isoformat()}"
        path = write_profile(profile, machine, messages, about)
        error = f"median error {machine.median_error:.1%}, worst {machine.worst_error:.1%}"
        o.print_view(f"{path}: the planner's cost models fitted to {machine.measured} passes, {error}")


def _show(fits: Any) -> None:
    """How well the fits hold for what they were fitted to."""
    from planner.report.plain_table import plain_table

    table = plain_table("pass", "shapes", "median error", "worst", numbers=(1, 2, 3))
    for key, f in fits.items():
        table.add_row(key, str(f.measured), f"{f.median_error:.1%}", f"{f.worst_error:.1%}")
    o.print_view("Fits to the measured passes", table)
