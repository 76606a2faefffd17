"""One job from lease to result."""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from openmle_gym.errors import InfrastructureError, JobLost, OpenMLEError, RunnerUnavailable
from openmle_gym.execute import JobRun
from openmle_gym.jobs import JobRequest, JobResult

from sandbox_service.artifact_store import ArtifactStore
from sandbox_service.dispatch import Dispatcher, Order, Place
from sandbox_service.records import ArtifactInfo, Lease
from sandbox_service.store import JobStore

NO_GPU = "asked for a GPU; this service has none, so the program ran on the CPU"
ATTEMPTS_WITH_A_LOSS = 2
"""A job whose node is lost is queued again once: a program that brings nodes down must not get them all."""

logger = logging.getLogger(__name__)


class Verdict(NamedTuple):
    """What came of one start of a job."""

    record: Callable[[JobStore], bool]
    """Writes it down; False when the lease was lost, and nothing changed."""
    result: JobResult | None = None
    artifacts: tuple[ArtifactInfo, ...] = ()
    """Pinned until the verdict is recorded."""
    trouble: str = ""
    """The class of the error that machinery failed with; empty where it did not."""
    runner_in_doubt: bool = False


async def run_lease(lease: Lease, place: Place, *, dispatcher: Dispatcher, artifacts: ArtifactStore) -> Verdict:
    """Runs a leased job. Raises nothing but CancelledError: whatever happens is a verdict."""
    order = Order(job_id=lease.job_id, attempt=lease.attempts, request_json=lease.request_json)
    try:
        run = await dispatcher.run(place, order)
        kept = await asyncio.to_thread(artifacts.put, run.artifacts) if run.artifacts else []
        result = _finished(run, lease, place)
        return Verdict(record=lambda store: store.complete(lease, result, kept), result=result, artifacts=tuple(kept))
    except InfrastructureError as error:
        logger.warning("job %s, attempt %d: %s: %s", lease.job_id, lease.attempts, type(error).__name__, error)
        return _again(lease, error)
    except OpenMLEError as error:
        failure = f"{type(error).__name__}: {error}"
        return Verdict(record=lambda store: store.fail(lease, failure), trouble=type(error).__name__)
    except Exception as error:
        logger.exception("job %s, attempt %d", lease.job_id, lease.attempts)
        return _again(lease, error)


def _again(lease: Lease, error: Exception) -> Verdict:
    trouble = f"{type(error).__name__}: {error}"
    most_attempts = ATTEMPTS_WITH_A_LOSS if isinstance(error, JobLost) else None
    return Verdict(
        record=lambda store: store.retry(lease, trouble, most_attempts=most_attempts),
        trouble=type(error).__name__,
        runner_in_doubt=isinstance(error, RunnerUnavailable),
    )


def _finished(run: JobRun, lease: Lease, place: Place) -> JobResult:
    wanted = JobRequest.model_validate_json(lease.request_json).resource_type
    warnings = list(run.result.warnings)
    if wanted == "gpu" and place.resource_class == "cpu":
        warnings.append(NO_GPU)
    if lease.trouble is not None:
        warnings.append(f"not the first start of this job; {lease.trouble}")
    return run.result.model_copy(update={"queue_seconds": lease.queue_seconds, "warnings": warnings})
