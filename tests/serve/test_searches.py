"""Searches: askers of the same share one, what nobody waits for is dropped, answers are kept, too many are refused."""

import asyncio
import threading

import pytest

from planner.serve.searches import BusyError, Searches
from tests.serve.waiting import at_last


async def never():
    await asyncio.Event().wait()


def test_askers_of_one_key_share_a_search_and_its_answer_is_kept():
    made = []

    async def ask():
        searches = Searches(at_once=1, kept=2)
        first = await asyncio.gather(*(searches.get("a", lambda: made.append("a") or "A", never) for _ in range(5)))
        for key in "bca":
            await searches.get(key, lambda key=key: made.append(key) or key, never)
        searches.close()
        return first

    assert at_last(ask()) == ["A"] * 5
    assert made == ["a", "b", "c", "a"]  # of two that are kept "a" was the oldest


def test_what_nobody_waits_for_is_dropped_and_too_many_are_refused():
    made, release = [], threading.Event()

    async def ask():
        searches, left = Searches(at_once=1, waiting=2), asyncio.Event()
        running = asyncio.ensure_future(searches.get("runs", lambda: release.wait(10) and "done", never))
        await asyncio.sleep(0.05)
        superseded = asyncio.ensure_future(searches.get("waits", lambda: made.append("waits"), left.wait))
        await asyncio.sleep(0.05)
        with pytest.raises(BusyError):
            await searches.get("third", lambda: None, never)
        left.set()
        assert await superseded is None
        await asyncio.sleep(0.05)
        again = asyncio.ensure_future(searches.get("third", lambda: "third", never))
        await asyncio.sleep(0.05)
        release.set()
        out = await running, await again
        assert len(searches) == 0 or await asyncio.sleep(0.05) or len(searches) == 0
        searches.close()
        return out

    assert at_last(ask()) == ("done", "third")
    assert made == []


def test_a_fault_reaches_every_asker_and_is_not_kept():
    tries = []

    def fail():
        tries.append(1)
        raise ValueError("no")

    async def ask():
        searches = Searches()
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await searches.get("x", fail, never)
            await asyncio.sleep(0.05)
        searches.close()

    at_last(ask())
    assert len(tries) == 2


def test_a_search_that_outlives_the_server_ends_in_silence(caplog):
    release, ended = threading.Event(), threading.Event()

    async def ask():
        searches = Searches(at_once=1)
        running = asyncio.ensure_future(searches.get("runs", lambda: release.wait(10), never))
        while not searches._pool._threads:
            await asyncio.sleep(0.01)
        searches._under_way["runs"].future.add_done_callback(lambda _: ended.set())
        running.cancel()
        searches.close()

    at_last(ask())
    release.set()
    assert ended.wait(10)
    assert caplog.records == []
