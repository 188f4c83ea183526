"""Traces of PyTorch's profiler (Kineto, Chrome's format), read event by event: how devices spend a step."""

import codecs
import json
import re
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import FileFormatError, one_line
from planner.imports.trace_kinds import kind_of, opened, rules

CHUNK, MOST_EVENT, MOST_HEAD = 2**20, 2**22, 2**26
MOST_OPERATIONS, MOST_NAMES = 5_000_000, 1000
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
ANNOTATIONS = ("gloo:", "Optimizer.step#")  # on a processor, where they say what operations don't
RANK = re.compile(r'"distributedInfo"\s*:\s*\{[^{]{0,200}"rank"\s*:\s*(\d{1,9})\b')
GAP_S = 10e-6


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The devices of a trace, or its processes if it has no kernel: the mean of their `steps` marked ones (0: none is).

    parts: [seconds while nothing that is named before runs, the sum of the operations' seconds, how many], by their
    kind of `trace_kinds.toml`, or collective and group; the first of these and `idle_s` add up to `step_s`. gaps: how
    often it idles for over 10 us.

    Raises FileFormatError if it can't be read, is no whole JSON, has no operation, or over 5,000,000 of them.
    """
    tracks: dict[tuple[bool, str], tuple[Any, Any, Any]] = defaultdict(lambda: (array("d"), array("d"), array("H")))
    names: dict[str, int] = {}
    steps: set[str] = set()
    count, events = 0, _events(path)
    rank = next(events)["rank"]
    for event in events:
        name, category = str(event.get("name")), str(event.get("cat")).lower()
        if name.startswith("ProfilerStep#"):
            steps.add(name[:24])
        on_device = category in DEVICE
        on_host = category == "cpu_op" and not name.startswith("autograd::engine")
        if not (on_device or on_host or (category == "user_annotation" and name.startswith(ANNOTATIONS))):
            continue
        begin, took = event.get("ts"), event.get("dur")
        if isinstance(begin, int | float) and isinstance(took, int | float) and 0 <= took <= 1e12 and abs(begin) < 1e18:
            start, end, which = tracks[on_device, _told(event.get("pid"))]
            start.append(begin)
            end.append(begin + took)
            which.append(names.setdefault(_named(name, event.get("args")), len(names)))
            count += 1
        if count > MOST_OPERATIONS or max(len(names), len(tracks), len(steps)) > MOST_NAMES:
            raise FileFormatError(f"{path}: has over {MOST_OPERATIONS:,} operations; allowed: a trace of fewer steps")
    if not tracks:
        raise FileFormatError(f"{path}: has no kernel and no operation; allowed: a trace of PyTorch's profiler")
    on_device = any(key[0] for key in tracks)
    kept = {pid: track for (kernels, pid), track in tracks.items() if kernels == on_device}
    if any(max(end) <= min(start) for start, end, _ in kept.values()):
        raise FileFormatError(f"{path}: no operation takes any time; allowed: a trace of PyTorch's profiler")
    kind = "GPU" if on_device else "process"
    own = {"trace": str(path), "rank": rank}
    return [
        own | {"device": one_line(f"{kind} {pid[:20]}".strip())} | _spent(*track, list(names), len(steps))
        for pid, track in kept.items()
    ]


def _told(name: Any) -> str:
    """What a trace calls a device or a group, by text or a whole number; nothing if it is something else."""
    return str(name) if isinstance(name, str | int) else ""


def _named(name: str, found: Any) -> str:
    """What an operation is counted as: its kind; of communication, which collective, and its group."""
    kind = kind_of("operations", name)
    if kind != "communication":
        return kind
    args = found if isinstance(found, dict) else {}
    group, size = _told(args.get("Process Group Description")), args.get("Group size")
    what = kind_of("collectives", str(args.get("Collective name", name)))
    return one_line(what + (f", {group}"[:80] if group else "") + (f" of {size}"[:20] if isinstance(size, int) else ""))


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """A trace's events, after its head as {"rank": the rank that wrote it}."""
    chunks, decode, between = _text(path), json.JSONDecoder().raw_decode, re.compile(r"[\s,]*")
    text, start, more = "", None, "more"
    while start is None:
        if not more or len(text) > MOST_HEAD:
            raise FileFormatError(f"{path}: is JSON without traceEvents; allowed: a trace of PyTorch's profiler")
        more = next(chunks, "")
        text += more
        start = re.match(r"\s*\[", text) or re.search(r'"traceEvents"\s*:\s*\[', text)
    rank = RANK.search(text[: start.start()])
    yield {"rank": int(rank[1]) if rank else 0}
    at, number = start.end(), 0
    while not text.startswith("]", at := between.match(text, at).end()):  # type: ignore[union-attr]
        try:
            event, at = decode(text, at)
        except (ValueError, RecursionError):
            more = next(chunks, "") if len(text) - at < MOST_EVENT else ""
            if not more:
                said = f"is no whole JSON at event {number + 1:,}: cut off, or written by two at once"
                raise FileFormatError(f"{path}: {said}; allowed: a trace as PyTorch's profiler wrote it") from None
            text, at = text[at:] + more, 0
            continue
        number += 1
        if isinstance(event, dict) and event.get("ph") == "X":
            yield event


def _text(path: Path) -> Iterator[str]:
    """A file's text in pieces. Raises FileFormatError if it can't be read or unpacked."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        with opened(path) as stream:
            while data := stream.read(CHUNK):
                yield decoder.decode(data)
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from None


def _spent(start_us: Any, end_us: Any, names_at: Any, names: list[str], steps: int) -> dict[str, Any]:
    """A device's operations as its parts: a moment belongs to the part that is named first of those that run in it."""
    start, end, which = np.frombuffer(start_us) * 1e-6, np.frombuffer(end_us) * 1e-6, np.frombuffer(names_at, np.uint16)
    order = np.argsort(start, kind="stable")
    start, end, which = start[order], end[order], which[order]
    kinds, many = list(rules("operations")), steps or 1
    parts, before, seen = {}, 0.0, np.zeros(len(start), bool)
    for name in sorted(names, key=lambda one: (kinds.index(one) if one in kinds else len(kinds), one)):
        own = which == names.index(name)
        if own.any():
            seen |= own
            until = float(end[seen].max() - start[seen][0] - _gaps_s(start[seen], end[seen]).sum())
            parts[name] = [(until - before) / many, float((end - start)[own].sum()) / many, int(own.sum()) / many]
            before = until
    gaps, span = _gaps_s(start, end), float(end.max() - start[0])
    return {
        "steps": steps, "step_s": span / many, "parts": parts, "idle_s": (span - before) / many,
        "gaps": int(np.sum(gaps > GAP_S)) / many, "longest_gap_s": float(gaps.max(initial=0.0)),
    }  # fmt: skip


def _gaps_s(start: Array, end: Array) -> Array:
    """Seconds between intervals, sorted by their starts, in which none runs."""
    return np.asarray(np.maximum(start[1:] - np.maximum.accumulate(end)[:-1], 0.0))
