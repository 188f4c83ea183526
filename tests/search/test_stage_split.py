"""How layers are split over stages: the least slowest stage, within memory."""

import re
from dataclasses import replace

import numpy as np
import pytest

from planner.base.errors import LayoutError
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts, Split
from planner.models import load_model
from planner.report.plain_table import plain_text
from planner.report.simulations import split_record, split_view
from planner.search.stage_split import stage_items, stage_split
from planner.setup import Setup
from planner.step.timeline.step import simulate

MODEL, CLUSTER = load_model("llama3-8b"), load_cluster("dgx-a100-80gb")
FRAMEWORK = load_framework(CLUSTER.framework)


@pytest.mark.parametrize(
    ("pp", "v", "schedule"), [(4, 1, "1f1b"), (8, 1, "zb-h1"), (4, 2, "interleaved"), (4, 2, "zb-v")]
)
def test_the_split_beats_an_even_one_and_matches_the_search_s(pp, v, schedule):
    layouts = Layouts.of(
        schedule=schedule, tp=8, pp=pp, virtual_stages=v, global_batch=64, sequence_parallel=True,
        layer_split=Split.EVEN,
    )  # fmt: skip
    split = stage_split(Setup(MODEL, CLUSTER, FRAMEWORK), layouts)
    assert split.layers.sum() == MODEL.num_layers
    assert len(split.layers) == pp * v
    assert split.seconds.max() <= split.even_slowest_s * (1 + 1e-12)
    assert split.rank.tolist() == ([0, 1, 2, 3, 3, 2, 1, 0] if schedule == "zb-v" else [s % pp for s in range(pp * v)])
    if v == 1:
        balanced = simulate(
            Setup(MODEL, CLUSTER, FRAMEWORK), replace(layouts, layer_split=np.array([int(Split.BALANCED)]))
        )
        slowest = (balanced.loads.forward_s + balanced.loads.input_grad_s + balanced.loads.weight_grad_s).max()
        # The simulated stage also waits for its transfers.
        assert split.seconds.max() == pytest.approx(slowest, rel=0.03)


@pytest.mark.parametrize("pp", [2, 4, 7])
def test_an_even_split_gives_its_remainder_to_the_first_stages(pp):
    """The embedding lies on the first, the head on the last; 30 layers."""
    setup = Setup(replace(MODEL, num_layers=30, num_dense_layers=30), CLUSTER, FRAMEWORK)
    layouts = Layouts.of(tp=8, pp=pp, global_batch=56, sequence_parallel=True)
    split = stage_split(setup, layouts)
    embedding, layer, head = stage_items(setup, layouts)[0][[0, 1, -1]]
    held = [30 // pp + (s < 30 % pp) for s in range(pp)]
    seconds = [n * layer + (s == 0) * embedding + (s == pp - 1) * head for s, n in enumerate(held)]
    assert split.even_slowest_s == pytest.approx(max(seconds))


def test_less_memory_moves_layers_off_the_first_stages_until_nothing_fits():
    layouts = Layouts.of(tp=4, pp=4, global_batch=64, sequence_parallel=True)
    free = stage_split(Setup(MODEL, CLUSTER, FRAMEWORK), layouts)
    fuller = float(free.size_bytes.max())
    less = replace(CLUSTER, accelerator=replace(CLUSTER.accelerator, memory_bytes=fuller * 0.93))
    tight = stage_split(Setup(MODEL, less, FRAMEWORK), layouts)
    assert tight.size_bytes.max() <= fuller * 0.93
    assert tight.seconds.max() >= free.seconds.max()
    none = replace(CLUSTER, accelerator=replace(CLUSTER.accelerator, memory_bytes=8e9))
    with pytest.raises(LayoutError, match=r"no split of 32 layers over 4 stages fits in 7\.45 GiB per GPU"):
        stage_split(Setup(MODEL, none, FRAMEWORK), layouts)


def test_a_split_slower_than_an_even_one_says_that_this_does_not_fit():
    layouts = Layouts.of(tp=4, pp=8, global_batch=64, sequence_parallel=True)
    free = stage_split(Setup(MODEL, CLUSTER, FRAMEWORK), layouts)
    least = replace(CLUSTER, accelerator=replace(CLUSTER.accelerator, memory_bytes=0.7 * float(free.size_bytes.max())))
    uneven = stage_split(Setup(MODEL, least, FRAMEWORK), layouts)
    assert (free.even_fits, uneven.even_fits) == (True, False)
    assert uneven.seconds.max() > uneven.even_slowest_s
    more = uneven.seconds.max() / uneven.even_slowest_s - 1.0
    said = f" per micro-batch, {more:.1%} more than with an even split, which does not fit in memory"
    assert said in plain_text(split_view(split_record(uneven)))
    assert re.search(r"[\d.]+% less than with an even split$", plain_text(split_view(split_record(free))), re.MULTILINE)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-2p", "2bw", "pipedream"])
def test_a_rank_s_bytes_are_those_of_the_timeline_with_its_layers(schedule):
    """What a split backward keeps for its weight gradients is among them, and the versions of the weights."""
    setup, chosen = Setup(MODEL, CLUSTER, FRAMEWORK), {"tp": 8, "pp": 4, "global_batch": 16, "schedule": schedule}
    split = stage_split(setup, Layouts.of(**chosen))
    given = "E" + "|".join("t" * int(n) for n in split.layers) + "L"
    exact = simulate(setup, Layouts.of(**chosen, pipeline_layout=given))
    assert split.size_bytes == pytest.approx(exact.peak_bytes, rel=1e-9)
