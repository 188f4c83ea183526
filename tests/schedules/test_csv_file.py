"""A user's schedule from a CSV: what it may look like, and every fault as one line with path, row and cell."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.base.errors import FileFormatError, InputError, ScheduleError
from planner.schedules.csv_file import read_schedule
from planner.schedules.operations import Order


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "own.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def cells(order: Order) -> list[list[str]]:
    return [[str(operation) for operation in row] for row in order.rows()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]),
        # empty cells and spaces, Windows line ends, a byte order mark, empty lines at the end
        ("\ufeff0F0,,, 0B0,\r\n,1F0, 1B0\r\n\r\n,,\r\n", [["0F0", "0B0"], ["1F0", "1B0"]]),
        ("0F0,0F1,0I0,0I1,0W1,0W0", [["0F0", "0F1", "0I0", "0I1", "0W1", "0W0"]]),
        ("0F0,0F0.1,0B0.1,0B0", [["0F0", "0F0.1", "0B0.1", "0B0"]]),
        ("0F0,(0F1;0B0)OVERLAP_F_B,0B1", [["0F0", "0F1&", "0B0", "0B1"]]),
        ("0F0,0F1&,0B0,0B1", [["0F0", "0F1&", "0B0", "0B1"]]),
    ],
)
def test_reads(tmp_path: Path, text: str, expected: list[list[str]]) -> None:
    assert cells(read_schedule(written(tmp_path, text))) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0X0\n", "row 1, cell 2: cell '0X0' is no operation"),
        ("0F0;0B0\n", "row 1, cell 1: cell '0F0;0B0' is no operation"),
        ("9" * 5000 + "F0\n", f"row 1, cell 1: cell '{'9' * 56}... is no operation"),
        ("0F0,0B0\n1F0,-1B0\n", "row 2, cell 2: cell '-1B0' is no operation"),
        ("0F0,0SEND_F0,0B0\n", "row 1, cell 2: '0SEND_F0' is communication"),
        ("0F0,()OVERLAP_F_B\n", "row 1, cell 2: cell '' is no operation"),
        ("0F0,(0F1&;0B0)OVERLAP_F_B,0B1\n", "row 1, cell 2: '(0F1&;0B0)OVERLAP_F_B' has &"),
        ("0F0,0B0&\n", "row 1, cell 2: 0B0& joins the next cell, but is the last"),
        ("0F0,0B0\n\n1F0,1B0\n", "row 2 has no operation"),
        ("", "has no operations"),
        (",,\n\n", "has no operations"),
        ('0F0,"0B0', "not valid CSV"),
        (b"0F0,\xff\n", "can't be read: not UTF-8 text"),
        ("0F" + "9" * 5000, "row 1, cell 1: cell '0F99999"),
    ],
)
def test_a_file_that_does_not_parse(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(FileFormatError) as caught:
        read_schedule(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0,0F1\n", "stage 0, micro-batch 1 has no B or I"),
        ("0F0,0I0\n", "stage 0, micro-batch 0 has I but no W"),
        ("0F0,0B0\n2F0,2B0\n", "stage 1, micro-batch 0 has no F"),
        ("0F0,0B0,0F0\n", "row 1, cell 3: 0F0 was done in row 1, cell 1 (0F0)"),
        ("0F0,0B0,0I0,0W0\n", "row 1, cell 3: 0I0 was done in row 1, cell 2 (0B0)"),
        ("0F0,1F0,0B0\n1B0\n", "row 2, cell 1: 1B0 is on another rank than its forward, row 1, cell 2"),
        ("0F0,0B0\n0F99999999999,1B0\n", "row 2, cell 1: 0F99999999999 is numbered beyond the 4 operations"),
        (",".join(f"{i}F{i}.{i}" for i in range(300)), "300 stages, 300 micro-batches and 300 slices need at least 54"),
        (  # a hundred times the file's operations are 1,000
            ",".join(["0F0"] * 9 + ["8F7.6"]),
            "9 stages, 8 micro-batches and 7 slices need at least 1008 operations; the file has 10",
        ),
    ],
)
def test_an_incomplete_schedule(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ScheduleError) as caught:
        read_schedule(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="can't be read"):
        read_schedule(tmp_path / "none.csv")


@given(
    st.lists(
        st.lists(st.from_regex(r"[0-3]?[FBIWX][0-3](\.[01])?&?|\(0F1;0B0\)OVERLAP_F_B|.{0,3}", fullmatch=True)),
        max_size=3,
    )
)
def test_any_text_is_a_schedule_or_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    path = written(tmp_path_factory.getbasetemp(), "\n".join(",".join(row) for row in rows))
    with contextlib.suppress(InputError):
        read_schedule(path)
