"""What must hold between a step and the same step with one thing changed, whatever the layout.

Each relation takes a drawn case and returns what is wrong in words, "" where it holds, or None where the case has
nothing to change. Exceptions that are derived stand beside the relation that they limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from planner.api.layout_estimate import estimate_one
from planner.api.simulated import simulate_one
from planner.base.units import GIB
from planner.costs.case import Case
from planner.costs.memory.rank import activations
from planner.layouts import Layouts
from planner.models import with_seq_len
from planner.report.records import estimate_record
from planner.schedules import get_schedule
from planner.step.passes import rank_passes
from planner.step.step_costs import step_costs
from planner.step.timeline.timed import has_timeline, timed_estimate
from tests.metamorphic.cases import Drawn

ROUNDING = 1e-9
Relation = Callable[[Drawn], str | None]
RELATIONS: dict[str, Relation] = {}


def relation(check: Relation) -> Relation:
    """Register a relation by its name."""
    RELATIONS[check.__name__] = check
    return check


def seconds_bytes(case: Drawn) -> tuple[float, float]:
    """Step and peak memory."""
    found = timed_estimate(case.setup, case.layouts)
    return float(found.step_time_s[0]), float(found.memory_bytes[0])


def both(case: Drawn, other: Drawn) -> tuple[tuple[float, float], tuple[float, float]]:
    """The steps and the peak memories of two cases, in one table where they have one setup."""
    if other.setup is not case.setup:
        (a, b), (c, d) = seconds_bytes(case), seconds_bytes(other)
        return (a, c), (b, d)
    found = timed_estimate(case.setup, Layouts.concatenate([case.layouts, other.layouts]))
    (a, c), (b, d) = found.step_time_s.tolist(), found.memory_bytes.tolist()
    return (a, c), (b, d)


def _no_less(case: Drawn, other: Drawn | None, what: str, part: int = 0) -> str | None:
    if other is None:
        return None
    now, then = both(case, other)[part]
    return "" if then >= now * (1.0 - ROUNDING) else f"{what}: {now:.6g} becomes {then:.6g}"


# One truth: all ways to ask.


@relation
def all_ways_to_ask_give_equal_seconds_and_bytes(case: Drawn) -> str | None:
    asked = estimate_one(case.setup, **case.choices)
    table = timed_estimate(case.setup, case.layouts)
    record = estimate_record(table, 0, case.setup.cluster)
    ways = {"estimate": (asked.step_time_s, asked.memory_gib), "record": (record["step_time_s"], record["memory_gib"])}
    if has_timeline(case.layouts)[0] or case.choices["pp"] == 1:
        run = simulate_one(case.setup, **case.choices)
        ways["simulate"] = (run.step_time_s, max(run.peak_gib))
    want = float(table.step_time_s[0]), float(table.memory_bytes[0]) / GIB
    wrong = {k: v for k, v in ways.items() if not np.allclose(v, want, rtol=ROUNDING, atol=0.0)}
    return f"{want} but {wrong}" if wrong else ""


@relation
def parts_add_up_and_none_is_negative(case: Drawn) -> str | None:
    found = estimate_one(case.setup, **case.choices)
    for parts, whole in ((found.time_parts_s, found.step_time_s), (found.memory_parts_gib, found.memory_gib)):
        if abs(sum(parts.values()) / whole - 1.0) > ROUNDING:
            return f"the parts {parts} are not {whole}"
        low = {name: x for name, x in parts.items() if x < 0.0}
        if low:
            return f"{low} of {whole}"
    return ""


# More work takes no less time.


@relation
def more_micro_batches_take_no_less_time(case: Drawn) -> str | None:
    more = case.choices["global_batch"] + case.choices["dp"] * case.choices["micro_batch"]
    return _no_less(case, case.changed(global_batch=more), "one micro-batch more")


@relation
def twice_the_batch_takes_no_less_time(case: Drawn) -> str | None:
    return _no_less(case, case.changed(global_batch=2 * case.choices["global_batch"]), "twice the batch")


@relation
def more_layers_take_no_less_time_and_memory(case: Drawn) -> str | None:
    """One more in each part of a given split; where a balanced one lays them out otherwise, the even is compared."""
    model, more = case.setup.model, case.choices["pp"] * case.choices["virtual_stages"]
    one_layer = get_schedule(case.choices["schedule"]).one_layer_chunks
    if one_layer or model.num_dense_layers not in (0, model.num_layers):
        return None
    layers = {"num_layers": model.num_layers + more}
    if model.num_dense_layers:
        layers["num_dense_layers"] = layers["num_layers"]
    if model.num_window_layers:
        return None
    other = case.on(model=replace(model, **layers))
    if other is None:
        return None
    if _splits_apart(case, other, case.choices["virtual_stages"]):
        even = case.changed(layer_split="even")
        return None if even is None else more_layers_take_no_less_time_and_memory(even)
    wrong = [(what, *pair) for what, pair in zip(("seconds", "bytes"), both(case, other), strict=True)]
    return "; ".join(f"more layers: {now:.6g} {what} become {then:.6g}" for what, now, then in wrong
                     if then < now * (1.0 - ROUNDING))  # fmt: skip


@relation
def longer_sequences_take_no_less_time(case: Drawn) -> str | None:
    """But where the host's wait moves to what others wait for (`_moved_wait_s`)."""
    model = case.setup.model
    longer = case.on(model=with_seq_len(model, 2 * model.seq_len)) if model.rotary or not model.max_positions else None
    if longer is None:
        return None
    was, becomes = both(case, longer)[0]
    wrong = becomes + _moved_wait_s(longer, case) < was * (1.0 - ROUNDING)
    return f"twice the sequence: {was:.6g} becomes {becomes:.6g}" if wrong else ""


# Faster or larger hardware is never worse.


def _faster(case: Drawn, **parts: Any) -> str | None:
    """Of a given split of layers: a balanced one follows the seconds of the layers and evens out the ranks' passes. The
    period of a pipeline that is never drained has each rank's own collectives too, so the other split may be slower.
    Where it is another split, the even one is compared."""
    cluster = replace(case.setup.cluster, **parts)
    other = Drawn(replace(case.setup, cluster=cluster), case.choices)
    if _splits_apart(case, other):
        even = case.changed(layer_split="even")
        return None if even is None else _faster(even, **parts)
    return _no_less(other, case, f"back from {', '.join(parts)} twice as fast")


@relation
def a_faster_network_is_never_slower(case: Drawn) -> str | None:
    link = case.setup.cluster.network
    return _faster(case, network=replace(link, bandwidth_bytes_per_s=2.0 * link.bandwidth_bytes_per_s))


@relation
def wider_links_between_pods_are_never_slower(case: Drawn) -> str | None:
    narrow = replace(case.setup.cluster, pod_nodes=2, oversubscription=5.0)
    return _faster(Drawn(replace(case.setup, cluster=narrow), case.choices), oversubscription=2.5)


@relation
def fewer_neighbours_are_never_slower(case: Drawn) -> str | None:
    busy = replace(case.setup.cluster, pod_nodes=2, oversubscription=5.0, neighbour_flows=16)
    return _faster(Drawn(replace(case.setup, cluster=busy), case.choices), neighbour_flows=8)


@relation
def a_faster_node_link_is_never_slower(case: Drawn) -> str | None:
    link = case.setup.cluster.node_link
    return _faster(case, node_link=replace(link, bandwidth_bytes_per_s=2.0 * link.bandwidth_bytes_per_s))


@relation
def faster_memory_is_never_slower(case: Drawn) -> str | None:
    chip = case.setup.cluster.accelerator
    rate = {"memory_bandwidth_bytes_per_s": 2.0 * chip.memory_bandwidth_bytes_per_s}
    return _faster(case, accelerator=replace(chip, **rate))


@relation
def a_faster_chip_is_never_slower(case: Drawn) -> str | None:
    """Of a given order and split of layers: a balanced split follows the chip, so it may change.

    But where the host's wait moves to what others wait for (`_moved_wait_s`), and where less of a rank's reduction
    hides (`_less_hidden_s`).
    """
    chip = case.setup.cluster.accelerator
    peak = {name: 2.0 * rate for name, rate in chip.peak_flops.items()}
    faster = replace(case.setup.cluster, accelerator=replace(chip, peak_flops=peak))
    other = Drawn(replace(case.setup, cluster=faster), case.choices)
    if _splits_apart(case, other):
        return None
    (was, _), (becomes, _) = (seconds_bytes(x) for x in (case, other))
    allowed = was + _moved_wait_s(case, other) + _less_hidden_s(case, other)
    wrong = becomes > allowed * (1.0 + ROUNDING)
    return f"twice the peak FLOP/s: {was:.6g} becomes {becomes:.6g}" if wrong else ""


def _moved_wait_s(more: Drawn, less: Drawn) -> float:
    """Seconds that a step of less work per operation may take beyond that of more, of the same operations.

    Where the backward pass is split and waits for the host: the host's time counts with the forward pass and the
    input's gradient. The weight's gradient falls with the work, and those two take the more of passes that together
    last as long as before. What others wait for is those two. A path through the step has no more than m of each on one
    rank and one on each of the other ranks: as many times what a rank's two last longer.
    """
    if not get_schedule(more.choices["schedule"]).splits_backward:
        return 0.0
    p, m = more.choices["pp"], int(more.layouts.micro_batches[0])
    ranks = [rank_passes(step_costs(x.setup, x.layouts)).blocks(p) for x in (more, less)]
    pairs = zip(*ranks, strict=True)
    longest_s = max(float(np.max(then[0] + then[1] - now[0] - now[1])) for (now, _), (then, _) in pairs)
    return (m + p - 1) * max(longest_s, 0.0)


def _less_hidden_s(more: Drawn, less: Drawn) -> float:
    """Seconds of reduction that hide under a rank's backward pass and no longer do when it is shorter, at the most.

    Where a rank has copies of two stages: its reduction hides under the mean of their backward passes. One with the
    head gets shorter on a faster chip, while the rank's last pass, of the other stage, ends when the others' passes
    let it, which may take as long as before: the host sets their pace.
    """
    if get_schedule(more.choices["schedule"]).copies == 1:
        return 0.0
    steps = [simulate_one(x.setup, **x.choices).step for x in (more, less)]
    was, becomes = (x.timeline.end_s[x.timeline.order.start[1:] - 1] - x.reduce_start_s for x in steps)
    return max(float(np.max(was - becomes)), 0.0)


def _splits_apart(case: Drawn, other: Drawn, more: int = 0) -> bool:
    """Whether a balanced split, which follows the layers' seconds, does not hold `more` on each rank."""
    was, becomes = (step_costs(x.setup, x.layouts).stages.layers(0, x.choices["pp"]) for x in (case, other))
    return case.choices["layer_split"] == "balanced" and bool(np.any(becomes != was + more))


# Saving memory never takes more of it.


def _saves(case: Drawn, **choices: Any) -> str | None:
    """Of a given split of layers: a balanced one may give a rank more of them."""
    if all(case.choices[name] == value for name, value in choices.items()):
        return None
    other = case.changed(**choices)
    apart = other is None or _splits_apart(case, other)
    return None if apart else _no_less(other, case, f"without {choices}", 1)


def _beyond_work(case: Drawn, **choices: Any) -> str | None:
    """`_saves`, but for what the layer at work grows by."""
    wrong = _saves(case, **choices)
    if not wrong:
        return wrong
    other = case.changed(**choices)
    assert other is not None  # else nothing was compared
    was, becomes = (activations(Case.of(x.setup, x.layouts)).working[0] for x in (case, other))
    grown = float(becomes - was) * (1.0 + case.setup.framework.fragmentation)
    more = seconds_bytes(other)[1] - seconds_bytes(case)[1]
    return "" if more <= grown * (1.0 + ROUNDING) else wrong


@relation
def recomputation_never_takes_more_memory(case: Drawn) -> str | None:
    """But where a pass's own gradient outgrows what it frees (`pass_gradient_bytes`): then the gradient is the peak,
    whatever is recomputed, and the layer that is recomputed comes on top. It also does where weight gradients wait:
    what a layer makes again they keep, and it is counted at work too."""
    if case.choices["recompute"] != "none" or case.setup.framework.pass_gradient_bytes > 0:
        return None
    saves = _beyond_work if get_schedule(case.choices["schedule"]).splits_backward else _saves
    wrong = [saves(case, recompute=mode) for mode in ("selective", "fine", "full")]
    return "; ".join(x for x in wrong if x)


@relation
def sharding_never_takes_more_memory_than_its_shard(case: Drawn) -> str | None:
    """With ZeRO-2 the gradients at work are whole beside the shard, with ZeRO-3 the parameters: at most all of them, so
    that the shard is what they may take more. ZeRO-1 never takes more."""
    stage = case.choices["zero"] + 1
    other = None if stage == 4 else case.changed(zero=stage)
    if other is None:
        return None
    found = timed_estimate(other.setup, other.layouts)
    shard = {1: 0.0, 2: found.memory.gradients_bytes[0], 3: found.memory.parameters_bytes[0]}[stage]
    now, then = seconds_bytes(case)[1], float(found.memory_bytes[0])
    return "" if then <= (now + shard) * (1.0 + ROUNDING) else f"ZeRO-{stage}: {now:.6g} becomes {then:.6g}"


@relation
def sequence_parallelism_never_takes_more_memory(case: Drawn) -> str | None:
    """But for the layer at work, whose input each rank gathers whole: where the loss is the peak and no layer's tensors
    are kept beside it, or a pass's own gradient that outgrows what it frees, that input comes on top."""
    if case.choices["tp"] == 1:
        return None
    wrong = _saves(case, sequence_parallel=True)
    if not wrong or case.setup.framework.pass_gradient_bytes > 0:
        return wrong and _beyond_work(case, sequence_parallel=True)
    other = case.changed(sequence_parallel=True)
    assert other is not None  # else nothing was compared
    kept = timed_estimate(other.setup, other.layouts).memory.activations_bytes[0]
    return wrong if kept else _beyond_work(case, sequence_parallel=True)


@relation
def more_slices_never_take_more_memory(case: Drawn) -> str | None:
    if case.choices["sequence_slices"] == 1:
        return None
    return _saves(case, sequence_slices=2 * case.choices["sequence_slices"])


# Limits and units.


@relation
def all_rates_and_latencies_scaled_scale_the_step(case: Drawn) -> str | None:
    """Time in other units: all per-second figures divided by 4, all seconds times 4."""
    slow = Drawn(_slower(case.setup, 4.0), case.choices)
    now, then = seconds_bytes(case), seconds_bytes(slow)
    return "" if np.allclose((4.0 * now[0], now[1]), then, rtol=1e-6) else f"{now} becomes {then}"


def _slower(setup: Any, factor: float) -> Any:
    """Every duration of a setup times a factor, by the figures' names: `_s` are seconds, `_per_s` and FLOP/s rates."""

    def scaled(record: Any) -> Any:
        new = {}
        for name, value in vars(record).items():
            if name.endswith("_per_s") and value is not None:
                new[name] = value / factor
            elif name == "peak_flops":
                new[name] = {key: rate / factor for key, rate in value.items()}
            elif name.endswith("_s") and value is not None:
                new[name] = value * factor
        return replace(record, **new)

    chip = scaled(setup.cluster.accelerator)
    chip = replace(chip, efficiency=scaled(chip.efficiency))
    cluster = replace(
        scaled(setup.cluster), accelerator=chip, network=scaled(setup.cluster.network),
        node_link=scaled(setup.cluster.node_link),
    )  # fmt: skip
    return replace(setup, cluster=cluster, framework=scaled(setup.framework))


@relation
def one_accelerator_sends_nothing(case: Drawn) -> str | None:
    alone = case.changed(
        dp=1, tp=1, pp=1, cp=1, ep=1, schedule="1f1b", virtual_stages=1, sequence_slices=1, zero=0,
        sequence_parallel=False, layer_split="even",
    )  # fmt: skip
    if alone is None:
        return None
    parts = estimate_one(alone.setup, **alone.choices).time_parts_s
    sent = {name: s for name, s in parts.items() if (name.endswith("comm") or name in ("bubble", "imbalance")) and s}
    return f"{sent}" if sent else ""
