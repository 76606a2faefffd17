"""Kaggle on loopback, as far as a build needs it, for the official client, which reaches it as an HTTP proxy.

With KAGGLE_API_ENVIRONMENT=LOCALHOST the client talks to http://localhost/api/v1/..., and HTTP_PROXY sends that here.
"""

import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CREDENTIALS = {"KAGGLE_USERNAME": "someone", "KAGGLE_KEY": "0" * 32}
MODIFIED = formatdate(1_600_000_000, usegmt=True)


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    """A zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


@dataclass
class Kaggle:
    """What the server has, and what it was asked."""

    competitions: dict[str, bytes] = field(default_factory=dict)
    """The data by slug, a zip archive."""
    datasets: dict[str, bytes] = field(default_factory=dict)
    leaderboards: dict[str, bytes] = field(default_factory=dict)
    pages: dict[str, dict[str, str]] = field(default_factory=dict)
    licences: dict[str, str] = field(default_factory=dict)
    not_accepted: set[str] = field(default_factory=set)
    """Competitions whose rules the user has not accepted."""
    failures: list[int] = field(default_factory=list)
    """Statuses of the next answers, before all is well."""
    log: list[str] = field(default_factory=list)
    """`method what`, in order."""
    port: int = 0

    def environment(self) -> dict[str, str]:
        """What makes the official client come here."""
        proxy = f"http://127.0.0.1:{self.port}"
        others = "127.0.0.1"  # other servers of a test are reached directly
        return {
            **CREDENTIALS,
            "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
            **dict.fromkeys(("HTTP_PROXY", "http_proxy"), proxy),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), others),
        }

    def asked(self, what: str) -> int:
        """How often something was asked for."""
        return sum(what in line for line in self.log)


@contextmanager
def serve_kaggle(kaggle: Kaggle) -> Iterator[Kaggle]:
    """Serves it until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length) or b"{}")
            call = self.path.rpartition("/")[2]
            name = body.get("competitionName") or f"{body.get('ownerSlug')}/{body.get('datasetSlug')}"
            kaggle.log.append(f"{call} {name}")
            if kaggle.failures:
                self.answer(kaggle.failures.pop(0), b'{"message": "scripted trouble"}')
            elif not self.headers.get("Authorization", "").startswith("Basic "):
                self.answer(401, b'{"message": "Unauthenticated"}')
            elif call == "DownloadDataFiles" and name in kaggle.not_accepted:
                self.answer(403, b'{"message": "You must accept this competition\'s rules"}')
            elif call == "DownloadDataFiles" and name in kaggle.competitions:
                self.send_response(302)  # to a signed address, as Kaggle does
                self.send_header("Location", f"http://localhost/files/{name}.zip?signature=1")
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif call == "DownloadDataset":
                self.file(kaggle.datasets.get(name))
            elif call == "DownloadLeaderboard":
                self.file(kaggle.leaderboards.get(name))
            elif call == "ListCompetitionPages":
                pages = [{"name": key, "content": text} for key, text in kaggle.pages.get(name, {}).items()]
                self.answer(200, json.dumps({"pages": pages}).encode())
            elif call == "GetDatasetMetadata":
                info = {"title": name, "description": "Made up.", "licenses": [{"name": kaggle.licences.get(name, "")}]}
                self.answer(200, json.dumps({"info": info, "errorMessage": ""}).encode())
            else:
                self.answer(404, b'{"message": "Not found"}')

        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2].partition(".zip")[0]
            kaggle.log.append(f"GET {name}")
            self.file(kaggle.competitions.get(name))

        def file(self, content: bytes | None) -> None:
            if content is None:
                self.answer(404, b'{"message": "Not found"}')
            else:
                self.answer(200, content, "application/zip")

        def answer(self, status: int, content: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Last-Modified", MODIFIED)
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kaggle.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield kaggle
    finally:
        server.shutdown()
        server.server_close()
