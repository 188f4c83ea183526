"""Where a token's experts lie, at balance: how many ranks or nodes of the experts' group it has to reach."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.models import Transformer


def reached(model: Transformer, units: Any) -> Array:
    """Of `units` ranks or nodes that share the experts evenly, how many hold one of a token's top_k on average.

    Any expert is as likely as another: a unit is missed with probability (1 - 1/units)^top_k. Where routing is limited
    to some groups of experts (DeepSeek-AI 2024, arXiv 2412.19437, section 2.1.2: node-limited routing), first groups
    are drawn, then experts among theirs. units, and the model's fields: numbers or (n,); returns shape (n,).
    """
    columns = np.broadcast_arrays(units, model.top_k, model.expert_groups, model.top_k_groups)
    cases, index = np.unique(np.stack([np.ravel(c) for c in columns]), axis=1, return_inverse=True)
    hit = np.array([_reached(*map(int, case)) for case in cases.T])
    return np.asarray(hit[np.ravel(index)].reshape(columns[0].shape))


def _reached(units: int, top_k: int, groups: int, chosen: int) -> float:
    if not groups:
        return units * (1.0 - (1.0 - 1.0 / units) ** top_k)
    if units >= groups:
        allowed = units * chosen / groups
        return allowed * (1.0 - (1.0 - 1.0 / allowed) ** top_k)
    # A unit of several groups holds j of the chosen ones (hypergeometric), and none of the experts by chance.
    held = round(groups / units)
    draws = [comb(held, j) * comb(groups - held, chosen - j) for j in range(min(held, chosen) + 1)]
    missed = sum(n * (1.0 - j / chosen) ** top_k for j, n in enumerate(draws)) / sum(draws)
    return units * (1.0 - missed)
