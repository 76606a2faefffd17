"""One member's road: prompt -> ids -> reply -> program -> verdict. Prompt, memory, parsing, review and grading are search's.

A program that the task has judged before, or that another member is being judged for, gets that verdict and is not run.
"""

import asyncio
import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from openmle_gym.chat import Completion, Message
from openmle_gym.errors import ConfigError, ModelUnavailable
from openmle_gym.evaluate import Attempt, JobSettings, evaluate_reply
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.jobs import Executor, JobRequest, JobResult, Limits
from openmle_gym.memory import MemoryConfig, recall, remembered
from openmle_gym.operators import Operator
from openmle_gym.program import program_id
from openmle_gym.prompts import PromptConfig, PublicTask, Surroundings, build_prompt
from openmle_gym.review import Reviewer

from openmle_erl.engines.protocols import (
    Finish,
    GenerateRequest,
    Generation,
    RolloutEngine,
    RoutingShape,
    Sampling,
    VersionSpan,
)
from openmle_erl.rl.conversation import Budget, Prompt, TooLong, completion_of, encode_prompt, end_ids, room_for_reply
from openmle_erl.rl.experience import Experience
from openmle_erl.rl.groups import Group, Scoring
from openmle_erl.rl.moves import choose_operator
from openmle_erl.rl.samples import Duplicate, Member, Rolled
from openmle_erl.sft.tokens import ChatTokenizer

RESTARTS = 2
"""How often a reply that a weight update aborts begins anew; then it goes on from the tokens it has, so that a reply
longer than the time between two updates comes to its end."""


class Dialogue(Protocol):
    """Between messages and token ids."""

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a reply."""
        ...

    def encode(self, messages: Sequence[Message]) -> Prompt:
        """What the model continues."""
        ...

    def room(self, prompt: Prompt) -> int | TooLong:
        """How many tokens the reply may have."""
        ...

    def completion(self, prompt: Prompt, generation: Generation, *, model: str, seconds: float) -> Completion:
        """The reply as search reads one."""
        ...

    def measure(self, text: str) -> int:
        """A text's length in tokens."""
        ...


class TokenizerDialogue:
    """A `Dialogue` by a tokenizer's chat template."""

    def __init__(self, tokenizer: ChatTokenizer, budget: Budget) -> None:
        self._tokenizer = tokenizer
        self._budget = budget
        self.ends = end_ids(tokenizer)

    def encode(self, messages: Sequence[Message]) -> Prompt:
        """See `Dialogue`."""
        return encode_prompt(self._tokenizer, messages)

    def room(self, prompt: Prompt) -> int | TooLong:
        """See `Dialogue`."""
        return room_for_reply(prompt, self._budget)

    def completion(self, prompt: Prompt, generation: Generation, *, model: str, seconds: float) -> Completion:
        """See `Dialogue`."""
        return completion_of(self._tokenizer, prompt, generation, ends=self.ends, model=model, seconds=seconds)

    def measure(self, text: str) -> int:
        """See `Dialogue`."""
        return len(self._tokenizer.encode(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnTask:
    """A task as the loop uses it; nothing of its private half but the bounds of its scores."""

    public: PublicTask
    job: JobSettings
    limits: Limits
    scoring: Scoring
    reviewer: Reviewer | None = None
    """None: the detectors alone review."""
    packages: tuple[str, ...] = ()
    """Installed where programs run."""


class Beginning(NamedTuple):
    """What a group begins with."""

    operator: Operator
    parents: tuple[int, ...]
    selection: Selection
    prompt: Prompt


class Judged(NamedTuple):
    """A member's verdict."""

    card: ExperienceCard
    duplicate: Duplicate | None
    executed: bool
    """Whether an executor answered; not so for a duplicate, or for a reply without a program."""


@dataclass(kw_only=True)
class Road:
    """What every member's road needs."""

    run_id: str
    seed: int
    dialogue: Dialogue
    engine: RolloutEngine
    executor: Executor
    experience: Experience
    memory: MemoryConfig
    prompt: PromptConfig
    sampling: Sampling
    routing: RoutingShape | None = None
    """Where the trainer replays the engine's routing: of the model; training's requests ask for it."""

    def __post_init__(self) -> None:
        self._running: dict[tuple[str, str], asyncio.Future[None]] = {}

    def write_prompt(self, task: LearnTask, operator: Operator, parents: Sequence[ExperienceCard]) -> Prompt | TooLong:
        """The prompt of a group; told of what the task's settled groups found."""
        cards = self.experience.cards(task.public.manifest.name)
        measure = self.dialogue.measure
        earlier = remembered(recall(operator, parents, cards, self.memory), cards, {}, self.memory, measure)
        around = Surroundings(limits=task.limits, packages=task.packages, earlier=earlier)
        messages = build_prompt(operator, task.public, parents, around, config=self.prompt, measure=measure)
        prompt = self.dialogue.encode(messages)
        room = self.dialogue.room(prompt)
        return room if isinstance(room, TooLong) else prompt

    def begin(self, task: LearnTask, shares: Mapping[Operator, float], number: int) -> Beginning:
        """Draws a group's operator and parents, by its number and what is known now, and writes its prompt.

        Parents whose prompt would be too long give way to a Draft.

        Raises:
            ConfigError: Not even a Draft fits.
        """
        name = task.public.manifest.name
        rng = random.Random(seeded(self.seed, "group", number))
        candidates = self.experience.candidates(name)
        counts = {operator: len(attempts) for operator, attempts in candidates.items()}
        operator = choose_operator(shares, counts, rng)
        attempts: tuple[int, ...] = ()
        reason = "no parents"
        if operator.parent_count:
            attempts = self.experience.population(name).draw(candidates[operator], operator.parent_count, rng)
            reason = "drawn by reward, children's variance and visits"
        prompt = self.write_prompt(task, operator, self.experience.parents(name, attempts))
        if isinstance(prompt, TooLong):
            operator, attempts, reason = Operator.DRAFT, (), f"{operator} of {attempts} took {prompt.tokens} tokens"
            prompt = self.write_prompt(task, operator, ())
        if isinstance(prompt, TooLong):
            raise ConfigError(f"prompt.length: task {name}: a Draft takes {prompt.tokens} of {prompt.limit} tokens")
        selection = Selection(reason=reason, committed=len(self.experience.cards(name)))
        return Beginning(operator, attempts, selection, prompt)

    async def generate(
        self, group: Group, member: Member, sampling: Sampling | None = None, *, purpose: str = "train"
    ) -> Rolled:
        """Has a reply generated, through weight updates.

        Args:
            sampling: How tokens are drawn, where not as in training.
            purpose: Keeps names and seeds of evaluation's requests apart from training's.

        Raises:
            InfrastructureError: The engine failed.
        """
        sampling = sampling or self.sampling
        room = self.dialogue.room(group.prompt)
        assert isinstance(room, int)
        clock = asyncio.get_running_loop().time
        started = clock()
        kept = Rolled(reply_ids=(), logprobs_T=np.zeros(0, np.float32), spans=(), finish=Finish.LENGTH)
        restarts = 0
        while (left := min(room, sampling.max_new_tokens) - len(kept.reply_ids)) > 0:
            request = GenerateRequest(
                request_id=f"{self.run_id}-{purpose}-{member.attempt}-{restarts}",
                prompt_ids=group.prompt.ids + kept.reply_ids,
                sampling=replace(sampling, max_new_tokens=left, stop_token_ids=self.dialogue.ends),
                seed=seeded(self.seed, purpose, member.attempt, restarts),
                routing=self.routing if purpose == "train" else None,
            )
            reply = joined(kept, await self.engine.generate(request))
            if reply.finish is not Finish.ABORT:
                kept = reply
                break
            restarts += 1
            if restarts > RESTARTS:
                kept = replace(reply, finish=Finish.LENGTH)
        if not kept.reply_ids:
            raise ModelUnavailable(f"attempt {member.attempt}: the engine returned no token")
        return replace(kept, seconds=clock() - started, restarts=restarts)

    async def judge(self, task: LearnTask, group: Group, member: Member, *, run_id: str | None = None) -> Judged:
        """Has a reply's program reviewed, run and graded.

        Args:
            run_id: The cards' run id, for evaluation, whose programs are run whatever training has seen.

        Raises:
            InfrastructureError: Machinery failed; nothing is known about the program.
        """
        assert member.rolled is not None
        attempt = Attempt(
            run_id=run_id or self.run_id,
            task=group.task,
            attempt=member.attempt,
            operator=group.operator,
            parents=group.parents,
            selection=group.selection,
        )
        answering = _Answering(self, group) if run_id is None else None
        card = await evaluate_reply(
            self._completion(group.prompt, member.rolled),
            attempt,
            executor=answering or self.executor,
            settings=task.job,
            reviewer=task.reviewer,
        )
        return Judged(card, answering.duplicate, answering.executed) if answering else Judged(card, None, True)

    def _completion(self, prompt: Prompt, rolled: Rolled) -> Completion:
        generation = Generation(
            request_id="",
            token_ids=rolled.reply_ids,
            logprobs_T=rolled.logprobs_T,
            finish=rolled.finish,
            spans=rolled.spans,
        )
        return self.dialogue.completion(prompt, generation, model=policy_name(rolled.spans), seconds=rolled.seconds)


class _Answering:
    """An executor for one member, which knows what was judged and what is being judged."""

    def __init__(self, road: Road, group: Group) -> None:
        self._road = road
        self._group = group
        self.duplicate: Duplicate | None = None
        self.executed = False

    async def run(self, job: JobRequest) -> JobResult:
        """See `openmle_gym.jobs.Executor`."""
        key = (self._group.task, program_id(job.code))
        running = self._road._running
        while (card := self._road.experience.verdict(*key)) is None and key in running:
            await asyncio.wait([running[key]])
        if card is not None:
            members = {member.attempt for member in self._group.members}
            self.duplicate = "group" if card.attempt in members else "task"
            return result_of(card)
        ours = running[key] = asyncio.get_running_loop().create_future()
        try:
            result = await self._road.executor.run(job)
            self.executed = True
            return result
        finally:
            # Whoever waits looks again after this member's card is written, which happens before it next yields.
            asyncio.get_running_loop().call_soon(ours.set_result, None)
            del running[key]


def policy_name(spans: Sequence[VersionSpan]) -> str:
    """What a card calls the weights that made its reply, such as `policy v3-4`."""
    return f"policy v{'-'.join(dict.fromkeys(str(span.version) for span in spans))}"


def policy_versions(name: str) -> list[int]:
    """The versions in what `policy_name` gave."""
    return [int(version) for version in name.removeprefix("policy v").split("-") if version]


def result_of(card: ExperienceCard) -> JobResult:
    """The verdict that a card holds, as an executor gives one; nothing was run for it, so it took no time."""
    score = card.validation or card.withheld
    value = score.value if score else None
    return JobResult(
        outcome=card.outcome,
        score=value,
        validation_score=value,
        higher_is_better=score.higher_is_better if score else None,
        self_reported_score=card.self_reported.value if card.self_reported else None,
        error_signature=card.error_signature,
        message=card.message,
        run_log="\n".join(part for part in (card.log_head, card.log_tail) if part),
        truncated_bytes=card.truncated_bytes,
        isolation=card.isolation,
    )


def joined(kept: Rolled, more: Generation) -> Rolled:
    """A reply and its continuation as one."""
    offset = len(kept.reply_ids)
    spans = [VersionSpan(span.version, span.start + offset, span.end + offset) for span in more.spans]
    return Rolled(
        reply_ids=kept.reply_ids + more.token_ids,
        logprobs_T=np.concatenate([kept.logprobs_T, more.logprobs_T]),
        spans=(*kept.spans, *spans),
        finish=more.finish,
        experts_NLK=more.experts_NLK,  # the continuation's prompt had all that was kept
    )


def seeded(seed: int, *purpose: object) -> int:
    """A seed for one purpose of a run, in [0, 2**31)."""
    key = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") >> 1
