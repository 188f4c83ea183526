"""What breadth-first pipelines with ZeRO-3 wait for: by hand, on the timeline; more work takes no less time."""

from typing import Any

import numpy as np
import pytest

from planner.base.errors import LayoutError
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision
from planner.models import load_model
from planner.schedules import Pipeline, get_schedule
from planner.setup import Setup
from planner.step.chunk_gathers import NAMES, Visits, _blocking, _prefetched, chunk_seconds
from planner.step.estimate import estimate
from planner.step.legality import first_broken
from planner.step.step_costs import step_costs
from planner.step.timeline.chunk_links import chunk_links
from planner.step.timeline.shared_links import share_links
from planner.step.timeline.step import simulate
from planner.step.timeline.timeline import TimedOrder, durations, run_all


def both(p: int, m: int, v: int, f: float, b: float, g: float, d: float, prefetch: bool, cost: float = 0.0):
    """The step by the timeline and by the closed form."""
    order = get_schedule("breadth-first").order(Pipeline(p=p, m=m, v=v))
    lasting = durations(order, f, b / 2, b / 2)
    stages = np.ones(p * v)
    links = chunk_links(order, lasting, (g * stages, g * stages), d * stages, (cost * stages,) * 3, prefetch)
    run = run_all([TimedOrder(order=order, duration_s=lasting, links=links)])[0]
    assert run.link_end_s is not None
    names = ("p", "m", "v", "forward_s", "backward_s", "ends_s", *NAMES)
    values = (p, m, v, f, b, 0, g, g, d, cost, cost, cost)
    x = Visits(**{name: np.array([float(value)]) for name, value in zip(names, values, strict=True)})
    closed = _prefetched(x) if prefetch else _blocking(x)
    return max(run.makespan_s + run.start_s.min(), run.link_end_s.max()), float(closed[0])


def test_a_step_by_hand():
    """Two ranks, two chunks, one micro-batch; F 1 s, B 2 s, a gather 4 s, a reduction 2 s.

    Rank 0's links: gathers 0-4, 4-8, 8-12, reductions 12-14 and 15-17. Its passes: F 3-4 and 7-8, B 11-13 and 15-17.
    Rank 1's: F 4-5 and 8-9, B 9-11 and 13-15.
    """
    assert both(2, 1, 2, 1.0, 2.0, 4.0, 2.0, True) == (17.0, 17.0)


def test_without_prefetch_each_stage_gathers_when_its_input_is_there():
    """The same: F ends at 5, 10, 15, 20, the first B at 22 and 24, the others at 24 + 4 + 2 and 30 + 4 + 2, then 2."""
    assert both(2, 1, 2, 1.0, 2.0, 4.0, 2.0, False) == (38.0, 38.0)


def test_what_gathers_cost_a_rank_it_pays_between_visits():
    """Two micro-batches on two ranks, collectives short: three times between visits 0.25 s more, of a step of 15 s."""
    assert both(2, 2, 2, 1.0, 2.0, 0.5, 0.5, True)[0] == 15.0
    timeline, closed = both(2, 2, 2, 1.0, 2.0, 0.5, 0.5, True, cost=0.25)
    assert timeline == closed == 15.0 + 0.25 + 2 * 0.25


def test_the_ends_are_gathered_and_reduced_in_four_equal_parts():
    """The embedding's and the head's gather, and their reductions, take what a rank without chunks does at once."""
    setup = Setup(load_model("llama-13b"), load_cluster("dgx-h100"), load_framework("megatron-core"))
    layouts = Layouts.of(schedule="breadth-first", dp=2, pp=2, virtual_stages=2, zero=[2, 3], global_batch=8)
    costs = step_costs(setup, layouts)
    assert (4 * chunk_seconds(costs).ends_s).tolist() == costs.traffic.ends_sharding_s.tolist()
    assert costs.traffic.ends_sharding_s[1] > 0.0


@pytest.mark.parametrize("prefetch", [True, False])
def test_the_closed_form_on_equal_stages(prefetch):
    rng = np.random.default_rng(5)
    off = []
    for _ in range(300):
        p, m, v = (int(rng.choice(x)) for x in ([2, 4, 8], [1, 2, 3, 4, 6, 12], [1, 2, 3, 5, 8]))
        g, d = rng.choice([0.0, 0.5, 1.0, 4.0, 16.0, 40.0]), rng.choice([0.0, 1.0, 8.0, 20.0])
        timeline, closed = both(p, m, v, 1.0, float(rng.choice([2.0, 3.0])), float(g), float(d), prefetch)
        off.append(closed / timeline - 1.0)
    assert np.abs(off).max() < 0.03
    assert np.mean(np.abs(off) < 1e-9) > 0.85


def drawn(count: int, seed: int):
    """Pairs of steps, the second with one micro-batch more: setup and two tables of one layout."""
    rng = np.random.default_rng(seed)
    while count:
        model = load_model(str(rng.choice(["llama2-7b", "llama-13b", "mixtral-8x7b", "llama3-8b"])))
        cluster = load_cluster(str(rng.choice(["dgx-a100-80gb", "dgx-h100", "dgx-1-v100"])))
        framework = load_framework(str(rng.choice(["megatron-core", "fsdp", "nanotron"])))
        pp, name = int(rng.choice([2, 4, 8])), str(rng.choice(["breadth-first", "modular"]))
        chunks = model.num_layers // pp if name == "modular" else 2
        choices: dict[str, Any] = {
            "schedule": name, "dp": int(rng.choice([2, 4, 16, 32])), "tp": int(rng.choice([1, 2, 8])), "pp": pp,
            "virtual_stages": chunks, "zero": int(rng.choice([2, 3])), "recompute": int(rng.integers(3)),
            "attention": Attention.FLASH2, "precision": Precision.FP16,
        }  # fmt: skip
        k = int(rng.choice([1, 1, 2, 4, 8]))
        two = [Layouts.of(global_batch=n * choices["dp"], **choices) for n in (k, k + 1)]
        if not any(first_broken(model, cluster, one)[0] for one in two):
            count -= 1
            yield Setup(model, cluster, framework), two


def test_more_micro_batches_never_take_less_time():
    for setup, two in drawn(60, 4):
        closed = [float(estimate(setup, one).step_time_s[0]) for one in two]
        exact = [simulate(setup, one).step_time_s for one in two]
        assert closed[1] >= closed[0] * (1 - 1e-9), (setup.model.name, two[0].row(0))
        assert exact[1] >= exact[0] * (1 - 1e-9), (setup.model.name, two[0].row(0))
        if two[0].zero[0] == 3:
            assert closed == pytest.approx(exact, rel=0.04)


def test_links_are_not_shown_where_chunks_are_gathered():
    setup = Setup(load_model("llama-13b"), load_cluster("dgx-h100"), load_framework("megatron-core"))
    layouts = Layouts.of(schedule="breadth-first", dp=2, pp=2, virtual_stages=2, zero=3, global_batch=8, precision=2)
    with pytest.raises(LayoutError, match="links are not simulated for breadth-first with zero 3"):
        share_links(setup, layouts)
