"""PyTorch's own pipeline runtime runs our schedules, and its gradients are those of one process."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planner.exporters.schedule_csv import schedule_csv
from planner.schedules import Pipeline, get_schedule

pytestmark = [
    pytest.mark.extra,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install '.[torch]'"
    ),
]

ROUNDING = 1e-12
"""fp64, sums of a few dozen terms in another order; a micro-batch missed or doubled is 1e-2 and more."""


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run_in_torch() -> Iterator[Run]:
    """Runs a file in the runtime, one process a row, all forked from one that has torch; see torch_runtime.py."""
    command = [sys.executable, "-m", "tests.export.torch_runtime"]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def run(path: Path, micro_batches: int, *more: str) -> subprocess.CompletedProcess[str]:
            options = [str(path), "--micro-batches", str(micro_batches), "--timeout", "40", *more]
            print(json.dumps(options), file=process.stdin, flush=True)
            return subprocess.CompletedProcess(options, **json.loads(process.stdout.readline()))

        yield run
        process.stdin.close()


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize(
    ("name", "v"), [("1f1b", 1), ("interleaved", 2), ("breadth-first", 2), ("zb-h1", 1), ("zb-v", 2), ("dualpipev", 2)]
)
def test_gradients_are_those_of_one_process(tmp_path: Path, run_in_torch: Run, name: str, v: int, p: int) -> None:
    m, schedule, path = 8, get_schedule(name), tmp_path / "schedule.csv"
    order = schedule.order(Pipeline(p=p, m=m, v=v))
    path.write_text(schedule_csv(order, schedule))

    result = run_in_torch(path, m)

    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["worst"] < ROUNDING, report["name"]
    assert report["ran"] == [line.split(",") for line in path.read_text().splitlines()]
    assert report["unknown"] == []
    # 12 tensors a block, the embedding, the head's two
    assert report["parameters"] == 12 * p * v + 3


def exchange(text: str, one: str, other: str) -> str:
    return text.replace(one, "swap").replace(other, one).replace("swap", other)


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ("1B2", "1F2", "without first running Forward"),
        ("1B0", "1F3", "can't schedule sends/recvs"),
        ("0B3", "", "Invalid backward microbatches"),
    ],
)
def test_a_wrong_schedule_does_not_pass(tmp_path: Path, run_in_torch: Run, one: str, other: str, reason: str) -> None:
    """What the test above rests on: the runtime takes its order from the file, and nowhere else."""
    path = tmp_path / "schedule.csv"
    schedule = get_schedule("1f1b")
    path.write_text(schedule_csv(schedule.order(Pipeline(p=2, m=4)), schedule))
    text = path.read_text()
    path.write_text(exchange(text, one, other) if other else text.replace(one, ""))

    result = run_in_torch(path, 4)

    assert result.returncode != 0
    assert reason in result.stderr


def test_a_missing_gradient_is_seen(tmp_path: Path, run_in_torch: Run) -> None:
    path, schedule = tmp_path / "schedule.csv", get_schedule("zb-h1")
    path.write_text(schedule_csv(schedule.order(Pipeline(p=2, m=4)), schedule))

    report = json.loads(run_in_torch(path, 4, "--skip", "1W2").stdout)

    assert report["worst"] > 0.01
    assert report["name"].startswith("1.")
