"""All that an audit rests on: of a run's directory, or of the bundle that one was written into.

A bundle is one uncompressed tar file, the same bytes for the same run, with the SHA-256 of each member:

manifest.json, final.json, best_blend.py    as in the run's directory; the last two where there are such
cards.jsonl, calls.jsonl, exchanges.jsonl   the store's cards, model calls, prompts and replies
under_way                                   how many attempts were begun and not judged
audit.json                                  what the audit said when the bundle was written, a line for each check
SHA256SUMS                                  as sha256sum writes and checks it
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from openmle_gym.chat import Message
from openmle_gym.errors import StoreError
from openmle_gym.experience import ExperienceCard
from pydantic import ValidationError

from openmle_evo.budget import ModelCall
from openmle_evo.final_choice import BLEND_FILE
from openmle_evo.reading import Exchange, RunFacts, read_exchanges, read_run
from openmle_evo.run import FinalReport, RunManifest

SUMS = "SHA256SUMS"


class Records(NamedTuple):
    """A run as an audit sees it."""

    facts: RunFacts
    exchanges: Mapping[int, Exchange]
    """Prompts and replies by attempt."""
    blend: str | None
    """The text of `best_blend.py`; None where there is none."""


def read_records(path: Path) -> Records:
    """Reads a run's directory, or a bundle.

    Raises:
        StoreError: There is neither, a file of it is damaged, or a bundle's sums do not hold.
    """
    if path.is_file():
        return _read_bundle(path)
    facts, blend = read_run(path), path / BLEND_FILE
    return Records(facts, read_exchanges(path), blend.read_text(encoding="utf-8") if blend.is_file() else None)


def pack(records: Records, verdict: str, destination: Path) -> str:
    """Writes a bundle.

    Args:
        verdict: Its `audit.json`.

    Returns:
        The bundle's SHA-256, in hex.
    """
    facts = records.facts
    files = {
        "manifest.json": facts.manifest.model_dump_json(indent=2),
        "cards.jsonl": lines(card.model_dump_json() for card in facts.cards),
        "calls.jsonl": lines(call.model_dump_json() for call in facts.calls),
        "exchanges.jsonl": lines(
            json.dumps({"attempt": attempt, "messages": [m.model_dump() for m in each.messages], "reply": each.reply})
            for attempt, each in records.exchanges.items()
        ),
        "under_way": f"{facts.under_way}\n",
        "audit.json": verdict,
    }
    if records.blend is not None:
        files[BLEND_FILE] = records.blend
    if facts.final is not None:
        files["final.json"] = facts.final.model_dump_json(indent=2)
    files[SUMS] = lines(f"{_sha256(text)}  {name}" for name, text in files.items())
    with tarfile.open(destination, "w", format=tarfile.USTAR_FORMAT) as bundle:
        for name, text in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            bundle.addfile(entry, io.BytesIO(text.encode()))
    return hashlib.sha256(destination.read_bytes()).hexdigest()


def _read_bundle(path: Path) -> Records:
    files = _members(path)
    listed = [line.partition("  ") for line in files.pop(SUMS, "").splitlines()]
    sums = {name: digest for digest, _, name in listed}
    wrong = sorted(name for name in {*sums, *files} if name not in files or sums.get(name) != _sha256(files[name]))
    if wrong or not files:
        raise StoreError(f"{path}: {', '.join(wrong) or 'nothing in it'}: not what {SUMS} says")
    try:
        final = files.get("final.json")
        facts = RunFacts(
            path=path,
            manifest=RunManifest.model_validate_json(files["manifest.json"]),
            final=None if final is None else FinalReport.model_validate_json(final),
            cards=tuple(map(ExperienceCard.model_validate_json, files["cards.jsonl"].splitlines())),
            calls=tuple(map(ModelCall.model_validate_json, files["calls.jsonl"].splitlines())),
            under_way=int(files["under_way"]),
        )
        exchanges = {row["attempt"]: row for row in map(json.loads, files["exchanges.jsonl"].splitlines())}
        return Records(
            facts,
            {
                attempt: Exchange(tuple(map(Message.model_validate, row["messages"])), row["reply"], "")
                for attempt, row in exchanges.items()
            },
            files.get(BLEND_FILE),
        )
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise StoreError(f"{path}: no bundle of a run: {error}") from error


def _members(path: Path) -> dict[str, str]:
    """The plain files of a tar by name."""
    try:
        with tarfile.open(path, "r:") as bundle:
            opened = {member.name: bundle.extractfile(member) for member in bundle if member.isreg()}
            return {name: file.read().decode() for name, file in opened.items() if file}
    except (tarfile.TarError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: neither a run's directory nor a bundle: {error}") from error


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def lines(rows: Iterable[str]) -> str:
    """The rows, each with a newline behind it."""
    return "".join(f"{row}\n" for row in rows)
