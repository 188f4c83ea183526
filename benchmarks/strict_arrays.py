"""A stand-in for CuPy on a machine without a GPU: numpy behind arrays that refuse what CuPy's refuse.

Implicit conversion to numpy's (`numpy.asarray(x)`, a numpy function, a buffer, MPI), numpy's arrays mixed with the
device's in arithmetic, assignment, indices or a call, and reading a copy that was not waited for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

IMPLICIT = "implicit conversion to a NumPy array is not allowed; use .get()"
MIXED = "unsupported type numpy.ndarray: host and device arrays don't mix"
FROM_HOST = ("asarray", "array")  # the functions that take numpy's arrays


class DeviceArray:
    """An array that only `get` takes off its device."""

    __array_ufunc__ = None  # numpy's operators leave it to ours

    def __init__(self, on_device: Any) -> None:
        self._on_device = np.asarray(on_device)

    def __array__(self, *args: Any, **more: Any) -> Any:
        raise TypeError(IMPLICIT)

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        """A copy on the host; without `blocking` what it holds is only there when the stream was waited for."""
        host = np.empty_like(self._on_device) if out is None else out
        if blocking:
            host[...] = self._on_device
            return host
        if stream is None:
            raise TypeError("a copy that isn't waited for needs a stream to wait for")
        host[...] = np.nan if host.dtype.kind == "f" else 0
        stream.pending.append((host, self._on_device.copy()))
        return host

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._on_device, name)
        return _wrapped_call(value) if callable(value) and name not in ("item", "tolist") else _on_device(value)

    def __getitem__(self, index: Any) -> Any:
        return DeviceArray(self._on_device[_checked(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self._on_device[_checked(index)] = _checked(value)

    def __len__(self) -> int:
        return len(self._on_device)

    def __iter__(self) -> Any:
        return (DeviceArray(x) for x in self._on_device)

    def __float__(self) -> float:
        return float(self._on_device)

    def __int__(self) -> int:
        return int(self._on_device)

    def __index__(self) -> int:
        return operator.index(self._on_device.item())

    def __bool__(self) -> bool:
        return bool(self._on_device)

    __hash__ = None  # type: ignore[assignment]


def _operator(name: str, swapped: bool = False, in_place: bool = False) -> Callable[..., Any]:
    of = getattr(operator, name)

    def apply(self: DeviceArray, *others: Any) -> Any:
        mine, theirs = self._on_device, [_checked(x) for x in others]
        if in_place:
            self._on_device = of(mine, *theirs)
            return self
        return DeviceArray(of(*theirs, mine) if swapped else of(mine, *theirs))

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor"):
    _plain = _name.rstrip("_")
    setattr(DeviceArray, f"__{_plain}__", _operator(_name))
    setattr(DeviceArray, f"__r{_plain}__", _operator(_name, swapped=True))
    setattr(DeviceArray, f"__i{_plain}__", _operator(f"i{_plain}", in_place=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "abs", "invert"):
    setattr(DeviceArray, f"__{_name}__", _operator(_name))


def _checked(value: Any) -> Any:
    """What numpy is given in a device array's place; numpy's own arrays are refused, its scalars are not."""
    if isinstance(value, DeviceArray):
        return value._on_device
    if isinstance(value, np.ndarray):
        raise TypeError(MIXED)
    if isinstance(value, tuple | list):
        return type(value)(_checked(x) for x in value)
    return {key: _checked(x) for key, x in value.items()} if isinstance(value, dict) else value


def _on_device(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return DeviceArray(value)
    return type(value)(_on_device(x) for x in value) if type(value) in (tuple, list) else value


def _wrapped_call(function: Any, takes_host: bool = False) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        first = args
        if takes_host and args and isinstance(args[0], np.ndarray):
            first = (DeviceArray(args[0]), *args[1:])
        return _on_device(function(*_checked(first), **_checked(more)))

    return call


class _Function:
    """A function of the library, with the unbuffered `at` of the ufuncs."""

    def __init__(self, name: str, function: Any) -> None:
        self._call = _wrapped_call(function, takes_host=name in FROM_HOST)
        if hasattr(function, "at"):
            self.at = _wrapped_call(function.at)

    def __call__(self, *args: Any, **more: Any) -> Any:
        return self._call(*args, **more)


class Stream:
    """Where copies wait that nobody has waited for."""

    def __init__(self) -> None:
        self.pending: list[tuple[Any, Any]] = []

    def synchronize(self) -> None:
        """Wait for all of them."""
        for host, value in self.pending:
            host[...] = value
        self.pending.clear()


class StrictArrays:
    """The library: numpy's names, the arrays above."""

    __name__ = "strict"
    ndarray = DeviceArray

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        plain = isinstance(value, type) or not callable(value) or name in ("promote_types", "result_type")
        return value if plain else _Function(name, value)
