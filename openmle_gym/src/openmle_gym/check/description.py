"""What the description promises, and what it should not say."""

import re
from collections.abc import Iterator

from pydantic import JsonValue

from openmle_gym.check.finding import Finding, error, warning
from openmle_gym.check.subject import Subject

SHORT_CHARACTERS = 80
_FILE = re.compile(
    r"(?<![\w/.-])[\w-][\w./-]*\.(?:csv|tsv|txt|jsonl?|parquet|xlsx|zip|npz?|png|jpe?g|wav|mp3|feather)\b"
)
_OUTPUTS = frozenset({"submission.csv"})
_PRIVATE = re.compile(r"test_answer|data/private|private/", re.IGNORECASE)


def files_exist(subject: Subject) -> Iterator[Finding]:
    """Every file that the description names is in the public folder."""
    text = _text(subject)
    there = {path.name for path in subject.public_files}
    folders = ("data/public/", "public/", "./")
    missing: list[str] = []
    for name in sorted(set(_FILE.findall(text))):
        plain = name
        for folder in folders:
            plain = plain.removeprefix(folder)
        if plain in _OUTPUTS or (subject.public / plain).is_file() or ("/" not in plain and plain in there):
            continue
        if not _PRIVATE.search(name):
            missing.append(name)
    if missing:
        yield error(
            "description_names_missing_file",
            f"the description names {missing[0]}, which is not there",
            files=list(missing),
        )


def keeps_secrets(subject: Subject) -> Iterator[Finding]:
    """The description speaks of public files only."""
    found = _PRIVATE.search(_text(subject))
    if found:
        yield error("description_mentions_private", f"the description speaks of {found.group()!r}", text=found.group())


def says_enough(subject: Subject) -> Iterator[Finding]:
    """The description says something, and names what is to be predicted."""
    text = _text(subject)
    if not text:
        return
    if len(text.strip()) < SHORT_CHARACTERS:
        yield warning(
            "description_short", f"the description has {len(text.strip())} characters", characters=len(text.strip())
        )
    if subject.columns is not None:
        unnamed: list[JsonValue] = [name for name in subject.columns.target if name.casefold() not in text.casefold()]
        if len(unnamed) == len(subject.columns.target):
            yield warning(
                "description_omits_target", f"the description does not name the target {unnamed[0]!r}", columns=unnamed
            )


def _text(subject: Subject) -> str:
    path = subject.public / "description.txt"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
