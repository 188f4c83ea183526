"""Who may ask, and how much: the first thing that a request meets."""

import asyncio
import json
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from planner.base.errors import InputError

LARGEST_BODY = 256 * 1024  # bytes: a config.json has some thousand
SLOWEST_BODY_S = 10.0
COOKIE = "planner-token"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Headers = list[tuple[bytes, bytes]]


class Guard:
    """Refuses what the page itself would not send: another Host or Origin, no token where one is needed.

    hosts: the names that a Host header may have, any where None. token: what a browser must show; "" for none.
    """

    def __init__(self, app: ASGIApp, *, hosts: tuple[str, ...] | None = LOOPBACK, token: str = "") -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, or say in a line why not."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
            host, asked = headers.get("host", ""), parse_qs(scope["query_string"].decode("latin-1"))
            if self.hosts is not None and _name(host) not in self.hosts:
                await refuse(send, 403, f"Host is {host[:80]!r}; allowed: {', '.join(self.hosts)}")
            elif headers.get("origin", f"http://{host}") != f"http://{host}":
                await refuse(send, 403, "Origin is another page's; allowed: this page's own")
            elif self.token and secrets.compare_digest(asked.get("token", [""])[0].encode(), self.token.encode()):
                cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                await refuse(send, 303, "See /", [(b"location", b"/"), (b"set-cookie", cookie.encode())])
            elif self.token and not secrets.compare_digest(_shown(headers).encode(), self.token.encode()):
                await refuse(send, 401, "the token is missing or wrong; open the address that planner serve printed")
            else:
                await self.app(scope, receive, send)


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _shown(headers: dict[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


async def refuse(send: Send, status: int, text: str, more: Headers | None = None) -> None:
    """Answer with one line."""
    body = json.dumps({"error": text}).encode()
    kind = (b"content-type", b"application/json")
    await send({"type": "http.response.start", "status": status, "headers": [kind, *(more or [])]})
    await send({"type": "http.response.body", "body": body})


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        InputError: It is too large, too slow, not declared as JSON, or no object.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise InputError("the request is not JSON; allowed: content-type application/json")
    data = bytearray()

    async def read() -> None:
        async for chunk in request.stream():
            data.extend(chunk)
            if len(data) > LARGEST_BODY:
                raise InputError(f"the request is too long; allowed: {LARGEST_BODY:,} bytes")

    try:
        await asyncio.wait_for(read(), SLOWEST_BODY_S)
        record = json.loads(bytes(data))
    except TimeoutError:
        raise InputError(f"the request is too slow; allowed: {SLOWEST_BODY_S:g} s") from None
    except (ValueError, RecursionError):
        raise InputError("the request is not JSON") from None
    if not isinstance(record, dict):
        raise InputError("the request is no object; allowed: an object with named fields")
    return record
