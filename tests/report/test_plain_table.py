"""Tables that fit: nothing wider than the screen, no figure cut, every word there, whatever the width."""

import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from planner.report.plain_table import plain_table, plain_text, stacked

WORDS = st.text("abcdefg -", min_size=0, max_size=40)
FIGURES = st.floats(0, 1e9).map(lambda x: f"{x:,.4g}")


def shown(view, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, color_system=None).print(view)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@given(rows=st.lists(st.tuples(WORDS, FIGURES, WORDS, FIGURES), min_size=1, max_size=5), width=st.integers(24, 120))
@example(rows=[("aaaaa-a", "1.291e+04", " aaaaaa", "0")], width=34)
def test_fits_and_keeps_every_word_and_figure(rows, width):
    table = plain_table("name", "first", "what it says", "second", numbers=(1, 3))
    for row in rows:
        table.add_row(*row)
    lines = shown(table, width)
    assert all(cell_len(line) <= width for line in lines)
    text = " ".join(lines)
    assert "…" not in text
    for row in rows:
        for word in " ".join(row).split():
            assert word in text or len(word) > width - 20


def test_natural_where_there_is_room_and_blocks_where_there_is_none():
    table = plain_table("layout", "step s", "source", numbers=(1,))
    table.add_row("dp 8 tp 2", "1,234.5", "measured in 2023 on a machine with a name of some length")
    assert shown(table, 90) == [
        "layout      step s  source",
        "dp 8 tp 2  1,234.5  measured in 2023 on a machine with a name of some length",
    ]
    assert shown(table, 50)[1:] == [
        "dp 8 tp 2  1,234.5  measured in 2023 on a machine",
        "                    with a name of some length",
    ]
    assert shown(table, 24) == [
        "layout: dp 8 tp 2",
        "  step s  1,234.5",
        "  source  measured in",
        "          2023 on a",
        "          machine with a",
        "          name of some",
        "          length",
    ]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_sentence_keeps_its_indent(width):
    lines = shown(stacked("head", "  careful: " + "word " * 30), width)
    assert lines[0] == "head"
    assert all(line.startswith("  ") for line in lines[1:])
    assert all(len(line) <= width for line in lines)


def test_a_figure_stays_with_its_unit():
    text = "  15.42 s per step, MFU 52.4%, 518 TFLOP/s/GPU, 57.62 GiB of 79.19 GiB, in 80 % of cases; dp 8 tp 4 mb 1 sp"
    for width in range(24, 110):
        lines = plain_text(stacked(text), width=width).splitlines()
        assert " ".join(line.strip() for line in lines) == text.strip()
        for line in lines[1:]:
            assert line.split()[0] not in ("s", "TFLOP/s/GPU,", "GiB", "GiB,", "%")
    assert any(
        line.endswith("tp 4") for w in range(24, 110) for line in plain_text(stacked(text), width=w).splitlines()
    )
