"""`planner probe`: the file that measures a machine, written or run in place."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o


def command(
    write: Annotated[Path | None, typer.Option("--write", help="Where to write it; probe.py unless --run.")] = None,
    run: Annotated[
        int | None, typer.Option("--run", help="Run it here, on so many processes, one per GPU.", min=1, max=1024)
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="With --run: its figures; probe.json.")] = None,
) -> None:
    """Write or run probe.py, one file that needs only torch: what a machine's products, memory, collectives achieve.

    Example: planner probe --write probe.py, then torchrun --nproc-per-node 8 probe.py

    Or, where planner's Python has torch: planner probe --run 8

    Then: planner calibrate --probe probe.json --cluster dgx-h100 --profile mine
    """
    from planner.base.errors import InputError, shown
    from planner.base.files import write_text
    from planner.calibration.probe_file import probe_script

    if output is not None and run is None:
        raise InputError(f"--output is {output}; allowed: with --run")
    output = output or Path("probe.json")
    o.check_files({"--output": (None if run is None else output, ".json")})
    if write is not None or run is None:
        write = write or Path("probe.py")
        o.check_files({"--write": (write, ".py", "")})
        write_text(write, probe_script())
        o.print_view(f"{shown(str(write))}: run it with python, or with torchrun on a node; it writes probe.json")
    if run is not None:
        _run(run, output)


def _run(processes: int, output: Path) -> None:
    """Run the file with this Python. Raises InputError if it has no torch; exits as the file does."""
    import subprocess
    import sys
    from importlib.resources import as_file, files
    from importlib.util import find_spec

    from planner.base.errors import InputError

    if find_spec("torch") is None:
        allowed = "a Python with torch, or planner probe --write probe.py, run where torch is"
        raise InputError(f"--run: torch is missing in {sys.executable}; allowed: {allowed}")
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    with as_file(files("planner.calibration") / "probe_script.py") as script:
        command = [sys.executable, *launcher, str(script), "--output", str(output)]
        raise typer.Exit(subprocess.run(command, check=False).returncode)
