"""The server: the page, and what its script asks for. Every answer is JSON, every fault one line."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from planner.base.errors import InputError, PlannerError, shown
from planner.serve import answers
from planner.serve.guard import LOOPBACK, Guard, body_of
from planner.serve.page import page_html
from planner.serve.question import read_question
from planner.serve.searches import BusyError, Searches

UNKEPT = {"x-content-type-options": "nosniff", "cache-control": "no-store", "referrer-policy": "no-referrer"}


def make_app(*, hosts: tuple[str, ...] | None = LOOPBACK, token: str = "", searches: Searches | None = None) -> Any:
    """The ASGI application.

    hosts: the names by which a browser may ask, any where None. token: what it must show then, "" for none.
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
        yield
        pool.close()

    return Starlette(routes=routes, middleware=middleware, lifespan=lifespan)


async def _solved(request: Request, pool: Searches) -> Response:
    """The answer to a POST, or its fault with the status that fits."""
    try:
        body = await body_of(request)
        texts, more = body.pop("question", None), body
        if not isinstance(texts, dict) or not all(isinstance(v, str) for v in (*texts.values(), *more.values())):
            raise InputError("the request has no question; allowed: a question of texts, and texts beside it")
        make, fields = answers.ANSWERS[request.url.path[1:]]
        if set(more) != set(fields):
            raise InputError(f"the request has fields {shown(list(more))}; allowed: question, {', '.join(fields)}")

        async def gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        async def plan() -> Any:
            key = json.dumps(texts, sort_keys=True)
            return await pool.get(("plan", key), lambda: answers.planned(read_question(texts)), gone)

        planned = await plan()
        if planned is None:
            return Response(status_code=204)
        key = json.dumps([request.url.path, texts, more], sort_keys=True)
        text = planned.text if make is None else await pool.get(key, lambda: make(planned, **more), gone)
        return Response(text or "", media_type="application/json", headers=UNKEPT)
    except PlannerError as error:
        return _fault(422, str(error))
    except (BusyError, MemoryError):
        return _fault(503, "too much is asked at once; ask again in a moment")
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return _fault(500, "planner failed at this question; its terminal has the traceback")


def _fault(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status_code=status, headers=UNKEPT)
