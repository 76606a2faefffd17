"""The route table: one entry per method and path. The application and its OpenAPI document are both made from it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Handler = Callable[[Request], Awaitable[Response]]
Method = Literal["GET", "POST", "DELETE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request may be answered with."""

    description: str
    body: type[BaseModel] | None = None
    """The JSON that is sent; None when it is not JSON."""
    media_types: tuple[str, ...] = ()
    """Other media types that are sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One thing that can be asked. The first line of the handler's docstring is its title, the rest its description."""

    method: Method
    path: str
    handler: Handler
    answers: Mapping[int, Answer]
    """By status, when all goes well."""
    refusals: tuple[int, ...] = ()
    """Further statuses, beside those of `needs_key` and `query`; their body is a `Problem`."""
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    headers: Mapping[str, str] | None = None
    """Request headers that change the answer, and how."""
    needs_key: bool = True


def starlette_routes(endpoints: Iterable[Endpoint]) -> list[Route]:
    """One route per path, so that a wrong method is answered with all that are allowed."""
    by_path: dict[str, dict[str, Handler]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint.handler
    return [Route(path, _by_method(handlers), methods=list(handlers)) for path, handlers in by_path.items()]


def _by_method(handlers: Mapping[str, Handler]) -> Handler:
    async def answer(request: Request) -> Response:
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return answer
