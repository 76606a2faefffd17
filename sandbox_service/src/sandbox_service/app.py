"""The HTTP API: the route table put together. docs/sandbox_api.md describes it, and so does /openapi.json.

Errors are `{"error": "..."}`, with `"field"` where one field of the request is wrong. 429 and 503 come with
`Retry-After`, and mean that the same request may succeed later; nothing else means that.
"""

import json
from collections.abc import MutableMapping
from typing import Any

from openmle_gym.errors import OpenMLEError
from openmle_gym.jobs import MIB
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox_service.auth import Keys
from sandbox_service.openapi import openapi_document
from sandbox_service.routes.jobs import JobRoutes
from sandbox_service.routes.output import OutputRoutes
from sandbox_service.routes.service import ServiceRoutes, fixed, page_routes
from sandbox_service.routes.table import Endpoint, starlette_routes
from sandbox_service.routes.wire import Problem, problem_of, problem_response, status_of
from sandbox_service.scheduler import Scheduler

EVERYWHERE = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
"""Headers of every answer that does not set them itself: what programs print is never a page."""


def create_app(scheduler: Scheduler, keys: Keys, *, max_body_bytes: int = 8 * MIB) -> Starlette:
    """The service as an ASGI application. The scheduler is entered and left by the caller."""
    table = route_table(scheduler, keys, max_body_bytes=max_body_bytes)
    document = fixed(json.dumps(openapi_document(table)), "application/json")
    app = Starlette(
        routes=[*starlette_routes(table), Route("/openapi.json", document), *page_routes()],
        middleware=[Middleware(_HeadersEverywhere)],
        exception_handlers={
            HTTPException: _http_error,
            OpenMLEError: _refusal,
            ClientDisconnect: _disconnected,
            Exception: _our_fault,
        },
    )
    app.router.redirect_slashes = False
    return app


def route_table(scheduler: Scheduler, keys: Keys, *, max_body_bytes: int) -> list[Endpoint]:
    """All that can be asked."""
    return [
        *JobRoutes(scheduler, keys, max_body_bytes=max_body_bytes).endpoints(),
        *OutputRoutes(scheduler, keys).endpoints(),
        *ServiceRoutes(scheduler, keys).endpoints(),
    ]


class _HeadersEverywhere:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] += [header for header in EVERYWHERE if header[0] not in given]
            await send(message)

        await self._app(scope, receive, send_with_headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """What the router finds out by itself: no such path, no such method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        message = f"there is nothing at {request.url.path[:200]!r}"
    elif error.status_code == 405:
        message = f"{request.method[:20]} is not possible at {request.url.path[:200]!r}"
    else:
        message = error.detail
    return problem_response(error.status_code, Problem(error=message), error.headers)


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, OpenMLEError)
    return problem_response(status_of(error), problem_of(error))


async def _our_fault(request: Request, error: Exception) -> Response:
    """The traceback goes to the log, by whoever runs the application."""
    return problem_response(500, Problem(error="the service failed on this request; its log says why"))


async def _disconnected(request: Request, error: Exception) -> Response:
    """Nobody reads this."""
    return Response(status_code=400)
