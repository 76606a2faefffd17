"""Single-shot quality of a policy: independent Drafts, each graded once, on the test split. Nothing selects among them.

<suite>/suite.json      the tasks, the number of Drafts of each, the settings; written once
<suite>/store.sqlite    a card for each Draft, with its test score
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

from openmle_gym.chat import ChatModel, Message
from openmle_gym.errors import ConfigError
from openmle_gym.evaluate import Attempt, evaluate_reply
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.jobs import Executor, JobRequest, JobResult
from openmle_gym.leaderboard import Medal
from openmle_gym.locked import LockedFolder
from openmle_gym.operators import Operator
from openmle_gym.prompts import Surroundings, build_prompt, public_task
from openmle_gym.scores import TestScore
from openmle_gym.store import CardStore
from openmle_gym.task import TaskPackage, load_package

from openmle_evo.config import SearchConfig
from openmle_evo.evaluation.results import RunOutcome
from openmle_evo.evaluation.suite import SuiteManifest, read_suite
from openmle_evo.final import standing
from openmle_evo.launch import executors, job_settings, limits_of
from openmle_evo.policy import open_policies
from openmle_evo.randomness import attempt_seed

STORE = "store.sqlite"


class OnTest:
    """An executor that grades on the test split, and keeps the score apart from what an operator may see."""

    def __init__(self, grader: Executor) -> None:
        self._grader = grader
        self.score: TestScore | None = None

    async def run(self, job: JobRequest) -> JobResult:
        """Runs the job; its test score is then `score`."""
        result = await self._grader.run(job.model_copy(update={"eval_split": "test"}))
        self.score = result.test()
        return result


async def run_drafts(
    path: Path, config: SearchConfig, manifest: SuiteManifest, on_card: Callable[[ExperienceCard], None]
) -> None:
    """Samples and grades every Draft that is not there yet.

    Raises:
        ConfigError: Nobody may grade on the test split.
        InfrastructureError: The policy or the executor is out of reach. The same call goes on.
    """
    with contextlib.closing(LockedFolder(path, doing="is sampling these drafts")) as folder:
        async with open_policies(config) as policies:
            for task in manifest.tasks:
                package = load_package(task)
                async with executors(config, package) as place:
                    if place.grader is None:
                        raise ConfigError("drafts are graded on the test split: set OPENMLE_SANDBOX_GRADE_KEY")
                    sampler = _Sampler(path, config, package, place.grader, folder.store, on_card)
                    await sampler.run(policies.default, manifest.runs)


class _Sampler:
    """The Drafts of one task."""

    def __init__(
        self,
        path: Path,
        config: SearchConfig,
        package: TaskPackage,
        grader: Executor,
        store: CardStore,
        on_card: Callable[[ExperienceCard], None],
    ) -> None:
        self._run_id = _run_id(path, package.name)
        self._config = config
        self._package = package
        self._grader = grader
        self._store = store
        self._on_card = on_card
        self._slots = asyncio.Semaphore(config.workers)

    async def run(self, policy: ChatModel, count: int) -> None:
        config = self._config
        messages = build_prompt(
            Operator.DRAFT,
            public_task(self._package, config.prompt),
            (),
            Surroundings(limits=limits_of(config)),
            config=config.prompt,
        )
        done = {card.attempt for card in self._store.cards(run_id=self._run_id)}
        drafts = [
            asyncio.create_task(self._draft(policy, messages, number)) for number in range(count) if number not in done
        ]
        try:
            await asyncio.gather(*drafts)
        finally:
            for draft in drafts:
                draft.cancel()
            await asyncio.gather(*drafts, return_exceptions=True)

    async def _draft(self, policy: ChatModel, messages: list[Message], number: int) -> None:
        async with self._slots:
            reply = await policy.complete(messages, seed=attempt_seed(self._config.seed, number))
            attempt = Attempt(
                run_id=self._run_id,
                task=self._package.name,
                attempt=number,
                operator=Operator.DRAFT,
                parents=(),
                selection=Selection(reason="independent draft"),
            )
            on_test = OnTest(self._grader)
            settings = job_settings(self._config, self._package)
            card = await evaluate_reply(reply, attempt, executor=on_test, settings=settings)
        card = card.model_copy(update={"test": on_test.score})
        self._store.append(card)
        self._on_card(card)


def draft_outcomes(path: Path) -> list[RunOutcome]:
    """The outcomes of all Drafts that are there; `run` is a Draft's number.

    Raises:
        StoreError: The folder holds no suite, or its store is damaged.
    """
    packages = {package.name: package for package in map(load_package, read_suite(path).tasks)}
    return [draft_outcome(card, packages[card.task]) for card in draft_cards(path)]


def draft_cards(path: Path) -> list[ExperienceCard]:
    """All Drafts that are there, in the order in which they came to their ends.

    Raises:
        StoreError: The store is damaged.
    """
    with contextlib.closing(CardStore(path / STORE)) as store:
        return store.cards()


def draft_outcome(card: ExperienceCard, package: TaskPackage) -> RunOutcome:
    """What one Draft is worth."""
    place = standing(card.test, package)
    return RunOutcome(
        task=card.task,
        run=card.attempt,
        modality=package.manifest.modality[0] if package.manifest.modality else "",
        valid=card.test is not None,
        score=card.test.value if card.test else None,
        higher_is_better=package.manifest.metric.higher_is_better,
        has_leaderboard=package.leaderboard is not None,
        fraction_beaten=place.fraction_beaten if place else None,
        medal=Medal(place.medal) if place and place.medal else None,
        tokens=card.usage.prompt_tokens + card.usage.completion_tokens,
        sandbox_seconds=card.sandbox_seconds,
    )


def _run_id(path: Path, task: str) -> str:
    """Follows from what is sampled, so that a service knows a Draft again that it has graded."""
    text = read_suite(path).model_dump_json() + str(path.resolve())
    return f"drafts-{hashlib.sha256(text.encode()).hexdigest()[:12]}-{task}"
