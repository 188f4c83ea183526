"""The largest training within a time: `planner largest`, and `planner.largest` in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from planner.api.answer import Drawn
from planner.api.inputs import Cluster
from planner.base.errors import InputError
from planner.question import largest_question
from planner.report.largest import draw_largest, largest_record, largest_view
from planner.training_time.largest import COMPUTES, plan_largest


def largest(
    cluster: Cluster | str | os.PathLike[str], *, months: float = 3.0, gpus: int | None = None,
    power_mw: float | None = None, max_cost: float | None = None, experts: Sequence[int] = (0,), aspect: float = 128.0,
    seq_len: int = 8192, framework: str | None = None, critical_batch_law: str = "zhang-2024",
    batch_rule: str = "overhead", given: Mapping[str, float | None] | None = None, **choices: Any,
) -> Drawn:  # fmt: skip
    """The largest compute-optimal training that such accelerators finish within a time, and what binds on the way.

    gpus, power_mw, max_cost: most of each, USD at the GPU's price. experts: of each kind of model that is asked, 0 for
    dense. aspect: width over layers. given: assumptions by name, such as mtbf_hours. choices: what the search may
    choose from, as of `planner.recommend`.

    Raises:
        InputError, UnknownNameError: A value is out of range or of another kind, or a name is unknown.
    """
    own = (cluster if isinstance(cluster, Cluster) else Cluster(cluster)).profile
    kinds = []
    for many in dict.fromkeys(experts):
        q = largest_question(
            own, months=months, gpus=gpus, power_mw=power_mw, max_cost=max_cost, experts=many, aspect=aspect,
            seq_len=seq_len, framework=framework, critical_batch_law=critical_batch_law, batch_rule=batch_rule,
            given=given, **choices,
        )  # fmt: skip
        kinds.append((q, plan_largest(q, COMPUTES)))
    if not kinds:
        raise InputError("experts is empty; allowed: at least one number of experts, 0 for dense models")
    record = largest_record(kinds)
    return Drawn("", record, largest_view(record), partial(draw_largest, record))
