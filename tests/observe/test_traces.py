"""Traces of PyTorch's profiler: a moment belongs to one part, parts add up, damaged files get one line."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.api.existing_run import run_of_megatron
from planner.api.observed import configured_run, observe
from planner.base.errors import FileFormatError
from planner.imports.trace import read_trace
from planner.step.timeline.timed import timed_estimate
from tests.commands import planner

DATA = Path(__file__).parent / "data"
ARGUMENTS = (
    "--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 1 "
    "--global-batch-size 4 --max-position-embeddings 2048 --bf16"
)


def kernel(name: str, begin_us: float, took_us: float, **more) -> dict:
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": begin_us, "dur": took_us} | more


def written(path: Path, events: list[dict], head: dict | None = None) -> Path:
    path.write_text(json.dumps((head or {}) | {"traceEvents": events}))
    return path


BY_HAND = [
    kernel("nvjet_gemm", 0, 40),
    kernel("ncclDevKernel_AllReduce", 30, 30, args={"Process Group Description": "tp", "Group size": 8}),
    kernel("elementwise", 55, 15),
    kernel("multi_tensor_adam", 90, 10),
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 1000},  # the host's: no kernel
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1, "ts": 0, "dur": 1000},
]


def test_parts_of_a_step_by_hand(tmp_path):
    """Product 0-40, all-reduce 30-60, elementwise 55-70, nothing 70-90, Adam 90-100: one step of 100 us."""
    (one,) = read_trace(written(tmp_path / "t.json", BY_HAND, {"distributedInfo": {"rank": 5}}))
    assert (one["rank"], one["device"], one["steps"]) == (5, "GPU 0", 1)
    assert one["step_s"] == pytest.approx(100e-6)
    parts = {name: pytest.approx([alone * 1e-6, summed * 1e-6, 1]) for name, alone, summed in (
        ("optimizer", 10, 10), ("products", 40, 40), ("other", 15, 15), ("all-reduce, tp of 8", 15, 30),
    )}  # fmt: skip
    assert one["parts"] == parts
    assert one["idle_s"] == pytest.approx(20e-6)
    assert (one["gaps"], one["longest_gap_s"]) == (1, pytest.approx(20e-6))


intervals = st.lists(
    st.tuples(
        st.sampled_from(["gemm", "flash_fwd", "ncclDevKernel_AllGather", "adam", "layer_norm", "ncclDevKernel_Send"]),
        st.integers(0, 500), st.integers(0, 60),
    ),
    min_size=1, max_size=40,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(intervals, st.randoms(use_true_random=False))
def test_parts_and_idle_add_up_in_any_order(tmp_path_factory, found, chance):
    path = tmp_path_factory.mktemp("t") / "t.json"
    events = [kernel(*one) for one in [*found, ("layer_norm", 560, 1)]]
    (one,) = read_trace(written(path, events))
    alone = [seconds for seconds, _, _ in one["parts"].values()]
    assert sum(alone) + one["idle_s"] == pytest.approx(one["step_s"], abs=1e-12)
    assert min(alone) >= -1e-12
    assert all(seconds <= summed + 1e-12 for seconds, summed, _ in one["parts"].values())
    busy = np.zeros(561, bool)
    busy[560] = True
    for _, begin, took in found:
        busy[begin : begin + took] = True
    assert sum(alone) == pytest.approx(busy.sum() * 1e-6, abs=1e-12)
    chance.shuffle(events)
    (again,) = read_trace(written(path, events))
    assert list(again["parts"]) == list(one["parts"])
    assert list(again["parts"].values()) == [pytest.approx(part) for part in one["parts"].values()]


def test_packed_and_plain_traces_of_two_ranks_read_alike(tmp_path):
    """Two gloo ranks of this repository's sample: their collectives and sends, each rank by its number."""
    packed = [DATA / "rank0.json.gz", DATA / "rank1.json.gz"]
    found = [read_trace(path)[0] for path in packed]
    assert [one["rank"] for one in found] == [0, 1]
    for path, one in zip(packed, found, strict=True):
        plain = tmp_path / path.stem
        plain.write_bytes(gzip.decompress(path.read_bytes()))
        assert read_trace(plain) == [one | {"trace": str(plain)}]
        assert {"all-reduce", "broadcast", "send", "products", "optimizer"} <= set(one["parts"])


def test_a_late_rank_is_named_and_one_rank_twice_is_not(tmp_path):
    paths = []
    for rank, took in enumerate([100, 101, 130]):
        events = [kernel("gemm", 0, took), kernel("ncclDevKernel_AllReduce", took, 200 - took)]
        paths.append(written(tmp_path / f"{rank}.json", events, {"distributedInfo": {"rank": rank}}))
    late = [trace["late"] for trace in observe(paths).record["traces"]]
    assert late == [0.0, 0.0, pytest.approx(130 / 101 - 1)]
    assert [trace["late"] for trace in observe([paths[0], paths[0], paths[2]]).record["traces"]] == [0.0] * 3


def test_a_group_s_name_is_safe_on_a_terminal(tmp_path):
    named = kernel(
        "ncclDevKernel_AllReduce", 0, 30, args={"Process Group Description": "\x1b[31mtp", "Group size": 1e400}
    )
    (trace,) = read_trace(written(tmp_path / "t.json", [named]))
    assert list(trace["parts"]) == ["all-reduce, \\x1b[31mtp"]


@pytest.mark.parametrize("name", [float("inf"), float("nan"), 1.5, None, [], {}])
def test_a_group_or_device_whose_name_is_no_name_has_none(tmp_path, name):
    """Infinity was shown as a group called inf."""
    event = kernel("ncclDevKernel_AllReduce", 0, 30, args={"Process Group Description": name}) | {"pid": name}
    (trace,) = read_trace(written(tmp_path / "t.json", [event]))
    assert (trace["device"], list(trace["parts"])) == ("GPU", ["all-reduce"])


def test_a_trace_of_communication_alone_has_no_late_rank(tmp_path):
    path = written(tmp_path / "t.json", [kernel("ncclDevKernel_AllReduce", 0, 30)])
    (trace,) = observe([path]).record["traces"]
    assert (trace["late"], trace["idle_s"]) == (0.0, 0.0)


def test_the_prediction_beside_a_trace_adds_up_to_the_step(tmp_path):
    run = configured_run(run_of_megatron(ARGUMENTS, "dgx-h100", model=None, gpus=1, vocab=32000), "dgx-h100")
    rows = observe([written(tmp_path / "t.json", BY_HAND)], run).record["step_parts_s"]
    measured, predicted = np.array(list(rows.values())).sum(axis=0)
    assert measured == pytest.approx(100e-6)
    assert predicted == pytest.approx(float(timed_estimate(run.setup, run.layouts).step_time_s[0]), rel=1e-6)


WHOLE = json.dumps({"traceEvents": BY_HAND})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (WHOLE[: len(WHOLE) // 2].encode(), r"is no whole JSON at event \d+: cut off"),
        (WHOLE[:-2].encode(), "is no whole JSON at event 7: cut off"),
        (b'{"traceEvents": []}', "has no kernel and no operation"),
        (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 3, "dur": 0}]', "no operation takes any time"),
        (b'{"loss": 3.2}', "is JSON without traceEvents"),
        (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon", "dur": 1}]', "has no kernel and no operation"),
        (b'{"traceEvents": [' + b"[" * 100_000, r"is no whole JSON at event 1"),
        (gzip.compress(WHOLE.encode())[:-20], "can't be read"),
    ],
)
def test_a_damaged_trace_gets_one_line(tmp_path, data, says):
    path = tmp_path / "rank0.json"
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=says):
        read_trace(path)


def test_a_damaged_trace_ends_the_command_with_one_line(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text(WHOLE[:100])
    done = planner("observe", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"planner: {path}: is no whole JSON at event 1: cut off")
    assert done.stderr.count("\n") == 1


def test_a_trace_makes_no_row(tmp_path):
    """A traced iteration is slower: it must not anchor other predictions."""
    path, row = written(tmp_path / "t.json", BY_HAND), tmp_path / "rows.csv"
    given = ["--megatron-args", ARGUMENTS, "--cluster", "dgx-h100", "--gpus", "1", "--vocab", "32000"]
    done = planner("observe", str(path), *given, "--row", str(row))
    assert done.returncode == 2
    assert done.stderr.startswith("planner: --row: no file is a log")
    assert not row.exists()
