"""Durations and counts as people say them."""

import pytest

from planner.base.units import format_seconds, format_span, gpus_text, parse_count

SAID = [
    (2.5e-6, "2.5 us"), (0.25, "250.0 ms"), (1.0, "1.00 s"), (1199.99, "1199.99 s"), (1200.0, "20.0 min"),
    (3060.24, "51.0 min"), (3600.0, "1.0 h"), (2 * 86400.0 - 1.0, "48.0 h"), (2 * 86400.0, "2.0 days"),
]  # fmt: skip


@pytest.mark.parametrize(("time_s", "said"), SAID)
def test_a_duration_is_said_in_its_unit(time_s, said):
    assert format_seconds(time_s) == said


def test_a_span_has_its_unit_once_where_both_ends_share_it():
    assert format_span(2 * 86400.0, 2500 * 86400.0) == "2.0 to 2,500.0 days"
    assert format_span(3000.0, 7200.0) == "50.0 min to 2.0 h"


def test_one_gpu_is_one():
    assert [gpus_text(n) for n in (1, 2, 4096)] == ["1 GPU", "2 GPUs", "4,096 GPUs"]


@pytest.mark.parametrize(
    ("text", "number"), [("300e9", 3e11), ("300B", 3e11), ("15T", 1.5e13), (" 1.5m", 1.5e6), ("4K", 4e3), ("7", 7.0)]
)
def test_a_count_as_people_write_it(text: str, number: float):
    assert parse_count(text) == number


@pytest.mark.parametrize("text", ["", "T", "15X", "2TT", "B300", "1 2"])
def test_no_count(text: str):
    with pytest.raises(ValueError, match="could not convert"):
        parse_count(text)
