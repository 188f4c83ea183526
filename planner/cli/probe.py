"""`planner probe`: the file that measures a machine; `planner calibrate --probe`: its figures as profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as o


def command(
    write: Annotated[Path, typer.Option("--write", help="Where to write it.")] = Path("probe.py"),
) -> None:
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


def probe_to_profiles(path: Path, cluster: str | None, framework: str | None, folder: Path | None, json: bool) -> None:
    """Say how a probe's figures differ from the profile's, and write the profiles where a folder is given."""
    from planner.base.errors import InputError
    from planner.calibration.probe import probe_profiles, probe_record, probed_figures, read_probe
    from planner.calibration.profile_files import check_folder, write_profiles
    from planner.hardware import load_cluster, load_framework

    if cluster is None:
        raise InputError("--cluster is missing; the probe's figures replace those of the cluster that it ran on")
    if folder is not None:
        check_folder(folder)
    probe = read_probe(path)
    found = probed_figures(probe, load_cluster(cluster), None if framework is None else load_framework(framework))
    record = probe_record(found, probe)
    texts = probe_profiles(found, probe, cluster, [framework] if framework else [])
    written = [] if folder is None else write_profiles(folder, texts)
    if json:
        o.print_json(record | {"files": [str(file) for file in written]})
        return
    o.print_view(*_view(record, cluster))
    o.print_view(*(f"wrote {file}" for file in written))


def _view(record: dict[str, Any], cluster: str) -> list[Any]:
    from planner.report.plain_table import plain_table

    table = plain_table("figure", "profile", "probe", "change", "spread", "kernels", numbers=(1, 2, 3, 4, 5))
    for row in record["figures"]:
        change = f"{row['probe'] / row['profile'] - 1.0:+.0%}" if row["profile"] else "new"
        table.add_row(
            row["figure"], f"{row['profile']:.3g}", f"{row['probe']:.3g}", change,
            f"{row['spread'] / row['probe']:.0%}", str(row["kernels"]),
        )  # fmt: skip
    machine = record["machine"]
    lines: list[Any] = [f"{machine['name']}, torch {machine['torch']}, beside the profile of {cluster}", table]
    lines += [
        f"rank {row['rank']} on {row['host']}: products {row['slower']:.0%} slower than the median's"
        for row in record["slow_ranks"]
    ]
    if record["hidden_share"] is not None:
        lines.append(f"A product and an all-reduce at once: {record['hidden_share']:.0%} of the shorter one hides.")
    return lines
