"""`planner network`: what network suffices."""

from typing import Annotated, Any

from planner.cli import completion as complete
from planner.cli import options as o
from planner.cli.choices import searches
from planner.cli.unfold import positional


@positional
@searches
def command(
    model: o.Model,
    place: o.Place,
    gpus: o.Gpus,
    size: o.StepBatch,
    out: o.Output,
    *,
    along: Annotated[
        str, o.asks("--along", "bandwidth (of a node), latency, or oversubscription (of pods).")
    ] = "bandwidth",
    slow: Annotated[
        str, o.asks("--slow", "The network that the improved way is asked on.", autocompletion=complete.links)
    ] = "ethernet-25g",
    price: Annotated[float | None, o.asks("--price", "USD for an hour of a GPU.")] = None,
    network_price: Annotated[
        float | None, o.asks("--network-price", "USD for an hour of each Gb/s of a node's network.")
    ] = None,
    **choices: Any,
) -> None:
    """Step of the best layout against the bandwidth between nodes, searched anew at every point.

    Bandwidths are 1 to 3,200 Gb/s, and on to the cluster's own.

    Says the slowest network within 5 % of the fastest, how the layout changes, and what each strategy needs.

    Example: planner network gpt3-175b --cluster dgx-a100-80gb --gpus 1024 --global-batch 1536
    """
    from planner.api.inputs import Cluster, Model
    from planner.api.limits import network as suffices

    shape = Model(model, seq_len=place.seq_len)
    batch = size.sequences(shape.seq_len, gpus)
    own = {} if place.nics_per_node is None else {"nics_per_node": place.nics_per_node}
    cluster = Cluster(place.cluster, network=place.network, figures={**o.figures(place.figure), **own})
    with o.working("searching along the network"):
        answer = suffices(
            shape, cluster, gpus=gpus, batch=batch, along=along, slow=slow, framework=place.framework,
            price=price, network_price=network_price, **choices,
        )  # fmt: skip
    out.show(answer)
