"""The array library: numpy, or CuPy with the same calls. Every function that makes arrays is given it as `xp`."""

import importlib
from dataclasses import fields, is_dataclass
from typing import Any

from planner.base.errors import InputError

# An array of either library; shapes are in the names (legend at the top of each file), not in the type.
Array = Any

DEVICES = ("cpu", "gpu")


def xp_for(device: str) -> Any:
    """The array library of a device: numpy for `cpu`, CuPy for `gpu`.

    Raises InputError if there is no such device, or no CuPy or no GPU that it can use.
    """
    if device == "cpu":
        return importlib.import_module("numpy")
    if device != "gpu":
        raise InputError(f"device is {device!r}; allowed: {', '.join(DEVICES)}")
    try:
        xp = importlib.import_module("cupy")
        count = int(xp.cuda.runtime.getDeviceCount())
    except ImportError:
        raise InputError("device is 'gpu' but CuPy is not installed; pip install '.[gpu]', or use cpu") from None
    except Exception as error:  # CuPy's own errors can't be named without CuPy
        raise InputError(f"device is 'gpu' but no GPU can be used ({error}); use cpu") from None
    if not count:
        raise InputError("device is 'gpu' but this machine has none; use cpu")
    return xp


def on_host(array: Array) -> Array:
    """The array as a numpy one, copied off the device where it must be."""
    return array.get() if hasattr(array, "get") else array


def wide(x: Array) -> Array:
    """A 16-bit array in 32 bits, for sums and exponentials; others as they are."""
    return x.astype("float32") if x.dtype.itemsize < 4 else x


def num_bytes(*values: Any) -> int:
    """Bytes of the arrays found in nested tuples, lists, dictionaries and dataclasses, each array once."""
    seen: dict[int, int] = {}
    todo = list(values)
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo.extend(value.values())
        elif isinstance(value, tuple | list):
            todo.extend(value)
        elif is_dataclass(value):
            todo.extend(getattr(value, f.name) for f in fields(value))
        elif hasattr(value, "nbytes"):
            seen[id(value)] = int(value.nbytes)
    return sum(seen.values())
