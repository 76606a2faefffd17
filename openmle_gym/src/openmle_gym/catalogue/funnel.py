"""From a catalogue of candidates to admitted tasks: at which stage each was dropped, and why.

    candidates -> eligible (long enough leaderboard, licence, not of MLE-Bench) -> executable (built and checked)
               -> admitted (recommended by the quality judge)

The first reason that applies drops a candidate, so the counts of the reasons add up to the drops.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from openmle_gym.check.overlap import mle_bench_ids
from openmle_gym.contracts import Contract
from openmle_gym.errors import PackageError
from openmle_gym.text_table import read_rows

Stage = Literal["eligible", "executable", "admitted"]
STAGES: tuple[Stage, ...] = ("eligible", "executable", "admitted")
FEWEST_TEAMS = 50
FORBIDDEN = re.compile(
    r"no.?deriv|\bnd\b|all rights reserved|unknown|not permitted|forbidden|denied|prohibited", re.IGNORECASE
)
COLUMNS = {
    "slug": ("slug", "name", "task", "task_name"),
    "teams": ("teams", "leaderboard_rows", "leaderboard_length", "totalteams"),
    "licence": ("licence", "license", "license_name", "training_authorization", "license_status"),
    "built": ("built", "build", "build_status", "executable"),
    "build_error": ("build_error", "build_reason", "error"),
    "check": ("check", "check_status", "validation", "validation status"),
    "quality": ("quality", "recommendation"),
}
"""What is read, and the headers that it goes by; case does not count. Only `slug` must be there."""
_MISSING = frozenset({"", "-", "na", "n/a", "nan", "none", "null"})
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+", re.ASCII)
_YES = frozenset({"1", "1.0", "true", "yes", "y", "ok", "success", "passed", "completed"})


class Verdict(Contract):
    """What became of one candidate."""

    slug: str
    dropped_at: Stage | None
    """The stage that it did not reach; None when it was admitted."""
    reason: str
    """A code; empty when it was admitted."""


class Funnel(Contract):
    """All of them."""

    candidates: int
    reached: Mapping[Stage, int]
    reasons: Mapping[Stage, Mapping[str, int]] = Field(default_factory=dict)
    """Of the drops before each stage, the most frequent first."""
    verdicts: tuple[Verdict, ...] = ()

    def shares(self) -> dict[str, float]:
        """The fraction of all candidates that reached each stage."""
        return {stage: count / self.candidates if self.candidates else 0.0 for stage, count in self.reached.items()}


def read_catalogue(path: Path) -> list[dict[str, str]]:
    """The rows of a catalogue by the names that `COLUMNS` has; what is not there is left out.

    Raises:
        PackageError: It is no CSV, has no column of slugs, or a row has no slug or a number of teams that is none.
    """
    rows = read_rows(path)
    header = [name.strip().casefold() for name in next(rows)]
    if twice := next((name for name in header if name and header.count(name) > 1), None):
        raise PackageError(f"{path}: the header has two columns {twice!r}")
    places = {
        ours: header.index(theirs) for ours, names in COLUMNS.items() for theirs in reversed(names) if theirs in header
    }
    if "slug" not in places:
        raise PackageError(f"{path}: no column {' or '.join(COLUMNS['slug'])} among {header[:20]}")
    candidates: list[dict[str, str]] = []
    for number, cells in enumerate(rows, start=1):
        candidate = {ours: cells[place].strip() for ours, place in places.items()}
        if not candidate["slug"]:
            raise PackageError(f"{path}: row {number}: no {header[places['slug']]}")
        try:
            _whole(candidate.get("teams", ""))
        except ValueError as error:
            name = header[places["teams"]]
            raise PackageError(
                f"{path}: row {number}: {name} {candidate['teams'][:40]!r} is no whole number"
            ) from error
        candidates.append(candidate)
    return candidates


def funnel(rows: Iterable[Mapping[str, str]], *, fewest_teams: int = FEWEST_TEAMS) -> Funnel:
    """Follows every candidate.

    Args:
        rows: As `read_catalogue` has them; a fact that is not there drops nobody, but what was not built, checked or
            judged where others were is dropped for that.
        fewest_teams: Shorter leaderboards are too short.

    Raises:
        ValueError: A number of teams is none.
    """
    seen: set[str] = set()
    verdicts: list[Verdict] = []
    for row in rows:
        slug = row["slug"]
        dropped = _dropped(row, fewest_teams, doubled=slug.casefold() in seen)
        seen.add(slug.casefold())
        verdicts.append(
            Verdict(slug=slug, dropped_at=dropped[0] if dropped else None, reason=dropped[1] if dropped else "")
        )
    left, reached = len(verdicts), {}
    reasons: dict[Stage, dict[str, int]] = {}
    for stage in STAGES:
        counts = Counter(verdict.reason for verdict in verdicts if verdict.dropped_at == stage)
        reasons[stage] = dict(counts.most_common())
        left -= counts.total()
        reached[stage] = left
    return Funnel(candidates=len(verdicts), reached=reached, reasons=reasons, verdicts=tuple(verdicts))


def _dropped(row: Mapping[str, str], fewest_teams: int, *, doubled: bool) -> tuple[Stage, str] | None:
    if doubled:
        return "eligible", "duplicate"
    if row["slug"].casefold() in mle_bench_ids():
        return "eligible", "overlap"
    if "teams" in row:
        teams = _whole(row["teams"])
        if teams is None or teams < fewest_teams:
            return "eligible", "leaderboard_missing" if teams is None else "leaderboard_too_short"
    if "licence" in row and (not row["licence"] or FORBIDDEN.search(row["licence"])):
        return "eligible", "licence" if row["licence"] else "licence_missing"
    if "built" in row and row["built"].casefold() not in _YES:
        return "executable", _code(row.get("build_error", "")) or "build_failed"
    if "check" in row and row["check"].casefold() not in _YES:
        return "executable", "check_failed"
    if "quality" in row and row["quality"].casefold() != "recommended":
        return "admitted", _code(row["quality"]) or "unjudged"
    return None


def _whole(cell: str) -> int | None:
    """A count, which spreadsheets and pandas also write as `1,234` or `50.0`; None where it is missing.

    Raises:
        ValueError: It is none.
    """
    if cell.casefold() in _MISSING:
        return None
    number = float(cell.replace(",", "") if _THOUSANDS.fullmatch(cell) else cell)
    if number < 0 or not number.is_integer():
        raise ValueError(cell)
    return int(number)


def _code(text: str) -> str:
    """A reason as a code: the words before a colon, so that `prepare: KeyError 'x'` counts as `prepare`."""
    return re.sub(r"[^a-z0-9]+", "_", text.partition(":")[0].casefold()).strip("_")[:60]
