"""Stages given layer by layer, and the layers of a V: worked out by hand, or against the same stages said otherwise."""

from dataclasses import fields, replace

import numpy as np
import pytest

from planner.base.errors import LayoutError
from planner.costs.parameters import RankParts
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts, Recompute, Split
from planner.models import counts, load_model, mix
from planner.question import load_setup, one_layout
from planner.schedules import get_schedule
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.given_stages import _blocks, chunks_of, given_chunks
from planner.step.legality import check_legal, first_broken
from planner.step.step_costs import step_costs
from planner.step.timeline.loads import rank_loads, stage_loads
from planner.step.timeline.step import simulate

NVIDIA = "Et*3|(tt|)*29m|L"
"""DeepSeek-V3 on H100: NVIDIA-NeMo/Megatron-Bridge, scripts/performance (pipeline_model_parallel_layout)."""


def deepseek(layout, **more):
    setup = load_setup("deepseek-v3-mtp", "dgx-h100", framework="megatron-bridge")
    choices = {"dp": 64, "tp": 2, "pp": 8, "ep": 64, "etp": 1, "sequence_parallel": True, "global_batch": 16384}
    return setup, one_layout(setup.cluster, pipeline_layout=layout, recompute="fine", **choices | more)


def test_nvidias_recipe_is_legal_and_has_its_layers_where_it_says():
    setup, layouts = deepseek(NVIDIA)
    check_legal(setup.model, setup.cluster, layouts)
    assert layouts.virtual_stages.tolist() == [4]
    costs = step_costs(setup, layouts)
    order = get_schedule("interleaved").order(one_pipe(p=8, m=16, v=4))
    loads = stage_loads(costs, [0], [32])[0]
    ranks = rank_loads(order, loads, 1).share
    # Rank r has stages r, 8 + r, 16 + r and 24 + r; the module is on stage 30, of rank 6.
    assert ranks.layers.tolist() == [9, 8, 8, 8, 8, 8, 6, 6]
    assert ranks.modules.tolist() == [0, 0, 0, 0, 0, 0, 1, 0]
    # The first three of 61 layers are dense: on rank 0 three, less the average's share of its nine.
    assert ranks.dense[0] == pytest.approx(3 - 9 * 3 / 61)
    assert ranks.dense.sum() == pytest.approx(0.0)


def one_pipe(**sizes):
    from planner.schedules import Pipeline

    return Pipeline(**sizes)


def test_a_stage_lasts_what_lies_on_it():
    """A dense layer lasts as in a model of dense ones, a sparse one as in a model of sparse ones."""
    setup, layouts = deepseek("Et|(t|)*2(tt|)*27tttt|mL", virtual_stages=4)
    loads = stage_loads(step_costs(setup, layouts), [0], [32])[0]
    kinds = {}
    for name, model in (("dense", mix.all_dense(setup.model)), ("sparse", mix.all_sparse(setup.model))):
        costs = step_costs(Setup(model, setup.cluster, setup.framework), layouts)
        kinds[name] = costs.layer.forward_s[0]
    send = step_costs(setup, layouts).send_s[0]
    assert loads.forward_s[1] == pytest.approx(kinds["dense"] + send)
    assert loads.forward_s[3] == pytest.approx(2 * kinds["sparse"] + send)
    assert loads.forward_s[3] > 1.5 * loads.forward_s[1]


def test_parameters_of_all_ranks_are_the_models():
    """With a second copy of the token table beside the module, which is on a rank of its own."""
    setup, layouts = deepseek(NVIDIA, tp=1, dp=1, ep=1, etp=1, global_batch=16, sequence_parallel=False)
    order = get_schedule("interleaved").order(one_pipe(p=8, m=16, v=4))
    held = rank_loads(order, stage_loads(step_costs(setup, layouts), [0], [32])[0], 1)
    own = RankParts(model=setup.model, layouts=layouts).rank(**vars(held.share))
    table = counts.embedding_params(setup.model)
    assert own.total.sum() == pytest.approx(counts.total_params(setup.model) + table, rel=1e-12)
    assert float(step_costs(setup, layouts).busiest_params[0]) == pytest.approx(own.total.max(), rel=1e-12)
    # Rank 1: eight sparse layers of 256 experts and one shared.
    sparse = counts.layers_params(mix.all_sparse(setup.model)) / 61
    assert own.total[1] == pytest.approx(8 * sparse, rel=1e-12)


@pytest.mark.parametrize(("pp", "v", "split"), [(16, 8, "ends"), (8, 4, "ends"), (9, 7, "even"), (16, 1, "balanced")])
def test_given_stages_cost_what_the_same_split_costs(pp, v, split):
    setup = load_setup("llama3-405b", "dgx-h100")
    same = {"dp": 1, "tp": 8, "pp": pp, "virtual_stages": v, "global_batch": 4 * pp, "sequence_parallel": True}
    named = one_layout(setup.cluster, layer_split=split, **same)
    layers = chunks_of(named, step_costs(setup, named).stages, setup.model, pp * v).layers.astype(int)
    text = "|".join("t" * n for n in layers)
    given = one_layout(setup.cluster, pipeline_layout=f"E{text}L", **same)
    check_legal(setup.model, setup.cluster, given)
    one, other = estimate(setup, named), estimate(setup, given)
    for field in fields(one.time):
        want, got = (getattr(x.time, field.name)[0] for x in (one, other))
        assert got == pytest.approx(want, rel=1e-9, abs=1e-9 * one.step_time_s[0]), field.name
    assert other.memory_bytes[0] == pytest.approx(one.memory_bytes[0], rel=1e-9)
    exact, same_exact = simulate(setup, named), simulate(setup, given)
    assert same_exact.step_time_s == pytest.approx(exact.step_time_s, rel=1e-9)
    assert same_exact.peak_bytes == pytest.approx(exact.peak_bytes, rel=1e-9)


@pytest.mark.parametrize(
    ("pp", "v", "split"), [(4, 1, "even"), (16, 1, "even"), (8, 2, "last"), (4, 4, "ends"), (31, 1, "last")]
)
def test_dense_layers_lead_on_the_first_ranks_as_where_stages_are_given(pp, v, split):
    """Three of 61 layers are dense, and no other rank has one; of stages of two layers the second has the third."""
    setup = load_setup("deepseek-v3-mtp", "dgx-h100")
    same = {"dp": 8, "ep": 8, "pp": pp, "virtual_stages": v, "global_batch": 32 * pp, "recompute": "full"}
    named = one_layout(setup.cluster, layer_split=split, **same)
    layers = chunks_of(named, step_costs(setup, named).stages, setup.model, pp * v).layers.astype(int)
    text = "|".join("t" * n for n in layers)
    given = one_layout(setup.cluster, pipeline_layout=f"E{text}mL", **same)
    one, other = estimate(setup, named), estimate(setup, given)
    assert other.step_time_s[0] == pytest.approx(one.step_time_s[0], rel=1e-9)
    assert other.memory_bytes[0] == pytest.approx(one.memory_bytes[0], rel=1e-9)
    exact, same_exact = simulate(setup, named), simulate(setup, given)
    assert same_exact.step_time_s == pytest.approx(exact.step_time_s, rel=1e-9)
    assert same_exact.peak_bytes == pytest.approx(exact.peak_bytes, rel=1e-9)
    on_first = min(3, layers[0])
    dense = [on_first, 3 - on_first] + [0] * (pp * v - 2)
    assert exact.loads.chunks.dense + layers * 3 / 61 == pytest.approx(dense)


def test_estimate_and_timeline_agree_on_given_stages():
    setup, layouts = deepseek(NVIDIA)
    closed, exact = estimate(setup, layouts), simulate(setup, layouts)
    assert exact.step_time_s == pytest.approx(closed.step_time_s[0], rel=0.03)
    # The closed form spreads a rank's layers evenly over its chunks; here the first, alive longest, has most.
    assert 1.0 < exact.peak_bytes.max() / closed.memory_bytes[0] < 1.06


def test_a_module_s_states_lie_on_the_rank_that_has_it():
    """Rank 6 has it instead of rank 7: what the one has more the other has less, and no other rank changes."""
    with_it, beside = (simulate(*deepseek(text)).static_bytes for text in (NVIDIA, "Et*3|(tt|)*29|mL"))
    more = with_it - beside
    assert more[:6].tolist() == [0.0] * 6
    assert more[6] == pytest.approx(-more[7], rel=1e-9)
    assert more[6] > 2**30


WRONG = [
    ("Et*3|(tt|)*29m|L", {"pp": 4, "virtual_stages": 4}, "pp * virtual_stages stages"),
    ("Et*3|(tt|)*28t||mL", {}, "the model's layers, a t each"),
    ("Et*3|(tt|)*29|L", {}, "modules of multi-token prediction, an m each"),
    ("Et*19|(tt|)*21m|" + "|" * 8 + "L", {}, "modules m on a rank's last virtual stage"),
    ("Et*3|(tt|)*29m|L", {"layer_split": "ends"}, "layer_split even"),
    ("Et*3|(tt|)*29m|L", {"pp": 1, "dp": 512, "virtual_stages": 32}, "needs a pipeline"),
]


@pytest.mark.parametrize(("layout", "more", "rule"), WRONG, ids=[rule for *_, rule in WRONG])
def test_rules_of_given_stages(layout, more, rule):
    setup, layouts = deepseek(layout, **more)
    broken = first_broken(setup.model, setup.cluster, layouts)[0]
    assert rule in broken
    with pytest.raises(LayoutError, match="pipeline_layout of 32 stages"):
        check_legal(setup.model, setup.cluster, layouts)


@pytest.mark.parametrize(
    ("model", "pp", "schedule", "split", "ranks", "first", "last"),
    [
        # 126 layers and two ends on 32 chunks: four each, three beside an end.
        ("llama3-405b", 16, "zb-v", "ends", [6, *[8] * 15], 3, 3),
        ("llama3-405b", 16, "v-half", "even", [*[8] * 14, 7, 7], 4, 4),
        ("gpt3-175b", 32, "dualpipev", "even", [3] * 32, 2, 1),
        ("llama3-70b", 16, "v-min", "even", [5] * 16, 3, 2),
    ],
)
def test_a_v_shares_out_each_ranks_layers(model, pp, schedule, split, ranks, first, last):
    setup = load_setup(model, "dgx-h100")
    layouts = one_layout(
        setup.cluster, dp=1, tp=8, pp=pp, virtual_stages=2, schedule=schedule, layer_split=split, global_batch=4 * pp
    )
    check_legal(setup.model, setup.cluster, layouts)
    costs = step_costs(setup, layouts)
    chunks = chunks_of(layouts, costs.stages, setup.model, 2 * pp).layers
    assert (chunks[:pp] + chunks[pp:][::-1]).tolist() == ranks
    assert (chunks[0], chunks[-1]) == (first, last)
    assert np.all(np.abs(chunks[:pp] - chunks[pp:][::-1]) <= 1)
    exact = simulate(setup, layouts)
    assert exact.loads.layers.sum() == setup.model.num_layers
    work = exact.loads.forward_s + exact.loads.input_grad_s + exact.loads.weight_grad_s
    slowest = (work[:pp] + work[pp:][::-1]).max() * 4 * pp
    assert slowest <= exact.timeline.makespan_s <= 1.5 * slowest


def test_the_papers_own_78_layers_on_40_ranks():
    """Qi et al. 2023, table 3: two layers fewer than chunks, whose first and last hold embedding and head alone."""
    from dataclasses import replace

    model = replace(load_model("gpt3-175b"), num_layers=78, num_dense_layers=78)
    setup = Setup(model, load_cluster("dgx-h100"), load_framework("megatron-lm"))
    layouts = Layouts.of(
        global_batch=80, pp=40, dp=1, virtual_stages=2, schedule="zb-v", layer_split=Split.ENDS,
        recompute=Recompute.NONE,
    )  # fmt: skip
    assert first_broken(model, setup.cluster, layouts) == [""]
    chunks = chunks_of(layouts, step_costs(setup, layouts).stages, model, 80).layers
    assert chunks.tolist() == [0, *[1] * 78, 0]


def test_given_stages_of_a_v():
    setup = load_setup("llama3-405b", "dgx-h100")
    layouts = one_layout(
        setup.cluster, dp=1, tp=8, pp=16, schedule="zb-v", global_batch=64, pipeline_layout="Ett|(t*4|)*30ttttL"
    )
    check_legal(setup.model, setup.cluster, layouts)
    assert simulate(setup, layouts).loads.layers.tolist() == [2, *[4] * 31]


def test_dense_layers_beyond_the_first_stage_lie_on_the_next():
    model = load_model("deepseek-v3")
    chunks = given_chunks("Et|t|(t|)*58tL", model)
    assert (chunks.dense + chunks.layers * 3 / 61).tolist()[:5] == pytest.approx([1, 1, 1, 0, 0])


def of_ranks(layers, modules=None, dense=None):
    """Layers, modules and dense of the ranks, as `_ranks` gives them."""
    return np.array([layers, modules or [0] * len(layers), dense or [0] * len(layers)], dtype=float)


def test_two_ranks_have_nothing_between():
    blocks, early, fullest = _blocks(of_ranks([5, 3], [0, 1], [0.5, -0.5]))
    assert blocks.tolist() == [[5, 0, 0, 3], [0, 0, 0, 1], [0.5, 0, 0, -0.5]]
    assert (early, fullest.tolist()) == (0.0, np.zeros((4, 3)).tolist())


def test_ranks_between_by_hand():
    """Of five ranks between, two have the most (4 layers, 3 and a module): they are late; the others' mean is early."""
    blocks, early, fullest = _blocks(of_ranks([9, 2, 4, 1, 3, 3, 7], [0, 0, 0, 0, 1, 0, 0]))
    assert blocks[0].tolist() == [9, 2, 3.5, 7]
    assert blocks[1].tolist() == [0, 0, 0.5, 0]
    assert early == 3.0
    # May be fullest: rank 1, the first with most (rank 2), the first with a module (rank 4).
    assert fullest[0].tolist() == [1, 2, 4]
    assert fullest[1].tolist() == [2, 4, 3]
    # Without modules between, the last of them; alike, all are late and early says the same.
    blocks, early, fullest = _blocks(of_ranks([9, 2, 2, 2, 7]))
    assert (blocks[0].tolist(), early) == ([9, 2, 2, 7], 0.0)
    assert fullest[0].tolist() == [1, 1, 3]


def test_a_table_with_given_stages_says_of_every_row_what_it_says_of_it_alone():
    """Of five stages some have a layer more than others between the ends, early or late."""
    setup = load_setup("llama3-8b", "dgx-h100")
    ways = ({}, {"layer_split": "balanced"}, {"pipeline_layout": "Et*6|t*7|t*7|t*6|t*6L"}, {"schedule": "gpipe"})
    rows = [one_layout(setup.cluster, pp=5, global_batch=10, **more) for more in ways]
    together = estimate(setup, Layouts.concatenate(rows))
    alone = [estimate(setup, row) for row in rows]
    assert together.step_time_s.tolist() == [float(x.step_time_s[0]) for x in alone]
    assert together.memory_bytes.tolist() == [float(x.memory_bytes[0]) for x in alone]


@pytest.mark.parametrize("name", ["zb-v", "v-half", "1f1b-v", "hanayo", "dualpipev"])
def test_a_v_has_the_module_where_the_head_is(name):
    """The first rank is the fullest by it: the closed form, which keeps it for all micro-batches, says no less."""
    plain = load_setup("llama3-8b", "dgx-h100")
    setup = Setup(replace(plain.model, num_mtp_layers=1), plain.cluster, plain.framework)
    layouts = Layouts.of(tp=2, pp=4, global_batch=8, schedule=name, virtual_stages=2, sequence_parallel=True)
    peak = simulate(setup, layouts).peak_bytes
    assert peak.argmax() == 0
    assert float(estimate(setup, layouts).memory_bytes[0]) > 0.995 * peak.max()
