"""The table of choices is the one list: columns, signatures, options and files have what it has."""

from dataclasses import fields
from typing import get_args, get_type_hints

import pytest
from typer.main import get_command

import planner
from planner.api.inputs import LayoutChoices, SearchChoices
from planner.base.errors import InputError, UnknownNameError
from planner.choices.table import AXES, CHOICES, NUMERICS, SETTLED, SHARED, TEXTS
from planner.cli import app
from planner.layouts import Layouts
from planner.question import one_layout, what_is_fixed
from planner.search import Fixed
from planner.search.grids import ROW
from planner.sweeps.definition import SearchTable

OF_THE_QUESTION = {"attention", "precision", *SHARED}


def test_columns_of_layouts_are_the_choices_in_order():
    assert [f.name for f in fields(Layouts)] == [*(f"{text}_names" for text in TEXTS), *CHOICES]


def test_functions_of_one_layout_take_every_choice_by_its_kind():
    taken = get_type_hints(LayoutChoices)
    assert set(taken) == set(CHOICES) - {"global_batch"}
    for name, kind in taken.items():
        choice = CHOICES[name]
        by_none = choice.derived or choice.plain(choice.default) is None
        assert kind == (choice.plain_kind | None if by_none else choice.plain_kind), name
    for function in (planner.estimate, planner.simulate):
        assert get_args(get_type_hints(function)["choices"]) == (LayoutChoices,)
        with pytest.raises(TypeError, match="dq is no choice"):
            function("gpt2", "dgx-h100", batch=8, dq=2)


ADVISED = {"fit_chance", "headroom_gib", "max_memory_gib", "any_framework", "exclude"}


def test_recommend_takes_every_choice_that_a_search_can_be_held_to():
    assert set(get_type_hints(SearchChoices)) == {*SETTLED, *OF_THE_QUESTION, *ADVISED, "allow_offload", "allow_async"}
    assert get_args(get_type_hints(planner.recommend)["choices"]) == (SearchChoices,)
    assert all(getattr(Fixed(**{name: (1,)}), name) == (1,) and getattr(Fixed(), name) is None for name in SETTLED)
    assert set(SETTLED) == set(SearchTable.model_fields) - ADVISED - set(SHARED) - {"allow_offload", "allow_async"}


@pytest.mark.parametrize(
    ("command", "choices"),
    [(c, set(CHOICES)) for c in ("estimate", "simulate")]
    + [("compare", set(CHOICES) - {"schedule"}), ("partition", set(CHOICES) - {"layer_split"})]
    + [(c, {*SETTLED, *OF_THE_QUESTION, "global_batch"}) for c in ("recommend", "explain")],
)
def test_every_command_has_an_option_for_each_of_its_choices(command, choices):
    options = {p.name for p in get_command(app).commands[command].params}
    assert options & set(CHOICES) == choices - ({"global_batch"} - options)


def test_ranks_in_ties_are_a_permutation():
    ranked = sorted((c for c in CHOICES.values() if c.tie), key=lambda c: c.tie)
    assert [c.tie for c in ranked] == list(range(1, len(ranked) + 1))


def test_a_search_finds_every_choice_in_its_rows_on_an_axis_or_in_the_question():
    on_axes = [name for axis in AXES for name in axis]
    assert sorted([*ROW, *on_axes, *NUMERICS, *SHARED, "global_batch", "pipeline_layout"]) == sorted(CHOICES)
    assert all(CHOICES[name].tried and CHOICES[name].default in CHOICES[name].tried for name in on_axes)


def test_a_value_is_coded_and_written_again():
    for choice in CHOICES.values():
        default = choice.plain(choice.default)
        assert choice.plain(choice.coded(default)) == default
        assert type(default) is choice.plain_kind


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("tp", 0, InputError), ("tp", "8", InputError), ("tp", True, InputError), ("zero", 4, InputError),
        ("zero", -1, InputError), ("recompute", "ful", UnknownNameError), ("recompute", 1, InputError),
        ("fused_norm", 1, InputError), ("schedule", 5, InputError),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_name(name, value, error):
    with pytest.raises(error, match=name):
        CHOICES[name].coded(value)


def test_an_unknown_choice_is_a_mistake_of_the_caller():
    cluster = planner.Cluster("dgx-a100-80gb").profile
    with pytest.raises(TypeError, match="depth is no choice"):
        one_layout(cluster, global_batch=8, depth=2)
    with pytest.raises(TypeError, match="global_batch is no choice"):
        what_is_fixed(global_batch=8)
    with pytest.raises(TypeError, match="depth is no choice"):
        Fixed(depth=(2,))
    with pytest.raises(TypeError, match="depth is no choice"):
        Layouts.of(global_batch=8, depth=2)
