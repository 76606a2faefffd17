"""Putting the page together: one file that opens from disk, needs no network, and runs no script but its own."""

import base64
import hashlib
import html
from importlib.resources import files
from pathlib import Path
from string import Template

from openmle_evo.reading import read_run
from openmle_evo.report.payload import embed, page_payload
from openmle_evo.run import write_whole

_SCRIPTS = ("basics.js", "curve.js", "layout.js", "tree.js", "code.js", "detail.js", "tables.js", "main.js")
"""In this order they are the page's one script."""


def write_report(run: Path, destination: Path | None = None) -> Path:
    """Writes the report of a run, by default as `report.html` inside it, and returns where.

    Reads only, takes no lock: the run may be unfinished, or running. An old report is replaced whole.

    Raises:
        StoreError: There is no run in the directory, or a file of it is damaged.
    """
    facts = read_run(run)
    style = _resource("style.css")
    script = "\n".join(_resource(name) for name in _SCRIPTS)
    page = Template(_resource("page.html")).substitute(
        content_policy=(
            f"default-src 'none'; script-src {_source_hash(script)}; style-src {_source_hash(style)}; "
            "base-uri 'none'; form-action 'none'"
        ),
        title=html.escape(f"{facts.manifest.title or facts.manifest.task}: search run {facts.manifest.run_id}"),
        style=style,
        script=script,
        run=embed(page_payload(facts)),
    )
    destination = destination or run / "report.html"
    write_whole(destination, page)
    return destination


def _resource(name: str) -> str:
    return files("openmle_evo.report").joinpath("page", name).read_text(encoding="utf-8")


def _source_hash(text: str) -> str:
    """How a content security policy names an inline script or style: by the hash of its text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
