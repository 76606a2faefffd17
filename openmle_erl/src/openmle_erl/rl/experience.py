"""What a run has learnt of its tasks: the cards on disk, and in memory what prompts, parents and bounds are made of.

Cards are facts and are written when they are made. They enter the experience when their group is settled, in that
order, with a reward; a run that resumes enters them again in the same order. Cards of evaluation are kept in the same
store under another run id, and nothing here reads them.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from openmle_gym.experience import ExperienceCard
from openmle_gym.operators import Operator
from openmle_gym.store import CardStore

from openmle_erl.rewards.batches import ScoreRecord
from openmle_erl.rl.groups import score_record
from openmle_erl.rl.parents import Population


class _TaskExperience:
    def __init__(self, published: bool) -> None:
        self.cards: list[ExperienceCard] = []
        self.by_attempt: dict[int, ExperienceCard] = {}
        self.population = Population(published=published)
        self.candidates: dict[Operator, list[int]] = {operator: [] for operator in Operator}
        self.scores: list[ScoreRecord] = []
        self.programs: set[str] = set()


class Experience:
    """Of one run, all tasks."""

    def __init__(self, store: CardStore, run_id: str, *, published: bool = False) -> None:
        """Args:
        published: How parents are weighed; see `Population`.
        """
        self._store = store
        self._run_id = run_id
        self._published = published
        self._tasks: dict[str, _TaskExperience] = {}
        self._verdicts: dict[tuple[str, str], ExperienceCard] = {}

    def restore(self, settled: Iterable[tuple[int, int, float]]) -> dict[int, ExperienceCard]:
        """Enters what was settled before, given as attempt, group and base reward; returns all cards of the run."""
        cards = {card.attempt: card for card in self._store.cards(run_id=self._run_id)}
        for card in cards.values():
            self._know(card)
        for attempt, group, reward in settled:
            self.enter(cards[attempt], reward, group=group)
        return cards

    def write(self, card: ExperienceCard) -> None:
        """Puts a card on disk; from now on its program is not run again. As of the queue beside it, the end of this process
        loses nothing; a loss of power may lose the last, with what the queue says of them."""
        with self._store.unsynced():
            self._store.append(card)
        self._know(card)

    def _know(self, card: ExperienceCard) -> None:
        if card.program_id is not None and card.review != "unknown":
            self._verdicts.setdefault((card.task, card.program_id), card)

    def verdict(self, task: str, program_id: str) -> ExperienceCard | None:
        """The first card of a program on a task; None when it was never judged there."""
        return self._verdicts.get((task, program_id))

    def enter(self, card: ExperienceCard, base_reward: float, *, group: int) -> None:
        """Makes a card part of the experience; a program that is there already becomes no second candidate."""
        task = self._tasks.setdefault(card.task, _TaskExperience(self._published))
        task.cards.append(card)
        task.by_attempt[card.attempt] = card
        task.population.add(card.attempt, base_reward, card.parents, group=group)
        if (record := score_record(card)) is not None:
            task.scores.append(record)
        if card.program_id is None or card.program_id in task.programs:
            return
        task.programs.add(card.program_id)
        for operator, attempts in task.candidates.items():
            if card.may_parent(operator):
                attempts.append(card.attempt)

    def cards(self, task: str) -> Sequence[ExperienceCard]:
        """What prompts may tell of a task, in the order of entry."""
        return self._tasks[task].cards if task in self._tasks else ()

    def scores(self, task: str) -> Sequence[ScoreRecord]:
        """What the task's bounds are drawn from, oldest first."""
        return self._tasks[task].scores if task in self._tasks else ()

    def candidates(self, task: str) -> Mapping[Operator, Sequence[int]]:
        """The programs that each operator could take as a parent, each program once."""
        return self._tasks[task].candidates if task in self._tasks else {}

    def population(self, task: str) -> Population:
        """What parents are drawn from."""
        return self._tasks[task].population

    def parents(self, task: str, attempts: Sequence[int]) -> list[ExperienceCard]:
        """The cards of some attempts."""
        return [self._tasks[task].by_attempt[attempt] for attempt in attempts]


def snapshot(run: Path, settled: int, target: Path) -> int:
    """Writes a card store of exactly what the policy of a checkpoint had been taught from.

    Cards and groups are never changed, so a checkpoint only remembers how far they had come, and nothing is copied
    while a run goes on.

    Args:
        run: The run's folder.
        settled: From the checkpoint's `state.json`.
        target: A file that is not there.

    Returns:
        How many cards it holds.
    """
    store = CardStore(target)
    source = sqlite3.connect(f"{(run / 'experience.sqlite').resolve().as_uri()}?mode=ro", uri=True)
    try:
        rows = source.execute(
            "SELECT card FROM cards JOIN members ON cards.attempt = members.attempt JOIN groups USING (number) "
            "WHERE groups.settled <= ? AND base_reward IS NOT NULL AND run_id NOT LIKE '%-eval' "
            "ORDER BY groups.settled, cards.attempt",
            (settled,),
        ).fetchall()
        for (card,) in rows:
            store.append(ExperienceCard.model_validate_json(card))
    finally:
        source.close()
        store.close()
    return len(rows)
