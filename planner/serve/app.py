"""The server: the page, and what its script asks for. Every answer is JSON, every fault one line.

Then its process: its socket, its limits, the address that it prints.
"""

import asyncio
import json
import secrets
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from string import Template
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from planner import __version__
from planner.base.errors import InputError, PlannerError, shown
from planner.report.html import page as report_page
from planner.serve import answers
from planner.serve.fields import FIELDS, form_record
from planner.serve.guard import LOOPBACK, Guard, body_of
from planner.serve.question import read_question
from planner.serve.searches import BusyError, Gone, Searches
from planner.step.timeline.engine import compile_engine

ASSETS = Path(__file__).with_name("assets")
UNKEPT = {"x-content-type-options": "nosniff", "cache-control": "no-store", "referrer-policy": "no-referrer"}


def make_app(
    *, hosts: tuple[str, ...] | None = LOOPBACK, token: str = "", searches: Searches | None = None, warm: bool = False
) -> Any:
    """The ASGI application.

    hosts: the names by which a browser may ask, any where None. token: what it must show then, "" for none. warm: at
    the start the question that an empty form asks is searched, and the timeline's engine compiled.
    """
    pool, (html, policy) = searches or Searches(), page_html()
    headers = {**UNKEPT, "content-security-policy": policy}

    async def home(request: Request) -> Response:
        return Response(html, media_type="text/html", headers=headers)

    async def solve(request: Request) -> Response:
        return await _solved(request, pool)

    routes = [Route("/", home), *(Route(f"/{name}", solve, methods=["POST"]) for name in answers.ANSWERS)]
    middleware = [Middleware(Guard, hosts=hosts, token=token), Middleware(GZipMiddleware, minimum_size=1000)]

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        texts = {name: field.default for name, field in FIELDS.items() if field.default}
        never = asyncio.Event().wait
        due = (_plan(pool, texts, never), pool.get("engine", compile_engine, never)) if warm else ()
        first = [asyncio.ensure_future(one) for one in due]
        yield
        for task in first:
            task.cancel()
        pool.close()

    return Starlette(routes=routes, middleware=middleware, lifespan=lifespan)


async def _solved(request: Request, pool: Searches) -> Response:
    """The answer to a POST, or its fault with the status that fits: 200 for what is wrong with the question itself."""
    try:
        texts, make, more = _parsed(request.url.path[1:], await body_of(request))
    except InputError as error:
        return _fault(422, str(error))

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    try:
        planned = await _plan(pool, texts, gone)
        if planned is None:
            return Response(status_code=204)
        if make is None:
            return Response(planned.text, media_type="application/json", headers=UNKEPT)
        whole = json.dumps([request.url.path, texts, more], sort_keys=True)
        text = await pool.get(whole, lambda: make(planned, **more), gone)
        return Response(text or "", media_type="application/json", headers=UNKEPT)
    except PlannerError as error:
        return _fault(200, str(error))
    except (BusyError, MemoryError):
        return _fault(503, "too much is asked at once; ask again in a moment")
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return _fault(500, "planner failed at this question; its terminal has the traceback")


async def _plan(pool: Searches, texts: dict[str, str], gone: Gone) -> answers.Planned | None:
    """The plan of a question, searched or kept; None if the asker left first."""
    key = ("plan", json.dumps(texts, sort_keys=True))
    found: answers.Planned | None = await pool.get(key, lambda: answers.planned(read_question(texts)), gone)
    return found


def _parsed(name: str, body: dict[str, Any]) -> tuple[dict[str, str], Callable[..., str] | None, dict[str, str]]:
    """The question of a request, who answers it, and the texts beside it."""
    texts, more = body.pop("question", None), body
    if not isinstance(texts, dict) or not all(isinstance(v, str) for v in (*texts.values(), *more.values())):
        raise InputError("the request has no question; allowed: a question of texts, and texts beside it")
    make, fields = answers.ANSWERS[name]
    if set(more) != set(fields):
        raise InputError(f"the request has fields {shown(list(more))}; allowed: question, {', '.join(fields)}")
    return texts, make, more


def _fault(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status_code=status, headers=UNKEPT)


def page_html() -> tuple[str, str]:
    """The page, and the policy that lets it load nothing and ask nobody but its own server."""
    style = report_page.text_of("style.css") + (ASSETS / "serve.css").read_text(encoding="utf-8")
    script = report_page.wrapped([*report_page.drawing_parts(), *sorted(ASSETS.glob("*.js"))])
    policy = report_page.policy(style, script) + "; connect-src 'self'; img-src data:; frame-ancestors 'none'"
    html = Template((ASSETS / "page.html").read_text(encoding="utf-8")).substitute(
        version=__version__, style=style, script=script, sections=report_page.text_of("sections.html"),
        form=report_page.script_json(form_record()),
    )  # fmt: skip
    return html, policy


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
