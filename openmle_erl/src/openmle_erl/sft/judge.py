"""The model judge of causal inheritance: asked of each step that the rules keep, and able only to drop.

Answers are kept in a file beside the corpus, by the question, so that a build that is killed or repeated asks, and
pays, once. An answer that cannot be read changes nothing, and is counted.
"""

import asyncio
import hashlib
import json
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from openmle_gym.chat import ChatModel, Completion, Message, Usage
from openmle_gym.experience import ExperienceCard
from openmle_gym.prompts import middle_cut

from openmle_erl.sft.segments import Step

SOURCE_CHARACTERS = 24_000
SYSTEM = "You review how programs for machine-learning tasks came about, and answer in JSON."
_QUESTION = """\
# Question

A search wrote a program in several steps. Below are one step, what it started from, and the program that the search
ended with. Does the final program build on what this step changed? Say yes when its main idea, or a concrete repair,
is still at work there. Say no when the change is cosmetic, a mere retry, a mere reduction of scale to save time or
memory, or was later undone or replaced.

Answer with one JSON object and nothing else: {"inherited": true or false, "reason": "one sentence"}"""


class Verdict(NamedTuple):
    """What the judge says of a step."""

    inherited: bool | None
    """None when the answer could not be read."""
    reason: str


class JudgeCounts(NamedTuple):
    """What judging took."""

    asked: int
    """Questions, answered from the file or by the model."""
    calls: int
    """Questions that the model was asked this time."""
    unclear: int
    """Answers that could not be read."""
    usage: Usage
    """Of the calls."""


class Judge:
    """A `ChatModel` that judges, with its memory."""

    def __init__(self, model: ChatModel, path: Path, *, workers: int = 8) -> None:
        """Args:
        path: The SQLite file that keeps the answers.
        workers: Questions at once.
        """
        self._model = model
        self._slots = asyncio.Semaphore(workers)
        self._answers = sqlite3.connect(path, isolation_level=None)
        self._answers.execute("CREATE TABLE IF NOT EXISTS answers (question TEXT PRIMARY KEY, answer TEXT NOT NULL)")
        self._asked = self._calls = self._unclear = 0
        self._usage = Usage()

    async def judge(self, steps: Sequence[Step]) -> list[Verdict]:
        """Judges steps, in order.

        Raises:
            ModelUnavailable: The judge cannot be reached; what it answered so far is kept.
        """
        return list(await asyncio.gather(*(self._judge(step) for step in steps)))

    async def _judge(self, step: Step) -> Verdict:
        messages = question(step)
        key = hashlib.sha256(json.dumps([message.model_dump() for message in messages]).encode()).hexdigest()
        async with self._slots:
            row = self._answers.execute("SELECT answer FROM answers WHERE question = ?", (key,)).fetchone()
            answer = row[0] if row else (await self._ask(key, messages)).text
        verdict = read_verdict(answer)
        self._asked += 1
        self._unclear += verdict.inherited is None
        return verdict

    async def _ask(self, key: str, messages: Sequence[Message]) -> Completion:
        reply = await self._model.complete(messages, seed=0)
        self._answers.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, reply.text))
        self._calls += 1
        self._usage += reply.usage
        return reply

    def counts(self) -> JudgeCounts:
        """What was asked so far."""
        return JudgeCounts(self._asked, self._calls, self._unclear, self._usage)

    def close(self) -> None:
        """Closes the file."""
        self._answers.close()


def question(step: Step) -> list[Message]:
    """The judge's prompt."""
    assert step.segment.endpoint is not None
    parts = [_QUESTION, f"# Step\n\nOperator: {step.card.operator}; outcome: {step.card.outcome}\n\n{_code(step.card)}"]
    for number, parent in enumerate(step.parents, start=1):
        parts.append(
            f"# It started from, {number} of {len(step.parents)}\n\nOutcome: {parent.outcome}\n\n{_code(parent)}"
        )
    parts.append(f"# Final program\n\n{_code(step.segment.endpoint)}")
    return [Message(role="system", content=SYSTEM), Message(role="user", content="\n\n".join(parts))]


def _code(card: ExperienceCard) -> str:
    return f"`````python\n{middle_cut(card.source, SOURCE_CHARACTERS, len).rstrip()}\n`````"


def read_verdict(text: str) -> Verdict:
    """Reads an answer: its last JSON object that says `inherited`."""
    for found in reversed(re.findall(r"\{[^{}]*\}", text)):
        try:
            answer = json.loads(found)
        except ValueError:
            continue
        if isinstance(answer.get("inherited"), bool):
            return Verdict(answer["inherited"], str(answer.get("reason", "")))
    return Verdict(None, text[:200])
