"""`planner clusters`: list clusters, show one with the source of each figure."""

from typing import Annotated

import typer

from planner.cli import completion as complete
from planner.cli import options as o


def command(
    name: Annotated[
        str | None, typer.Argument(help="Show this cluster or file in full.", autocompletion=complete.clusters)
    ] = None,
    network: o.Network = None,
    json: o.Json = False,
) -> None:
    """List the clusters, or show one with every figure and where it comes from.

    Example: planner clusters dgx-a100-80gb --network ethernet-25g
    """
    from dataclasses import asdict

    from planner.api.answer import Answer
    from planner.base.units import GBIT, GIB, TERA
    from planner.hardware import load_cluster, networks, profile_names
    from planner.report.plain_table import plain_table, stacked
    from planner.report.records import figure_sources

    if name is not None:
        cluster = load_cluster(name, network=network)
        table = plain_table("figure", "value", "source", numbers=(1,), rows=figure_sources(cluster))
        o.show(Answer("", asdict(cluster), table), json)
        return
    loaded = [load_cluster(n, network=network) for n in profile_names("clusters")]
    table = plain_table("cluster", "GPU", "GiB", "TFLOP/s", "per node", "network", numbers=(2, 3, 4))
    for c in loaded:
        peak = max(v for k, v in c.accelerator.peak_flops.items() if k not in ("fp8", "nvfp4")) / TERA
        nic = c.network.bandwidth_bytes_per_s / GBIT
        table.add_row(
            c.name, c.accelerator.name, f"{c.accelerator.memory_bytes / GIB:.0f}", f"{peak:g}",
            str(c.gpus_per_node), f"{c.nics_per_node} x {nic:g} Gb/s {c.network.kind}",
        )  # fmt: skip
    said = "Networks, for --network: " + ", ".join(networks())
    o.show(Answer("", {"clusters": [asdict(c) for c in loaded]}, stacked(table, "", said)), json)
