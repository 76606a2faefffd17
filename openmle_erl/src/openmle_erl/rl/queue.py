"""The run's groups on disk: in flight, ready, trained, dropped. What finished stays until the trainer has had it.

Tokens, log-probabilities and versions of a reply are written when it is complete, a verdict when it is made, so a run
that is killed at any moment generates and executes nothing twice. Groups that were trained on after the last
checkpoint go back to ready with it (`rewind`), as their gradient is lost.
"""

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from openmle_gym.errors import StoreError
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.operators import Operator

from openmle_erl.rl.conversation import Prompt
from openmle_erl.rl.groups import Group, GroupState
from openmle_erl.rl.samples import Duplicate, Fate, Member, unpacked

_SCHEMA = """
CREATE TABLE IF NOT EXISTS groups (
    number INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    operator TEXT NOT NULL,
    parents TEXT NOT NULL,
    selection TEXT NOT NULL,
    prompt BLOB NOT NULL,
    opens_thinking INTEGER NOT NULL,
    version INTEGER NOT NULL,
    state TEXT NOT NULL,
    settled INTEGER,
    step INTEGER
);
CREATE INDEX IF NOT EXISTS groups_by_state ON groups (state, step);
CREATE TABLE IF NOT EXISTS members (
    attempt INTEGER PRIMARY KEY,
    number INTEGER NOT NULL,
    rolled BLOB,
    duplicate TEXT,
    fate TEXT,
    reward REAL,
    base_reward REAL,
    progress REAL,
    percentile REAL
);
CREATE INDEX IF NOT EXISTS members_by_group ON members (number);
CREATE INDEX IF NOT EXISTS members_by_fate ON members (fate);
CREATE INDEX IF NOT EXISTS members_by_duplicate ON members (duplicate) WHERE duplicate IS NOT NULL;
CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS evaluations (step INTEGER PRIMARY KEY, record TEXT NOT NULL);
"""
_OPEN = "open"


class GroupQueue:
    """One writer; the file is the run's experience, where the cards are too."""

    def __init__(self, path: Path | str) -> None:
        """Opens or creates the tables; `:memory:` keeps them in memory, for a simulation.

        Raises:
            StoreError: The file is damaged.
        """
        self._path = path
        try:
            self._tables = sqlite3.connect(path, isolation_level=None)
            # A kill loses nothing that was committed; FULL would guard against a loss of power, at a price for each row.
            self._tables.execute("PRAGMA synchronous=NORMAL")
            self._tables.executescript(_SCHEMA)
            (found,) = self._tables.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{path}: damaged: {error}") from error
        if found != "ok":
            raise StoreError(f"{path}: damaged: {found}")
        self._fates = self._count_fates()
        self._exposure = self._count_exposure()
        (self._settled,) = self._tables.execute("SELECT coalesce(max(settled), 0) FROM groups").fetchone()

    def next_group(self) -> int:
        """The number of the next group."""
        return self._tables.execute("SELECT coalesce(max(number) + 1, 0) FROM groups").fetchone()[0]

    def next_attempt(self) -> int:
        """The number of the next member."""
        return self._tables.execute("SELECT coalesce(max(attempt) + 1, 0) FROM members").fetchone()[0]

    def begin(self, group: Group) -> None:
        """Writes down a group that is about to be generated."""
        prompt = zlib.compress(np.array(group.prompt.ids, dtype=np.int32).tobytes(), 1)
        with self._transaction():
            self._tables.execute(
                "INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
                (
                    group.number,
                    group.task,
                    group.operator,
                    json.dumps(group.parents),
                    group.selection.model_dump_json(),
                    prompt,
                    group.prompt.opens_thinking,
                    group.version,
                    group.state,
                ),
            )
            self._tables.executemany(
                "INSERT INTO members (attempt, number) VALUES (?, ?)",
                [(member.attempt, group.number) for member in group.members],
            )
        self._fates[_OPEN] = self._fates.get(_OPEN, 0) + len(group.members)

    def rolled(self, member: Member) -> None:
        """Writes down a reply."""
        assert member.rolled is not None
        self._tables.execute(
            "UPDATE members SET rolled = ? WHERE attempt = ?", (member.rolled.packed(), member.attempt)
        )

    def judged(self, member: Member) -> None:
        """Writes down whose verdict a member got; the card itself is in the card store."""
        if member.duplicate is not None:
            self._tables.execute(
                "UPDATE members SET duplicate = ? WHERE attempt = ?", (member.duplicate, member.attempt)
            )

    def settle(self, group: Group) -> None:
        """Writes down a group that is complete, with its members' rewards."""
        self._settled += 1
        group.settled = self._settled
        self._write([group])

    def trained(self, groups: Sequence[Group], step: int) -> None:
        """Writes down that a step has trained on groups."""
        for group in groups:
            group.state, group.step = GroupState.TRAINED, step
            for member in group.members:
                member.fate = member.fate or Fate.TRAINED
            self._exposure[group.task] = self._exposure.get(group.task, 0) + 1
        self._write(groups)

    def dropped(self, groups: Sequence[Group]) -> None:
        """Writes down that ready groups were dropped."""
        self._write(groups)

    def _write(self, groups: Iterable[Group]) -> None:
        with self._transaction():
            for group in groups:
                self._tables.execute(
                    "UPDATE groups SET state = ?, settled = ?, step = ? WHERE number = ?",
                    (group.state, group.settled, group.step, group.number),
                )
                for member in group.members:
                    (before,) = self._tables.execute(
                        "SELECT fate FROM members WHERE attempt = ?", (member.attempt,)
                    ).fetchone()
                    self._tables.execute(
                        "UPDATE members SET fate = ?, reward = ?, base_reward = ?, progress = ?, percentile = ? "
                        "WHERE attempt = ?",
                        (
                            member.fate,
                            member.reward,
                            member.base_reward,
                            member.progress,
                            member.percentile,
                            member.attempt,
                        ),
                    )
                    self._fates[before or _OPEN] -= 1
                    self._fates[member.fate or _OPEN] = self._fates.get(member.fate or _OPEN, 0) + 1

    def groups(self, state: GroupState, cards: Mapping[int, ExperienceCard]) -> list[Group]:
        """The groups in a state, in the order in which they were settled or begun.

        Args:
            cards: The run's, by attempt.
        """
        rows = self._tables.execute(
            "SELECT number, task, operator, parents, selection, prompt, opens_thinking, version, settled, step FROM groups "
            "WHERE state = ? ORDER BY settled, number",
            (state,),
        ).fetchall()
        return [
            Group(
                number=number,
                task=task,
                operator=Operator(operator),
                parents=tuple(json.loads(parents)),
                selection=Selection.model_validate_json(selection),
                prompt=Prompt(
                    tuple(np.frombuffer(zlib.decompress(prompt), dtype=np.int32).tolist()), bool(opens_thinking)
                ),
                version=version,
                state=state,
                settled=settled,
                step=step,
                members=self._members(number, cards),
            )
            for number, task, operator, parents, selection, prompt, opens_thinking, version, settled, step in rows
        ]

    def _members(self, number: int, cards: Mapping[int, ExperienceCard]) -> list[Member]:
        rows = self._tables.execute(
            "SELECT attempt, rolled, duplicate, fate, reward, base_reward, progress, percentile FROM members "
            "WHERE number = ? ORDER BY attempt",
            (number,),
        ).fetchall()
        return [
            Member(
                attempt=attempt,
                rolled=unpacked(rolled) if rolled is not None else None,
                card=cards.get(attempt),
                duplicate=duplicate,
                fate=Fate(fate) if fate else None,
                **{
                    name: np.nan if value is None else value
                    for name, value in zip(("reward", "base_reward", "progress", "percentile"), values, strict=True)
                },
            )
            for attempt, rolled, duplicate, fate, *values in rows
        ]

    def experience(self) -> list[tuple[int, int, float]]:
        """Attempt, group and base reward of all that was settled with a reward, in that order."""
        return self._tables.execute(
            "SELECT attempt, members.number, base_reward FROM members JOIN groups USING (number) "
            "WHERE settled IS NOT NULL AND base_reward IS NOT NULL ORDER BY settled, attempt"
        ).fetchall()

    def rewind(self, step: int) -> int:
        """Makes ready again what was trained on after a step; returns how many groups.

        Raises:
            StoreError: Their tokens were forgotten, since a checkpoint had taken them up that is gone.
        """
        (forgotten,) = self._tables.execute(
            "SELECT min(step) FROM groups JOIN members USING (number) "
            "WHERE state = 'trained' AND step > ? AND fate = 'trained' AND rolled IS NULL",
            (step,),
        ).fetchone()
        if forgotten is not None:
            raise StoreError(
                f"{self._path}: cannot go back to step {step}: what step {forgotten} was trained on is forgotten, as it was "
                "in a checkpoint; put the run's checkpoints back, or begin another run from its weights"
            )
        with self._transaction():
            self._tables.execute(
                "UPDATE members SET fate = NULL WHERE fate = 'trained' AND number IN "
                "(SELECT number FROM groups WHERE state = 'trained' AND step > ?)",
                (step,),
            )
            changed = self._tables.execute(
                "UPDATE groups SET state = 'ready', step = NULL WHERE state = 'trained' AND step > ?", (step,)
            ).rowcount
            self._tables.execute("DELETE FROM steps WHERE step > ?", (step,))
        self._fates, self._exposure = self._count_fates(), self._count_exposure()
        return changed

    def prune(self, step: int) -> None:
        """Forgets the tokens of what was trained on up to a step that is in a checkpoint, or dropped."""
        self._tables.execute(
            "UPDATE members SET rolled = NULL WHERE rolled IS NOT NULL AND number IN "
            "(SELECT number FROM groups WHERE state = 'dropped' OR (state = 'trained' AND step <= ?))",
            (step,),
        )

    def fates(self) -> dict[str, int]:
        """How many members have each fate, and how many are open."""
        return {name: self._fates.get(name, 0) for name in (*Fate, _OPEN)}

    def exposure(self) -> dict[str, int]:
        """How many groups of each task were trained on."""
        return dict(self._exposure)

    def duplicates(self) -> dict[Duplicate, int]:
        """How many members got another one's verdict."""
        return dict(
            self._tables.execute(
                "SELECT duplicate, count(*) FROM members WHERE duplicate IS NOT NULL GROUP BY duplicate"
            ).fetchall()
        )

    @property
    def settled(self) -> int:
        """How many groups have been settled; what a checkpoint remembers of the experience."""
        return self._settled

    def write_step(self, step: int, record: Mapping[str, object]) -> None:
        """Writes down what a step did."""
        self._tables.execute("INSERT OR REPLACE INTO steps VALUES (?, ?)", (step, json.dumps(record)))

    def write_evaluation(self, step: int, record: Mapping[str, object]) -> None:
        """Writes down what the evaluation after a step found."""
        self._tables.execute("INSERT OR REPLACE INTO evaluations VALUES (?, ?)", (step, json.dumps(record)))

    def evaluated(self, step: int) -> bool:
        """Whether the evaluation after a step is written down."""
        return self._tables.execute("SELECT 1 FROM evaluations WHERE step = ?", (step,)).fetchone() is not None

    def steps(self) -> list[dict[str, float]]:
        """What the steps did, in order."""
        return [json.loads(record) for (record,) in self._tables.execute("SELECT record FROM steps ORDER BY step")]

    def close(self) -> None:
        """Closes the file."""
        self._tables.close()

    def _count_fates(self) -> dict[str, int]:
        rows = self._tables.execute("SELECT coalesce(fate, 'open'), count(*) FROM members GROUP BY 1")
        return dict(rows.fetchall())

    def _count_exposure(self) -> dict[str, int]:
        rows = self._tables.execute("SELECT task, count(*) FROM groups WHERE state = 'trained' GROUP BY task")
        return dict(rows.fetchall())

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._tables.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._tables.execute("COMMIT")
        finally:
            if self._tables.in_transaction:
                self._tables.execute("ROLLBACK")
