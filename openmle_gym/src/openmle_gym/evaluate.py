"""The one road from a policy's reply to a card, shared by search and RL.

reply -> parse_reply -> reviewer -> Executor.run -> ExperienceCard
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from openmle_gym.chat import Completion
from openmle_gym.errors import ReplyError
from openmle_gym.execute import LOG_END, LOG_START
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.jobs import Executor, JobRequest, JobResult, Outcome
from openmle_gym.operators import Operator
from openmle_gym.program import Program, parse_reply
from openmle_gym.review import Review, Reviewer, review_program

CARD_LOG_CHARACTERS = 8_000
"""How much of a log's head, and of its tail, a card keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Which operator is applied to which parents, and why; settled before the policy is asked."""

    run_id: str
    task: str
    attempt: int
    operator: Operator
    parents: tuple[int, ...]
    selection: Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What every job of a run has in common."""

    data_dir: str
    """The task package, as the executor sees it."""
    timeout_seconds: float
    resource_type: Literal["cpu", "gpu"] = "cpu"
    priority: int = 2


async def evaluate_reply(
    reply: Completion,
    attempt: Attempt,
    *,
    executor: Executor,
    settings: JobSettings,
    reviewer: Reviewer | None = None,
) -> ExperienceCard:
    """Judges a reply.

    Args:
        reviewer: Where a model reviews too; without one, the detectors alone do.

    Raises:
        InfrastructureError: The machinery failed; there is no card, and the attempt may be tried again: the job's
            idempotency key follows from run, attempt and program, so a service that knows it does not run it twice.
    """
    try:
        program = parse_reply(reply.text, truncated=reply.finish_reason == "length")
    except ReplyError as error:
        result = JobResult(outcome=Outcome.CODE_MISSING, error_signature=error.code, message=str(error))
        return _card(attempt, reply, None, result, settings)
    review = await reviewer.review(program, attempt.attempt) if reviewer else review_program(program)
    fail = reviewer.config.fail if reviewer else "fail_closed"
    if review.verdict == "refused" or (review.verdict == "unknown" and fail == "fail_closed"):
        result = JobResult(outcome=Outcome.REJECTED, error_signature=review.signature, message=review.message)
        return _card(attempt, reply, program, result, settings, review)
    result = await _judge(program, attempt, executor, settings)
    card = _card(attempt, reply, program, result, settings, review)
    if review.verdict == "unknown" and fail == "unknown" and card.validation is not None:
        message = f"not valid, as its review is unknown: {review.message}"
        return card.model_copy(update={"validation": None, "withheld": card.validation, "message": message})
    return card


async def _judge(program: Program, attempt: Attempt, executor: Executor, settings: JobSettings) -> JobResult:
    if program.syntax_error is not None:
        return JobResult(
            outcome=Outcome.CODE_EXECUTION_ERROR, error_signature="SyntaxError", message=program.syntax_error
        )
    return await executor.run(attempt_job(attempt, program.source, program.program_id, settings))


def attempt_job(attempt: Attempt | ExperienceCard, source: str, program_id: str, settings: JobSettings) -> JobRequest:
    """The job that judges an attempt's program; from its card and the same settings it is the same to the last field,
    so that a service knows it again."""
    return JobRequest(
        name=attempt.task,
        code=source,
        data_dir=settings.data_dir,
        timeout_seconds=settings.timeout_seconds,
        resource_type=settings.resource_type,
        priority=settings.priority,
        idempotency_key=f"{attempt.run_id}-{attempt.attempt}-{program_id}",
        labels={"run": attempt.run_id, "attempt": str(attempt.attempt)},
    )


def _card(
    attempt: Attempt,
    reply: Completion,
    program: Program | None,
    result: JobResult,
    settings: JobSettings,
    review: Review | None = None,
) -> ExperienceCard:
    log = result.run_log.removeprefix(f"{LOG_START}\n").rstrip().removesuffix(LOG_END).rstrip("\n")
    cut = max(len(log) - 2 * CARD_LOG_CHARACTERS, 0)
    return ExperienceCard(
        run_id=attempt.run_id,
        task=attempt.task,
        attempt=attempt.attempt,
        operator=attempt.operator,
        parents=attempt.parents,
        selection=attempt.selection,
        program_id=program.program_id if program else None,
        source=program.source if program else "",
        plan=program.plan if program else reply.text[:CARD_LOG_CHARACTERS],
        review=review.verdict if review else None,
        outcome=result.outcome,
        validation=result.validation(),
        self_reported=result.self_reported(),
        error_signature=result.error_signature,
        message=result.message,
        log_head=log[:CARD_LOG_CHARACTERS] if cut else log,
        log_tail=log[-CARD_LOG_CHARACTERS:] if cut else "",
        truncated_bytes=result.truncated_bytes + cut,
        isolation=result.isolation,
        model=reply.model,
        usage=reply.usage,
        cost_usd=reply.cost_usd,
        timeout_seconds=settings.timeout_seconds,
        sandbox_seconds=result.program_seconds + result.grading_seconds,
        queue_seconds=result.queue_seconds,
        model_seconds=reply.seconds,
        finished_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    )
