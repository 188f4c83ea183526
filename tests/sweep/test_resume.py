"""A sweep killed at any moment and run again: the same bytes as one that nobody disturbed."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from planner.base.errors import ExecutionError, FileFormatError, InputError
from planner.base.state import digest
from planner.sweeps.answer import Chunk, ChunkAnswer, answer
from planner.sweeps.local import Local
from planner.sweeps.parquet import read_results
from planner.sweeps.parts import parts_folder
from planner.sweeps.run import SweepProgress, run_sweep
from planner.sweeps.sweep import load_sweep
from tests.hang import HANG_S

KEPT: dict[bytes, ChunkAnswer] = {}


def kept_answer(chunk: Chunk) -> ChunkAnswer:
    """The chunk's answer, searched once: these tests ask what becomes of answers, not how they are found."""
    asked = pickle.dumps(chunk)
    if asked not in KEPT:
        KEPT[asked] = answer(chunk)
    return KEPT[asked]


class Here:
    """Answers in this process, in an order of one's own; `most` chunks, then as if it had been stopped."""

    def __init__(self, seed: int | None = None, most: int | None = None, find: Any = kept_answer) -> None:
        self.seed, self.most, self.find = seed, most, find

    def answers(self, chunks: Iterator[Chunk]) -> Generator[ChunkAnswer]:
        waiting = list(chunks)
        if self.seed is not None:
            random.Random(self.seed).shuffle(waiting)
        for i, chunk in enumerate(waiting):
            if i == self.most:
                raise KeyboardInterrupt
            yield self.find(chunk)


def run(definition: Path, output: Path, scheduler: Here | None = None, **options: bool) -> SweepProgress:
    return run_sweep(load_sweep(definition), output, (scheduler or Here()).answers, **options)


def test_any_order_gives_the_same_bytes(small, tmp_path):
    done = run(small, tmp_path / "a.parquet")
    assert (done.cases, done.done, done.kept_cases) == (96, 96, 0)
    for seed, find in enumerate((answer, kept_answer)):
        run(small, tmp_path / "b.parquet", Here(seed, find=find), restart=True)
        assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "a.parquet").read_bytes()
    assert read_results(tmp_path / "a.parquet")["case"].to_pylist() == list(range(96))


def test_stopped_and_run_again_does_only_the_rest(small, tmp_path):
    run(small, tmp_path / "whole.parquet")
    out = tmp_path / "out.parquet"
    for stops in (3, 0, 7):
        with pytest.raises(KeyboardInterrupt):
            run(small, out, Here(seed=stops, most=stops))
        assert not out.exists()
    done = run(small, out)
    assert done.kept_cases == 2 * (3 + 0 + 7)
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not parts_folder(out).exists()


def test_a_finished_sweep_is_not_run_again(small, tmp_path):
    out = tmp_path / "out.parquet"
    first = run(small, out)
    again = run(small, out, Here(most=0))
    assert again.already
    assert (again.cases, again.layouts) == (first.cases, first.layouts)


def test_damaged_parts_are_done_again(small, tmp_path):
    run(small, tmp_path / "whole.parquet")
    out = tmp_path / "out.parquet"
    with pytest.raises(KeyboardInterrupt):
        run(small, out, Here(most=6))
    parts = sorted(parts_folder(out).glob("part-*.json"))
    parts[0].write_text("")
    parts[1].write_text(parts[1].read_text()[:-40])
    parts[2].write_text(parts[3].read_text())
    (parts_folder(out) / ".half-written").write_text("{")
    assert run(small, out).kept_cases == 2 * 3
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


FORGED = [
    {"chunk": 0, "layouts": 1, "rows": [{}]},
    {"chunk": 0, "layouts": 1, "rows": [[1, 2]]},
    {"chunk": 0, "layouts": float("inf"), "rows": []},
    {"chunk": None, "layouts": {}, "rows": None},
]


FOREIGN = [
    (int, [2**63, -(2**63) - 1, 1.5, True, "text"]),
    (float, [10**400, -(10**400), True, "text", []]),
    (bool, [0, 1.0, "true"]),
    (str, ["\ud800", 1, True, {}, None]),  # the first text is an axis, which has no gap
]


@pytest.mark.parametrize(("kind", "values"), FOREIGN, ids=[kind.__name__ for kind, _ in FOREIGN])
def test_a_part_with_a_value_that_its_column_cannot_hold_is_done_again(tiny, tmp_path, kind, values):
    """Under a right digest: numbers beyond 64 bits or beyond floats, and half a character, ended in a traceback.

    Without its case's model, a row was refused when the results were written, and the file stayed.
    """
    out = tmp_path / "out.parquet"
    with pytest.raises(KeyboardInterrupt):
        run(tiny, out, Here(most=1))
    part = parts_folder(out) / "part-00000000.json"
    kept = part.read_text()
    place = next(i for i, x in enumerate(json.loads(kept)["rows"][0]) if type(x) is kind)
    for value in values:
        forged = json.loads(kept)
        del forged["sha256"]
        forged["rows"][0][place] = value
        part.write_text(json.dumps(forged | {"sha256": digest(forged).hex()}))
        with pytest.raises(KeyboardInterrupt):
            run(tiny, out, Here(most=1))
        assert part.read_text() == kept
    run(tiny, tmp_path / "whole.parquet")
    run(tiny, out)
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


@pytest.mark.parametrize("signed", [False, True])
def test_parts_of_another_form_are_done_again(tiny, tmp_path, signed):
    """Once each was a traceback, the same at every rerun."""
    run(tiny, tmp_path / "whole.parquet")
    for i, forged in enumerate([*FORGED, "[" * 100_000, "null", None]):
        out = tmp_path / f"{i}.parquet"
        with pytest.raises(KeyboardInterrupt):
            run(tiny, out, Here(most=1))
        part = parts_folder(out) / "part-00000000.json"
        part.unlink()
        if forged is None:
            os.mkfifo(part)
        else:
            signature = {"sha256": digest(forged).hex()} if signed and isinstance(forged, dict) else {}
            part.write_text(forged if isinstance(forged, str) else json.dumps(forged | signature))
        assert run(tiny, out).kept_cases == 0
        assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


@pytest.mark.parametrize("text", ["[" * 100_000, "null", "{}", '{"sweep": null, "versions": []}', ""])
def test_a_damaged_manifest_is_one_line(tiny, tmp_path, text):
    out = tmp_path / "out.parquet"
    with pytest.raises(KeyboardInterrupt):
        run(tiny, out, Here(most=1))
    (parts_folder(out) / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=r"manifest\.json: .*--restart begins anew"):
        run(tiny, out)
    assert run(tiny, out, restart=True).kept_cases == 0


def _rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop_columns(["status"]), "column status is not there; allowed: string, once"),
        (lambda t: t.append_column("status", t["status"]), "column status is string, string"),
        (lambda t: t.set_column(0, "case", pa.array(["x"] * len(t))), "column case is string; allowed: int64"),
        (lambda t: t.replace_schema_metadata({}), "is not the results of planner sweep"),
        (lambda t: t.replace_schema_metadata({b"planner": b"null"}), "is not the results of planner sweep"),
        (lambda t: t.replace_schema_metadata({b"planner": b"[" * 100_000}), "is not the results of planner sweep"),
        (lambda t: t.set_column(1, t.schema.field(1), pa.array([None] * len(t), pa.string())), "has no value"),
    ],
)
def test_results_that_were_rewritten(tiny, tmp_path, change, said):
    out = tmp_path / "out.parquet"
    run(tiny, out)
    _rewritten(out, change)
    with pytest.raises(FileFormatError, match=said):
        read_results(out)


def test_results_with_one_bit_of_a_number_changed(tiny, tmp_path):
    out = tmp_path / "out.parquet"
    run(tiny, out)
    column = pq.read_metadata(out).row_group(0).column(0)
    begin = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(out.read_bytes())
    data[begin + column.total_compressed_size - 1] ^= 1  # the last of its pages, not a header
    out.write_bytes(data)
    with pytest.raises(FileFormatError, match=r"out\.parquet: can't be read"):
        read_results(out)


@pytest.mark.parametrize("change", ["definition", "profile", "versions"])
def test_parts_of_another_sweep_are_refused(tiny, tmp_path, change, monkeypatch):
    model = tmp_path / "mine.toml"
    shape = "layers = 4\nhidden = 256\nheads = 4\nvocab = 1024\nseq_len = 128\n"
    model.write_text(f'[model]\nfamily = "gpt"\n{shape}')
    tiny.write_text(tiny.read_text().replace('"gpt2"', '"mine.toml"'))  # a path from the sweep's folder
    out = tmp_path / "out.parquet"
    with pytest.raises(KeyboardInterrupt):
        run(tiny, out, Here(most=1))
    if change == "definition":
        tiny.write_text(tiny.read_text().replace("[2, 4]", "[4, 2]"))
    elif change == "profile":
        model.write_text(model.read_text().replace("layers = 4", "layers = 8"))
    else:
        from planner.sweeps import run as module

        monkeypatch.setattr(module, "versions", lambda: {"planner": "0.0.1"})
    with pytest.raises(InputError, match=r"other versions: planner" if change == "versions" else "another sweep"):
        run(tiny, out)
    monkeypatch.undo()
    assert run(tiny, out, restart=True).kept_cases == 0


def test_results_of_another_sweep_are_not_overwritten(small, tmp_path):
    out = tmp_path / "out.parquet"
    run(small, out)
    small.write_text(small.read_text().replace("[4, 8]", "[8]"))
    before = out.read_bytes()
    with pytest.raises(InputError, match="another sweep's results"):
        run(small, out)
    assert out.read_bytes() == before
    assert run(small, out, restart=True).cases == 48
    out.write_text("something of mine")
    for restart in (False, True):
        with pytest.raises(InputError, match="not the results of a sweep"):
            run(small, out, restart=restart)
    assert out.read_text() == "something of mine"


def test_two_runs_at_once_are_refused(small, tmp_path):
    out = tmp_path / "out.parquet"

    class Nested(Here):
        def answers(self, chunks: Iterator[Chunk]) -> Generator[ChunkAnswer]:
            with pytest.raises(InputError, match="another planner sweep works in it"):
                run(small, out)
            yield from super().answers(chunks)

    run(small, out, Nested())


def counted(monkeypatch: pytest.MonkeyPatch, at: int, when: str) -> list[int]:
    """Renames and removals count up in what is returned; the process is killed before or after the one of number at."""
    calls = [0]

    def killing(do: Callable[..., Any]) -> Callable[..., Any]:
        def done(*args: Any, **named: Any) -> Any:
            calls[0] += 1
            number = calls[0]
            if number == at and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = do(*args, **named)
            if number == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return done

    monkeypatch.setattr(Path, "replace", killing(Path.replace))
    monkeypatch.setattr(os, "unlink", killing(os.unlink))
    return calls


def test_killed_around_any_rename_or_removal(small, tmp_path, monkeypatch):
    """All of a small sweep's steps that a file system shows: the parts' renames, the results', the folder's removal."""
    small.write_text(
        small.read_text().replace("[8, 40, 80]", "[80]").replace("[4, 8]", "[8]").replace("[8, 16]", "[8]")
    )
    with monkeypatch.context() as patched:
        calls = counted(patched, 0, "never")
        run(small, tmp_path / "whole.parquet")
    steps = calls[0]
    assert steps >= 5  # the manifest, two parts, the results, the folder's files
    out = tmp_path / "out.parquet"
    for at in range(1, steps + 1):
        out.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            signal.alarm(HANG_S)
            try:
                counted(monkeypatch, at, random.Random(at).choice(["before", "after"]))
                run(small, out)
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        run(small, out)
        assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
        assert not parts_folder(out).exists()


def _workers_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


@pytest.mark.slow
def test_the_command_killed_three_times_at_random(small, tmp_path, planner: Callable[..., subprocess.Popen[str]]):
    small.write_text(small.read_text().replace("[8, 40, 80]", "[8, 20, 40, 60, 80]"))
    run(small, tmp_path / "whole.parquet")
    out = tmp_path / "out.parquet"
    draw = random.Random(20)
    killed = kept = 0
    while killed < 3:
        process = planner("sweep", small, "-o", out, "--workers", "2")
        begun, before = time.monotonic(), kept
        # At least one more part each time, or it would never end; then a moment drawn at random.
        while kept == before and time.monotonic() - begun < 300:
            time.sleep(0.02)
            kept = len(list(parts_folder(out).glob("part-*.json"))) if parts_folder(out).exists() else 0
        time.sleep(draw.uniform(0, 0.1))
        workers = _workers_of(process.pid)
        assert process.poll() is None, "the sweep was too short to be killed"
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        killed += 1
        for _ in range(100):
            if not any(Path(f"/proc/{pid}").exists() for pid in workers):
                break
            time.sleep(0.05)
        else:
            pytest.fail("workers outlived the process that started them")
        assert not out.exists()
    process = planner("sweep", small, "-o", out)
    printed, said = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, said
    assert "kept from an earlier run" in printed
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_a_workers_death_costs_only_its_chunk(small, tmp_path):
    """Workers of the local scheduler are killed as they work: their chunks are done again, and nothing twice."""
    run(small, tmp_path / "whole.parquet")
    seen: list[int] = []

    class Killing(Local):
        def answers(self, chunks: Iterator[Chunk]) -> Generator[ChunkAnswer]:
            for found in super().answers(chunks):
                seen.append(found.chunk)
                if len(seen) in (3, 8):
                    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
                yield found

    run_sweep(load_sweep(small), tmp_path / "out.parquet", Killing(2).answers)
    assert sorted(seen) == list(range(48))
    assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not multiprocessing.active_children()


def test_a_chunk_that_ends_every_worker_is_given_up(small, tmp_path):
    class Deadly(Local):
        def _employ(self, crew: Any, again: Any, chunks: Iterator[Chunk]) -> None:
            super()._employ(crew, again, chunks)
            for worker in crew:
                worker.process.kill()

    with pytest.raises(ExecutionError, match=r"3 workers died on gpt2 on 4 GPUs .* run the same command to go on"):
        run_sweep(load_sweep(small), tmp_path / "out.parquet", Deadly(1).answers)
    assert parts_folder(tmp_path / "out.parquet").exists()


def test_other_versions_in_a_worker_are_named(small):
    sweep = load_sweep(small)
    chunk = Chunk(number=0, searches=(sweep.search(0),), columns=(), tokens=None, versions={"numpy": "1.0"})
    with pytest.raises(ExecutionError, match=r"numpy 1.0 here, .* there"):
        answer(chunk)
