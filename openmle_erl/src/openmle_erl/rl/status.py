"""How a run stands, read from its folder."""

import contextlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openmle_gym.errors import StoreError

from openmle_erl.rl.opening import EXPERIENCE, RunRecord, read_run
from openmle_erl.rl.samples import Fate

LAST = 10
"""Steps that the means are over."""
MEANS = (
    "seconds/step",
    "trainer/idle_share",
    "reward/mean",
    "progress/mean",
    "progress/best_of_group",
    "percentile/mean",
    "staleness/mean",
    "tokens/reply",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What `openmle-erl status` prints."""

    run_id: str
    steps: int
    steps_wanted: int
    groups: Mapping[str, int]
    """By state."""
    fates: Mapping[str, int]
    """Of all samples that were begun; `open` are those that have none yet."""
    samples: int
    """All that were begun; the fates add up to them."""
    exposure: Mapping[str, int]
    """Groups of each task that were trained on."""
    duplicates: Mapping[str, int]
    """Verdicts that were given without a run, by whose they were."""
    outcomes: Mapping[str, float]
    """Shares, over the last steps."""
    first: Mapping[str, float]
    """Means over the first steps."""
    last: Mapping[str, float]
    """Means over the last steps; progress and percentile are on bounds that do not move."""
    evaluations: Sequence[Mapping[str, float]]


def read_status(run: Path) -> Status:
    """Reads a run's folder, and changes nothing.

    Raises:
        StoreError: There is no run, or its file is damaged.
    """
    record = read_run(run)
    try:
        place = f"{(run / EXPERIENCE).resolve().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(place, uri=True)) as tables:
            return _status(record, tables)
    except (sqlite3.DatabaseError, ValueError) as error:
        raise StoreError(f"{run / EXPERIENCE}: {error}") from error


def _status(record: RunRecord, tables: sqlite3.Connection) -> Status:
    def counts(query: str) -> dict[str, int]:
        return dict(tables.execute(query).fetchall())

    steps = [json.loads(row) for (row,) in tables.execute("SELECT record FROM steps ORDER BY step")]
    fates = counts("SELECT coalesce(fate, 'open'), count(*) FROM members GROUP BY 1")
    evaluations = tables.execute("SELECT record FROM evaluations ORDER BY step")
    schedule = record.settings.get("schedule")
    wanted = schedule.get("steps") if isinstance(schedule, dict) else None
    return Status(
        run_id=record.run_id,
        steps=len(steps),
        steps_wanted=wanted if isinstance(wanted, int) else 0,
        groups=counts("SELECT state, count(*) FROM groups GROUP BY state"),
        fates={name: fates.get(name, 0) for name in (*map(str, Fate), "open")},
        samples=sum(fates.values()),
        exposure=counts("SELECT task, sum(state = 'trained') FROM groups GROUP BY task ORDER BY task"),
        duplicates=counts("SELECT duplicate, count(*) FROM members WHERE duplicate IS NOT NULL GROUP BY 1"),
        outcomes=means(steps[-LAST:], [name for name in (steps[-1] if steps else {}) if name.startswith("outcome/")]),
        first=means(steps[:LAST], MEANS),
        last=means(steps[-LAST:], MEANS),
        evaluations=[json.loads(row) for (row,) in evaluations],
    )


def means(steps: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """Of each name, over the steps that have it."""
    found = {
        name: [step[name] for step in steps if step.get(name) == step.get(name) and name in step] for name in names
    }
    return {name: sum(values) / len(values) for name, values in found.items() if values}


def summary_lines(status: Status) -> list[str]:
    """The status for a reader."""
    exposure = sorted(status.exposure.values())
    lines = [
        f"run {status.run_id}: {status.steps} of {status.steps_wanted} steps",
        f"{status.samples} samples: {', '.join(f'{name} {count}' for name, count in status.fates.items() if count)}",
        f"groups: {', '.join(f'{name} {count}' for name, count in status.groups.items())}",
    ]
    if exposure:
        middle = exposure[len(exposure) // 2]
        lines.append(f"groups per task: {exposure[0]} to {exposure[-1]}, median {middle}")
    if status.duplicates:
        lines.append(f"not run again: {', '.join(f'{n} {whose}' for whose, n in status.duplicates.items())}")
    lines += [
        f"{name}: {status.first[name]:.4g} in the first steps, {status.last[name]:.4g} in the last"
        for name in MEANS
        if name in status.first and name in status.last
    ]
    return lines
