"""PyTorch's own schedules, as PyTorch writes them: they read, run, write the same, and ours are theirs."""

from pathlib import Path

import numpy as np
import pytest

from planner.exporters.schedule_csv import schedule_csv
from planner.schedules import Pipeline, get_schedule
from planner.schedules.csv_file import read_schedule
from planner.step.timeline.timeline import run

FILES = sorted((Path(__file__).parent / "pytorch").glob("*.csv"))
"""p = 4, m = 8, two stages a rank; see dump_pytorch_orders.py."""


def test_all_are_there() -> None:
    assert len(FILES) == 5


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reads_runs_and_writes_the_same(path: Path) -> None:
    order = read_schedule(path)
    run(order, np.ones(len(order)))
    cells = [[cell for cell in line.split(",") if cell] for line in path.read_text().splitlines()]
    assert [line.split(",") for line in schedule_csv(order).splitlines()] == cells


@pytest.mark.parametrize(
    ("file", "name"), [("Interleaved1F1B", "interleaved"), ("ZBVZeroBubble", "zb-v"), ("DualPipeV", "dualpipev")]
)
def test_ours_is_theirs(file: str, name: str) -> None:
    theirs = read_schedule(Path(__file__).parent / "pytorch" / f"{file}.csv")
    assert get_schedule(name).order(Pipeline(p=4, m=8, v=2)).rows() == theirs.rows()


def test_breadth_first_is_theirs_but_for_the_order_of_backwards() -> None:
    theirs = read_schedule(Path(__file__).parent / "pytorch" / "LoopedBFS.csv")
    ours = get_schedule("breadth-first").order(Pipeline(p=4, m=8, v=2))
    backward = [
        [op._replace(micro_batch=7 - op.micro_batch) if op.kind == "B" else op for op in r] for r in ours.rows()
    ]
    assert backward == theirs.rows()
    assert run(ours, np.ones(len(ours))).makespan_s == run(theirs, np.ones(len(theirs))).makespan_s
