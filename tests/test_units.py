"""Durations as people say them: the unit that suits each."""

import pytest

from planner.units import format_seconds

SAID = [
    (2.5e-6, "2.5 us"), (0.25, "250.0 ms"), (1.0, "1.00 s"), (1199.99, "1199.99 s"), (1200.0, "20.0 min"),
    (3060.24, "51.0 min"), (3600.0, "1.0 h"), (2 * 86400.0 - 1.0, "48.0 h"), (2 * 86400.0, "2.0 days"),
]  # fmt: skip


@pytest.mark.parametrize(("time_s", "said"), SAID)
def test_a_duration_is_said_in_its_unit(time_s, said):
    assert format_seconds(time_s) == said
