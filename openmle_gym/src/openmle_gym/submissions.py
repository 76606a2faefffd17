"""Where the submission of a job that has run can be had again."""

from typing import Protocol

from openmle_gym.jobs import Executor, JobRequest


class SubmissionSource(Executor, Protocol):
    """An executor that also hands out what a program wrote, not only its score."""

    async def submission(self, job: JobRequest) -> bytes | None:
        """The `submission.csv` of a job's program.

        Give the job as it was run, idempotency key included: an executor that knows it runs nothing again; one that
        keeps nothing runs it once more.

        Returns:
            None when the program wrote none, or when it is not kept any more.

        Raises:
            InfrastructureError: Machinery failed; nothing is known about the program.
        """
        ...
