"""A server to ask, in a thread; and a browser, where there is one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a server that only this machine can ask."""
    uvicorn = pytest.importorskip("uvicorn", reason="no uvicorn: pip install '.[serve]'")
    pytest.importorskip("starlette", reason="no starlette: pip install '.[serve]'")
    from planner.serve.app import make_app

    running = uvicorn.Server(uvicorn.Config(make_app(), port=0, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.02)
    yield f"127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True
    thread.join(10)
