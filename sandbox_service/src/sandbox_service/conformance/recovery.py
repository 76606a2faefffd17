"""What a service that is killed and started again makes of its jobs."""

import asyncio
import os
import signal
import uuid

from sandbox_service.conformance.check import Failed, Group, Skipped, check, expect
from sandbox_service.conformance.kill import Orphans
from sandbox_service.conformance.programs import SUBMIT
from sandbox_service.conformance.service import ENDED, JOBS, NOT_OFFERED, Service

RESTART_SECONDS = 120.0


def _need_restart(service: Service) -> None:
    """Raises:
    Skipped: There is no way to restart the service.
    """
    if not service.config.restart_command:
        raise Skipped("no restart_command was given")


async def _restart(service: Service) -> None:
    """Runs the operator's command, and waits until the service answers again.

    Raises:
        Failed: It fails, or the service stays away.
    """
    process = await asyncio.create_subprocess_shell(
        service.config.restart_command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(RESTART_SECONDS):
            code = await process.wait()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        raise Failed(f"restart_command did not end within {RESTART_SECONDS:g} seconds") from None
    expect(code == 0, f"restart_command ended with {code}")
    for _ in range(int(RESTART_SECONDS)):
        try:
            if (await service.send("GET", "/health", keyed=False)).is_success:
                return
        except Failed:
            pass
        await asyncio.sleep(1.0)
    raise Failed(f"{RESTART_SECONDS:g} seconds after restart_command the service does not answer")


@check(Group.RECOVERY, alone=True)
async def no_accepted_job_is_lost(service: Service) -> None:
    """After kill -9 each accepted job, queued or running, ends with its own result, and its key names it still."""
    _need_restart(service)
    workers = await service.workers()
    jobs: dict[str, str] = {}
    for number in range(2 * workers + 4):
        key = uuid.uuid4().hex
        code = SUBMIT + f"import time\ntime.sleep(1)\nsubmit(lambda x: 2 * x + 1 + {number})"
        jobs[key] = await service.submit(code, idempotency_key=key, labels={"place": str(number)})
    await service.until(next(iter(jobs.values())), "running", within_seconds=service.config.patience_seconds)
    await _restart(service)
    for number, (key, job_id) in enumerate(jobs.items()):
        ran = await service.ended(job_id, limit_seconds=300)
        expect(ran.score == float(number), f"job {number} has another score: {ran}")
        code = SUBMIT + f"import time\ntime.sleep(1)\nsubmit(lambda x: 2 * x + 1 + {number})"
        again = await service.submit(code, idempotency_key=key, labels={"place": str(number)})
        expect(again == job_id, f"the key of job {job_id} names {again} after the restart")


@check(Group.RECOVERY, alone=True)
async def finished_results_stay(service: Service) -> None:
    """A result that was there before kill -9 is there after it, to the letter."""
    _need_restart(service)
    before = await service.run(SUBMIT + "submit()\nprint('once')")
    await _restart(service)
    expect(await service.view(before.view["job_id"]) == before.view, "the result changed")


@check(Group.RECOVERY, alone=True)
async def a_cancelled_job_stays_cancelled(service: Service) -> None:
    """A job that was cancelled before kill -9 does not run after it."""
    _need_restart(service)
    workers = await service.workers()
    blockers = [await service.submit(f"import time\ntime.sleep(20)\n# {number}") for number in range(workers)]
    job_id = await service.submit("print('ran')", priority=2)
    response = await service.send("DELETE", f"{JOBS}/{job_id}")
    try:
        if response.status_code in NOT_OFFERED:
            raise Skipped("the service does not offer cancelling")
        await _restart(service)
        expect((await service.view(job_id))["status"] == "cancelled", await service.view(job_id))
    finally:
        for blocker in blockers:
            await service.send("DELETE", f"{JOBS}/{blocker}")


@check(Group.RECOVERY, alone=True)
async def no_program_outlives_the_service_twice(service: Service) -> None:
    """A job that ran when the service was killed ends once: its processes are gone, and it has one result."""
    _need_restart(service)
    orphans = await Orphans.before(service)
    job_id = await service.submit(orphans.program + "time.sleep(3)\nprint('ended')", timeout=60)
    await service.until(job_id, "running", within_seconds=service.config.patience_seconds)
    await asyncio.sleep(1.0)
    await _restart(service)
    ran = await service.ended(job_id)
    expect(ran.log.count("ended") == 1, ran)
    first = await service.until(job_id, *ENDED, within_seconds=10)
    await orphans.expect_gone(ran)
    expect(await service.view(job_id) == first, "the result changed after the end")


@check(Group.RECOVERY, alone=True)
async def two_kills_in_a_row(service: Service) -> None:
    """A job that was accepted before two kills of the service ends with its result."""
    _need_restart(service)
    key = uuid.uuid4().hex
    job_id = await service.submit(SUBMIT + "submit()", idempotency_key=key)
    for _ in range(2):
        await _restart(service)
    expect(await service.submit(SUBMIT + "submit()", idempotency_key=key) == job_id, "the key names another job")
    ran = await service.ended(job_id, limit_seconds=300)
    expect(ran.score == 0.0, ran)
