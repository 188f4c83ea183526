"""Memory snapshots of PyTorch's allocator (`torch.cuda.memory._dump_snapshot`): the peak, by who asked for it."""

import pickle
import struct
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError, one_line
from planner.base.units import GIB
from planner.imports.trace_kinds import kind_of, opened

MOST_BYTES = 2**28
ACTIVE = {"alloc": 1, "free_completed": -1}
RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class _Plain(pickle._Unpickler):
    """Plain values alone. It is Python's own: the one in C may take memory that no byte of the file fills."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuses all classes and functions."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and nothing that a file names is loaded"[:150])


def read_snapshot(path: Path) -> list[dict[str, Any]]:
    """The devices of a snapshot that recorded something: their peaks of active and of reserved GiB.

    kinds_gib: of the former by who asked for it, of `trace_kinds.toml`; places_gib: of the five lines that asked most.

    Raises FileFormatError if it can't be read, names a class or function, is no snapshot, or has over 256 MiB unpacked.
    """
    try:
        with opened(path) as stream:
            if len(stream.read(MOST_BYTES + 1)) > MOST_BYTES:
                raise FileFormatError(f"{path}: has over {MOST_BYTES:,} bytes; allowed: one with fewer max_entries")
            stream.seek(0)
            found = _Plain(stream).load()
        out = [
            {"snapshot": str(path), "device": i} | _device(found["segments"], history, i)
            for i, history in enumerate(found["device_traces"])
            if history
        ]
    except (OSError, EOFError, zlib.error, struct.error, pickle.UnpicklingError) as error:
        raise FileFormatError(f"{path}: can't be read: {error or 'it is cut off'}") from None
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FileFormatError(f"{path}: is no snapshot of PyTorch's allocator ({type(error).__name__})") from None
    if not out:
        raise FileFormatError(f"{path}: has no history; allowed: a snapshot after _record_memory_history()")
    return out


def _device(segments: list[Any], history: list[Any], device: int) -> dict[str, Any]:
    """Goes back from the end, entry by entry, to the peak, and from there to who asked for what is active then."""
    own = [s for s in segments if s["device"] == device]
    live: dict[int, tuple[int, str | None]] = {
        b["address"]: (int(b["requested_size"]), _frames(b) or None)
        for s in own for b in s["blocks"] if b["state"].startswith("active")
    }  # fmt: skip
    active = level = sum(size for size, _ in live.values())
    most_reserved = reserved = sum(int(s["total_size"]) for s in own)
    peak = len(history)
    for i, entry in reversed(list(enumerate(history))):
        level -= ACTIVE.get(entry["action"], 0) * int(entry["size"])
        reserved -= RESERVED.get(entry["action"], 0) * int(entry["size"])
        most_reserved = max(most_reserved, reserved)
        if level > active:
            active, peak = level, i
    for i, entry in reversed(list(enumerate(history))):
        address, size = entry.get("addr"), int(entry["size"])
        if i >= peak and entry["action"] == "free_completed":
            live[address] = size, None
        elif i >= peak and entry["action"] == "alloc":
            live.pop(address, None)
        elif entry["action"] == "alloc" and live.get(address, (0, ""))[1] is None:
            live[address] = size, _frames(entry)
    kinds: Counter[str] = Counter()
    places: Counter[str] = Counter()
    for size, frames in live.values():
        kinds["before the recording" if frames is None else kind_of("memory", frames) if frames else "backward"] += size
        places[frames.split("\n")[0] if frames else "no line of Python (the backward pass)"] += size
    return {
        "peak_gib": active / GIB, "reserved_gib": most_reserved / GIB,
        "kinds_gib": {kind: size / GIB for kind, size in kinds.most_common()},
        "places_gib": {place: size / GIB for place, size in places.most_common(5)},
    }  # fmt: skip


def _frames(entry: Mapping[str, Any]) -> str:
    """The Python frames of an entry, the innermost first: file:line function, a line each."""
    frames = entry.get("frames") or ()
    texts = (f"{f['filename']}:{int(f['line'])} " + f["name"] for f in frames if f["filename"].endswith(".py"))
    return "\n".join(map(one_line, texts))
