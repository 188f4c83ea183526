"""Waiting for coroutines from tests."""

import asyncio
from concurrent.futures import ThreadPoolExecutor


def at_last(coroutine):
    """What a coroutine returns; in a thread, for Playwright has a loop of its own in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
