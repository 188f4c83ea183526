"""The estimate: parts add up, rows don't depend on each other, and physics' signs are right."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.errors import LayoutError
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Layouts, Recompute, Split
from planner.models import load_model
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import HOST_MEMORY, check_legal, first_broken

CLUSTER = load_cluster("dgx-a100-80gb")
MEGATRON = load_framework("megatron-lm")
MODEL = load_model("llama-13b")

legal_layouts = st.builds(
    lambda dp, tp, pp, mb, m, zero, mode, sp, split, attention: Layouts.of(
        dp=dp, tp=tp, pp=pp, micro_batch=mb, global_batch=dp * mb * m, zero=zero if pp == 1 else min(zero, 1),
        recompute=mode, sequence_parallel=sp, layer_split=split, attention=attention,
    ),
    *(st.sampled_from([1, 2, 4, 8]) for _ in range(3)), st.integers(1, 4), st.integers(1, 9), st.integers(0, 3),
    st.sampled_from([Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL]), st.booleans(),
    st.sampled_from([Split.EVEN, Split.BALANCED, Split.PARAMETERS]),
    st.sampled_from(list(Attention)),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(legal_layouts, min_size=1, max_size=6))
def test_parts_add_up_and_rows_are_independent(tables):
    layouts = Layouts.concatenate(tables)
    check_legal(MODEL, CLUSTER, layouts)
    together = estimate(Setup(MODEL, CLUSTER, MEGATRON), layouts)
    parts = sum(getattr(together.time, f.name) for f in fields(together.time) if f.name != "bubble_s")
    assert np.array_equal(together.step_time_s, parts + together.time.bubble_s)
    for f in fields(together.time):
        if f.name != "imbalance_s":  # the average rank may hold more than a slowest one that ends the pipeline
            assert np.all(getattr(together.time, f.name) >= -1e-12), f.name
    assert np.all((together.mfu > 0) & (together.mfu < 1))
    for i, table in enumerate(tables):
        alone = estimate(Setup(MODEL, CLUSTER, MEGATRON), table)
        assert alone.step_time_s[0] == together.step_time_s[i]
        assert alone.memory_bytes[0] == together.memory_bytes[i]


@settings(max_examples=40, deadline=None)
@given(legal_layouts)
def test_better_hardware_is_never_slower(layouts):
    base = estimate(Setup(MODEL, CLUSTER, MEGATRON), layouts).step_time_s
    a = CLUSTER.accelerator
    better = [
        replace(CLUSTER, network=replace(CLUSTER.network, bandwidth_bytes_per_s=1e12)),
        replace(CLUSTER, node_link=replace(CLUSTER.node_link, bandwidth_bytes_per_s=1e13)),
        replace(CLUSTER, accelerator=replace(a, memory_bandwidth_bytes_per_s=1e13)),
        replace(CLUSTER, accelerator=replace(a, peak_flops={k: 2 * v for k, v in a.peak_flops.items()})),
    ]
    for cluster in better:
        # A faster layer can move the balanced split; it may then be a rounding worse, never more.
        assert estimate(Setup(MODEL, cluster, MEGATRON), layouts).step_time_s <= base * (1 + 1e-9) or np.any(
            layouts.layer_split == Split.BALANCED
        )


def test_memory_goes_the_right_way():
    def memory(**choices):
        return float(estimate(Setup(MODEL, CLUSTER, MEGATRON), Layouts.of(global_batch=64, **choices)).memory_bytes[0])

    assert memory(dp=8, zero=0) > memory(dp=8, zero=1) > memory(dp=8, zero=2) > memory(dp=8, zero=3)
    assert memory(tp=1) > memory(tp=2) > memory(tp=2, sequence_parallel=True)
    assert memory(recompute=Recompute.NONE) > memory(recompute=Recompute.FULL)
    assert memory(micro_batch=2) > memory(micro_batch=1)
    assert memory(attention=Attention.UNFUSED) > memory(attention=Attention.FUSED) > memory(attention=Attention.FLASH2)
    assert memory(dp=2, zero=0) > memory(dp=2, zero=0, offload_optimizer=True)


def test_slower_networks_cost_data_parallel_time():
    layouts = Layouts.of(dp=64, global_batch=64)
    times = [
        float(estimate(Setup(MODEL, load_cluster("dgx-a100-80gb", network=n), MEGATRON), layouts).time.data_comm_s[0])
        for n in ("infiniband-hdr", "ethernet-100g-rdma", "ethernet-25g")
    ]
    assert times == sorted(times)
    assert times[-1] > 3 * times[0]


ILLEGAL = [
    ({"dp": 3}, "global_batch"),
    ({"tp": 3}, "attention heads"),
    ({"pp": 64}, "layers"),
    ({"virtual_stages": 2, "pp": 2}, "1f1b"),
    ({"cp": 2, "attention": Attention.FUSED}, "flash"),
    ({"ep": 2}, "experts"),
    ({"zero": 4}, "zero"),
    ({"zero": 2, "pp": 2}, "zero"),
    ({"schedule": "interleaved", "pp": 3, "virtual_stages": 2, "micro_batch": 1}, "interleaved|divisible"),
    ({"precision": 4}, "precision"),
    ({"layer_split": Split.ENDS}, "layer_split ends needs a pipeline"),  # without one
    ({"layer_split": Split.ENDS, "pp": 4}, "layer_split ends needs a pipeline of layers . 2"),  # 42 in 4
    (
        {"schedule": "interleaved", "pp": 2, "virtual_stages": 3, "micro_batch": 1},
        "or layers . 2 with layer_split ends",
    ),
    ({"schedule": "zb-v", "pp": 2, "virtual_stages": 2, "layer_split": Split.ENDS}, "divisible|first and last rank"),
    ({"layer_split": Split.LAST}, "layer_split last needs a pipeline"),  # without one
    ({"layer_split": Split.LAST, "pp": 4}, "layer_split last needs a pipeline that can't share the layers evenly"),
    ({"layer_split": Split.LAST, "pp": 16}, "leaves some to its last"),  # of 40, three each: the first 14 take all
]


@pytest.mark.parametrize(("choices", "rule"), ILLEGAL, ids=[str(c) for c, _ in ILLEGAL])
def test_an_illegal_layout_is_refused_with_its_rule(choices, rule):
    layouts = Layouts.of(**{"global_batch": 64, **choices})
    with pytest.raises(LayoutError, match=rule):
        check_legal(MODEL, CLUSTER, layouts)
    assert first_broken(MODEL, CLUSTER, Layouts.of(global_batch=64)) == [""]


def test_offloaded_states_must_fit_in_their_hosts():
    """175B on 64 GPUs of eight nodes: 2.8 TB where ZeRO shards them, 22.3 TB whole on eight replicas."""
    model, cluster = load_model("gpt3-175b"), load_cluster("dgx-a100-80gb")
    chosen = {"tp": 8, "dp": 8, "global_batch": 64, "offload_optimizer": True}
    layouts = Layouts.of(zero=[1, 0, 0], **chosen | {"offload_optimizer": [True, True, False]})
    assert first_broken(model, cluster, layouts) == ["", HOST_MEMORY, ""]  # of 17.6
    assert first_broken(model, replace(cluster, host_memory_bytes=2.8e12), layouts) == ["", "", ""]  # of 22.4
    small = replace(cluster, host_memory_bytes=1e12)
    assert first_broken(model, small, layouts) == ["", HOST_MEMORY, ""]
    assert first_broken(model, replace(cluster, host_memory_bytes=None), layouts) == ["", "", ""]
    assert first_broken(model, replace(small, host_memory_bytes=1e11), layouts) == [HOST_MEMORY, HOST_MEMORY, ""]


def test_simulated_seconds_and_bytes_stand_in_for_the_closed_form():
    layouts = Layouts.of(pp=[8, 4, 16], micro_batch=1, global_batch=64)
    closed = estimate(Setup(MODEL, CLUSTER, MEGATRON), layouts)
    assert closed.fits.all()
    too_much, less = 1.5 * closed.capacity_bytes, 0.5 * closed.memory_bytes[0]
    mixed = closed.with_simulated(np.array([0, 2]), np.array([7.0, 9.0]), np.array([less, too_much]))
    assert mixed.step_time_s.tolist() == [7.0, closed.step_time_s[1], 9.0]
    assert mixed.fits.tolist() == [True, True, False]
    assert mixed.memory_bytes == pytest.approx([less, closed.memory_bytes[1], too_much])
    assert mixed.mfu[0] == pytest.approx(closed.mfu[0] * closed.step_time_s[0] / 7.0)


def test_what_a_timeline_takes_longer_is_bubble_and_what_it_takes_less_than_no_bubble_is_of_the_slow_ranks():
    """Ranks of unlike work: 0.1 s beyond the work is bubble, a third of the imbalance below it comes off that.

    No more comes off it than there is, so that the parts always add up to the step.
    """
    layouts = Layouts.of(pp=[8, 8, 8], micro_batch=1, global_batch=64)
    closed = estimate(Setup(MODEL, CLUSTER, MEGATRON), layouts)
    bare, slow = closed.time.but_bubble_s[0], closed.time.imbalance_s[0]
    assert 0.0 < slow < 1.0
    steps = np.array([bare + 0.1, bare - slow / 3.0, bare - slow * 1.5])
    done = closed.with_simulated(np.arange(3), steps, closed.memory_bytes)
    assert done.time.bubble_s == pytest.approx([0.1, 0.0, -slow / 2.0], abs=1e-12)
    assert done.time.imbalance_s == pytest.approx([slow, slow * 2.0 / 3.0, 0.0], abs=1e-12)
    assert done.step_time_s == pytest.approx(steps)


def test_what_a_pipeline_that_is_never_drained_takes_less_is_of_the_collectives_then_of_the_update():
    """The slow rank is as slow as before: what others hide of their collectives and update falls. Beside it 1F1B."""
    layouts = Layouts.of(pp=8, dp=2, micro_batch=1, global_batch=64, schedule=["2bw", "2bw", "2bw", "1f1b"])
    closed = estimate(Setup(MODEL, CLUSTER, MEGATRON), layouts)
    bare, sent, update, slow = (
        float(getattr(closed.time, name)[0])
        for name in ("but_bubble_s", "data_comm_s", "optimizer_s", "imbalance_s")
    )  # fmt: skip
    assert min(sent, update, slow) > 0.0
    less = np.array([sent / 4.0, sent + update / 2.0, -0.1, 0.0])
    steps = np.append(bare - less[:3], closed.time.but_bubble_s[3] - slow / 2.0)
    done = closed.with_simulated(np.arange(4), steps, closed.memory_bytes)
    assert done.time.data_comm_s[:3] == pytest.approx([0.75 * sent, 0.0, sent], abs=1e-12)
    assert done.time.optimizer_s[:3] == pytest.approx([update, update / 2.0, update])
    assert done.time.bubble_s == pytest.approx([0.0, 0.0, 0.1, 0.0], abs=1e-12)
    assert done.time.imbalance_s.tolist()[:3] == closed.time.imbalance_s.tolist()[:3]
    assert done.time.imbalance_s[3] == pytest.approx(closed.time.imbalance_s[3] - slow / 2.0)
    assert (done.time.data_comm_s[3], done.time.optimizer_s[3]) == (
        closed.time.data_comm_s[3], closed.time.optimizer_s[3],
    )  # fmt: skip
    assert done.step_time_s == pytest.approx(steps)
