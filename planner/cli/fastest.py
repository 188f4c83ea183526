"""`planner fastest`: the shortest time in which a model can be trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import assumed as a
from planner.cli import completion as complete
from planner.cli import options as o
from planner.cli.choices import searches

if TYPE_CHECKING:
    from planner.hardware import Cluster


@searches
@a.assumes()
def command(
    model: o.Model,
    aim: a.Aim,
    *,
    cluster: Annotated[
        list[str] | None,
        typer.Option("--cluster", help="A cluster; several are set side by side.", autocompletion=complete.clusters),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            help="A paper's own question, such as lamy-poirier-2021: its answer beside ours. "
            "With --cluster, its own model of costs there."
        ),
    ] = None,
    max_gpus: Annotated[int | None, typer.Option(help="Most accelerators; else the cluster's, or 100,000.")] = None,
    max_cost: Annotated[float | None, typer.Option(help="Most USD; needs a price.")] = None,
    strategies: Annotated[
        str,
        typer.Option(
            help="Comma-separated: data, data+tensor, data+pipeline, 3d, each with :schedule if you like; "
            "with --paper, :improved."
        ),
    ] = "3d",
    node_size: Annotated[
        list[int] | None, typer.Option(help="GPUs per node, 0: unlimited; several are set side by side.")
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option("--network", help="Another network; several are set side by side.", autocompletion=complete.links),
    ] = None,
    nics_per_node: o.Nics = None,
    framework: o.FrameworkName = None,
    seq_len: o.SeqLen = None,
    pictures: o.Pictures,
    json: o.Json = False,
    given: dict[str, float | None],
    **choices: Any,
) -> None:
    """Minimise wall time over GPUs, batch and layout together: fronts, knee, and what binds at each point.

    Tokens are those that small batches need; a larger batch takes more, by --batch-rule.

    Example: planner fastest x-160 --cluster dgx-a100-80gb --max-gpus 100000 --network infiniband-hdr
    """
    from planner.api.fastest_of_paper import fastest_by_paper, fastest_of_paper
    from planner.api.training import fastest
    from planner.base.errors import InputError
    from planner.models import load_model, with_seq_len
    from planner.training_time.joint import strategy

    if paper is not None:
        settled: dict[str, Any] = {"nics-per-node": nics_per_node, "max-cost": max_cost, "tokens": aim.tokens}
        settled |= {"loss": aim.loss, "seq-len": seq_len}
        own = {"network": network, "node-size": node_size, "max-gpus": max_gpus}
        settled |= {"framework": framework} if cluster else own
        if taken := [name for name, value in settled.items() if value]:
            raise InputError(f"--{taken[0]} is given, and settled by --paper; leave one of them out")
        with o.working("searching GPUs, batches and layouts"):
            if cluster:
                cases = clusters(cluster, network or [], node_size or [])
                ways = [s.strip() for s in strategies.split(",")]
                answer = fastest_by_paper(paper, load_model(model), cases, ways, max_gpus)
            else:
                answer = fastest_of_paper(paper, model, o.profile_of(framework))
        pictures.show(answer, json)
        return
    if not cluster:
        raise InputError("--cluster is missing; give a cluster (planner clusters lists them), or --paper")
    shape = load_model(model)
    if seq_len is not None:
        shape = with_seq_len(shape, seq_len)
    plans = [strategy(s.strip()) for s in strategies.split(",")]
    cases = clusters(cluster, network or [], node_size or [])
    with o.working("searching GPUs, batches and layouts"):
        answer = fastest(
            shape, cases, aim.goal(shape), given, plans, framework=framework, max_gpus=max_gpus, max_cost=max_cost,
            nics_per_node=nics_per_node, **choices,
        )  # fmt: skip
    pictures.show(answer, json)


def clusters(names: list[str], networks: list[str], sizes: list[int]) -> list[Cluster]:
    """Every cluster over every network with every node size that is named."""
    from planner.hardware import load_cluster
    from planner.training_time.variants import with_node_size

    over: list[str | None] = [*networks] or [None]
    out = [load_cluster(name, network=network) for name in names for network in over]
    return [with_node_size(c, size) for c in out for size in sizes] if sizes else out
