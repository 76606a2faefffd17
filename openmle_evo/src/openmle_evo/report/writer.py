"""Putting the page together: one file that opens from disk, needs no network, and runs no script but its own."""

import base64
import hashlib
import html
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable as Resource
from pathlib import Path
from string import Template
from typing import Any

from openmle_evo.reading import RunFacts, read_run
from openmle_evo.report.payload import embed, page_payload
from openmle_evo.run import write_whole

PAGE = files("openmle_evo.report") / "page"
SCRIPTS = (
    "helpers.js",
    "basics.js",
    "curve.js",
    "layout.js",
    "tree.js",
    "code.js",
    "detail.js",
    "tables.js",
    "main.js",
)
"""In this order they are the page's one script."""


def write_report(run: Path, destination: Path | None = None) -> Path:
    """Writes the report of a run, by default as `report.html` inside it, and returns where.

    Reads only, takes no lock: the run may be unfinished, or running. An old report is replaced whole.

    Raises:
        StoreError: There is no run in the directory, or a file of it is damaged.
    """
    facts = read_run(run)
    destination = destination or run / "report.html"
    write_whole(destination, run_page(facts, page_payload(facts)))
    return destination


def run_page(facts: RunFacts, payload: dict[str, Any], *more: Resource) -> str:
    """The page of a run.

    Args:
        more: Scripts after the page's own, and styles; with any, the page may ask where it is from for more data.
    """
    title = f"{facts.manifest.title or facts.manifest.task}: search run {facts.manifest.run_id}"
    return render(PAGE / "page.html", [*(PAGE / name for name in SCRIPTS), *more], title, payload, asks=bool(more))


def render(template: Resource, parts: Sequence[Resource], title: str, data: object, *, asks: bool) -> str:
    """Puts a page together: its one style, its one script, its data, and a policy that allows nothing else.

    Args:
        parts: Scripts and styles, by their endings; the report's style comes first.
        asks: Whether the page may fetch from where it is from.
    """
    style = "\n".join(_text(part) for part in (PAGE / "style.css", *parts) if part.name.endswith(".css"))
    script = "\n".join(_text(part) for part in parts if part.name.endswith(".js"))
    connect = "connect-src 'self'; " if asks else ""
    return Template(_text(template)).substitute(
        content_policy=(
            f"default-src 'none'; script-src {_source_hash(script)}; style-src {_source_hash(style)}; {connect}"
            "base-uri 'none'; form-action 'none'"
        ),
        title=html.escape(title),
        style=style,
        script=script,
        run=embed(data),
    )


def _text(resource: Resource) -> str:
    return resource.read_text(encoding="utf-8")


def _source_hash(text: str) -> str:
    """How a content security policy names an inline script or style: by the hash of its text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
