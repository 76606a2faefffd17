"""Whether jobs can be called off, and by whom; where a service does not offer it, checks are skipped."""

import uuid

from sandbox_service.conformance.check import Group, check, expect
from sandbox_service.conformance.service import ABSENT, ENDED, JOBS, SLEEPS, Json, Service, answer


async def _cancel(service: Service, job_id: str) -> Json:
    return answer(await service.offers("DELETE", f"{JOBS}/{job_id}", "cancelling"), 200, 202)


@check(Group.EXTENSIONS)
async def cancel_a_running_job(service: Service) -> None:
    """Cancelling a running job kills its program, and a long poll on it is answered."""
    job_id = await service.sleeping()
    await _cancel(service, job_id)
    view = await service.until(job_id, *ENDED, within_seconds=service.config.grace_seconds)
    expect(view["status"] == "cancelled" and not view.get("result"), view)


@check(Group.EXTENSIONS, alone=True)
async def cancel_a_queued_job(service: Service) -> None:
    """A queued job that is cancelled never runs."""
    workers = await service.workers()
    blockers = [await service.submit(SLEEPS + f"# {number}", timeout=60) for number in range(workers + 1)]
    try:
        job_id = await service.submit("print('ran')", priority=2)
        view = await _cancel(service, job_id)
        expect(view.get("status") == "cancelled", view)
    finally:
        for blocker in blockers:
            await service.send("DELETE", f"{JOBS}/{blocker}")
    view = await service.view(job_id)
    expect(view["status"] == "cancelled" and not view.get("started_at"), view)


@check(Group.EXTENSIONS)
async def cancel_an_ended_job(service: Service) -> None:
    """Cancelling a job that has ended changes nothing, and can be done twice."""
    ran = await service.run("print('kept')")
    for _ in range(2):
        view = await _cancel(service, ran.view["job_id"])
        expect(view.get("status") == "completed" and view.get("result") == ran.result, view)


@check(Group.EXTENSIONS)
async def cancel_an_unknown_job(service: Service) -> None:
    """Cancelling a job that does not exist is answered 404."""
    await _cancel(service, await service.submit("pass"))
    response = await service.send("DELETE", ABSENT)
    expect(response.status_code == 404, f"answers {response.status_code}")


@check(Group.EXTENSIONS)
async def cancel_by_another_key(service: Service) -> None:
    """A job cannot be cancelled by another user's key."""
    other = service.second()
    job_id = await service.sleeping()
    try:
        response = await other.offers("DELETE", f"{JOBS}/{job_id}", "cancelling")
        expect(response.status_code in (403, 404), f"another key's cancel is answered {response.status_code}")
        expect((await service.view(job_id))["status"] == "running", "the job was cancelled by another key")
    finally:
        await service.send("DELETE", f"{JOBS}/{job_id}")


@check(Group.EXTENSIONS)
async def cancel_all_that_carry_a_label(service: Service) -> None:
    """DELETE /api/v1/jobs?label= cancels the jobs of one run, queued and running, and no others."""
    label = uuid.uuid4().hex
    other = await service.submit("import time\ntime.sleep(3)\nprint('went on')", labels={"run": "another " + label})
    ids = [await service.submit(SLEEPS, timeout=60, labels={"run": label}) for _ in range(4)]
    try:
        response = await service.offers(
            "DELETE", JOBS, "cancelling all jobs that carry a label", params={"label": f"run={label}"}
        )
        answer(response, 200)
        views = [await service.until(job_id, *ENDED, within_seconds=service.config.grace_seconds) for job_id in ids]
        expect([view["status"] for view in views] == ["cancelled"] * 4, [view["status"] for view in views])
        expect("went on" in (await service.ended(other)).log, "a job of another run was stopped")
    finally:
        for job_id in ids:
            await service.send("DELETE", f"{JOBS}/{job_id}")
