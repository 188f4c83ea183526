"""The layouts that one decision away: which there are is written down by hand, and none else is said."""

import numpy as np
import pytest

from planner.layouts import Layouts, Recompute
from planner.question import load_setup, one_layout
from planner.search.neighbours import one_change
from planner.search.request import Fixed
from planner.step.legality import legal
from planner.step.timeline.timed import timed_estimate

PIPELINE = {"dp": 4, "tp": 2, "pp": 2, "global_batch": 16, "sequence_parallel": True}
WITH_TENSOR_RANKS = [
    {"recompute": Recompute.SELECTIVE}, {"recompute": Recompute.FULL}, {"micro_batch": 2}, {"micro_batch": 4},
    {"zero": 0}, {"offload_optimizer": True}, {"sequence_parallel": False}, {"grad_dtype": "bf16"},
    {"cuda_graphs": True},
    {"layer_split": "balanced"}, {"layer_split": "ends"}, {"schedule": "zb-h1"},
    *({"schedule": "interleaved", "virtual_stages": v} for v in (2, 4, 8, 16)),
    # 32 layers, embedding and head on 34 virtual stages
    {"schedule": "interleaved", "virtual_stages": 17, "layer_split": "ends"},
    # a factor 2 from one degree to another; experts' ranks follow tp, sequence parallelism goes with the last of them
    {"dp": 2, "tp": 4, "etp": 4}, {"dp": 2, "pp": 4}, {"dp": 2, "cp": 2},
    *({"tp": 1, "etp": 1, "sequence_parallel": False} | to for to in ({"dp": 8}, {"pp": 4}, {"cp": 2})),
    {"pp": 1, "dp": 8}, {"pp": 1, "tp": 4, "etp": 4}, {"pp": 1, "cp": 2},
]  # fmt: skip
MIXTURE = {"dp": 4, "tp": 1, "pp": 2, "ep": 4, "global_batch": 16}
WITH_EXPERTS = [
    {"recompute": Recompute.SELECTIVE}, {"recompute": Recompute.FULL}, {"recompute": Recompute.FINE},
    {"micro_batch": 2}, {"micro_batch": 4}, {"zero": 0}, {"offload_optimizer": True}, {"grad_dtype": "bf16"},
    {"cuda_graphs": True},
    {"layer_split": "balanced"}, {"layer_split": "ends"}, {"schedule": "zb-h1"}, {"ep": 1}, {"ep": 2},
    *({"schedule": "interleaved", "virtual_stages": v} for v in (2, 4, 8, 16)),
    {"schedule": "interleaved", "virtual_stages": 17, "layer_split": "ends"},
    # experts may stay whole where tensor ranks come; without them four expert ranks on two data ranks are too many
    {"dp": 2, "tp": 2, "sequence_parallel": True}, {"dp": 2, "cp": 2},
    {"pp": 1, "dp": 8}, {"pp": 1, "cp": 2},
    {"pp": 1, "tp": 2, "sequence_parallel": True}, {"pp": 1, "tp": 2, "etp": 2, "sequence_parallel": True},
]  # fmt: skip


def changed(model, fixed=None, **choices):
    setup = load_setup(model, "dgx-h100")
    return setup, one_change(setup, one_layout(setup.cluster, **choices), fixed or Fixed(), "flash3")


def as_set(changes):
    return {tuple(sorted((k, str(v)) for k, v in change.items())) for change in changes}


@pytest.mark.parametrize(
    ("model", "choices", "expected"),
    [("llama3-8b", PIPELINE, WITH_TENSOR_RANKS), ("mixtral-8x7b", MIXTURE, WITH_EXPERTS)],
    ids=["dense", "mixture"],
)
def test_every_decision_is_tried_and_no_other(model, choices, expected):
    _, found = changed(model, **choices)
    plain = [{**c, "recompute": c["recompute"].name.lower()} if "recompute" in c else c for c in expected]
    assert as_set(found.changes) == as_set(plain)
    assert len(found.changes) == len(plain)


@pytest.mark.parametrize(
    ("model", "choices"),
    [("llama3-8b", PIPELINE), ("mixtral-8x7b", MIXTURE), ("mixtral-8x7b", MIXTURE | {"dp": 8, "global_batch": 64})],
)
def test_each_is_the_layout_with_its_change_and_the_order_is_by_time_behind_what_fits(model, choices):
    setup, found = changed(model, **choices)
    row = one_layout(setup.cluster, **choices).row(0)
    table = Layouts.of_rows([row | change for change in found.changes])
    assert np.all(legal(setup.model, setup.cluster, table))
    again = timed_estimate(setup, table)
    assert found.estimate.step_time_s.tolist() == again.step_time_s.tolist()
    keys = list(zip(~again.fits, again.step_time_s, strict=True))
    assert keys == sorted(keys)


def test_what_the_user_has_settled_stays():
    _, found = changed("llama3-8b", Fixed(tp=(2,), zero=(1,)), **PIPELINE)
    free = [c for c in WITH_TENSOR_RANKS if "tp" not in c and "zero" not in c]
    assert len(found.changes) == len(free)
    assert not any({"tp", "zero"} & change.keys() for change in found.changes)
    everything = Fixed(**{name: (PIPELINE.get(name, 1),) for name in ("dp", "tp", "pp", "cp", "micro_batch")})
    _, found = changed("llama3-8b", everything, **PIPELINE)
    assert not any({"dp", "tp", "pp", "cp", "micro_batch"} & change.keys() for change in found.changes)


def test_given_stages_go_with_their_pipeline():
    setup = load_setup("llama3-8b", "dgx-h100")
    given = "E" + "t" * 15 + "|" + "t" * 17 + "L"
    layouts = one_layout(setup.cluster, pipeline_layout=given, **PIPELINE)
    found = one_change(setup, layouts, Fixed(), "flash3")
    of_pipelines = {"pp", "virtual_stages", "schedule", "layer_split", "pipeline_layout"}
    for change in found.changes:
        assert ("pipeline_layout" in change) == bool(of_pipelines & change.keys())
    assert {"pipeline_layout": ""} in found.changes  # the even split instead
    assert {"micro_batch": 2} in found.changes


def test_some_layers_are_recomputed_by_quarters_of_a_stage():
    _, found = changed("llama3-8b", **PIPELINE | {"recompute": "full"})
    assert {c["recompute_layers"] for c in found.changes if c.keys() == {"recompute_layers"}} == {4, 8, 12}
    _, found = changed("llama3-8b", **PIPELINE | {"recompute": "full", "recompute_layers": 4})
    assert {"recompute": "none", "recompute_layers": 0} in found.changes
    assert {"recompute_layers": 0} in found.changes
