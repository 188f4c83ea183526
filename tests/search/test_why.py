"""Why a search did not choose what somebody had in mind: the reason is true, the figures are those of the estimate."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.base.errors import InputError, PlannerError, UnknownNameError
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision
from planner.models import load_model
from planner.question import load_setup, what_is_fixed
from planner.search import recommend
from planner.search.exclusion import without
from planner.search.pick import LIKE
from planner.search.request import Fixed
from planner.search.why import TIE, Why, parse_wanted, why_not
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import legal

CLUSTER = load_cluster("dgx-h100")
FRAMEWORK = load_framework(CLUSTER.framework)
CACHE = {}


def search(model: str, gpus: int, batch: int, **settled):
    key = (model, gpus, batch, str(settled))
    if key not in CACHE:
        CACHE[key] = recommend(
            Setup(load_model(model), CLUSTER, FRAMEWORK), gpus=gpus, global_batch=batch, precision=Precision.BF16,
            attention=Attention.FLASH3, fixed=what_is_fixed(**settled),
        )  # fmt: skip
    return CACHE[key]


def why(text: str, model: str = "llama3-8b", gpus: int = 16, batch: int = 64, **settled) -> Why:
    found = search(model, gpus, batch, **settled)
    return why_not(Setup(load_model(model), CLUSTER, FRAMEWORK), found, parse_wanted(text))


def test_the_roomiest_is_the_least_memory_within_5_percent_of_the_fastest():
    found = search("llama3-8b", 16, 64)
    step, memory = found.estimate.step_time_s[found.front], found.estimate.memory_bytes[found.front]
    near = step <= 1.05 * step.min()
    assert 0 < near.sum() < len(near)
    assert found.estimate.memory_bytes[found.roomiest] == memory[near].min()
    assert memory[near].min() > memory.min()


REASONS = [
    ("tp=3", {}, "illegal", "tp 3 doesn't divide 16 GPUs"),
    ("tp=4,pp=8", {}, "illegal", "tp 4 * pp 8 is 32, which doesn't divide 16 GPUs"),
    ("dp=2,tp=2,pp=2,cp=1", {}, "illegal", "is 8, which doesn't divide 16 GPUs"),
    ("ep=2", {}, "illegal", "ep must divide the experts (1 for a dense model)"),
    ("micro_batch=5", {}, "illegal", "global_batch must be divisible by dp * micro_batch"),
    ("pp=2,virtual_stages=3", {}, "slower", "the best of its kind takes"),  # stages of five and six layers
    ("pp=2,virtual_stages=3,layer_split=even", {}, "illegal", "virtual stages need layers divisible by pp * virtual"),
    ("pp=2,zero=3,schedule=1f1b", {}, "illegal", "zero 2 and 3 exclude a pipeline"),
    # Without a schedule, the usual one of so many virtual stages and slices is judged.
    ("virtual_stages=2,pp=1", {}, "illegal", "interleaved needs at least 2 pipeline ranks"),
    ("virtual_stages=2,sequence_slices=2,dp=16", {}, "illegal", "seq1f1b-interleaved needs at least 2 pipeline ranks"),
    ("pp=1", {"gpus": 3}, "illegal", "global_batch must be divisible by dp * micro_batch"),  # or tp or cp is wrong
    ("tp=8", {"tp": 4}, "settled", "only tp 4 was allowed"),
    ("recompute=full", {"recompute": ["none", "selective"]}, "settled", "only recompute none, selective was allowed"),
    ("schedule=2bw", {}, "asynchronous", "--allow-async searches it"),
    ("schedule=2bw,pp=1", {}, "slower", "Slower by"),  # one stage alone waits for nobody
    ("offload_optimizer=on", {}, "offload", "--allow-offload tries"),
    ("tp=8,sp=off", {}, "slower", "Slower by"),
    ("attention=unfused,tp=8", {}, "slower", "Slower by"),
    ("dp=16,zero=0,recompute=none", {}, "memory", "Does not fit: the least that it needs is"),
    ("fused_norm=off", {}, "slower", "Slower by"),
    ("tp=1,sp=on", {}, "tie", "Slower by 0.0%"),  # no search has it: sequence parallelism is of tensor ranks
]


@pytest.mark.parametrize(("text", "settled", "reason", "said"), REASONS, ids=[r[0] for r in REASONS])
def test_the_first_reason(text, settled, reason, said):
    answer = why(text, **settled)
    assert answer.reason == reason, answer.text
    assert said in answer.text
    if answer.other is not None:
        row = answer.other.layouts.row(0)
        assert {key: row[key] for key in answer.wanted} == answer.wanted


def test_the_best_is_recognised():
    best = search("llama3-8b", 16, 64)
    row = best.estimate.layouts.row(int(best.best[0]))
    text = ",".join(f"{key}={str(row[key]).lower()}" for key in ("dp", "tp", "zero", "sequence_parallel", "recompute"))
    answer = why(text)
    assert answer.reason == "chosen"
    assert answer.other.layouts.row(0) == row


def test_a_schedule_is_tried_with_the_pipelines_that_were_allowed():
    assert why("schedule=zb-h1", pp=1).other.layouts.pp.tolist() == [1]
    assert why("schedule=zb-h1", pp=[1, 4]).other.layouts.pp.tolist() == [4]


def test_the_figures_are_those_of_the_estimate():
    answer = why("tp=8,sp=off")
    assert answer.best is not None
    assert answer.other is not None
    again = estimate(Setup(load_model("llama3-8b"), CLUSTER, FRAMEWORK), answer.other.layouts)
    if answer.other.layouts.pp[0] == 1:  # pipelines among the finalists are simulated
        assert answer.other.step_time_s == pytest.approx(again.step_time_s)
    share = float(answer.other.step_time_s[0] / answer.best.step_time_s[0]) - 1
    assert f"Slower by {share:.1%}" in answer.text
    over = why("dp=16,zero=0,recompute=none")
    excess = (float(over.other.memory_bytes[0]) - CLUSTER.accelerator.usable_bytes) / 2**30
    assert f"{excess:.1f} GiB too much" in over.text
    assert "most of it is" in over.text


def test_where_nothing_fits_there_is_no_best():
    answer = why("tp=8", model="gpt3-175b", gpus=8, batch=8)
    assert (answer.reason, answer.best) == ("memory", None)


BAD = [
    ("", InputError, "allowed: choices with values, such as tp=8,pp=1"),
    ("tp", InputError, "allowed: choices with values"),
    ("tp=", InputError, "allowed: choices with values"),
    ("tp=8,,pp=1", InputError, "allowed: choices with values"),
    ("tpp=8", UnknownNameError, "unknown choice of a layout 'tpp'; nearest: tp, pp"),
    ("global_batch=8", UnknownNameError, "unknown choice"),
    ("tp=eight", InputError, "has tp 'eight'; allowed: a whole number"),
    ("tp=-8", InputError, "allowed: a whole number"),
    ("tp=0", InputError, "allowed: a whole number"),
    ("tp=٣", InputError, "allowed: a whole number"),
    ("tp=99999999999", InputError, "allowed: a whole number"),
    ("tp=8,tp=4", InputError, "has tp twice"),
    ("recompute=some", UnknownNameError, "allowed: fine, full, none, selective"),
    ("schedule=1f2b", UnknownNameError, "1f1b"),
    ("sequence_parallel=maybe", InputError, "allowed: on or off"),
]


@pytest.mark.parametrize(("text", "kind", "said"), BAD, ids=[b[0] or "empty" for b in BAD])
def test_unknown_choices_are_named(text, kind, said):
    with pytest.raises(kind) as caught:
        parse_wanted(text)
    assert said in str(caught.value)


def test_short_names():
    assert parse_wanted("v=2, mb = 4,sp=yes") == {
        "virtual_stages": 2, "micro_batch": 4, "sequence_parallel": True,
    }  # fmt: skip


def test_an_options_other_name_is_known_to_why_and_not():
    assert parse_wanted("vp=4") == parse_wanted("virtual-stages=4") == {"virtual_stages": 4}
    assert without(Fixed(), "vp=2") == without(Fixed(), "virtual_stages=2")


CHOICES = {
    "tp": [1, 2, 4, 8, 16], "pp": [1, 2, 4, 8], "dp": [1, 4, 16], "cp": [1, 2, 4], "micro_batch": [1, 2, 4],
    "zero": [0, 1, 2, 3], "recompute": ["none", "selective", "full"], "sequence_parallel": ["on", "off"],
    "virtual_stages": [1, 2, 4],
    "schedule": ["1f1b", "interleaved", "gpipe", "zb-v", "seq1f1b", "chimera"], "sequence_slices": [1, 2],
    "layer_split": ["even", "balanced"], "ep": [1, 2], "dp_replicate": [1, 2],
}  # fmt: skip


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from(sorted(CHOICES)), min_size=1, max_size=4, unique=True), st.data())
def test_any_subset_has_a_true_reason(keys, data):
    check({key: data.draw(st.sampled_from(CHOICES[key])) for key in keys})


def test_one_stage_splits_its_layers_in_every_way_alike():
    """What Hypothesis found: a split of one stage's layers was called illegal, or too large, for want of ZeRO."""
    for more in ("", ",cp=1", ",dp_replicate=2", ",cp=1,dp_replicate=2"):
        answer, even = (why(f"layer_split={split},pp=1{more}") for split in ("balanced", "even"))
        assert (answer.reason, answer.text) == (even.reason, even.text)
        assert answer.reason in ("chosen", "tie", "slower")
    check({"layer_split": "balanced", "cp": 1, "dp_replicate": 2, "pp": 1})


def check(wanted):
    """The reason is one of the known, and true: beside all layouts that are so, where it says that none is legal."""
    try:
        answer = why(",".join(f"{k}={v}" for k, v in wanted.items()))
    except PlannerError as error:
        pytest.fail(str(error))
    assert answer.reason in ("chosen", "illegal", "memory", "slower", "tie")
    if answer.other is None:
        # Brute force over what is left to choose finds nothing legal either.
        base = Layouts.of(global_batch=64, attention=Attention.FLASH3).row(0)
        rows = [
            base | {"dp": dp, "tp": tp, "pp": pp, "cp": 16 // (dp * tp * pp), "zero": zero} | answer.wanted
            for dp in (1, 2, 4, 8, 16) for tp in (1, 2, 4, 8, 16) for pp in (1, 2, 4, 8, 16) for zero in (0, 1)
            if 16 % (dp * tp * pp) == 0
        ]  # fmt: skip
        table = Layouts.of_rows(rows)
        kept = legal(load_model("llama3-8b"), CLUSTER, table) & (table.gpus == 16)
        assert not np.any(kept)
    elif answer.reason == "memory":
        assert not answer.other.fits[0]
    else:
        assert answer.other.fits[0]
        row = answer.other.layouts.row(0)
        same = {key: row[key] for key in answer.wanted if key != "layer_split" or row["pp"] > 1}
        assert same == {key: answer.wanted[key] for key in same}


def test_a_kernel_that_the_accelerator_lacks_is_not_legal():
    model, cluster = load_model("llama2-7b"), load_cluster("dgx-a100-80gb")
    numerics = {"precision": Precision.BF16, "attention": Attention.FLASH2}
    stack = load_framework("megatron-core")
    found = recommend(Setup(model, cluster, stack), gpus=8, global_batch=8, fixed=what_is_fixed(pp=1, tp=1), **numerics)
    answer = why_not(Setup(model, cluster, stack), found, {"attention": "flash3"})
    assert answer.reason == "illegal"
    assert answer.text == "Not legal: a100-sxm-80gb has attention unfused, fused, flash1, flash2."


def test_a_layout_that_takes_as_long_is_a_tie():
    """Context ranks in place of half of the data ranks: a tenth of a percent."""
    answer = why("dp=8,cp=2")
    share = float(answer.other.step_time_s[0] / answer.best.step_time_s[0]) - 1.0
    assert 0.0 < share <= TIE
    assert answer.reason == "tie"
    assert answer.text.startswith(f"Slower by {share:.1%}: ")
    assert answer.text.endswith(" That is too close to tell apart.")


def test_a_layout_that_is_no_faster_for_sure_is_passed_over_for_a_plainer_or_likelier_one():
    plan = planner.recommend("llama-30b", "h200", gpus=32, batch=64, exclude=["layer_split=balanced"])
    answer = plan.why("micro_batch=4").record
    best, other = answer["best"], answer["layout"]
    share = other["step_time_s"] / best["step_time_s"] - 1.0
    assert -LIKE <= share < 0.0
    assert round(best["fit_chance"], 2) > round(other["fit_chance"], 2)
    assert answer["reason"] == "tie"
    assert answer["text"].startswith(f"It would be {-share:.1%} faster: ")
    chances = f"{other['fit_chance']:.1%} of such cases, not in {best['fit_chance']:.1%}."
    assert answer["text"].endswith(f": within 1.5% the plainest layout is taken. It fits in {chances}")


def test_a_faster_layout_that_is_passed_over_for_unusual_choices_is_told_which():
    asked = {"gpus": 64, "batch": 512, "framework": "torchtitan", "exclude": ["schedule=interleaved"]}
    plan = planner.recommend("llama3-8b", "dgx-h100", **asked)
    answer = plan.why("pp=2,cp=2").record
    assert plan.best.layout["pp"] == 1
    assert answer["reason"] == "tie"
    assert " It would be " in " " + answer["text"]
    named = "unusual choices, not 0: layer-split balanced, cp 2, pp 2."
    assert answer["text"].endswith(named), answer["text"]


def test_what_the_framework_does_not_run():
    """TorchTitan's schedules by default; one that the user has asked for is another reason."""
    setup = load_setup("llama3-8b", "dgx-h100", framework="torchtitan")
    assert "zb-h1" not in setup.framework.runs.schedule
    asked = {"gpus": 16, "global_batch": 64, "precision": Precision.BF16, "attention": Attention.FLASH3}
    found = recommend(setup, fixed=Fixed(schedule=setup.framework.runs.schedule), **asked)
    answer = why_not(setup, found, {"schedule": "zb-h1", "pp": 2})
    assert answer.reason == "framework", answer.text
    assert f"{setup.framework.name} does not run schedule zb-h1; --any-framework searches it." in answer.text
    runs = why_not(setup, found, {"schedule": setup.framework.runs.schedule[0], "pp": 2})
    assert runs.reason != "framework"
    found = recommend(setup, fixed=Fixed(schedule=("1f1b",)), **asked)
    answer = why_not(setup, found, {"schedule": "zb-h1", "pp": 2})
    assert (answer.reason, answer.text) == ("settled", "Not searched: only schedule 1f1b was allowed.")


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "zb-h1"])
def test_the_best_of_a_schedule_is_a_pipeline_however_many_layouts_without_one_are_faster(schedule):
    """A small model on few GPUs, whose fastest layouts have no pipeline at all: `named` searches pipelines alone."""
    answer = why(f"schedule={schedule}", "gpt2", 4, 16)
    named = search("gpt2", 4, 16, schedule=schedule, pp=[2, 4])
    best = named.estimate.take(named.best[:1])
    assert answer.other is not None
    assert int(answer.other.layouts.pp[0]) > 1
    assert float(answer.other.step_time_s[0]) == pytest.approx(float(best.step_time_s[0]))
