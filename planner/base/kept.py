"""What takes long to make, kept by its key: the latest used, as far as their sizes allow. For many threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sized
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Sized)


class Kept(Generic[K, V]):
    """most: of what is kept, the sum of its lengths; what alone is longer is not kept."""

    def __init__(self, most: int) -> None:
        self._most, self._total = most, 0
        self._made: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """What `make` made for the key, now or before."""
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key]
        made = make()
        with self._lock:
            if key not in self._made:
                self._made[key] = made
                self._total += len(made)
            while self._total > self._most:
                self._total -= len(self._made.popitem(last=False)[1])
        return made
