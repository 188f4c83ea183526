"""Checkpoints that a kill can't corrupt: each rank's file is written whole under a name of its own, then `latest.json`
is replaced in one move, then older files go. So `latest.json` names complete files at every moment.

Arrays are stored as they are, so a run goes on to the bit. A checkpoint belongs to one model, layout and optimizer.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from planner.errors import FileFormatError, InputError, OutputError
from planner.files import replace_file
from planner.trainer.arrays import on_host
from planner.trainer.worker import Worker

__all__ = ["load_checkpoint", "save_checkpoint"]

LATEST = "latest.json"


def fingerprint(worker: Worker) -> dict[str, Any]:
    """What must be the same for a checkpoint to fit."""
    task = worker.task
    return {
        "model": asdict(task.model),
        "dp": task.dp,
        "tp": task.tp,
        "pp": task.pp,
        "stages": task.num_stages,
        "zero": task.zero,
        "dp_replicate": task.dp_replicate,
        "dtype": np.dtype(task.dtype).name,
        "seed": task.seed,
        "optimizer": type(worker.optimizer).__name__,
    }


def save_checkpoint(folder: Path, worker: Worker) -> None:
    """Write this rank's part; when all have, make it the latest. Called by every rank.

    Raises:
        OutputError: the folder can't be written; the checkpoint before stays the latest.
    """
    arrays: dict[str, Any] = {}
    for name in worker.store.units:
        arrays[f"{name}/w"] = on_host(worker.store.owned(name)[0])
        states = worker.optimizer.states.get(name, {})
        arrays |= {f"{name}/{key}": on_host(value) for key, value in states.items()}
    _write(_part(folder, worker.steps, worker.mesh.rank), lambda stream: np.savez(stream, **arrays))
    worker.communicator.barrier()
    if worker.mesh.rank == 0:
        latest = {"step": worker.steps, "fits": fingerprint(worker)}
        if worker.scale is not None:
            latest["loss_scale"] = [worker.scale.value, worker.scale.good_steps]
        _write(folder / LATEST, lambda stream: stream.write(json.dumps(latest).encode()))
    worker.communicator.barrier()
    for old in folder.glob(f"step-*.rank-{worker.mesh.rank}.npz"):
        if old != _part(folder, worker.steps, worker.mesh.rank):
            old.unlink(missing_ok=True)


def load_checkpoint(folder: Path, worker: Worker) -> bool:
    """Go on where the folder's latest checkpoint was; False where it has none.

    Raises:
        FileFormatError: a damaged file. InputError: the checkpoint of another model, layout or optimizer.
    """
    path = folder / LATEST
    if not path.exists():
        return False
    try:
        latest = json.loads(path.read_text(encoding="utf-8"))
        step, fits = int(latest["step"]), dict(latest["fits"])
        scale, good_steps = (float(x) for x in latest.get("loss_scale", (1.0, 0.0)))
    except (OSError, ValueError, KeyError, TypeError):
        raise FileFormatError(f"{path}: not a checkpoint's {LATEST}; choose another folder or delete it") from None
    expected = json.loads(json.dumps(fingerprint(worker)))
    if wrong := [key for key in expected if fits.get(key) != expected[key]]:
        shown = f"{fits.get(wrong[0])!r} there, {expected[wrong[0]]!r} here" if wrong[0] != "model" else "another"
        raise InputError(f"{folder}: a checkpoint of a different run: {wrong[0]} is {shown}; choose another folder")
    part = _part(folder, step, worker.mesh.rank)
    try:
        with part.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            _restore(worker, dict(arrays))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise FileFormatError(f"{part}: damaged checkpoint: {error}") from None
    worker.steps = step
    if worker.scale is not None:
        worker.scale.value, worker.scale.good_steps = scale, int(good_steps)
    worker.store.publish()
    return True


def _restore(worker: Worker, arrays: dict[str, Any]) -> None:
    for name in worker.store.units:
        owned = worker.store.owned(name)[0]
        owned[...] = worker.communicator.xp.asarray(arrays.pop(f"{name}/w"))
    for key, value in arrays.items():
        name, _, state = key.rpartition("/")
        worker.optimizer.states.setdefault(name, {})[state] = worker.communicator.xp.asarray(value)


def _part(folder: Path, step: int, rank: int) -> Path:
    return folder / f"step-{step:08d}.rank-{rank}.npz"


def _write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a whole file or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, write)
    except OSError as error:
        raise OutputError(f"{path}: can't be written: {error.strerror}") from None
