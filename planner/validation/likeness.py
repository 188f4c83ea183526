"""What makes a run like another: its sizes, in octaves, and its traits, which agree or don't."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.base.arrays import Array
from planner.hardware import Cluster, Framework, load_cluster, load_framework
from planner.models import Transformer
from planner.validation.defaults import framework_name
from planner.validation.predict import Models
from planner.validation.runs import MeasuredRun, cluster_name

LIKENESS = ("gpus", "matrix_elements_per_gpu", "tokens_per_gpu", "tp", "pp", "product_elements", "seq_len")
TRAITS = ("architecture", "stack", "link", "precision", "kind")
TRAIT_WORDS = ("GPU generation", "framework", "links", "precision", "kind of model")


def likeness(model: Transformer, *, gpus: Any, global_batch: Any, tp: Any, pp: Any, micro_batch: Any) -> Array:
    """What runs are alike in, shape (n, 7): GPUs, layers x hidden^2 and tokens per GPU, tp, pp, product, sequence."""
    hidden = np.asarray(model.hidden, dtype=np.float64)
    columns = (
        gpus,
        model.num_layers * hidden**2 / gpus,
        global_batch * model.seq_len / gpus,
        tp,
        pp,
        hidden**2 * micro_batch * model.seq_len / tp,
        model.seq_len,
    )
    return np.stack(np.broadcast_arrays(*(np.asarray(c, dtype=np.float64) for c in columns)), axis=-1)


def traits(model: Transformer, cluster: Cluster, framework: Framework, gpus: int, precision: str) -> tuple[str, ...]:
    """The `TRAITS` of a run on so many GPUs; links: of a node, and of the network where a node is not enough."""
    link = cluster.node_link.kind + (f" and {cluster.network.kind}" if gpus > cluster.gpus_per_node else "")
    kind = "experts" if model.num_experts else "hybrid" if model.num_ssm_layers else "dense"
    return (cluster.accelerator.efficiency.name, framework.stack or framework.name, link, precision.lower(), kind)


def likeness_of_runs(runs: list[MeasuredRun]) -> tuple[Array, NDArray[np.str_]]:
    """`likeness` of measured runs, shape (runs, 7), and their `traits`, shape (runs, 5).

    A micro-batch that isn't said is taken as 1.
    """
    models, cluster_of, framework_of = Models(), cache(load_cluster), cache(load_framework)
    sizes, kinds = [], []
    for run in runs:
        model, cluster = models.models[models.of(run)], cluster_of(cluster_name(run))
        framework = framework_of(framework_name(run, cluster))
        like = likeness(
            model, gpus=run["n_gpus"], global_batch=run["global_batch"], tp=run["tp"], pp=run["pp"],
            micro_batch=run["micro_batch"] or 1,
        )  # fmt: skip
        sizes.append(like)
        kinds.append(traits(model, cluster, framework, run["n_gpus"], run["precision"]))
    return np.array(sizes).reshape(-1, len(LIKENESS)), np.array(kinds, dtype=str).reshape(-1, len(TRAITS))
