"""The largest training within a given time, and the least network that a training needs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from planner.api.answer import Answer
from planner.api.frameworks import held_request
from planner.api.inputs import ClusterLike, ModelLike, profile_of, setup_of
from planner.api.layout_estimate import LayoutEstimate, closed
from planner.base.errors import InputError, UnknownNameError
from planner.choices.choice import real, whole
from planner.choices.table import CHOICES, SHARED
from planner.hardware import load_link
from planner.question import batch_or_usual, largest_question
from planner.report.largest import draw_largest, largest_record, largest_view
from planner.report.network import draw_network, network_record, network_view
from planner.setup import Setup
from planner.step.timeline.timed import timed_estimate
from planner.training_time.assumptions import assume
from planner.training_time.largest import COMPUTES, plan_largest
from planner.training_time.network import AXES, STRATEGIES, NetworkCase, axis_of, curve, need_of, ways


def largest(
    cluster: ClusterLike, *, months: float = 3.0, gpus: int | None = None,
    power_mw: float | None = None, max_cost: float | None = None, experts: Sequence[int] = (0,), aspect: float = 128.0,
    seq_len: int = 8192, framework: str | None = None, critical_batch_law: str = "zhang-2024",
    batch_rule: str = "overhead", given: Mapping[str, float | None] | None = None, **choices: Any,
) -> Answer:  # fmt: skip
    """The largest compute-optimal training that such accelerators finish within a time, and what binds on the way.

    gpus, power_mw, max_cost: most of each, USD at the GPU's price. experts: of each kind of model that is asked, 0 for
    dense. aspect: width over layers. given: assumptions by name, such as mtbf_hours. choices: what the search may
    choose from, as of `planner.recommend`.

    Raises:
        InputError, UnknownNameError: A value is out of range or of another kind, or a name is unknown.
    """
    own = profile_of(cluster)
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
    q, best = next(((q, found.best) for q, found in kinds if found.best is not None), (kinds[0][0], None))
    if best is None or best.estimate is None:
        return Answer("", record, largest_view(record), partial(draw_largest, record), kept=False)
    one = LayoutEstimate(Setup(best.model, q.cluster, q.framework), best.estimate, 0)
    return closed("", record, largest_view(record), draw_largest, one)


def _is_given(name: str, value: Any) -> bool:
    """Whether a choice is another than without the user's word."""
    if name in SHARED:
        return bool(CHOICES[name].coded(value) != CHOICES[name].default)
    return name in CHOICES or bool(value)


SLOW = "ethernet-25g"
"""The slow network of the first paper's question, where none is named."""


def network(
    model: ModelLike, cluster: ClusterLike, *, gpus: int, batch: int | None = None, framework: str | None = None,
    along: str = "bandwidth", slow: str = SLOW, price: float | None = None, network_price: float | None = None,
    **choices: Any,
) -> Answer:  # fmt: skip
    """Step time of the best layout against the bandwidth between nodes, or its latency, and what each strategy needs.

    batch: sequences per step; None is about 4M tokens.
    along: "bandwidth" (1 to 3,200 Gb/s of a node, or its own), "latency" (1 us to 10 ms), or "oversubscription" of the
    cluster's pods (1 to 32). slow: the network that the improved way is asked on. price: USD for an hour of a GPU;
    network_price: USD for an hour of each Gb/s of a node's network.
    choices: what the search may choose from, as of `planner.recommend`.

    Raises:
        InputError, UnknownNameError: A value is out of range or of another kind, or a name is unknown.
        LayoutError: No layout is legal, or none fits in memory.
    """
    if along not in AXES:
        raise UnknownNameError("axis", along, AXES)
    setup = setup_of(model, cluster, framework)
    batch = batch_or_usual(batch, setup.model.seq_len, whole("gpus", gpus))
    for name, value in (("price", price), ("network_price", network_price)):
        if value is not None:
            real(name, value, least=0.0, most=1e6)
    asked = partial(held_request, setup, gpus=gpus, batch=batch, **choices)
    setup, question = asked()
    own, slower = setup.cluster, replace(setup.cluster, network=load_link(slow))
    if gpus <= own.gpus_per_node:
        raise InputError(f"gpus is {gpus}; allowed: more than the {own.gpus_per_node} of one node, for a network")
    if along == "oversubscription" and gpus <= (pod := own.gpus_per_node * own.pod_nodes):
        raise InputError(f"gpus is {gpus}; allowed: more than the {pod} of one pod (pod_nodes {own.pod_nodes})")
    hourly = assume(own, {"price_usd_per_hour": price}).prices.price_per_hour
    if network_price is not None and hourly is None:
        raise InputError(f"network_price is {network_price:g} without a price; allowed: beside a price per GPU-hour")
    given = {name: value for name, value in choices.items() if value is not None and _is_given(name, value)}
    case = NetworkCase(setup=setup, axis=axis_of(along, own), request=question, given=given)
    found = curve(case)
    needs = [need_of(case, name, settles) for name, settles in STRATEGIES.items()]
    both = ways(case, slower, lambda **settled: asked(**settled)[1]) if along == "bandwidth" else ()
    one = LayoutEstimate(setup, timed_estimate(setup, found.layouts.take([-1])), 0)
    words = {"model": getattr(model, "word", model), "cluster": getattr(cluster, "word", cluster)}
    words["framework"] = framework or setup.framework.name
    record = network_record(case, found, needs, both, words, hourly, network_price)
    return closed("", record, network_view(record), draw_network, one)
