"""`planner fastest`: the shortest time in which a model can be trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import assumed as a
from planner.cli import completion as complete
from planner.cli import options as o
from planner.cli.choices import searches
from planner.cli.unfold import SAYS

if TYPE_CHECKING:
    from planner.api.answer import Answer
    from planner.hardware import Cluster


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Clusters to set side by side, as the options and a word say it."""

    word: Annotated[
        str | None,
        typer.Argument(metavar="cluster", help=SAYS["cluster"], autocompletion=complete.clusters, show_default=False),
    ] = None
    cluster: Annotated[
        list[str] | None,
        typer.Option("--cluster", help="A cluster; several are set side by side.", autocompletion=complete.clusters),
    ] = None
    node_size: Annotated[
        list[int] | None, typer.Option(help="GPUs per node, 0: unlimited; several are set side by side.")
    ] = None
    network: Annotated[
        list[str] | None,
        typer.Option("--network", help="Another network; several are set side by side.", autocompletion=complete.links),
    ] = None

    def __post_init__(self) -> None:
        """The word is one of the clusters."""
        if self.word is not None:
            object.__setattr__(self, "cluster", [self.word, *(self.cluster or [])])

    def loaded(self) -> list[Cluster]:
        """Every cluster over every network with every node size that is named."""
        from planner.hardware import load_cluster

        over: list[str | None] = [*(self.network or [])] or [None]
        out = [load_cluster(name, network=network) for name in self.cluster or [] for network in over]
        return [c.with_node_size(size) for c in out for size in self.node_size] if self.node_size else out


@searches
@a.assumes()
def command(
    model: o.Model,
    aim: a.Aim,
    clusters: Clusters,
    *,
    paper: Annotated[
        str | None,
        typer.Option(
            help="A paper's own question, such as lamy-poirier-2021: its answer beside ours. "
            "With --cluster, its own model of costs there."
        ),
    ] = None,
    max_gpus: Annotated[int | None, typer.Option(help="Most accelerators; else the cluster's, or 100,000.")] = None,
    max_cost: o.MaxCost = None,
    strategies: Annotated[
        str,
        typer.Option(
            help="Comma-separated: data, data+tensor, data+pipeline, 3d, each with :schedule if you like; "
            "with --paper, :improved."
        ),
    ] = "3d",
    run: Annotated[bool, typer.Option("--run", help="Also the layout that planner recommend names there.")] = False,
    nics_per_node: o.Nics = None,
    framework: o.FrameworkName = None,
    seq_len: o.SeqLen = None,
    out: o.Output,
    given: dict[str, float | None],
    **choices: Any,
) -> None:
    """Minimise wall time over GPUs, batch and layout together: fronts, knee, and what binds at each point.

    Tokens are those that small batches need; a larger batch takes more, by --batch-rule.

    Example: planner fastest x-160 --cluster dgx-a100-80gb --max-gpus 100000 --network infiniband-hdr
    """
    from planner.api.inputs import Model
    from planner.api.training import fastest
    from planner.base.errors import InputError
    from planner.training_time.joint import strategy

    ways = [way.strip() for way in strategies.split(",")]
    if paper is not None:
        settled: dict[str, Any] = {"nics-per-node": nics_per_node, "max-cost": max_cost, "tokens": aim.tokens}
        settled |= {"loss": aim.loss, "seq-len": seq_len, "run": run}
        own = {"network": clusters.network, "node-size": clusters.node_size, "max-gpus": max_gpus}
        settled |= {"framework": framework} if clusters.cluster else own
        if taken := [name for name, value in settled.items() if value]:
            raise InputError(f"--{taken[0]} is given, and settled by --paper; leave one of them out")
        out.show(_by_paper(paper, model, clusters, ways, max_gpus, framework))
        return
    if not clusters.cluster:
        raise InputError("--cluster is missing; give a cluster (planner clusters lists them), or --paper")
    shape = Model(model, seq_len=seq_len).transformer
    plans = [strategy(way) for way in ways]
    with o.working("searching GPUs, batches and layouts"):
        answer = fastest(
            shape, clusters.loaded(), aim.goal(shape), given, plans, framework=framework, max_gpus=max_gpus,
            max_cost=max_cost, nics_per_node=nics_per_node, run=run, **choices,
        )  # fmt: skip
    out.show(answer)


def _by_paper(
    paper: str, model: str, clusters: Clusters, ways: list[str], max_gpus: int | None, framework: str | None
) -> Answer:
    """The paper's answer beside ours, or on some clusters what its own model of costs says there."""
    from planner.api.fastest_of_paper import fastest_by_paper, fastest_of_paper
    from planner.models import load_model

    with o.working("searching GPUs, batches and layouts"):
        if clusters.cluster:
            return fastest_by_paper(paper, load_model(model), clusters.loaded(), ways, max_gpus)
        return fastest_of_paper(paper, model, o.profile_of(framework))
