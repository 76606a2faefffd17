"""Cards, tasks and small stand-ins that the corpus's tests share."""

import json
from collections.abc import Sequence
from pathlib import Path

from openmle_erl.sft.acceptance import TaskFacts
from openmle_gym.chat import Completion, Message
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.jobs import JobRequest, JobResult, Outcome
from openmle_gym.manifest import Metric
from openmle_gym.operators import Operator
from openmle_gym.program import program_id
from openmle_gym.scores import SelfReportedScore, ValidationScore
from openmle_gym.store import CardStore

RMSE = Metric(name="rmse", higher_is_better=False, theoretical_min=0.0)
AUC = Metric(name="auc", higher_is_better=True, theoretical_min=0.0, theoretical_max=1.0)


def facts(metric: Metric = RMSE, **more) -> TaskFacts:
    return TaskFacts(name="toy", metric=metric, **more)


def card(
    attempt: int,
    value: float | None = None,
    *,
    operator: Operator = Operator.DRAFT,
    parents: tuple[int, ...] = (),
    outcome: Outcome | None = None,
    signature: str | None = None,
    message: str = "",
    source: str | None = None,
    claimed: float | None = None,
    higher_is_better: bool = False,
    run_id: str = "run",
    task: str = "toy",
) -> ExperienceCard:
    """A card with a validation score, or a failed one when `value` is None."""
    score = None if value is None else ValidationScore(value=value, higher_is_better=higher_is_better)
    own = None if claimed is None else SelfReportedScore(value=claimed, higher_is_better=higher_is_better)
    source = source if source is not None else f"import os\nx = {attempt}\nos.truncate('submission.csv', x)\n"
    return ExperienceCard(
        run_id=run_id,
        task=task,
        attempt=attempt,
        operator=operator,
        parents=parents,
        selection=Selection(reason="test"),
        program_id=program_id(source) if source else None,
        source=source,
        plan=f"plan {attempt}",
        outcome=outcome or (Outcome.SUCCESS if score else Outcome.CODE_EXECUTION_ERROR),
        validation=score,
        self_reported=own,
        error_signature=signature,
        message=message,
        finished_at=f"2026-01-01T00:{attempt:02d}:00Z",
    )


def write_run(folder: Path, package: Path, cards: Sequence[ExperienceCard], *, run_id: str = "run") -> Path:
    """A search's run directory, as far as the corpus reads it."""
    folder.mkdir(parents=True)
    settings = {"timeout_seconds": 60.0, "memory_mib": 2048}
    manifest = {"run_id": run_id, "task": "toy", "package": str(package), "settings": settings, "policy": "recipes"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    store = CardStore(folder / "store.sqlite")
    for each in cards:
        store.append(each)
    store.close()
    return folder


class SeededPolicy:
    """Answers with a program that depends on the seed alone, and thinks before it does."""

    def __init__(self) -> None:
        self.seeds: list[int | None] = []

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        self.seeds.append(seed)
        text = f"I print the seed.\n\n```python\nimport os\nos.truncate('submission.csv', {seed})\n```\n"
        return Completion(text=text, reasoning=f"The seed is {seed}.", model="seeded")


class CountingExecutor:
    """Accepts every n-th program of a task that it is given; counts jobs by idempotency key."""

    def __init__(self, every: int | None = 1) -> None:
        """Args:
        every: None accepts none.
        """
        self.every = every
        self.keys: list[str] = []

    async def run(self, job: JobRequest) -> JobResult:
        assert job.eval_split == "validation"
        self.keys.append(job.idempotency_key or "")
        number = int(job.labels["attempt"])
        if self.every is not None and number % self.every == self.every - 1:
            return JobResult(outcome=Outcome.SUCCESS, validation_score=1.0 + number, higher_is_better=False)
        return JobResult(
            outcome=Outcome.CODE_EXECUTION_ERROR, error_signature="KeyError@main", message="no", higher_is_better=False
        )


class CharTokenizer:
    """One token for each character, and one for each of ChatML's marks; a template with thinking, as Qwen3's.

    Written for the tests: the last reply always shows a block of thinking, earlier ones never do.
    """

    MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")

    def __init__(self, *, opens_thinking: bool = False, thinks: bool = True) -> None:
        """Args:
        opens_thinking: The generation prompt opens the thinking itself.
        thinks: Without it the template shows replies as they are.
        """
        self.opens_thinking = opens_thinking
        self.thinks = thinks

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = False) -> str:
        last_question = max((n for n, message in enumerate(messages) if message.role == "user"), default=-1)
        text = ""
        for number, message in enumerate(messages):
            content = message.content
            if message.role == "assistant" and self.thinks:
                thinking, closing, answer = content.rpartition("</think>")
                thinking = thinking.replace("<think>", "").strip() if closing else ""
                content = answer.lstrip("\n")
                if number > last_question:
                    content = f"<think>\n{thinking}\n</think>\n\n{content}"
            text += f"<|im_start|>{message.role}\n{content}<|im_end|>\n"
        if generation_prompt:
            text += "<|im_start|>assistant\n" + ("<think>\n" if self.opens_thinking else "")
        return text

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            mark = next((number for number, each in enumerate(self.MARKS) if text.startswith(each)), None)
            ids.append(ord(text[0]) + len(self.MARKS) if mark is None else mark)
            text = text[1 if mark is None else len(self.MARKS[mark]) :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.MARKS[each] if each < len(self.MARKS) else chr(each - len(self.MARKS)) for each in ids)
