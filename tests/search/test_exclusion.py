import numpy as np
import pytest

from planner.base.errors import InputError, LayoutError, UnknownNameError
from planner.hardware import load_cluster
from planner.layouts import Attention, Precision, Recompute, Split
from planner.models import load_model
from planner.search.exclusion import without
from planner.search.request import Fixed, Request
from planner.search.space import allows, default_schedules, whole_space

MODEL, CLUSTER = load_model("gpt2-xl"), load_cluster("dgx-a100-80gb")


def listed(fixed):
    asked = Request(gpus=16, global_batch=32, precision=Precision.BF16, attention=Attention.FLASH2, fixed=fixed)
    return whole_space(MODEL, CLUSTER, asked)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("dp=8", lambda x: x.dp != 8),
        ("micro_batch=2", lambda x: x.micro_batch != 2),
        ("cp", lambda x: x.cp == 1),
        ("zero=3", lambda x: x.zero != 3),
        ("layer_split=balanced", lambda x: x.layer_split != Split.BALANCED),
        ("recompute=full", lambda x: x.recompute != Recompute.FULL),
        ("virtual-stages", lambda x: x.virtual_stages == 1),
        ("dp=4,8", lambda x: (x.dp != 4) & (x.dp != 8)),
        (
            "cp, dp=4, 8,recompute=full",
            lambda x: (x.cp == 1) & (x.dp != 4) & (x.dp != 8) & (x.recompute != Recompute.FULL),
        ),
        ("schedule=zb-*", lambda x: ~np.char.startswith(np.array(x.schedule_names)[x.schedule], "zb-")),
    ],
)
def test_what_is_left_is_the_space_without_it(text, kept):
    whole, left = listed(Fixed()), listed(without(Fixed(), text))
    assert 0 < len(left) < len(whole)
    assert len(left) == int(np.sum(kept(whole)))
    assert np.all(kept(left))
    assert np.all(allows(without(Fixed(), text), left))
    assert int(np.sum(allows(without(Fixed(), text), whole))) == len(left)


@pytest.mark.parametrize(("on", "off"), [("on", "off"), ("true", "false"), ("yes", "no")])
def test_a_flag_is_left_out_as_people_write_it(on, off):
    assert without(Fixed(), f"sp={on}").excluded == (("sequence_parallel", 1),)
    assert without(Fixed(), f"sp={off}").excluded == (("sequence_parallel", 0),)


def test_several_texts_add_up():
    fixed = without(without(Fixed(), "pp=4"), "pp=2")
    assert not {2, 4} & set(listed(fixed).pp.tolist())
    assert without(Fixed(schedule=("zb-h1", "1f1b")), "schedule=zb-*").schedule == ("1f1b",)
    assert "zb-h1" not in without(Fixed(), "schedule=zb-h1").schedule
    assert set(without(Fixed(), "schedule=zb-h1").schedule) == {n for n in default_schedules() if n != "zb-h1"}


def test_a_table_is_within_all_that_is_excluded():
    whole = listed(Fixed())
    kept = allows(without(without(Fixed(), "dp=8"), "micro_batch=2"), whole)
    assert np.array_equal(kept, (whole.dp != 8) & (whole.micro_batch != 2))
    assert 0 < kept.sum() < min((whole.dp != 8).sum(), (whole.micro_batch != 2).sum())


def test_a_schedule_that_is_not_searched_may_be_left_out_too():
    """`--not schedule=zb-*` means the same under a framework that runs 1f1b and interleaved alone."""
    fixed = Fixed(schedule=("1f1b", "interleaved"))
    assert without(fixed, "schedule=zb-*").schedule == fixed.schedule


@pytest.mark.parametrize(
    ("text", "fixed", "says"),
    [
        ("foo=1", Fixed(), "exclude is 'foo=1'; allowed: schedule, dp"),
        ("schedule", Fixed(), "exclude is 'schedule'; allowed: schedule=name"),
        ("schedule=abc", Fixed(), "exclude is 'schedule=abc'; the schedules are"),
        ("schedule=*", Fixed(), "exclude is 'schedule=\\*'; it leaves no schedule to choose"),
        ("cp", Fixed(cp=(2,)), "exclude is 'cp'; it leaves no cp to choose"),
        ("tp=" + "9" * 5000, Fixed(), "exclude is 'tp=999"),
        ("tp=", Fixed(), "exclude is 'tp='; allowed of tp: a whole number"),
        ("tp=x", Fixed(), "exclude is 'tp=x'; allowed of tp: a whole number"),
        (
            "sequence_parallel=maybe",
            Fixed(),
            "exclude is 'sequence_parallel=maybe'; allowed of sequence-parallel: true",
        ),
    ],
)
def test_a_text_that_excludes_nothing_or_all_is_refused(text, fixed, says):
    with pytest.raises(InputError, match=says):
        without(fixed, text)


def test_an_unknown_member_is_named():
    with pytest.raises(UnknownNameError, match="recompute"):
        without(Fixed(), "recompute=bad")


def test_what_is_left_out_is_named_where_nothing_is_left():
    with pytest.raises(LayoutError, match="and pp 1, excluded pp=1; leave out one of pp, exclude"):
        listed(without(Fixed(pp=(1,)), "pp=1"))


def test_what_leaves_nothing_is_named_as_a_user_writes_it():
    """GPT-2 XL's 25 heads can't be split, so no layout of it has sequence parallelism."""
    with pytest.raises(LayoutError, match="excluded sequence_parallel=off; exclude less"):
        listed(without(Fixed(), "sp=off"))
