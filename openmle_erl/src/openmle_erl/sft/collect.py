"""Parallel Draft sampling: batch by batch, every task gets Drafts until enough are accepted or its budget ends.

    for each task, several at once:
        where does it stand?           `stopping.standing` of what its judged attempts are worth
        for each attempt of the batch: prompt -> policy -> reply on disk -> `evaluate_reply` -> card on disk

Trouble with the machinery ends a task's turn, never an attempt: no card is written, and the same command goes on. A
task's trouble does not stop the others, until several tasks in a row had some.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from openmle_gym.chat import ChatModel, Message
from openmle_gym.errors import InfrastructureError, PackageError
from openmle_gym.evaluate import Attempt, JobSettings, evaluate_reply
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.jobs import Executor, Limits
from openmle_gym.operators import Operator
from openmle_gym.prompts import PromptConfig, PublicTask, Surroundings, build_prompt

from openmle_erl.sft.acceptance import TaskFacts, accept
from openmle_erl.sft.canonical import canonical
from openmle_erl.sft.collection import Collection
from openmle_erl.sft.config import AcceptanceConfig, FilterConfig
from openmle_erl.sft.exchanges import Exchange
from openmle_erl.sft.filters import baseline_drop
from openmle_erl.sft.messages import conversation
from openmle_erl.sft.reasons import Drop
from openmle_erl.sft.stopping import Budget, standing
from openmle_erl.sft.tokens import ChatTokenizer, count_tokens

TROUBLED_TASKS = 3
"""After trouble with so many tasks in a row no further task is begun."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectTask:
    """One task to sample."""

    public: PublicTask
    facts: TaskFacts
    job: JobSettings
    budget: Budget

    @property
    def name(self) -> str:
        """The task's name."""
        return self.facts.name


class TaskReport(NamedTuple):
    """What became of a task."""

    task: str
    attempts: int
    accepted: int
    done: bool
    """The quota is met or the budget spent; False when trouble came first."""
    dropped: dict[str, int]
    """Attempts that do not count towards the quota, by reason."""
    trouble: str = ""


def decide(
    cards: Sequence[ExperienceCard],
    exchanges: Mapping[int, Exchange],
    facts: TaskFacts,
    acceptance: AcceptanceConfig,
    filters: FilterConfig,
    tokenizer: ChatTokenizer | None,
    *,
    task_scale: float | None = None,
) -> dict[int, Drop | None]:
    """Decides on a task's judged Drafts, in order of attempts: why each is dropped, None for accepted ones.

    A program that repeats an accepted one, up to comments, names and layout, is not accepted again.
    """
    verdicts: dict[int, Drop | None] = {}
    seen: set[str] = set()
    for card in sorted(cards, key=lambda each: each.attempt):
        drop = accept(card, facts, acceptance).drop
        if drop is None and acceptance.policy != "all":
            tokens = None
            if tokenizer is not None and filters.max_tokens is not None:
                exchange = exchanges[card.attempt]
                tokens = count_tokens(tokenizer, conversation(exchange.messages, card, exchange.reply))
            drop = baseline_drop(card, facts, filters, tokens=tokens, task_scale=task_scale)
        if drop is None:
            form = canonical(card.source)
            drop = Drop.DUPLICATE_PROGRAM if form in seen else None
            seen.add(form)
        verdicts[card.attempt] = drop
    return verdicts


@dataclass(kw_only=True)
class Collector:
    """One sampling of many tasks."""

    collection: Collection
    policy: ChatModel
    executor: Executor
    """Grades on the validation split; its key, where it has one, can do no more."""
    limits: Limits
    acceptance: AcceptanceConfig
    filters: FilterConfig
    prompt: PromptConfig = field(default_factory=PromptConfig)
    tokenizer: ChatTokenizer | None = None
    seed: int = 0
    workers: int = 2
    on_card: Callable[[ExperienceCard], None] = lambda card: None
    _slots: asyncio.Semaphore = field(init=False)
    _troubles: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.workers)

    async def run(self, tasks: Sequence[CollectTask]) -> list[TaskReport]:
        """Samples every task to its end; reports in the order of the tasks.

        Cancelling it cancels what is under way; all that was replied or judged is on disk.
        """
        waiting = iter(tasks)
        reports: dict[str, TaskReport] = {}
        workers = [asyncio.create_task(self._work(waiting, reports)) for _ in range(min(self.workers, len(tasks)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return [reports.get(task.name) or self._report(task, "not begun") for task in tasks]

    async def _work(self, waiting: Iterator[CollectTask], reports: dict[str, TaskReport]) -> None:
        for task in waiting:
            if self._troubles >= TROUBLED_TASKS:
                return
            try:
                await self._sample(task)
            except (InfrastructureError, PackageError) as error:
                self._troubles += 1
                log.warning("%s: stopped by trouble: %s", task.name, error)
                reports[task.name] = self._report(task, str(error))
            else:
                self._troubles = 0
                reports[task.name] = self._report(task)

    async def _sample(self, task: CollectTask) -> None:
        while True:
            verdicts = self._verdicts(task)
            stands = standing({number: drop is None for number, drop in verdicts.items()}, task.budget)
            if stands.done:
                return
            exchanges = self.collection.exchanges(task.name)
            missing = [number for number in range(stands.target) if number not in verdicts]
            batch = [asyncio.create_task(self._step(task, number, exchanges.get(number))) for number in missing]
            try:
                await asyncio.gather(*batch)
            except (InfrastructureError, PackageError):
                await asyncio.gather(*batch, return_exceptions=True)  # the others come to their own ends
                raise
            finally:
                for step in batch:
                    step.cancel()
                await asyncio.gather(*batch, return_exceptions=True)

    async def _step(self, task: CollectTask, number: int, exchange: Exchange | None) -> None:
        """One attempt, from the prompt to the committed card."""
        async with self._slots:
            if exchange is None:
                messages = draft_prompt(task.public, self.limits, self.prompt)
                reply = await self.policy.complete(messages, seed=attempt_seed(self.seed, task.name, number))
                self.collection.replied(task.name, number, messages, reply)
            else:
                reply = exchange.reply
            attempt = Attempt(
                run_id=self.collection.run_id(task.name),
                task=task.name,
                attempt=number,
                operator=Operator.DRAFT,
                parents=(),
                selection=Selection(reason="parallel draft"),
            )
            card = await evaluate_reply(reply, attempt, executor=self.executor, settings=task.job)
            self.collection.judged(card)
        self.on_card(card)

    def _verdicts(self, task: CollectTask) -> dict[int, Drop | None]:
        return decide(
            self.collection.cards(task.name),
            self.collection.exchanges(task.name),
            task.facts,
            self.acceptance,
            self.filters,
            self.tokenizer,
        )

    def _report(self, task: CollectTask, trouble: str = "") -> TaskReport:
        verdicts = self._verdicts(task)
        dropped = [drop.value for drop in verdicts.values() if drop is not None]
        return TaskReport(
            task=task.name,
            attempts=len(verdicts),
            accepted=len(verdicts) - len(dropped),
            done=standing({number: drop is None for number, drop in verdicts.items()}, task.budget).done,
            dropped={reason: dropped.count(reason) for reason in sorted(set(dropped))},
            trouble=trouble,
        )


def draft_prompt(task: PublicTask, limits: Limits, config: PromptConfig) -> list[Message]:
    """The Draft prompt of search, without earlier attempts: parallel Drafts do not know of each other."""
    return build_prompt(Operator.DRAFT, task, [], Surroundings(limits=limits), config=config)


def attempt_seed(seed: int, task: str, attempt: int) -> int:
    """A seed of 31 bits, as endpoints take them, that differs by task and attempt."""
    digest = hashlib.sha256(f"{seed}\x1f{task}\x1f{attempt}".encode()).digest()
    return int.from_bytes(digest[:4]) & 0x7FFFFFFF
