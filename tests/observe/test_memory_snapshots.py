"""Memory snapshots of PyTorch's allocator: the peak by who asked, and nothing that a file names is loaded."""

import gzip
import os
import pickle
from pathlib import Path

import pytest

from planner.api.existing_run import run_of_megatron
from planner.api.observed import configured_run, observe
from planner.base.errors import FileFormatError
from planner.base.units import GIB
from planner.imports.memory_snapshot import read_snapshot
from tests.observe.test_traces import ARGUMENTS

DATA = Path(__file__).parent / "data"


def frame(filename: str, name: str) -> list[dict]:
    return [{"filename": filename, "line": 3, "name": name}]


def entry(action: str, address: int, gib: float, frames: list[dict] | None = None) -> dict:
    return {"action": action, "addr": address, "size": int(gib * GIB), "frames": frames or []}


HISTORY = [
    entry("segment_alloc", 0, 8),
    entry("alloc", 1, 1, frame("model.py", "__init__")),
    entry("alloc", 2, 2, frame("block.py", "forward")),
    entry("alloc", 3, 3, frame("block.py", "forward")),
    entry("alloc", 4, 0.5),  # the backward pass has no line of Python
    entry("free_completed", 3, 3),
    entry("free_completed", 2, 2),
    entry("alloc", 5, 1.5, frame("torch/optim/adam.py", "step")),
]


def snapshot(history: list[dict]) -> dict:
    live = [(1, 1), (4, 0.5), (5, 1.5)]
    blocks = [
        {"address": at, "requested_size": int(g * GIB), "state": "active_allocated", "frames": []} for at, g in live
    ]
    return {"segments": [{"device": 0, "total_size": 8 * GIB, "blocks": blocks}], "device_traces": [history]}


def test_the_peak_by_hand(tmp_path):
    """1 + 2 + 3 + 0.5 GiB are active before anything is freed; 8 are reserved throughout."""
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(snapshot(HISTORY)))
    (one,) = read_snapshot(path)
    assert (one["peak_gib"], one["reserved_gib"]) == (6.5, 8)
    assert one["kinds_gib"] == {"forward": 5, "parameters": 1, "backward": 0.5}
    assert next(iter(one["places_gib"].items())) == ("block.py:3 forward", 5)
    said = str(observe([path]))
    assert said.index("asked for by") < said.index("by line of code, the largest:") < said.index("block.py:3 forward")


def test_a_real_snapshot_adds_up_and_stands_beside_the_prediction():
    """FSDP2 on an H200: Adam's two moments of 4 bytes are twice the parameters of 4 bytes."""
    run = configured_run(run_of_megatron(ARGUMENTS, "dgx-h100", model=None, gpus=1, vocab=32000), "dgx-h100")
    (one,) = observe([DATA / "snapshot.pickle.gz"], run).record["snapshots"]
    assert sum(one["kinds_gib"].values()) == pytest.approx(one["peak_gib"], rel=1e-9)
    assert one["peak_gib"] < one["reserved_gib"]
    assert one["kinds_gib"]["optimizer"] == pytest.approx(2 * one["kinds_gib"]["parameters"], rel=0.01)
    assert one["memory_parts_gib"]["peak"][0] == one["peak_gib"]


class Evil:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-snapshot",)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (pickle.dumps(Evil()), r"it names (posix|nt)\.mkdir, and nothing that a file names is loaded"),
        (pickle.dumps(snapshot(HISTORY))[:-30], "can't be read"),
        (pickle.dumps(snapshot(HISTORY))[:9], "can't be read"),
        (pickle.dumps({"weights": [1.0]}), "is no snapshot of PyTorch's allocator"),
        (pickle.dumps(snapshot([])), "has no history"),
        (gzip.compress(pickle.dumps(snapshot(HISTORY)))[:-20], "can't be read"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "can't be read|is no snapshot"),
    ],
)
def test_a_damaged_or_hostile_snapshot_gets_one_line_and_runs_nothing(tmp_path, monkeypatch, data, says):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "s.pickle"
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=says):
        read_snapshot(path)
    assert [one.name for one in tmp_path.iterdir()] == ["s.pickle"]
