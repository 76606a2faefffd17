"""One task as a sequence of prompts and programs: what every environment interface is a face of.

The prompt says which operator is asked for and shows its parents, as in a search with one line of descent: a program
that failed is mended, the best one is improved, and without either one a new one is drafted.
"""

from dataclasses import dataclass
from pathlib import Path

from openmle_gym.chat import Completion, Message
from openmle_gym.evaluate import Attempt, JobSettings, evaluate_reply
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.features import best_card
from openmle_gym.jobs import Executor, Limits
from openmle_gym.operators import Operator
from openmle_gym.prompts import Remaining, Surroundings, build_prompt, public_task
from openmle_gym.task import TaskPackage, load_package

DEBUG_DEPTH = 2
"""So many failed programs in a row are mended before another operator is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What came of one program."""

    card: ExperienceCard
    reward: float
    """See `reward`."""
    done: bool
    """There are no more attempts."""


class Episode:
    """The attempts at one task."""

    def __init__(
        self,
        package: Path | str | TaskPackage,
        *,
        executor: Executor,
        attempts: int = 10,
        limits: Limits | None = None,
        run_id: str = "episode",
    ) -> None:
        """Args:
        package: A task package whose folder the executor knows by the same path.
        attempts: Programs until the episode is over.
        limits: What a program may use, as the prompt tells it; the executor enforces its own.
        run_id: Part of every job's idempotency key.
        """
        self.package = package if isinstance(package, TaskPackage) else load_package(package)
        self.attempts = attempts
        self.cards: list[ExperienceCard] = []
        self._executor = executor
        self._limits = limits or Limits()
        self._run_id = run_id
        self._task = public_task(self.package)

    @property
    def best(self) -> ExperienceCard | None:
        """The best attempt so far by its validation score."""
        return best_card(self.cards)

    @property
    def operator(self) -> Operator:
        """What is asked for next."""
        return self._choice()[0]

    def prompt(self) -> list[Message]:
        """What a policy is asked next."""
        operator, parents = self._choice()
        around = Surroundings(
            limits=self._limits, remaining=Remaining(attempts=max(0, self.attempts - len(self.cards) - 1))
        )
        return build_prompt(operator, self._task, parents, around)

    async def step(self, text: str) -> Step:
        """Judges a model's reply.

        Raises:
            InfrastructureError: The machinery failed; the attempt does not count.
            ValueError: The episode is over.
        """
        if len(self.cards) >= self.attempts:
            raise ValueError(f"the episode is over after {self.attempts} attempts")
        operator, parents = self._choice()
        attempt = Attempt(
            run_id=self._run_id,
            task=self.package.name,
            attempt=len(self.cards),
            operator=operator,
            parents=tuple(card.attempt for card in parents),
            selection=Selection(reason="one line of descent", committed=len(self.cards)),
        )
        settings = JobSettings(
            data_dir=str(self.package.root),
            timeout_seconds=self._limits.wall_seconds,
            resource_type=self.package.manifest.compute,
        )
        card = await evaluate_reply(Completion(text=text), attempt, executor=self._executor, settings=settings)
        earned = reward(card, self.best, self.package)
        self.cards.append(card)
        return Step(card=card, reward=earned, done=len(self.cards) >= self.attempts)

    def _choice(self) -> tuple[Operator, list[ExperienceCard]]:
        failed = 0
        for card in reversed(self.cards):
            if not card.may_parent(Operator.DEBUG):
                break
            failed += 1
        if 0 < failed <= DEBUG_DEPTH:
            return Operator.DEBUG, [self.cards[-1]]
        best = self.best
        return (Operator.IMPROVE, [best]) if best is not None else (Operator.DRAFT, [])


def program_reply(text: str) -> str:
    """The text of a program as a reply that holds it; text with a fence is a reply already."""
    return text if "```" in text or "~~~" in text else f"```python\n{text}\n```"


def reward(card: ExperienceCard, best: ExperienceCard | None, package: TaskPackage) -> float:
    """In [0, 1]: the fraction of the leaderboard that the validation score beats; without a leaderboard 1 for a new best
    and 0.5 for any other score; 0 without a score.

    Args:
        best: The best attempt before this one.
    """
    if card.validation is None:
        return 0.0
    if package.leaderboard is not None:
        return package.leaderboard.fraction_beaten(card.validation.value)
    is_best = best is None or best.validation is None or card.validation.utility > best.validation.utility
    return 1.0 if is_best else 0.5
