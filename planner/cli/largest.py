"""`planner largest`: how large a training can be within a time."""

from typing import Annotated, Any

import typer

from planner.cli import assumed as a
from planner.cli import options as o
from planner.cli.choices import searches


@searches
@a.assumes()
def command(
    out: o.Output,
    *,
    cluster: o.ClusterName = "dgx-h100",
    months: Annotated[float, o.asks("--months", "The training must end within so many months (30.4 days).")] = 3.0,
    gpus: Annotated[int | None, o.asks("--gpus", "Most GPUs; else as many as help.")] = None,
    power_mw: Annotated[float | None, o.asks("--power-mw", "Most MW, of the whole site.")] = None,
    max_cost: o.MaxCost = None,
    experts: Annotated[
        list[int] | None,
        typer.Option(help="Experts, of which 8 see a token; 0: dense models; several are set side by side."),
    ] = None,
    aspect: Annotated[float, typer.Option(help="The models' width over their layers; GPT-3's is 128.")] = 128.0,
    seq_len: Annotated[int, typer.Option(help="Tokens per sequence.")] = 8192,
    critical_batch_law: a.BatchLawName = "zhang-2024",
    batch_rule: a.BatchRule = "overhead",
    network: o.Network = None,
    framework: o.FrameworkName = None,
    given: dict[str, float | None],
    **choices: Any,
) -> None:
    """The largest compute-optimal training that such GPUs finish within a time, and what binds on the way there.

    From 1e22 FLOP on, a decade at a time: the fewest GPUs that keep the time, every batch and layout searched.

    Example: planner largest --months 3

    Exit code 1 where nothing ends within the time.
    """
    from planner.api.inputs import Cluster
    from planner.api.limits import largest

    with o.working("searching GPUs, batches and layouts of larger and larger trainings"):
        answer = largest(
            Cluster(cluster, network=network), months=months, gpus=gpus, power_mw=power_mw, max_cost=max_cost,
            experts=experts or [0], aspect=aspect, seq_len=seq_len, framework=o.profile_of(framework),
            batch_rule=batch_rule, critical_batch_law=critical_batch_law, given=given, **choices,
        )  # fmt: skip
    out.show(answer)
