"""The programs that may be submitted, and what is run on the validation split to choose among them.

Every run has a key of its own and is kept in the run's folder `final/`, so a resumed choice repeats nothing, whatever
the executor remembers.
"""

import asyncio
import os
import statistics
from collections.abc import Sequence
from dataclasses import replace

from openmle_gym.contracts import read_record
from openmle_gym.evaluate import JobSettings, attempt_job
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import ranked
from openmle_gym.jobs import JobRequest, JobResult
from openmle_gym.scores import ValidationScore
from openmle_gym.submissions import SubmissionSource

from openmle_evo.choice_record import Considered
from openmle_evo.run import RunDirectory, write_whole

FINAL_FOLDER = "final"


def candidate_cards(cards: Sequence[ExperienceCard], most: int) -> list[ExperienceCard]:
    """The best valid cards, best first, one for each program."""
    by_program: dict[str | None, ExperienceCard] = {}
    for card in ranked(cards):
        by_program.setdefault(card.program_id, card)
    return list(by_program.values())[:most]


def judging_job(card: ExperienceCard, settings: JobSettings) -> JobRequest:
    """The job that judged a card's program: an executor knows it again."""
    assert card.program_id is not None
    given = replace(settings, timeout_seconds=card.timeout_seconds or settings.timeout_seconds)
    return attempt_job(card, card.source, card.program_id, given)


class FinalJobs:
    """Runs on the validation split after the search, each once in the life of a run."""

    def __init__(self, *, executor: SubmissionSource, settings: JobSettings, run: RunDirectory) -> None:
        self.run = run
        self.settings = settings
        self._executor = executor
        self._folder = run.path / FINAL_FOLDER

    async def score(self, source: str, key: str) -> ValidationScore | None:
        """Runs a program and has it graded; None when it fails.

        Args:
            key: Names this run of this program within the final choice.

        Raises:
            InfrastructureError: Machinery failed; what was scored before is kept.
        """
        path = self._folder / f"{key}.json"
        if path.is_file():
            return read_record(path, JobResult).validation()
        result = await self._executor.run(self._job(source, key))
        self.run.charge_final(result.program_seconds + result.grading_seconds)
        self._folder.mkdir(exist_ok=True)
        write_whole(path, result.model_copy(update={"run_log": ""}).model_dump_json(by_alias=True))
        return result.validation()

    async def submission(self, card: ExperienceCard) -> bytes | None:
        """What a card's program submitted; it is run again where that is not kept. None when it fails then.

        Raises:
            InfrastructureError: Machinery failed.
        """
        path = self._folder / f"{card.program_id}.csv"
        if path.is_file():
            return path.read_bytes()
        clock = asyncio.get_running_loop().time
        started = clock()
        content = await self._executor.submission(judging_job(card, self.settings))
        if content is None:
            content = await self._executor.submission(self._job(card.source, f"part-{card.program_id}"))
        self.run.charge_final(clock() - started)  # an executor does not say whether it had to run the program again
        if content is not None:
            self._folder.mkdir(exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_bytes(content)
            temporary.replace(path)
        return content

    def _job(self, source: str, key: str) -> JobRequest:
        return JobRequest(
            name=self.run.manifest.task,
            code=source,
            data_dir=self.settings.data_dir,
            timeout_seconds=self.settings.timeout_seconds,
            resource_type=self.settings.resource_type,
            priority=1,
            idempotency_key=f"{self.run.manifest.run_id}-final-{key}",
            labels={"run": self.run.manifest.run_id, "attempt": "final"},
        )


async def reconsider(card: ExperienceCard, jobs: FinalJobs, *, repeats: int) -> Considered:
    """Runs a card's program again, so many times.

    Raises:
        InfrastructureError: Machinery failed; the runs that were made are kept.
    """
    scores = await asyncio.gather(
        *(jobs.score(card.source, f"repeat-{card.program_id}-{number}") for number in range(repeats))
    )
    return considered(card, scores)


def considered(card: ExperienceCard, repeats: Sequence[ValidationScore | None] = ()) -> Considered:
    """The record of a card's program and its repeats."""
    assert card.validation is not None
    assert card.program_id is not None
    good = [score for score in repeats if score is not None]
    mean = statistics.fmean(score.value for score in good) if good and len(good) == len(repeats) else None
    return Considered(
        attempt=card.attempt,
        program_id=card.program_id,
        first=card.validation,
        repeats=tuple(repeats),
        mean=None if mean is None else card.validation.model_copy(update={"value": mean}),
        best=max([card.validation, *good], key=lambda score: score.utility),
    )


def best_mean(programs: Sequence[Considered]) -> Considered:
    """The program with the best mean, the earlier listed among equals; the first listed when none has a mean."""
    means = [each for each in programs if each.mean is not None]
    return max(means, key=lambda each: each.mean.utility if each.mean else 0.0, default=programs[0])
