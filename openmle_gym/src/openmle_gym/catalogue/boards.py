"""Leaderboards of competitions: download them, attach them to packages, and say where a score stands."""

import csv
import io
import json
import math
import os
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import httpx
from pydantic import SecretStr

from openmle_gym import __version__
from openmle_gym.check.subject import file_sha256
from openmle_gym.contracts import Contract
from openmle_gym.errors import ConfigError, ExecutorUnavailable, PackageError
from openmle_gym.leaderboard import Leaderboard, Medal, medal_positions, read_leaderboard
from openmle_gym.manifest import MANIFEST_NAME, write_manifest
from openmle_gym.retry import retrying
from openmle_gym.task import TaskPackage, load_package

KAGGLE = "https://www.kaggle.com"
PATH = "/api/v1/competitions/{slug}/leaderboard/download"
MAX_BYTES = 256 * 1024 * 1024
ATTACHED = "info/leaderboard.csv"


class KaggleKey(NamedTuple):
    """Credentials of Kaggle's API."""

    user: str
    key: SecretStr


def kaggle_key(environment: Mapping[str, str] | None = None) -> KaggleKey:
    """From KAGGLE_USERNAME and KAGGLE_KEY, else from kaggle.json in KAGGLE_CONFIG_DIR or ~/.kaggle.

    Raises:
        ConfigError: There are none; says what to set.
    """
    environment = os.environ if environment is None else environment
    user, key = environment.get("KAGGLE_USERNAME"), environment.get("KAGGLE_KEY")
    if user and key:
        return KaggleKey(user, SecretStr(key))
    folder = environment.get("KAGGLE_CONFIG_DIR") or os.path.join(environment.get("HOME", "~"), ".kaggle")
    path = Path(folder).expanduser() / "kaggle.json"
    if path.is_file():
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            return KaggleKey(str(said["username"]), SecretStr(str(said["key"])))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"{path}: not credentials of Kaggle: {type(error).__name__}") from error
    raise ConfigError(f"no credentials of Kaggle: set KAGGLE_USERNAME and KAGGLE_KEY, or put kaggle.json at {path}")


async def download_board(
    slug: str,
    *,
    key: KaggleKey,
    base_url: str = KAGGLE,
    patience_seconds: float = 120.0,
    transport: httpx.AsyncBaseTransport | None = None,
) -> str:
    """A competition's public leaderboard as CSV text; asks again while the server is busy or away.

    Raises:
        ExecutorUnavailable: The server does not answer in time, or refuses.
        PackageError: What it sends is no leaderboard.
    """
    url = f"{base_url.rstrip('/')}{PATH.format(slug=slug)}"
    headers = {
        "User-Agent": f"openmle-gym/{__version__}",
        "Accept": "application/zip, text/csv, application/octet-stream",
    }
    async with httpx.AsyncClient(
        auth=(key.user, key.key.get_secret_value()),
        headers=headers,
        timeout=httpx.Timeout(60.0, connect=15.0),
        follow_redirects=True,
        transport=transport,
    ) as http:

        async def call() -> bytes:
            return (await http.get(url)).raise_for_status().content

        content = await retrying(call, place=url, patience_seconds=patience_seconds, unavailable=ExecutorUnavailable)
    return board_text(content, url)


def board_text(content: bytes, place: str) -> str:
    """The table in what a server sent, a zip or the CSV itself.

    Raises:
        PackageError: There is none: it is a web page, a damaged archive, or has a single column.
    """
    if content.startswith(b"PK"):
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                tables = [info for info in archive.infolist() if info.filename.lower().endswith(".csv")]
                named = [info for info in tables if "leaderboard" in PurePosixPath(info.filename).name.lower()]
                if not tables:
                    raise PackageError(f"{place}: the archive holds no CSV file")
                chosen = (named or tables)[0]
                if chosen.file_size > MAX_BYTES:
                    raise PackageError(
                        f"{place}: {chosen.filename} has {chosen.file_size} bytes, more than {MAX_BYTES}"
                    )
                content = archive.read(chosen)
        except (zipfile.BadZipFile, RuntimeError, zlib.error) as error:
            raise PackageError(f"{place}: {error}") from error
    text = content.decode("utf-8-sig", errors="replace")
    first = next(csv.reader(io.StringIO(text[:4096])), [])
    if text.lstrip().startswith("<") or len(first) < 2:
        raise PackageError(f"{place}: sent no table but {text[:60]!r}")
    return text


def attach_board(package: TaskPackage, board: Path, *, source: str) -> TaskPackage:
    """Puts a leaderboard into a package, in place of one that it has.

    Args:
        board: A CSV file with a column `score`.
        source: Whose it is; the manifest's word for it.

    Raises:
        PackageError: It has no scores, or the package has no manifest to note it in.
    """
    if package.inferred:
        raise PackageError(f"{package.root}: has no {MANIFEST_NAME}, so that nobody says which direction is better")
    read_leaderboard(board, higher_is_better=package.manifest.metric.higher_is_better)
    path = package.root / ATTACHED
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_name(".leaderboard.csv.new")
    try:
        shutil.copyfile(board, fresh)
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    manifest = package.manifest.model_copy(
        update={"provenance": package.manifest.provenance.model_copy(update={"leaderboard": source})}
    )
    if manifest.files:
        manifest = manifest.model_copy(update={"files": {**manifest.files, ATTACHED: file_sha256(path)}})
    write_manifest(manifest, package.root / MANIFEST_NAME)
    return load_package(package.root)


class Standing(Contract):
    """Where a score stands among n teams."""

    teams: int
    """All rows of the board, those without a score too: n of the medal rule."""
    rank: int
    """1 + the teams that are strictly better; equal scores share a rank. A missing score is last, n + 1."""
    percentile: float
    """The fraction of the teams that are strictly worse, those without a score among them; 0 for a missing score."""
    rank_fraction: float
    """The rank, at most n, as a fraction of n; lower is better."""
    medal: Medal | None
    gold: float | None
    """The score that just wins it; None where that place has no score."""
    silver: float | None
    bronze: float | None


def standing(board: Leaderboard, score: float | None, *, unscored: int = 0) -> Standing:
    """Where a score stands; NaN, like None, is a missing score, and last.

    Args:
        unscored: Teams of the board without a score, who are last too.
    """
    teams = len(board.scores) + unscored
    thresholds = [board.scores[place - 1] if place <= len(board.scores) else None for place in medal_positions(teams)]
    gold, silver, bronze = thresholds
    if score is None or not math.isfinite(score):
        return Standing(
            teams=teams,
            rank=teams + 1,
            percentile=0.0,
            rank_fraction=1.0,
            medal=None,
            gold=gold,
            silver=silver,
            bronze=bronze,
        )
    rank = board.rank(score)
    worse = round(board.fraction_beaten(score) * len(board.scores)) + unscored

    def wins(threshold: float | None) -> bool:
        return threshold is None or (score >= threshold if board.higher_is_better else score <= threshold)

    medal = next((medal for medal, threshold in zip(Medal, thresholds, strict=True) if wins(threshold)), None)
    return Standing(
        teams=teams,
        rank=rank,
        percentile=worse / teams,
        rank_fraction=min(rank, teams) / teams,
        medal=medal,
        gold=gold,
        silver=silver,
        bronze=bronze,
    )
