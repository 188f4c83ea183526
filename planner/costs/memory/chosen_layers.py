"""Layers of a rank that are treated otherwise than the rest: those not recomputed, and those offloaded."""

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.layouts import Layouts


def first_layers(number: Any, layers: Any, stages: Any, excluding_last: int = 0) -> Array:
    """Number of layers among the first `number` of each virtual stage.

    The layers are spread evenly; a remainder goes one each to the first stages. A stage's last `excluding_last` layers
    never count.
    """
    least = np.floor(layers / stages)
    more = layers - least * stages
    longer, shorter = (np.minimum(number, np.maximum(n - excluding_last, 0.0)) for n in (least + 1.0, least))
    return np.asarray(more * longer + (stages - more) * shorter)


def layers_not_recomputed(layouts: Layouts, layers: Any, stages: Any) -> Array:
    """Number of a rank's layers that full recomputation leaves alone."""
    some = layouts.recompute_layers
    return np.where(some > 0, layers - first_layers(some, layers, stages), 0.0) if some.any() else np.zeros(1)


def offloaded_layers(layouts: Layouts, layers: Any, stages: Any) -> Array:
    """Number of a rank's layers whose activations wait in host memory: the first ones behind `recompute_layers`.

    A virtual stage keeps the activations of its last layer, which are needed at once (as Megatron-LM's
    --cpu-offloading-num-layers does), and has room for one more layer's on their way. Modules are moved of every other
    layer (Megatron-Core keeps the last group of each). Layers of both kinds side by side are KARMA's mix (Wahib et al.
    2020, arXiv 2008.11421).
    """
    some: Any = layouts.offload_layers
    if layouts.offload_modules.any():
        some = np.where(layouts.offload_modules > 0, np.inf, some)
    if not some.any():
        return np.zeros(1)
    before = layouts.recompute_layers
    upto, repeated = (first_layers(n, layers, stages, excluding_last=1) for n in (before + some, before))
    return upto - repeated
