"""Search: the same answer as brute force over one layout at a time; the findings of Hagemann et al. 2023."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from planner.base.errors import InputError, LayoutError
from planner.base.pareto import pareto_front
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision, Recompute, Split
from planner.models import from_shape, load_model
from planner.search import Fixed, default_attention, recommend
from planner.search.request import Request
from planner.search.scan import estimate_all, sample, search
from planner.search.space import by_ends, by_last, space
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import legal
from tests.search.every_layout import enumerate_layouts, filled_chunks

CLUSTER = load_cluster("dgx-a100-80gb")
MEGATRON = load_framework("megatron-lm")
SMALL = from_shape(family="llama", layers=6, hidden=512, ffn=1024, heads=8, kv_heads=4, vocab=32000, seq_len=512)
COMMON = {"precision": Precision.BF16, "attention": Attention.FLASH2}


SEARCHED = ("gpipe", "1f1b", "interleaved", "breadth-first", "modular", "zb-h1", "zb-v")


def brute_force(model, gpus: int, batch: int) -> set[tuple[int, ...]]:
    """Every legal layout found by trying all small numbers."""
    small, tried, layers = range(1, gpus + 1), [], model.num_layers
    for dp, tp, pp, cp, mb, v in product(small, small, small, (1, 2), range(1, batch + 1), range(1, 7)):
        if dp * tp * pp * cp != gpus:
            continue
        for code, zero, mode, sp, split in product(
            range(len(SEARCHED)),
            range(4),
            (Recompute.NONE, Recompute.FULL),
            (False, True),
            (Split.EVEN, Split.BALANCED, Split.ENDS, Split.LAST),
        ):
            looped = v > 1 and SEARCHED[code] != "zb-v"
            plain = SEARCHED[code] == "1f1b"
            trivial = (pp == 1 and (not plain or split)) or (tp == 1 and sp) or (dp * cp == 1 and zero)
            if looped and split == Split.BALANCED and (v not in filled_chunks(model, pp) or layers % (pp * v) == 0):
                continue
            if not trivial and split != Split.LAST and (v > 1 or split != Split.ENDS):
                tried.append((dp, tp, pp, cp, mb, v, code, zero, int(mode), int(sp), int(split)))
    dp, tp, pp, cp, mb, v, code, zero, mode, sp, split = np.array(tried).T
    layouts = Layouts.of(
        schedule=[SEARCHED[i] for i in code], dp=dp, tp=tp, pp=pp, cp=cp, virtual_stages=v, micro_batch=mb, zero=zero,
        global_batch=batch, recompute=mode, sequence_parallel=sp.astype(bool), layer_split=split,
    )  # fmt: skip
    return {layout for layout, ok in zip(tried, legal(model, CLUSTER, layouts), strict=True) if ok}


@pytest.mark.parametrize("layers", [6, 7])
def test_the_space_is_what_brute_force_finds(layers):
    """Of seven layers two ranks share four virtual stages by cost; of six too, whose three per rank are no chunks."""
    model = replace(SMALL, num_layers=layers, num_dense_layers=layers)
    layouts = enumerate_layouts(model, CLUSTER, gpus=4, global_batch=4, fixed=Fixed(schedule=SEARCHED), **COMMON)
    columns = [
        layouts.dp, layouts.tp, layouts.pp, layouts.cp, layouts.micro_batch, layouts.virtual_stages, layouts.schedule,
        layouts.zero, layouts.recompute, layouts.sequence_parallel.astype(int), layouts.layer_split,
    ]  # fmt: skip
    rows = list(zip(*(c.tolist() for c in columns), strict=True))
    assert len(rows) == len(set(rows))
    assert set(rows) == brute_force(model, 4, 4)
    filled = (layouts.layer_split == Split.BALANCED) & (layouts.virtual_stages > 1) & (layouts.schedule == 2)
    assert set(layouts.virtual_stages[filled].tolist()) == ({2} if layers == 6 else {2, 3})


def test_a_framework_that_splits_layers_its_own_way_is_searched_with_that():
    """nanotron's user has no say in how layers lie on stages; Megatron-LM's has."""
    asked = {"gpus": 4, "global_batch": 8, "fixed": Fixed(pp=(2,), virtual_stages=(1,)), **COMMON}
    for name, splits in (("nanotron", {Split.PRODUCTS}), ("megatron-lm", {Split.EVEN, Split.BALANCED})):
        found = recommend(Setup(SMALL, CLUSTER, load_framework(name)), top=30, **asked)
        assert set(found.estimate.layouts.layer_split.tolist()) == splits


def test_virtual_stages_where_embedding_and_head_count_as_layers():
    """LLaMA 405B has 126 layers for this: eight chunks on each of eight ranks; 61 of DeepSeek-V3 have no such split."""
    many, deepseek = load_model("llama3-405b"), load_model("deepseek-v3")
    assert by_ends(many, 8) == [2, 4, 8, 16]
    assert by_ends(many, 2)[:3] == [2, 4, 8]
    assert by_ends(many, 1) == by_ends(deepseek, 8) == by_ends(load_model("llama-65b"), 8) == []
    # With a module of multi-token prediction 61 and three more are 64: each of 32 two, the last its two heads alone.
    assert by_ends(load_model("deepseek-v3-mtp"), 8) == [2, 4]
    layouts = enumerate_layouts(
        load_model("llama3-405b"), load_cluster("dgx-h100"), gpus=512, global_batch=512,
        fixed=Fixed(schedule=("interleaved",), tp=(8,), pp=(8,), cp=(1,)), **COMMON,
    )  # fmt: skip
    ends = layouts.layer_split == Split.ENDS
    assert set(layouts.virtual_stages[ends].tolist()) == {2, 4, 8, 16}
    filled = layouts.layer_split == Split.BALANCED
    assert set(layouts.virtual_stages[filled].tolist()) == {2, 3, 4, 6, 8}  # at most 8, 6, 4, 3 and 2 layers in each
    assert set(layouts.layer_split.tolist()) == {Split.ENDS, Split.BALANCED}


def test_virtual_stages_with_a_short_last_one():
    """DeepSeek-V3's 61 layers on four ranks of four chunks are 15 times 4 and 1, as its recipes have them.

    A search lists such a split where it is asked for.
    """
    model = load_model("deepseek-v3")
    assert by_last(model, 4) == [2, 4]
    assert by_last(model, 2) == [2, 3, 4, 8]  # ten chunks of seven would hold all by the ninth
    assert by_last(model, 1) == by_last(load_model("llama-65b"), 8) == []
    assert by_last(load_model("qwen3-235b-a22b"), 8) == [2, 3, 4]
    layouts = enumerate_layouts(
        load_model("deepseek-v3"), load_cluster("dgx-h100"), gpus=256, global_batch=256,
        fixed=Fixed(schedule=("interleaved",), tp=(1,), pp=(4,), cp=(1,), ep=(64,), layer_split=(Split.LAST,)),
        **COMMON,
    )  # fmt: skip
    assert set(layouts.virtual_stages.tolist()) == {2, 4}
    assert set(layouts.layer_split.tolist()) == {Split.LAST}


def test_the_best_is_the_least_of_all_estimated_one_by_one():
    asked = {"gpus": 4, "global_batch": 8, "fixed": Fixed(micro_batch=(2,)), **COMMON}
    found = recommend(Setup(SMALL, CLUSTER, MEGATRON), **asked)
    layouts = enumerate_layouts(SMALL, CLUSTER, **asked)
    one_by_one = [estimate(Setup(SMALL, CLUSTER, MEGATRON), layouts.take(slice(i, i + 1))) for i in range(len(layouts))]
    times = np.array([e.step_time_s[0] for e in one_by_one])
    fits = np.array([e.fits[0] for e in one_by_one])
    kept = search(Setup(SMALL, CLUSTER, MEGATRON), Request(**asked))
    assert kept.fits.step_time_s[0] == times[fits].min()
    assert np.all(np.diff(found.estimate.step_time_s[found.best]) >= 0)


def test_a_table_s_estimate_does_not_depend_on_the_chunk(monkeypatch):
    layouts = enumerate_layouts(SMALL, CLUSTER, gpus=8, global_batch=16, fixed=Fixed(), **COMMON)
    whole = estimate(Setup(SMALL, CLUSTER, MEGATRON), layouts)
    monkeypatch.setattr("planner.search.scan.TABLE", 97)
    pieces = estimate_all(Setup(SMALL, CLUSTER, MEGATRON), layouts)
    assert np.array_equal(whole.step_time_s, pieces.step_time_s)
    assert np.array_equal(whole.memory_bytes, pieces.memory_bytes)


@pytest.mark.parametrize(("every", "chunk"), [(1, 10**6), (7, 10**6), (7, 300)])
def test_a_sample_is_of_every_so_manyth_layout(every, chunk, monkeypatch):
    """Counted on from grid to grid, where there are several."""
    asked = Request(gpus=8, global_batch=16, fixed=Fixed(), **COMMON)
    monkeypatch.setattr("planner.search.scan.space", lambda *of: space(*of[:3], chunk))
    assert (len(list(space(SMALL, CLUSTER, asked, chunk))) > 3) == (chunk == 300)
    whole = sample(Setup(SMALL, CLUSTER, MEGATRON), asked, 1)
    some = sample(Setup(SMALL, CLUSTER, MEGATRON), asked, every)
    assert len(whole.layouts) == search(Setup(SMALL, CLUSTER, MEGATRON), asked).legal
    assert np.array_equal(some.step_time_s, whole.step_time_s[::every])
    assert np.array_equal(some.memory_bytes, whole.memory_bytes[::every])


def test_the_front_is_what_nothing_beats():
    rng = np.random.default_rng(0)
    time, memory = rng.random(200), rng.random(200)
    front = set(pareto_front(time, memory).tolist())
    for i in range(200):
        beaten = np.any((time <= time[i]) & (memory <= memory[i]) & ((time < time[i]) | (memory < memory[i])))
        assert (i in front) == (not beaten)


def test_what_is_fixed_stays_fixed():
    fixed = Fixed(tp=(2,), pp=(2,), recompute=(Recompute.FULL,), zero=(1,))
    layouts = recommend(
        Setup(SMALL, CLUSTER, MEGATRON), gpus=8, global_batch=16, fixed=fixed, **COMMON
    ).estimate.layouts
    assert set(layouts.tp) == set(layouts.pp) == {2}
    assert set(layouts.recompute) == {int(Recompute.FULL)}


def test_numbers_out_of_range_and_no_legal_layout():
    with pytest.raises(InputError, match="gpus is 0"):
        recommend(Setup(SMALL, CLUSTER, MEGATRON), gpus=0, global_batch=8, **COMMON)
    with pytest.raises(LayoutError, match="near by"):
        recommend(Setup(SMALL, CLUSTER, MEGATRON), gpus=7, global_batch=4, **COMMON)
    with pytest.raises(InputError, match="4480"):
        recommend(Setup(SMALL, load_cluster("selene"), MEGATRON), gpus=4488, global_batch=8, **COMMON)


def hagemann(name: str) -> object:
    """A LLaMA of Hagemann et al. 2023 with its vocabulary of 128,000."""
    m = load_model(name)
    return from_shape(family="llama", layers=m.num_layers, hidden=m.hidden, ffn=m.ffn, heads=m.num_heads,
                      kv_heads=m.num_heads, vocab=128000, seq_len=2048)  # fmt: skip


# The paper's search space: ZeRO-1, no context parallelism, no interleaving, powers of two.
PAPER = {"cp": (1,), "zero": (1,), "virtual_stages": (1,), "schedule": ("1f1b",), "micro_batch": (1, 2, 4, 8)}


@pytest.mark.parametrize(("name", "gpus"), [("llama-13b", 64), ("llama-30b", 256), ("llama-65b", 128)])
def test_findings_of_hagemann(name, gpus):
    """arXiv 2311.05610: without checkpointing where it fits, little tensor parallelism, pipeline before it."""
    fixed = Fixed(tp=(1, 2, 4, 8), pp=(1, 2, 4, 8), sequence_parallel=(False,), **PAPER)
    found = recommend(Setup(hagemann(name), CLUSTER, MEGATRON), gpus=gpus, global_batch=2048, fixed=fixed, **COMMON)
    row = found.estimate.layouts.row(int(found.best[0]))
    assert row["recompute"] == "none"
    assert row["micro_batch"] == 1
    assert row["tp"] <= 2
    assert row["tp"] <= row["pp"]


def test_default_attention_is_the_faster_flash():
    assert default_attention(CLUSTER) is Attention.FLASH2
    assert default_attention(load_cluster("dgx-h100")) is Attention.FLASH3


def test_what_is_settled_holds_for_the_schedules_that_are_simulated_too():
    """zb-v and others with chunks of their own must not come back where other virtual stages were asked for."""
    cluster = load_cluster("dgx-h100")
    found = recommend(
        Setup(load_model("llama3-8b"), cluster, load_framework(cluster.framework)), gpus=16, global_batch=64,
        precision=Precision.BF16, attention=Attention.FLASH3, fixed=Fixed(virtual_stages=(4,)),
    )  # fmt: skip
    assert set(found.estimate.layouts.virtual_stages[found.best].tolist()) == {4}
