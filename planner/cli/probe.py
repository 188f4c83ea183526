"""`planner probe`: the file that measures a machine."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o


def command(write: Annotated[Path, typer.Option("--write", help="Where to write it.")] = Path("probe.py")) -> None:
    """Write probe.py, one file that needs only torch: what a machine's products, memory and collectives achieve.

    Example: planner probe --write probe.py, then torchrun --nproc-per-node 8 probe.py

    Then: planner calibrate --probe probe.json --cluster dgx-h100 --profile mine
    """
    from planner.base.errors import shown
    from planner.base.files import check_writable, write_text
    from planner.calibration.probe import probe_script

    check_writable(write)
    write_text(write, probe_script())
    o.print_view(f"{shown(str(write))}: run it with python, or with torchrun on a node; it writes probe.json")
