"""`planner place`: a plan's nodes in the order that suits the links measured between them."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o


def command(
    plan: Annotated[Path, typer.Argument(help="A plan, as planner recommend or estimate --save writes it.")],
    bandwidth: Annotated[
        Path, o.asks("--bandwidth", "A square CSV: Gb/s from a node (row) to another (column), over all its NICs.")
    ],
    hosts: Annotated[Path | None, o.asks("--hosts", "The nodes' names in the CSV's order, one a line.")] = None,
    cluster: o.PlanCluster = None,
    write: Annotated[Path | None, o.writes("--write", says="Write the names in the best order, one a line.")] = None,
    slots: Annotated[bool, o.writes("--slots", says="With slots=N after each, as mpirun and DeepSpeed read.")] = False,
    json: o.Json = False,
) -> None:
    """Put a plan's nodes in the order that makes its step shortest, by the bandwidths measured between them.

    Example: planner place plan.json --bandwidth gbit.csv --hosts hosts.txt --write ordered.txt
    """
    from planner.api.placed import place_plan, read_bandwidths, read_hosts
    from planner.base.errors import InputError
    from planner.base.files import check_writable, write_text
    from planner.plan_file import read_plan

    if write is not None:
        check_writable(write)
    elif slots:
        raise InputError("--slots stands without --write; allowed: beside it")
    saved, gbit = read_plan(plan, cluster=cluster), read_bandwidths(bandwidth)
    with o.working("trying orders of the nodes"):
        answer = place_plan(saved, gbit, None if hosts is None else read_hosts(hosts))
    if write is not None:
        r, named = answer.record, " slots={}" if slots else ""
        write_text(write, "".join(r["hosts"][i] + named.format(r["gpus_per_node"]) + "\n" for i in r["order"]))
    o.show(answer, json)
