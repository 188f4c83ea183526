"""Checkpoints that a kill can't corrupt: each rank's file is written whole under a name of its own, then `latest.json`
is replaced in one move, then older files go. So `latest.json` names complete files at every moment.

Arrays are stored as they are, so a run goes on to the bit. A checkpoint belongs to one model, layout and optimizer.
Each file has a digest: a rank's is of its arrays, its step and the run that wrote them.
"""

import hashlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np

from planner.base.errors import FileFormatError, InputError, OutputError, shown
from planner.base.files import replace_file
from planner.base.state import DIGEST, digest, read_state, write_state
from planner.trainer.arrays import Array, on_host
from planner.trainer.text import Samples
from planner.trainer.worker import Worker

LATEST = "latest.json"
MOST_STEPS = 2**53
MOST_HEADER_BYTES = 4096


def fingerprint(worker: Worker, samples: Samples) -> dict[str, Any]:
    """Facts that must agree for a checkpoint to fit. The learning rate and the weight decay may change."""
    task = worker.task
    rows = [[(op.stage, op.kind, op.micro_batch, op.slice) for op in row] for row in task.rows]
    return {
        "model": asdict(task.model),
        "dp": task.dp,
        "tp": task.tp,
        "ep": [task.ep, task.balance, task.picks],
        "cp": [task.cp, task.ulysses, task.gathered_keys, task.zigzag],
        "pp": task.pp,
        "mtp": task.mtp_weight,
        "stages": task.num_stages,
        "zero": task.zero,
        "dp_replicate": task.dp_replicate,
        "dtype": np.dtype(task.dtype).name,
        "seed": task.seed,
        "clip": task.clip,
        "optimizer": type(worker.optimizer).__name__,
        **samples.fingerprint(),
        "slice_bounds": [int(x) for x in task.bounds],
        "schedule": hashlib.sha256(repr(rows).encode()).hexdigest(),
    }


def save_checkpoint(folder: Path, worker: Worker, samples: Samples) -> None:
    """Write this rank's part; when all have, make it the latest. Called by every rank.

    Raises OutputError if the folder can't be written; the checkpoint before stays the latest.
    """
    arrays = {key: on_host(value) for key, value in _arrays(worker).items()}
    fits = fingerprint(worker, samples)
    arrays[DIGEST] = _digest(worker, worker.steps, fits, arrays)
    _write(_part(folder, worker.steps, worker.mesh.rank), lambda stream: np.savez(stream, **arrays))
    worker.communicator.barrier()
    if worker.mesh.rank == 0:
        latest = {"step": worker.steps, "fits": fits}
        if worker.scale is not None:
            latest["loss_scale"] = [worker.scale.value, worker.scale.good_steps]
        write_state(folder / LATEST, latest)
    worker.communicator.barrier()
    for old in folder.glob(f"step-*.rank-{worker.mesh.rank}.npz"):
        if old != _part(folder, worker.steps, worker.mesh.rank):
            old.unlink(missing_ok=True)


def load_checkpoint(folder: Path, worker: Worker, samples: Samples) -> bool:
    """Go on where the folder's latest checkpoint was; False where it has none.

    Raises FileFormatError for a damaged file, InputError for the checkpoint of another model, layout or optimizer.
    """
    path = folder / LATEST
    if not path.exists():
        return False
    step, fits, scale, good_steps = _latest(path)
    expected = json.loads(json.dumps(fingerprint(worker, samples)))
    if apart := _difference(fits, expected):
        raise InputError(f"{folder}: a checkpoint of a different run: {apart}; choose another folder")
    part, mine = _part(folder, step, worker.mesh.rank), _arrays(worker)
    found = _read_part(part, mine | {DIGEST: _digest(worker, step, expected, {})})
    if found.pop(DIGEST).tobytes() != _digest(worker, step, expected, found).tobytes():
        raise _damaged(part, "other numbers than were written, or those of another step, rank or run")
    for key, value in found.items():
        mine[key][...] = value if isinstance(mine[key], np.ndarray) else worker.communicator.xp.asarray(value)
    worker.host.forget()
    worker.steps = step
    if worker.scale is not None:
        worker.scale.value, worker.scale.good_steps = scale, good_steps
    worker.store.publish()
    return True


def _arrays(worker: Worker) -> dict[str, Array]:
    """Arrays that this rank keeps between steps, by name in the file: weights and optimizer state, of shape (k,)."""
    out = {}
    for name in worker.store.units:
        owned = worker.store.owned(name)[0]
        out[f"{name}/w"] = owned
        here = (np, on_host(owned)) if name in worker.host.units else (worker.communicator.xp, owned)
        for key, value in worker.optimizer.state(here[0], name, here[1]).items():
            out[f"{name}/{key}"] = value
    return out


def _digest(worker: Worker, step: int, fits: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """A digest of a rank's arrays, and of when and where they were written; shape (32,), uint8."""
    written = {"step": step, "rank": worker.mesh.rank, "fits": fits, "names": sorted(arrays)}
    data = (np.ascontiguousarray(arrays[key]).reshape(-1).view(np.uint8).data for key in sorted(arrays))
    return np.frombuffer(digest(written, *data), dtype=np.uint8)


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any], within: str = "") -> str:
    """The first thing that differs between two fingerprints, in words; empty where none does."""
    for key, here in ours.items():
        there = theirs.get(key)
        if there == here:
            continue
        if isinstance(here, dict) and isinstance(there, dict) and (inner := _difference(there, here, f"{key}.")):
            return inner
        unsaid = key in ("text", "schedule") or isinstance(here, dict)  # digests, and what is no fingerprint
        return f"{within}{key} is {'another' if unsaid else f'{shown(there)} there, {shown(here)} here'}"
    return ""


def _damaged(path: Path, reason: str) -> FileFormatError:
    return FileFormatError(f"{path}: damaged checkpoint: {reason}; choose another folder or delete it")


def _latest(path: Path) -> tuple[int, dict[str, Any], float, int]:
    """Step, fingerprint, loss scale and good steps at that scale. Raises FileFormatError if the file is damaged."""
    latest = read_state(path)
    step, fits, scale = latest.get("step"), latest.get("fits"), latest.get("loss_scale", [1.0, 0])
    value, good_steps = scale if isinstance(scale, list) and len(scale) == 2 else (None, None)
    if not (_is_count(step) and _is_count(good_steps) and isinstance(fits, dict) and _is_positive(value)):
        raise FileFormatError(f"{path}: not a checkpoint's {LATEST}; choose another folder or delete it")
    return step, fits, value, good_steps


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < MOST_STEPS


def _is_positive(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and 0 < value < math.inf


def _read_part(path: Path, expected: Mapping[str, Array]) -> dict[str, Any]:
    """The arrays of a rank's file; each has the expected name, shape and dtype, and is finite."""
    if not path.is_file():
        raise _damaged(path, "no such file")
    out = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if members.keys() != expected.keys() or len(members) != len(archive.infolist()):
                wrong = min(members.keys() ^ expected.keys(), default="a name")
                raise _damaged(path, f"{wrong!r} is {'missing' if wrong in expected else 'not of this run'}")
            for key, info in members.items():
                if info.file_size > expected[key].nbytes + MOST_HEADER_BYTES:
                    raise _damaged(path, f"{key!r} is larger than this run's")
                out[key] = np.lib.format.read_array(io.BytesIO(archive.read(info)), allow_pickle=False)
    except FileFormatError:
        raise
    except (OSError, ValueError, EOFError, RuntimeError, TypeError, KeyError, zipfile.BadZipFile, zlib.error):
        raise _damaged(path, "not an archive of arrays") from None
    for key, array in out.items():
        if array.shape != expected[key].shape or array.dtype != expected[key].dtype:
            raise _damaged(path, f"{key!r} has another shape or dtype")
        if not np.isfinite(array).all():
            raise _damaged(path, f"{key!r} is not finite")
    return out


def _part(folder: Path, step: int, rank: int) -> Path:
    return folder / f"step-{step:08d}.rank-{rank}.npz"


def _write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a whole file or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, write)
    except OSError as error:
        raise OutputError(f"{path}: can't be written: {error.strerror}") from None
