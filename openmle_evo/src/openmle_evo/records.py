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
from openmle_gym.contracts import Contract, one_line
from openmle_gym.errors import StoreError
from openmle_gym.experience import ExperienceCard
from pydantic import ValidationError

from openmle_evo.budget import ModelCall
from openmle_evo.final_choice import BLEND_FILE
from openmle_evo.reading import Exchange, RunFacts, read_exchanges, read_run
from openmle_evo.run import FinalReport, Record, RunManifest

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


_MEMBERS = {"manifest.json", "cards.jsonl", "calls.jsonl", "exchanges.jsonl", "under_way", "audit.json"}
_MAYBE = {"final.json", BLEND_FILE}


class _ExchangeRow(Contract):
    attempt: int
    messages: tuple[Message, ...]
    reply: str


def _read_bundle(path: Path) -> Records:
    files = _members(path)
    listed = [line.partition("  ") for line in files.pop(SUMS, "").splitlines()]
    sums = {name: digest for digest, _, name in listed}
    wrong = sorted(name for name in {*sums, *files} if name not in files or sums.get(name) != _sha256(files[name]))
    if wrong:
        raise StoreError(f"{path}: {', '.join(wrong)}: not what {SUMS} says")
    if missing := sorted(_MEMBERS - files.keys()):
        raise StoreError(f"{path}: no bundle of a run: no {', '.join(missing)}")
    if strange := sorted(files.keys() - _MEMBERS - _MAYBE):
        raise StoreError(f"{path}: {', '.join(strange)} does not belong there")
    if not files["under_way"].strip().isdecimal():
        raise StoreError(f"{path}: under_way: must be a number of attempts, got {files['under_way'].strip()!r}")
    facts = RunFacts(
        path=path,
        manifest=_parse(path, "manifest.json", files["manifest.json"], RunManifest),
        final=_parse(path, "final.json", files["final.json"], FinalReport) if "final.json" in files else None,
        cards=_parse_lines(path, "cards.jsonl", files, ExperienceCard),
        calls=_parse_lines(path, "calls.jsonl", files, ModelCall),
        under_way=int(files["under_way"]),
    )
    rows = _parse_lines(path, "exchanges.jsonl", files, _ExchangeRow)
    return Records(facts, {row.attempt: Exchange(row.messages, row.reply, "") for row in rows}, files.get(BLEND_FILE))


def _parse(path: Path, place: str, text: str, record: type[Record]) -> Record:
    try:
        return record.model_validate_json(text)
    except ValidationError as error:
        raise StoreError(f"{path}: {place}: {one_line(error)}") from error


def _parse_lines(path: Path, name: str, files: Mapping[str, str], record: type[Record]) -> tuple[Record, ...]:
    rows = files[name].removesuffix("\n").split("\n") if files[name] else []  # a card's text may hold other line breaks
    return tuple(_parse(path, f"{name}, line {number}", row, record) for number, row in enumerate(rows, start=1))


def _members(path: Path) -> dict[str, str]:
    """The plain files of a tar by name; nothing is written anywhere."""
    files: dict[str, str] = {}
    try:
        with tarfile.open(path, "r:") as bundle:
            for member in bundle:
                file = bundle.extractfile(member) if member.isreg() else None
                if file is None or member.name in files:
                    raise StoreError(f"{path}: {member.name}: not one plain file of that name")
                files[member.name] = file.read().decode()
    except (tarfile.TarError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: neither a run's directory nor a bundle: {error}") from error
    return files


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def lines(rows: Iterable[str]) -> str:
    """The rows, each with a newline behind it."""
    return "".join(f"{row}\n" for row in rows)
