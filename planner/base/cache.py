"""`LruCache`: values that take long to make, by their key. The least recently used one goes first. Thread-safe."""

from collections.abc import Callable, Hashable, Sized
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Sized)


class LruCache(Generic[K, V]):
    """A cache of values whose lengths, and one more for each value, add up to `most` at most."""

    def __init__(self, most: int) -> None:
        self._most, self._made, self._lock = most, dict[K, V](), Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value that `make` made for the key, now or before."""
        with self._lock:
            made = self._made.pop(key, None)
        made = make() if made is None else made
        with self._lock:
            self._made[key] = made  # behind all others
            while sum(1 + len(x) for x in self._made.values()) > self._most:
                del self._made[next(iter(self._made))]
        return made
