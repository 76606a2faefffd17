"""Cards and small stand-ins that the search's tests share."""

import hashlib
import random
from collections.abc import Sequence

from openmle_evo.run import RunManifest
from openmle_gym.chat import Completion, Message
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.jobs import JobRequest, JobResult, Outcome
from openmle_gym.manifest import Columns, Manifest, Metric
from openmle_gym.operators import Operator
from openmle_gym.prompts import PublicTask
from openmle_gym.scores import ValidationScore

TASK = PublicTask(
    manifest=Manifest(
        name="toy",
        task_type="regression",
        metric=Metric(name="rmse", higher_is_better=False),
        columns=Columns(id=("id",), target=("y",)),
    ),
    description="Predict y.",
    data="`train.csv`: 10 rows, 2 columns",
)


def toy_manifest(**changes: object) -> RunManifest:
    """The manifest of a run on the toy task."""
    fields = {
        "run_id": "run",
        "created_at": "2026-01-01T00:00:00Z",
        "openmle_version": "0",
        "task": "toy",
        "title": "Toy",
        "metric": TASK.manifest.metric,
        "package": "/nowhere",
        "policy": "seeded",
        "executor": "test",
        "isolation": "none",
        "settings": {},
    }
    return RunManifest(**{**fields, **changes})  # pyright: ignore


def card(
    attempt: int,
    value: float | None = None,
    *,
    operator: Operator = Operator.DRAFT,
    parents: tuple[int, ...] = (),
    outcome: Outcome | None = None,
    signature: str | None = None,
    source: str | None = None,
    higher_is_better: bool = True,
    reason: str = "test",
    island: int = 0,
) -> ExperienceCard:
    """A card with a validation score, or a failed one when `value` is None."""
    score = None if value is None else ValidationScore(value=value, higher_is_better=higher_is_better)
    source = source if source is not None else f"x = {attempt}"
    return ExperienceCard(
        run_id="run",
        task="toy",
        attempt=attempt,
        operator=operator,
        parents=parents,
        selection=Selection(reason=reason, island=island),
        program_id=hashlib.sha256(source.encode()).hexdigest()[:16],
        source=source,
        plan="plan",
        outcome=outcome or (Outcome.SUCCESS if score else Outcome.CODE_EXECUTION_ERROR),
        validation=score,
        error_signature=signature,
        finished_at="2026-01-01T00:00:00Z",
    )


class SeededPolicy:
    """Answers with a program that depends on the seed alone."""

    def __init__(self) -> None:
        self.calls = 0

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        self.calls += 1
        return Completion(text=f"plan\n```python\nimport os\nprint({seed})\n```", model="seeded")


class HashExecutor:
    """Judges a program by a hash of its text: some fail, the others get a score. Counts what it runs, by key."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    async def run(self, job: JobRequest) -> JobResult:
        self.runs.append(job.idempotency_key or "")
        rng = random.Random(job.code)
        if rng.random() < 0.3:
            return JobResult(
                outcome=Outcome.CODE_EXECUTION_ERROR,
                error_signature=rng.choice(["KeyError@main", "ValueError@fit"]),
                message="it failed",
                higher_is_better=False,
                program_seconds=1.0,
            )
        return JobResult(
            outcome=Outcome.SUCCESS, validation_score=rng.random(), higher_is_better=False, program_seconds=1.0
        )
