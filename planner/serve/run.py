"""The server's process: its socket, its limits, the address that it prints."""

from __future__ import annotations

import secrets
import socket

import uvicorn

from planner.base.errors import InputError
from planner.serve.app import make_app
from planner.serve.guard import LOOPBACK

MOST_CONNECTIONS = 256


def run(host: str, port: int, *, local: bool) -> None:
    """Serve until interrupted. local: only this machine can ask, so no token is needed.

    Raises InputError if the host or the port can't be listened on.
    """
    token = "" if local else secrets.token_urlsafe(24)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise InputError(f"--host is {host!r}, --port is {port}; can't listen there: {error.strerror}") from None
    name = f"[{host}]" if ":" in host else host
    where = f"http://{name}:{sock.getsockname()[1]}/"
    print(f"planner serve: {where}{f'?token={token}' if token else ''}", flush=True)
    if not local:
        print("planner serve: others can reach this; whoever has that address can ask. Traffic is not encrypted.")
    print("planner serve: Ctrl + C ends it.", flush=True)
    config = uvicorn.Config(
        make_app(hosts=LOOPBACK if local else None, token=token, warm=True),
        limit_concurrency=MOST_CONNECTIONS, timeout_keep_alive=5, log_level="error", access_log=False,
        server_header=False, lifespan="on", timeout_graceful_shutdown=1,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[sock])
