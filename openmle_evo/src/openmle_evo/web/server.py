"""The server: answers GET on this machine, to pages that it served itself.

/                                        the list of runs; of a single run, its page
/run?name=NAME                           a run's page
/runs.json                               the list
/run.json?name=NAME&have=N&version=V     what is new of a run; 204 when nothing is
/exchange.json?name=NAME&attempt=N       an attempt's prompt and reply
"""

import ipaddress
import logging
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from openmle_gym.errors import ConfigError, StoreError

from openmle_evo.reading import read_exchanges
from openmle_evo.report.payload import embed
from openmle_evo.report.writer import PAGE, render, run_page
from openmle_evo.web.runs import Runs, live_payload, summary

LIVE = files("openmle_evo.web") / "page"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

log = logging.getLogger("openmle_evo")


class Answer(NamedTuple):
    """What a request gets."""

    status: HTTPStatus
    kind: str = "text/plain"
    body: str = ""
    location: str | None = None


class WebServer(ThreadingHTTPServer):
    """Serves runs until it is shut down."""

    daemon_threads = True

    def __init__(self, root: Path, *, host: str, port: int) -> None:
        """Raises:
        ConfigError: There is no such folder, or the address cannot be had.
        """
        if not root.is_dir():
            raise ConfigError(f"{root}: no such folder")
        self.runs = Runs(root)
        self.loopback = _is_loopback(host)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigError(f"{host}:{port}: {error.strerror}") from error

    @property
    def address(self) -> str:
        """Where to point a browser."""
        return f"http://{self.server_address[0]}:{self.server_address[1]}/"


def serve(root: Path, *, host: str, port: int) -> None:
    """Serves a run, or all runs in a folder, until Ctrl-C.

    Raises:
        ConfigError: There is no such folder, or the address cannot be had.
    """
    with WebServer(root, host=host, port=port) as server:
        if not server.loopback:
            log.warning("%s is not this machine alone: whoever reaches it can read the runs", host)
        log.info("%s", server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            log.info("stopped")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = self._answer()
        content = answer.body.encode()
        self.send_response(answer.status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if answer.location is not None:
            self.send_header("Location", answer.location)
        if answer.status is not HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _answer(self) -> Answer:
        assert isinstance(self.server, WebServer)
        if self.server.loopback and not _is_loopback(_host(self.headers.get("Host", ""))):
            # A page elsewhere whose name was made to lead here must not read the runs.
            return Answer(HTTPStatus.MISDIRECTED_REQUEST, body="asked under another name than this machine's\n")
        address = urlsplit(self.path)
        try:
            return answer(self.server.runs, address.path, dict(parse_qsl(address.query)))
        except (KeyError, ValueError):
            return Answer(HTTPStatus.NOT_FOUND, body="no such page\n")
        except StoreError as error:
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, body=f"{error}\n")

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)


def _host(header: str) -> str:
    return urlsplit(f"//{header}").hostname or ""


def answer(runs: Runs, path: str, asked: Mapping[str, str]) -> Answer:
    """Answers a request.

    Raises:
        KeyError: There is no such page or run, or a parameter is missing.
        ValueError: A parameter is no number.
        StoreError: A file of a run is damaged.
    """
    if path == "/" and runs.is_one:
        (name,) = runs.paths()
        return Answer(HTTPStatus.FOUND, location=f"/run?name={quote(name)}")
    if path == "/":
        parts = [PAGE / "helpers.js", PAGE / "curve.js", PAGE / "tables.js", LIVE / "runs.js", LIVE / "live.css"]
        return _page(render(LIVE / "runs.html", parts, f"Runs in {runs.root.name}", _list(runs), asks=True))
    if path == "/run":
        look = runs.look(asked["name"])
        payload = live_payload(look, asked["name"]) | {"alone": runs.is_one}
        return _page(run_page(look.facts, payload, LIVE / "live.js", LIVE / "live.css"))
    if path == "/runs.json":
        return _json(_list(runs))
    if path == "/run.json":
        look = runs.look(asked["name"])
        if look.version == asked["version"]:
            return Answer(HTTPStatus.NO_CONTENT)
        return _json(live_payload(look, asked["name"], have=int(asked["have"])) | {"alone": runs.is_one})
    if path == "/exchange.json":
        attempt = int(asked["attempt"])
        exchange = read_exchanges(runs.paths()[asked["name"]], attempt)[attempt]
        messages = [message.model_dump() for message in exchange.messages]
        return _json({"messages": messages, "reply": exchange.reply, "reasoning": exchange.reasoning})
    raise KeyError(path)


def _list(runs: Runs) -> dict[str, object]:
    found, damaged = [], []
    for name in runs.paths():
        try:
            found.append(summary(runs.look(name), name))
        except StoreError as error:
            damaged.append(str(error))
    return {"folder": runs.root.resolve().name, "runs": found, "damaged": damaged}


def _page(text: str) -> Answer:
    return Answer(HTTPStatus.OK, "text/html", text)


def _json(value: object) -> Answer:
    return Answer(HTTPStatus.OK, "application/json", embed(value))
