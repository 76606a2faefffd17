"""Kaggle, through its official client (extra `kaggle`), which runs as a process of its own.

Its process gets Kaggle's own variables, those of proxies and certificates, and no others: no model's key. What it says
of a failure is read for its status, and told in words that say what to do.
"""

import asyncio
import contextlib
import csv
import io
import json
import logging
import os
import re
import signal
import sys
import zipfile
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from openmle_gym.build.source import Source
from openmle_gym.build.state import files_below, fresh
from openmle_gym.build.wording import About
from openmle_gym.errors import ConfigError, InfrastructureError, PackageError

TRIES = 3
RETRY_SECONDS = 2.0
_STATUS = re.compile(r"\b([45]\d\d) (?:Client|Server) Error")
_TRANSIENT = re.compile(
    r"\b(?:429|5\d\d) |ConnectionError|Connection (?:refused|reset|aborted)|timed? ?out", re.IGNORECASE
)
_PASSED_ON = re.compile(
    r"KAGGLE_.*|XDG_CONFIG_HOME|HOME|PATH|LANG|SSL_.*|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|.*_proxy", re.I
)
_TAGS = re.compile(r"<[^>]+>")

WHAT_TO_SET = """\
no Kaggle credentials. Make a token at https://www.kaggle.com/settings/api ("Generate New Token"), then one of
  export KAGGLE_API_TOKEN=TOKEN
  export KAGGLE_USERNAME=NAME KAGGLE_KEY=KEY      (a legacy key: both fields of kaggle.json)
or put TOKEN into ~/.kaggle/access_token, or kaggle.json into ~/.kaggle/ or $KAGGLE_CONFIG_DIR"""

logger = logging.getLogger(__name__)


class KaggleUnavailable(InfrastructureError):
    """Kaggle cannot be reached, or has trouble of its own."""


class _Done(NamedTuple):
    code: int
    out: str
    errors: str


def require_kaggle() -> None:
    """Raises ConfigError where the client or the credentials are missing; says what to install, or to set."""
    if find_spec("kaggle") is None:
        raise ConfigError("kaggle: the official client is not installed; pip install 'openmle-gym[kaggle]'")
    environment = os.environ
    if environment.get("KAGGLE_API_TOKEN") or (environment.get("KAGGLE_USERNAME") and environment.get("KAGGLE_KEY")):
        return
    home = Path(environment.get("HOME", "~")).expanduser() / ".kaggle"
    folders = [home, Path(environment.get("KAGGLE_CONFIG_DIR") or home)]
    folders.append(Path(environment.get("XDG_CONFIG_HOME") or home.parent / ".config") / "kaggle")
    names = ("access_token", "access_token.txt", "kaggle.json", "credentials.json")
    if not any((folder / name).is_file() for folder in folders for name in names):
        raise ConfigError(WHAT_TO_SET)


async def download_data(source: Source, folder: Path) -> Path:
    """The competition's or the data set's files, as one archive in the folder; the client goes on with a partial one.

    Raises:
        ConfigError: No client, or no valid credentials.
        PackageError: The rules were not accepted, or there is no such thing.
        KaggleUnavailable: Kaggle has trouble; asked `TRIES` times.
    """
    await _kaggle(source, f"{source.kind}s", "download", source.name, "-p", str(folder), "-q")
    found = [path for path in files_below(folder) if not path.name.endswith(".kaggle-partial")]
    if len(found) != 1 or not found[0].stat().st_size:
        raise KaggleUnavailable(f"{source.name}: the download left {[path.name for path in found]}, not one archive")
    return found[0]


async def read_about(source: Source, scratch: Path) -> About:
    """What Kaggle's pages say of it; empty fields where they cannot be had, which keeps nothing from being built."""
    fresh(scratch)
    try:
        if source.kind == "competition":
            # The client's parser takes the first word for a competition, whatever it is.
            words = ("pages", source.name, "list", source.name, "--content", "--format", "json")
            done = await _kaggle(source, "competitions", *words)
            pages = json.loads(done.out[done.out.index("[") :])
            texts = [f"{page.get('name', '')}\n{_plain(page.get('content', ''))}" for page in pages]
            return About(title=source.name, text="\n\n".join(texts), licence="the competition's rules")
        await _kaggle(source, "datasets", "metadata", source.name, "-p", str(scratch))
        facts = json.loads((scratch / "dataset-metadata.json").read_text(encoding="utf-8"))
        facts = facts.get("info", facts)
        licences = [str(each.get("name", "")) for each in facts.get("licenses") or []]
        return About(
            title=str(facts.get("title") or ""),
            text=_plain(f"{facts.get('subtitle') or ''}\n{facts.get('description') or ''}").strip(),
            licence=", ".join(filter(None, licences)),
        )
    except (PackageError, ValueError, AttributeError, OSError) as error:
        logger.warning("%s: its pages cannot be read: %s", source.name, error)
        return About()


async def download_leaderboard(source: Source, scratch: Path) -> str:
    """A competition's public leaderboard as `rank,score`, without names; empty where there is none."""
    fresh(scratch)
    try:
        await _kaggle(source, "competitions", "leaderboard", source.name, "-d", "-p", str(scratch), "-q")
        return leaderboard_csv(b"".join(path.read_bytes() for path in files_below(scratch)[:1]))
    except PackageError as error:
        logger.warning("%s: no leaderboard: %s", source.name, error)
        return ""


def leaderboard_csv(content: bytes) -> str:
    """`rank,score` out of a leaderboard as it is downloaded: a CSV file, or a zip archive with one.

    Raises:
        PackageError: It is neither, or has no scores.
    """
    try:
        if content.startswith(b"PK"):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                names = [name for name in archive.namelist() if name.casefold().endswith(".csv")]
                best = [name for name in names if "leaderboard" in name.casefold()] or names
                content = archive.read(best[0])
        rows = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"))))
        scores = [
            score
            for row in rows
            if (score := next((value for key, value in row.items() if key and key.strip().casefold() == "score"), ""))
        ]
        [float(score) for score in scores]
    except (zipfile.BadZipFile, zlib.error, RuntimeError, LookupError, csv.Error, ValueError) as error:
        raise PackageError(f"the leaderboard cannot be read: {error}") from error
    if not scores:
        raise PackageError("the leaderboard has no scores")
    return "rank,score\n" + "".join(f"{rank},{score}\n" for rank, score in enumerate(scores, start=1))


def _plain(text: object) -> str:
    return _TAGS.sub("", str(text or ""))


async def _kaggle(source: Source, *arguments: str) -> _Done:
    """Runs the client until it succeeds or is refused.

    Raises: See `download_data`.
    """
    trouble = ""
    for attempt in range(TRIES):
        done = await _run(arguments)
        if done.code == 0:
            return done
        trouble = (done.errors.strip() or done.out.strip())[-600:]
        status = _STATUS.search(done.errors)
        if not _TRANSIENT.search(done.errors):
            raise _refusal(source, status[1] if status else "", trouble, done)
        if attempt + 1 < TRIES:
            logger.warning("%s: Kaggle has trouble, asking again: %s", source.name, trouble.partition("\n")[0])
            await asyncio.sleep(RETRY_SECONDS * (attempt + 1))
    raise KaggleUnavailable(f"{source.name}: {trouble}")


def _refusal(source: Source, status: str, trouble: str, done: _Done) -> ConfigError | PackageError:
    if status == "401" or "kaggle auth login" in done.out:
        return ConfigError(f"{source.name}: Kaggle does not accept the credentials; {WHAT_TO_SET}")
    if status == "403" and source.kind == "competition":
        page = f"https://www.kaggle.com/competitions/{source.name}/rules"
        return PackageError(
            f"{source.name}: Kaggle refuses the data (403): its rules are not accepted. Log in with the account of the "
            f"credentials, open {page}, accept, and run the same command again"
        )
    if status == "404":
        return PackageError(f"{source.name}: Kaggle has no such {source.kind} (404)")
    return PackageError(f"{source.name}: {trouble}")


async def _run(arguments: Sequence[str]) -> _Done:
    """One call of the client; cancelled, it takes the client's process with it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kaggle", "-W", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)},
        start_new_session=True,
    )
    try:
        out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return _Done(process.returncode or 0, out.decode(errors="replace"), errors.decode(errors="replace"))
