"""Stages given layer by layer: what a text means, and what is refused."""

import pytest

from planner.base.errors import InputError
from planner.choices.pipeline_layout import parse_pipeline_layout, pipeline_layout_text


@pytest.mark.parametrize(
    ("text", "layers", "module_at"),
    [
        ("Et*3|(tt|)*29m|L", [3, *[2] * 29, 0, 0], 30),  # DeepSeek-V3 by NVIDIA, 8 ranks of 4 virtual stages
        ("Et|(tt|)*30mL", [1, *[2] * 30, 0], 31),
        ("E|t*3|(t|)*3tt|m|L", [0, 3, 1, 1, 1, 2, 0, 0], 6),
        ("Ettt, |, (tt|)*2 L", [3, 2, 2, 0], None),
        ("E(t|)*3||L", [1, 1, 1, 0, 0, 0], None),
    ],
)
def test_what_a_text_means(text, layers, module_at):
    given = parse_pipeline_layout(text)
    assert list(given.layers) == layers
    assert [i for i, n in enumerate(given.modules) if n] == ([] if module_at is None else [module_at])
    assert parse_pipeline_layout(pipeline_layout_text(given.layers, given.modules)) == given


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Et|tx|L", "'x' has no meaning there"),
        ("tt|ttL", "one E, the first letter"),
        ("Ett|tt", "one L, the last"),
        ("Et|EtL", "one E, the first letter"),
        ("Etm|tL", "all modules m behind all layers t"),
        ("Et|mt|L", "all modules m behind all layers t"),
        ("Et|m|mL", "all modules m on one stage"),
        ("Et*999999|L", "up to 100000 letters"),
        ("(((", "'(' has no meaning there"),
        ("|", "one E"),
    ],
)
def test_what_is_refused(text, said):
    with pytest.raises(InputError, match="pipeline_layout is") as error:
        parse_pipeline_layout(text)
    assert said in str(error.value)
