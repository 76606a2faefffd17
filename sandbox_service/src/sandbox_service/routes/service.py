"""The service itself: its health, its workers, its figures, its API document, its page."""

from collections.abc import Mapping
from importlib.resources import files

from openmle_gym.contracts import Contract
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox_service import __version__
from sandbox_service.auth import Keys
from sandbox_service.metrics import CONTENT_TYPE, render
from sandbox_service.records import Status
from sandbox_service.routes.table import Answer, Endpoint, Handler
from sandbox_service.routes.wire import json_response
from sandbox_service.scheduler import Scheduler

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}


class Health(Contract):
    """That the service answers."""

    status: str = "ok"
    version: str
    isolation: str
    """What holds the programs: `docker`, `bubblewrap`, ... or `process`."""


class ServiceRoutes:
    """The routes that deal with no job in particular."""

    def __init__(self, scheduler: Scheduler, keys: Keys) -> None:
        self._scheduler = scheduler
        self._keys = keys

    def endpoints(self) -> list[Endpoint]:
        """This part of the route table."""
        return [
            Endpoint(
                method="GET",
                path="/api/v1/workers/status",
                handler=self.status,
                answers={200: Answer(description="The workers.", body=Status)},
                refusals=(503,),
            ),
            Endpoint(
                method="GET",
                path="/health",
                handler=self.health,
                needs_key=False,
                answers={200: Answer(description="It answers.", body=Health)},
            ),
            Endpoint(
                method="GET",
                path="/metrics",
                handler=self.metrics,
                answers={200: Answer(description="Prometheus text.", media_types=("text/plain",))},
                refusals=(503,),
            ),
        ]

    async def status(self, request: Request) -> Response:
        """Show workers and queue"""
        self._keys.caller(request.headers)
        return json_response(await self._scheduler.status())

    async def health(self, request: Request) -> Response:
        """Ask whether the service answers"""
        return json_response(Health(version=__version__, isolation=self._scheduler.isolation))

    async def metrics(self, request: Request) -> Response:
        """Show the service's figures to Prometheus

        Any key will do.
        """
        self._keys.caller(request.headers)
        return Response(render(await self._scheduler.facts()), media_type=CONTENT_TYPE)


def page_routes() -> list[Route]:
    """The status page, which asks for a key itself."""
    headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-cache"}
    return [
        Route(path, fixed((files("sandbox_service") / "web" / name).read_text(encoding="utf-8"), media_type, headers))
        for path, (name, media_type) in PAGE_FILES.items()
    ]


def fixed(content: str, media_type: str, headers: Mapping[str, str] | None = None) -> Handler:
    """A handler that always answers the same."""

    async def answer(request: Request) -> Response:
        return Response(content, headers=headers, media_type=media_type)

    return answer
