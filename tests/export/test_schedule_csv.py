"""What is written for PyTorch, what is refused, and that what is written reads back."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from planner import schedule
from planner.base.errors import OutputError, ScheduleError
from planner.exporters.schedule_csv import schedule_csv
from planner.schedules import SCHEDULES, Operation, Order, Pipeline, get_schedule
from planner.schedules.csv_file import read_schedule
from planner.schedules.one_f_one_b import OneFOneB
from planner.step.timeline.timeline import run
from tests.schedules.cases import named_pipelines


def order_of(*rows: str) -> Order:
    return Order.of_rows([[Operation.parse(cell) for cell in row.split()] for row in rows])


@pytest.mark.parametrize(
    ("name", "pipe", "expected"),
    [
        ("1f1b", Pipeline(p=2, m=3), "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"),
        ("zb-h1", Pipeline(p=2, m=2), "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"),
        ("breadth-first", Pipeline(p=2, m=1, v=2), "0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n"),
    ],
)
def test_writes(name: str, pipe: Pipeline, expected: str) -> None:
    assert schedule_csv(get_schedule(name).order(pipe), get_schedule(name)) == expected


def test_operations_that_run_as_one() -> None:
    assert schedule_csv(order_of("0F0 0F1& 0B0 0B1")) == "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["0F0 0F0.1 0B0.1 0B0"], "0F0.1 can't be written for PyTorch: its runtime does not slice the sequence"),
        # Chimera: both halves hold both stages, for one micro-batch each
        (["0F0 1F1 1B1 0B0", "0F1 1F0 1B0 0B1"], "stage 0 lies on ranks 0, 1, by micro-batch"),
        (["0F0 0B0", ""], "rank 1 has no operation"),
        (["0F0 0F1 0B0"], "stage 0, micro-batch 1 has no B or I"),
        (["0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1"], "the schedule deadlocks: rank 0 at 0B0 waits for 1B0 of rank 1; rank"),
    ],
)
def test_refuses(rows: list[str], message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        schedule_csv(order_of(*rows))
    assert str(caught.value).startswith(message)


def test_refuses_weights_of_several_versions() -> None:
    class NoFlush(OneFOneB):
        name = "no-flush"
        synchronous = False

    with pytest.raises(ScheduleError, match="no-flush can't be written for PyTorch: its runtime knows one version"):
        schedule_csv(OneFOneB().order(Pipeline(p=2, m=2)), NoFlush())


def test_a_refused_schedule_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError):
        schedule("seq1f1b", pp=2, slices=2).to_csv(tmp_path / "out.csv")
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        schedule("1f1b", pp=2).to_csv(tmp_path / "none" / "out.csv")


@given(named_pipelines([name for name, s in SCHEDULES.items() if s.synchronous and not s.sliced and s.copies == 1]))
def test_what_is_written_reads_back(tmp_path_factory: pytest.TempPathFactory, case: tuple[str, Pipeline]) -> None:
    name, pipe = case
    path = tmp_path_factory.getbasetemp() / "out.csv"
    order = get_schedule(name).order(pipe)
    path.write_text(schedule_csv(order, get_schedule(name)))
    again = read_schedule(path)
    assert again.rows() == order.rows()
    assert run(again, np.ones(len(again))).makespan_s == run(order, np.ones(len(order))).makespan_s
