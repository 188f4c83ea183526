"""Searches for many askers: a few at a time, a bounded queue, answers kept, what nobody waits for dropped."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

Gone = Callable[[], Awaitable[Any]]
"""Returns when the asker has left."""


class BusyError(Exception):
    """Too many searches wait already."""


@dataclass
class _Job:
    future: Future[Any]
    askers: int = 0


class Searches:
    """Runs work in threads, and keeps what it made by its key, the latest used.

    at_once: threads. waiting: most jobs that run or wait. kept: most answers that are kept.
    """

    def __init__(self, *, at_once: int = 2, waiting: int = 128, kept: int = 24) -> None:
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="search")
        self._waiting, self._kept = waiting, kept
        self._under_way: dict[Hashable, _Job] = {}
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()

    def __len__(self) -> int:
        """Jobs that run or wait."""
        return len(self._under_way)

    async def get(self, key: Hashable, make: Callable[[], Any], gone: Gone) -> Any:
        """The result of `make`; None if the asker left first.

        Askers of one key share one job. A job that hasn't begun is dropped when all its askers have left.
        Raises:
            BusyError: too many jobs wait. Whatever `make` raises.
        """
        if key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key]
        job = self._under_way.get(key)
        if job is None or job.future.cancelled():
            job = self._begin(key, make)
        job.askers += 1
        answer, leaving = asyncio.wrap_future(job.future), asyncio.ensure_future(gone())
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to see it
        try:
            await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else None
        finally:
            leaving.cancel()
            job.askers -= 1
            if not job.askers and not job.future.done():
                job.future.cancel()

    def _begin(self, key: Hashable, make: Callable[[], Any]) -> _Job:
        if len(self._under_way) >= self._waiting:
            raise BusyError
        loop = asyncio.get_running_loop()
        job = self._under_way[key] = _Job(self._pool.submit(make))

        def tell(done: Future[Any]) -> None:
            with suppress(RuntimeError):  # the server has ended, and nobody waits
                loop.call_soon_threadsafe(self._end, key, done)

        job.future.add_done_callback(tell)
        return job

    def _end(self, key: Hashable, done: Future[Any]) -> None:
        job = self._under_way.get(key)
        if job is not None and job.future is done:
            del self._under_way[key]
        if not done.cancelled() and done.exception() is None:
            self._answers[key] = done.result()
            self._answers.move_to_end(key)
            while len(self._answers) > self._kept:
                self._answers.popitem(last=False)

    def close(self) -> None:
        """Drop what waits; what runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
