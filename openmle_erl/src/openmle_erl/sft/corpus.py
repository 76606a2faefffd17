"""From collections and search runs to a corpus, step by step; every candidate is kept, or dropped for one reason.

    sources -> acceptance and gap -> {Drafts | segments -> instructive and inherited steps -> judge} -> messages
            -> round trip -> tokens -> reserved tasks -> equal messages -> equal Drafts -> top k of each task -> files

The examples wait in a file while the choice is made; only their hashes and scores are in memory. The same inputs and
settings give the same bytes.
"""

import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, NamedTuple

from openmle_gym.chat import Message
from openmle_gym.contracts import Contract
from openmle_gym.errors import ConfigError
from openmle_gym.experience import ExperienceCard
from openmle_gym.operators import Operator

from openmle_erl.sft.acceptance import accept
from openmle_erl.sft.canonical import canonical
from openmle_erl.sft.config import BuildConfig, FilterConfig
from openmle_erl.sft.dedup import message_hash
from openmle_erl.sft.filters import baseline_drop
from openmle_erl.sft.gap import task_scale
from openmle_erl.sft.judge import Judge
from openmle_erl.sft.messages import conversation, teaches_program, thinking_of, without_comments
from openmle_erl.sft.reasons import Drop, Ledger
from openmle_erl.sft.reserved import Reserved
from openmle_erl.sft.segments import Segment, Step, choose_steps, segment_drop, segments
from openmle_erl.sft.sources import RunSource
from openmle_erl.sft.tokens import ChatTokenizer, count_tokens

log = logging.getLogger(__name__)


class Origin(Contract):
    """Where an example comes from: one line of the sidecar."""

    id: str
    source: str
    """`parallel` or `search`."""
    task: str
    run_id: str
    attempt: int
    operator: Operator
    parents: tuple[int, ...]
    program_id: str
    outcome: str
    validation: float | None
    """None for a step that failed and was repaired later."""
    higher_is_better: bool
    own_score: float | None
    """What the program printed of itself."""
    endpoint: int
    """The attempt that the example's segment led to; the attempt itself for a parallel Draft."""
    endpoint_validation: float | None
    segment: str
    inherited: float | None
    """The share of the step's changes that survives into the endpoint; None for a parallel Draft."""
    judged: str | None
    """The judge's reason; None where no judge was asked."""
    tokens: int | None
    thinking: bool
    prompt: str
    """`recorded` where the prompt is the one that was asked, `rebuilt` where it was built again from cards."""
    model: str


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An attempt that passed the rules of its source, on its way to becoming an example."""

    card: ExperienceCard
    run: RunSource
    endpoint: ExperienceCard
    segment: str
    inherited: float | None = None
    judged: str | None = None


class Dropped(NamedTuple):
    """An attempt that became no example."""

    run: RunSource
    card: ExperienceCard
    reason: Drop
    detail: str = ""


class Example(Contract):
    """One line of the corpus."""

    id: str
    messages: tuple[Message, ...]


class Entry(NamedTuple):
    """An example that waits in the spool."""

    offset: int
    origin: Origin
    order: int


@dataclass(kw_only=True)
class Pipeline:
    """One build's rules and what they have seen so far."""

    config: BuildConfig
    reserved: Reserved
    tokenizer: ChatTokenizer | None
    judge: Judge | None
    spool: IO[bytes]
    """Where examples wait; readable and seekable."""
    drops: IO[str]
    """One line of JSON for each dropped attempt."""
    ledger: Ledger = field(default_factory=Ledger)
    _hashes: dict[str, str] = field(default_factory=dict)
    _programs: dict[tuple[str, str], str] = field(default_factory=dict)
    _entries: list[Entry] = field(default_factory=list)
    _lengths: set[int] = field(default_factory=set)
    _counts: set[int] = field(default_factory=set)

    async def take(self, run: RunSource) -> None:
        """Puts one source's attempts through the rules."""
        for _ in run.cards:
            self.ledger.candidate(run.kind)
        found = _drafts(run, self.config) if run.kind == "parallel" else self._steps(run)
        if isinstance(found, Iterator):
            for each in found:
                self._finish(each)
        else:
            async for each in found:
                self._finish(each)

    async def _steps(self, run: RunSource) -> AsyncIterator[Candidate | Dropped]:
        filters = _without_tokens(self.config.filters)
        scale = _task_scale(run)
        for segment in segments(run.cards):
            drop = segment_drop(segment, run.by_attempt, run.task.facts, self.config.acceptance)
            if drop is None and segment.endpoint is not None:
                drop = baseline_drop(segment.endpoint, run.task.facts, filters, tokens=None, task_scale=scale)
            if drop is not None:
                for card in segment.steps:
                    yield Dropped(run, card, drop, _about(segment))
                continue
            kept, dropped = choose_steps(
                segment,
                run.by_attempt,
                least_inherited=self.config.inheritance,
                keep_failed_steps=self.config.keep_failed_steps,
            )
            for number, reason in dropped.items():
                yield Dropped(run, run.by_attempt[number], reason, _about(segment))
            for each in await self._judged(run, kept):
                yield each

    async def _judged(self, run: RunSource, steps: Sequence[Step]) -> list[Candidate | Dropped]:
        verdicts = await self.judge.judge(steps) if self.judge is not None else [None] * len(steps)
        found: list[Candidate | Dropped] = []
        for step, verdict in zip(steps, verdicts, strict=True):
            if verdict is not None and verdict.inherited is False:
                found.append(Dropped(run, step.card, Drop.JUDGED_NOT_INHERITED, verdict.reason))
                continue
            endpoint = step.segment.endpoint
            assert endpoint is not None
            found.append(
                Candidate(
                    card=step.card,
                    run=run,
                    endpoint=endpoint,
                    segment=step.segment.segment_id,
                    inherited=step.inherited.share,
                    judged=verdict.reason if verdict is not None else None,
                )
            )
        return found

    def _finish(self, found: Candidate | Dropped) -> None:
        """The rules that all examples keep, whatever their source."""
        if isinstance(found, Dropped):
            self._drop(found)
            return
        card, run = found.card, found.run
        exchange = run.exchanges.get(card.attempt)
        messages = conversation(run.prompt(card), card, exchange.reply if exchange else None)
        if not teaches_program(messages, card):
            self._drop(Dropped(run, card, Drop.DOES_NOT_ROUND_TRIP))
            return
        if not self.config.comments:
            programs = [card.source, *(run.by_attempt[number].source for number in card.parents)]
            messages = without_comments(messages, programs)
        tokens = self._count(messages)
        limit = self.config.filters.max_tokens
        if limit is not None and tokens is not None and tokens > limit:
            self._drop(Dropped(run, card, Drop.TOO_MANY_TOKENS, f"{tokens} tokens"))
            return
        match = self.reserved.match(messages, card.task)
        if match is not None:
            self._drop(Dropped(run, card, match.drop, f"{match.task}: {match.similarity:.2f}"))
            return
        origin = _origin(found, messages, tokens, thinking=exchange is not None and bool(thinking_of(exchange.reply)))
        twin = self._hashes.setdefault(message_hash(messages), origin.id)
        if twin != origin.id:
            self._drop(Dropped(run, card, Drop.DUPLICATE_MESSAGES, twin))
            return
        if run.kind == "parallel":
            twin = self._programs.setdefault((card.task, canonical(card.source)), origin.id)
            if twin != origin.id:
                self._drop(Dropped(run, card, Drop.DUPLICATE_PROGRAM, twin))
                return
        self._entries.append(Entry(self.spool.tell(), origin, len(self._entries)))
        example = Example(id=origin.id, messages=tuple(messages))
        self.spool.write(example.model_dump_json().encode("utf-8", "surrogatepass") + b"\n")

    def _count(self, messages: Sequence[Message]) -> int | None:
        if self.tokenizer is None:
            return None
        tokens = count_tokens(self.tokenizer, messages)
        self._counts.add(tokens)
        self._lengths.add(sum(len(message.content) for message in messages))
        return tokens

    def _drop(self, dropped: Dropped) -> None:
        self.ledger.dropped(dropped.run.kind, dropped.reason)
        line = {
            "id": _id(dropped.card),
            "source": dropped.run.kind,
            "task": dropped.card.task,
            "operator": dropped.card.operator,
            "reason": dropped.reason,
            "detail": dropped.detail,
        }
        self.drops.write(json.dumps(line, ensure_ascii=False) + "\n")

    def choose(self, runs: Sequence[RunSource]) -> list[Entry]:
        """The examples to write, in order, once every source was taken: the best of each task.

        Raises:
            ConfigError: All token counts were equal though the texts were not: the counter is broken.
        """
        if len(self._counts) == 1 and len(self._lengths) > 1:
            raise ConfigError(
                f"filters.tokenizer: counted {next(iter(self._counts))} tokens for each of the conversations, though "
                f"they are {min(self._lengths)} to {max(self._lengths)} characters long"
            )
        limits = {"parallel": self.config.drafts_per_task, "search": self.config.segments_per_task}
        chosen = _top(self._entries, limits)
        by_run = {run.run_id: run for run in runs}
        for entry in self._entries:
            if entry.origin.segment in chosen[entry.origin.source]:
                self.ledger.kept(entry.origin.source)
            else:
                run = by_run[entry.origin.run_id]
                self._drop(Dropped(run, run.by_attempt[entry.origin.attempt], Drop.BEYOND_TOP_K))
        return [entry for entry in self._entries if entry.origin.segment in chosen[entry.origin.source]]

    def read(self, entry: Entry) -> Example:
        """An example from the spool."""
        self.spool.seek(entry.offset)
        return Example.model_validate_json(self.spool.readline())


def _top(entries: Sequence[Entry], limits: dict[str, int | None]) -> dict[str, set[str]]:
    """The segments to keep, by source: of each task the best endpoints, by the metric's direction.

    Among equals the one with fewer tokens goes first, then the earlier.
    """
    chosen: dict[str, set[str]] = {source: set() for source in limits}
    groups: dict[tuple[str, str], dict[str, Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.origin.source, entry.origin.task), {}).setdefault(entry.origin.segment, entry)
    for (source, _), heads in groups.items():
        ranking = sorted(heads.values(), key=_rank)
        chosen[source].update(entry.origin.segment for entry in ranking[: limits[source]])
    return chosen


def _rank(entry: Entry) -> tuple[bool, float, int, int]:
    score = entry.origin.endpoint_validation
    turned = 0.0 if score is None else (-score if entry.origin.higher_is_better else score)
    return score is None, turned, entry.origin.tokens or 0, entry.order


def _drafts(run: RunSource, config: BuildConfig) -> Iterator[Candidate | Dropped]:
    filters = _without_tokens(config.filters)
    scale = _task_scale(run)
    for card in run.cards:
        drop = accept(card, run.task.facts, config.acceptance).drop
        if drop is None and config.acceptance.policy != "all":
            drop = baseline_drop(card, run.task.facts, filters, tokens=None, task_scale=scale)
        if drop is not None:
            yield Dropped(run, card, drop)
        else:
            yield Candidate(card=card, run=run, endpoint=card, segment=_id(card))


def _task_scale(run: RunSource) -> float | None:
    rows = [
        max(abs(card.validation.value), abs(card.self_reported.value))
        for card in run.cards
        if card.validation is not None and card.self_reported is not None
    ]
    return task_scale(rows)


def _without_tokens(filters: FilterConfig) -> FilterConfig:
    """Tokens are counted once the messages are there."""
    return FilterConfig(max_gap=filters.max_gap, require_own_score=filters.require_own_score)


def _origin(found: Candidate, messages: Sequence[Message], tokens: int | None, *, thinking: bool) -> Origin:
    card, endpoint, run = found.card, found.endpoint, found.run
    assert card.program_id is not None
    return Origin(
        id=_id(card),
        source=run.kind,
        task=card.task,
        run_id=card.run_id,
        attempt=card.attempt,
        operator=card.operator,
        parents=card.parents,
        program_id=card.program_id,
        outcome=card.outcome,
        validation=card.validation.value if card.validation else None,
        higher_is_better=run.task.facts.metric.higher_is_better,
        own_score=card.self_reported.value if card.self_reported else None,
        endpoint=endpoint.attempt,
        endpoint_validation=endpoint.validation.value if endpoint.validation else None,
        segment=found.segment,
        inherited=found.inherited,
        judged=found.judged,
        tokens=tokens,
        thinking=thinking,
        prompt="recorded" if card.attempt in run.exchanges else "rebuilt",
        model=card.model,
    )


def _id(card: ExperienceCard) -> str:
    return f"{card.run_id}/{card.attempt}"


def _about(segment: Segment) -> str:
    endpoint = segment.endpoint
    return f"segment {segment.root.attempt}, endpoint {endpoint.attempt if endpoint else None}"
