"""The search: choose an operator and parents, ask the policy, run and judge its program, commit the card; again.

Several attempts are under way at once, in one process; whatever is decided is decided from committed cards and is on
disk before it is acted on, so a run that is killed at any moment resumes with the same attempts. With one worker the
whole run is a function of its settings: the same attempts in the same order, interrupted or not.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from openmle_gym.chat import ChatModel, Completion, Message
from openmle_gym.evaluate import Attempt, JobSettings, evaluate_reply
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import best_card, ranked
from openmle_gym.jobs import Executor, Limits
from openmle_gym.operators import Operator
from openmle_gym.prompts import PublicTask, build_prompt

from openmle_evo.config import SearchConfig
from openmle_evo.run import PendingAttempt, RunDirectory
from openmle_evo.schedule import attempt_seed, choose

EARLIER_IN_DRAFTS = 12
"""How many earlier attempts a Draft is told of: the best ones, so that it does something else."""


@dataclass(kw_only=True)
class Search:
    """One search: what it works with. It is given nothing of the task's private half."""

    run: RunDirectory
    task: PublicTask
    policy: ChatModel
    executor: Executor
    """Grades on the validation split; its key, where it has one, can do no more."""
    config: SearchConfig
    limits: Limits
    job: JobSettings
    on_card: Callable[[ExperienceCard], None] = lambda card: None
    _cards: list[ExperienceCard] = field(init=False)
    _under_way: dict[int, Attempt] = field(init=False, default_factory=dict)
    _resumed: list[PendingAttempt] = field(init=False)

    def __post_init__(self) -> None:
        self._cards = self.run.cards()
        self._resumed = self.run.pending()
        self._under_way = {pending.attempt.attempt: pending.attempt for pending in self._resumed}

    async def run_to_end(self) -> ExperienceCard | None:
        """Searches until the budget is spent; returns the best card, or None when no program was valid.

        Raises:
            InfrastructureError: The policy or the executor is out of reach. The run can be resumed.
        """
        workers = [asyncio.create_task(self._work()) for _ in range(self.config.workers)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return best_card(self._cards)

    async def _work(self) -> None:
        while (pending := self._next()) is not None:
            await self._step(*pending)

    async def _step(self, attempt: Attempt, reply: Completion | None) -> None:
        """One attempt, from the prompt to the committed card."""
        if reply is None:
            reply = await self.policy.complete(
                self._prompt(attempt), seed=attempt_seed(self.config.seed, attempt.attempt)
            )
            self.run.replied(attempt, reply)
        card = await evaluate_reply(reply, attempt, executor=self.executor, settings=self.job)
        self.run.judged(card)
        self._cards.append(card)
        del self._under_way[attempt.attempt]
        if best_card(self._cards) is card:
            self.run.write_best(card)
        self.on_card(card)

    def _next(self) -> PendingAttempt | None:
        """The next attempt: one that an earlier process left under way, or a new one; None when the budget is spent."""
        if self._resumed:
            return self._resumed.pop(0)
        number = len(self._cards) + len(self._under_way)
        if number >= self.config.steps or self._sandbox_budget_is_spent():
            return None
        choice = choose(
            number,
            self._cards,
            list(self._under_way.values()),
            schedule=self.config.schedule,
            selection=self.config.selection,
            seed=self.config.seed,
        )
        attempt = Attempt(
            run_id=self.run.manifest.run_id,
            task=self.run.manifest.task,
            attempt=number,
            operator=choice.operator,
            parents=choice.parents,
            selection=choice.selection,
        )
        self.run.choose(attempt)
        self._under_way[number] = attempt
        return PendingAttempt(attempt, None)

    def _sandbox_budget_is_spent(self) -> bool:
        spent = sum(card.sandbox_seconds for card in self._cards)
        return self.config.sandbox_seconds is not None and spent >= self.config.sandbox_seconds

    def _prompt(self, attempt: Attempt) -> list[Message]:
        by_attempt = {card.attempt: card for card in self._cards}
        parents = [by_attempt[number] for number in attempt.parents]
        earlier = ranked(self._cards)[:EARLIER_IN_DRAFTS] if attempt.operator is Operator.DRAFT else []
        return build_prompt(attempt.operator, self.task, parents, limits=self.limits, earlier=earlier)
