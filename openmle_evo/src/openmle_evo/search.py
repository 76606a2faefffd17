"""The search: choose an operator and parents, ask the policy, run and judge its program, commit the card; again.

Several attempts are under way at once, in one process; whatever is decided is decided from committed cards and is on
disk before it is acted on, so a run that is killed at any moment resumes with the same attempts. With one worker the
whole run is a function of its settings: the same attempts in the same order, interrupted or not.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from openmle_gym.chat import ChatModel, Completion, Message
from openmle_gym.errors import ModelUnavailable
from openmle_gym.evaluate import Attempt, JobSettings, evaluate_reply
from openmle_gym.experience import ExperienceCard
from openmle_gym.history import History
from openmle_gym.jobs import Executor, Limits
from openmle_gym.memory import Measure, Recalled, recall, remembered
from openmle_gym.prompts import PublicTask, Remaining, Surroundings, build_prompt, summary_prompt
from openmle_gym.review import Reviewer

from openmle_evo.budget import Ledger, ModelCall, Purpose, Spending, affordable, clamped_timeout, exhausted, remaining
from openmle_evo.config import SearchConfig
from openmle_evo.islands import Islands
from openmle_evo.protocols import all_seen, decide, seen
from openmle_evo.randomness import attempt_seed, seeded
from openmle_evo.run import PendingAttempt, RunDirectory

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Search:
    """One search: what it works with. It is given nothing of the task's private half."""

    run: RunDirectory
    task: PublicTask
    policy: ChatModel
    """Answers for every operator that `mixture` does not name."""
    executor: Executor
    """Grades on the validation split; its key, where it has one, can do no more."""
    config: SearchConfig
    limits: Limits
    job: JobSettings
    measure: Measure = len
    """In what unit the lengths of prompts and memory count."""
    on_card: Callable[[ExperienceCard], None] = lambda card: None
    mixture: Mapping[Purpose, ChatModel] = field(default_factory=dict)
    """Who answers for single operators, and writes notes, instead."""
    _cards: History = field(init=False)  # as seen under the protocol
    _spending: Spending = field(init=False)
    _notes: dict[int, str] = field(init=False)
    _islands: Islands = field(init=False)
    _under_way: dict[int, Attempt] = field(init=False)
    _resumed: list[PendingAttempt] = field(init=False)
    _reviewer: Reviewer = field(init=False)
    _draining: bool = field(init=False, default=False)
    _settled: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        calls = self.run.calls()
        self._cards = History(all_seen(self.run.cards(), self.config.protocol))
        self._spending = Spending(self._cards, calls, final_seconds=self.run.final_seconds())
        reviews = [call for call in calls if call.purpose == "review"]
        self._reviewer = Reviewer(
            self.config.review,
            self.task,
            lambda attempt, messages: self._ask("review", attempt, messages),
            calls=len(reviews),
            dollars=sum(call.cost_usd or 0.0 for call in reviews),
            cards=self._cards,
        )
        self._notes = self.run.notes()
        self._islands = Islands(self.config.islands, self.config.seed, self._cards)
        self._resumed = self.run.pending()
        self._under_way = {pending.attempt.attempt: pending.attempt for pending in self._resumed}
        for pending in self._resumed:
            self._reserve(pending.attempt, pending.remaining)

    @property
    def ledger(self) -> Ledger:
        """What the run has spent."""
        return self._spending.ledger(self.run.wall_seconds())

    @property
    def best(self) -> ExperienceCard | None:
        """The best card so far, as selection sees it."""
        return self._cards.best

    @property
    def draining(self) -> bool:
        """Whether it was told to stop."""
        return self._draining

    def drain(self) -> None:
        """Begins no further attempt; those under way are finished."""
        self._draining = True
        self._settled.set()

    async def run_to_end(self) -> ExperienceCard | None:
        """Searches until a budget is spent; returns the best card, or None when no program was valid.

        Raises:
            InfrastructureError: The policy or the executor is out of reach. The run can be resumed.
        """
        workers = [asyncio.create_task(self._work()) for _ in range(self.config.workers)]
        try:
            async with asyncio.timeout(self._longest_seconds()):
                await asyncio.gather(*workers)
        except TimeoutError:
            log.warning("budget.wall_seconds is spent, and its grace; %d attempts are given up", len(self._under_way))
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return self._cards.best

    def _longest_seconds(self) -> float | None:
        budget = self.config.budget
        if budget.wall_seconds is None:
            return None
        return max(budget.wall_seconds - self.run.wall_seconds(), 0.0) + budget.grace_seconds

    async def _work(self) -> None:
        while True:
            while self._must_wait():
                self._settled.clear()
                await self._settled.wait()
            if (pending := self._next()) is None:
                return
            await self._step(*pending)

    def _must_wait(self) -> bool:
        """Whether what is left of the sandbox budget is reserved by the attempts under way."""
        if self._draining or self._resumed or not self._under_way:
            return False
        return not affordable(self.ledger, self.config.budget, self.limits.wall_seconds)

    async def _step(self, attempt: Attempt, left: Remaining, reply: Completion | None) -> None:
        """One attempt, from the prompt to the committed card."""
        limits = self._limits(left)
        if reply is None:
            prompt = await self._prompt(attempt, left, limits)
            reply = await self._ask(attempt.operator, attempt.attempt, prompt)
            self.run.replied(attempt, prompt, reply)
        settings = dataclasses.replace(self.job, timeout_seconds=limits.wall_seconds)
        card = await evaluate_reply(reply, attempt, executor=self.executor, settings=settings, reviewer=self._reviewer)
        self.run.judged(card)
        card = seen(card, self.config.protocol)
        self._cards.append(card)
        self._spending.settle(card)
        self._islands.commit(card)
        del self._under_way[attempt.attempt]
        self._settled.set()
        if self._cards.best is card:
            self.run.write_best(card)
        self.on_card(card)
        if self.config.memory.notes == "eager":
            await self._write_notes([card])

    def _next(self) -> PendingAttempt | None:
        """The next attempt: one that an earlier process left under way, or a new one; None when a budget is spent."""
        if self._draining:
            return None
        if self._resumed:
            return self._resumed.pop(0)
        number = len(self._cards) + len(self._under_way)
        ledger = self.ledger
        if number >= self.config.budget.attempts:
            return None
        if (spent_budget := exhausted(ledger, self.config.budget)) is not None:
            log.info("budget.%s is spent after %d attempts", spent_budget, len(self._cards))
            return None
        choice = decide(number, self._cards, list(self._under_way.values()), self._islands, self.config)
        attempt = Attempt(
            run_id=self.run.manifest.run_id,
            task=self.run.manifest.task,
            attempt=number,
            operator=choice.operator,
            parents=choice.parents,
            selection=choice.selection,
        )
        left = remaining(ledger, self.config.budget, under_way=len(self._under_way) + 1)
        self.run.choose(attempt, left)
        self._under_way[number] = attempt
        self._reserve(attempt, left)
        return PendingAttempt(attempt, left, None)

    def _reserve(self, attempt: Attempt, left: Remaining) -> None:
        self._spending.reserve(attempt.attempt, self._limits(left).wall_seconds)

    def _limits(self, left: Remaining) -> Limits:
        seconds = clamped_timeout(self.limits.wall_seconds, left)
        return self.limits.model_copy(update={"wall_seconds": seconds})

    async def _prompt(self, attempt: Attempt, left: Remaining, limits: Limits) -> list[Message]:
        parents = [self._cards.by_attempt[number] for number in attempt.parents]
        recalled = recall(attempt.operator, parents, self._cards, self.config.memory)
        if self.config.memory.notes != "extractive":
            await self._write_notes(recalled.attempts)
        around = Surroundings(
            limits=limits,
            remaining=left,
            packages=self.run.manifest.packages,
            earlier=self._told(recalled),
            skills=self.run.manifest.skills.text,
        )
        return build_prompt(
            attempt.operator, self.task, parents, around, config=self.config.prompt, measure=self.measure
        )

    def _told(self, recalled: Recalled) -> list[str]:
        return remembered(recalled, self._cards, self._notes, self.config.memory, self.measure)

    async def _write_notes(self, cards: Sequence[ExperienceCard]) -> None:
        """Has the policy write the notes that are missing, all at once."""
        missing = [card for card in cards if card.attempt not in self._notes and card.program_id is not None]
        await asyncio.gather(*(self._write_note(card) for card in missing))

    async def _write_note(self, card: ExperienceCard) -> None:
        parent = self._cards.by_attempt[card.parents[0]] if card.parents else None
        prompt = summary_prompt(card, parent, length=self.config.memory.note_length)
        reply = await self._ask("note", card.attempt, prompt)
        self._notes[card.attempt] = reply.text
        self.run.noted(card.attempt, reply.text)

    async def _ask(self, purpose: Purpose, attempt: int, messages: Sequence[Message]) -> Completion:
        """Calls the policy, and writes the call down however it ends."""
        clock = asyncio.get_running_loop().time
        started = clock()
        seed = attempt_seed(self.config.seed, attempt)
        if purpose in ("note", "review"):
            seed = seeded(self.config.seed, purpose, attempt).getrandbits(31)
        try:
            reply = await self.mixture.get(purpose, self.policy).complete(messages, seed=seed)
        except ModelUnavailable as error:
            self._note_call(attempt, purpose, seconds=clock() - started, failure=str(error))
            raise
        self._note_call(attempt, purpose, seconds=reply.seconds, reply=reply)
        return reply

    def _note_call(
        self,
        attempt: int,
        purpose: Purpose,
        *,
        seconds: float,
        reply: Completion | None = None,
        failure: str | None = None,
    ) -> None:
        reply = reply or Completion(text="")
        call = ModelCall(
            attempt=attempt,
            purpose=purpose,
            model=reply.model,
            usage=reply.usage,
            seconds=seconds,
            cost_usd=reply.cost_usd,
            failure=failure,
            finished_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        )
        self.run.called(call)
        self._spending.called(call)
