"""Whether a flood of jobs holds up others'."""

import asyncio
import uuid
from collections.abc import Sequence

from sandbox_service.conformance.check import Group, check, expect
from sandbox_service.conformance.service import JOBS, Service, moment

NAP = "import time\ntime.sleep(0.3)\n"


async def _starts(service: Service, job_ids: Sequence[str]) -> list[float]:
    ended = await asyncio.gather(*(service.ended(job_id, limit_seconds=300) for job_id in job_ids))
    return [moment(ran.view, "started_at").timestamp() for ran in ended]


async def _flood(service: Service, number: int, **fields: object) -> list[str]:
    return [await service.submit(NAP + f"# {uuid.uuid4()}", **fields) for _ in range(number)]


async def _expect_not_starved(service: Service, flood: list[str], few: list[str]) -> None:
    starts, late = await _starts(service, flood), await _starts(service, few)
    before = sum(start < max(late) for start in starts)
    expect(
        before <= len(flood) * 3 // 4,
        f"{before} of {len(flood)} jobs of a flood started before the last of {len(few)} others",
    )


@check(Group.FAIRNESS, alone=True)
async def high_priority_goes_first(service: Service) -> None:
    """A job of priority 1 starts before those of priority 2 that wait already."""
    workers = await service.workers()
    flood = await _flood(service, 8 * workers, priority=2)
    urgent = await _flood(service, 1, priority=1)
    await _expect_not_starved(service, flood, urgent)


@check(Group.FAIRNESS, alone=True)
async def low_priority_is_in_order(service: Service) -> None:
    """Jobs of one user, one run and one priority start in the order in which they came, give or take the workers."""
    workers = await service.workers()
    starts = await _starts(service, await _flood(service, 6 * workers, priority=2))
    late = [
        place for place, start in enumerate(starts) if sum(other < start for other in starts[place + 1 :]) > 2 * workers
    ]
    expect(not late, f"{len(late)} of {len(starts)} jobs were overtaken by more than {2 * workers} later ones")


@check(Group.FAIRNESS, alone=True)
async def one_run_does_not_hold_up_another(service: Service) -> None:
    """A run (label) of many jobs does not make another run of the same user wait for its end."""
    workers = await service.workers()
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    flood = await _flood(service, 8 * workers, labels={"run": first}, priority=2)
    few = await _flood(service, 2, labels={"run": second}, priority=2)
    await _expect_not_starved(service, flood, few)


@check(Group.FAIRNESS, alone=True)
async def one_user_does_not_hold_up_another(service: Service) -> None:
    """A user's flood of jobs does not make another user wait for its end."""
    other = service.second()
    workers = await service.workers()
    flood = await _flood(service, 8 * workers, priority=2)
    few = await _flood(other, 2, priority=2)
    await _expect_not_starved(service, flood, few)


@check(Group.FAIRNESS, alone=True)
async def low_priority_is_not_starved_by_a_trickle(service: Service) -> None:
    """A job of priority 2 runs though each job of priority 1 that ends is followed by another."""
    workers = await service.workers()
    low = await service.submit(NAP, priority=2)
    for _ in range(6):
        await asyncio.gather(*(service.ended(job_id) for job_id in await _flood(service, workers, priority=1)))
    await service.ended(low)


@check(Group.FAIRNESS, alone=True)
async def all_workers_are_used(service: Service) -> None:
    """As many jobs run at once as there are workers, and all are idle when nothing is left."""
    workers = await service.workers()
    job_ids = [await service.submit("import time\ntime.sleep(3)") for _ in range(workers)]
    busy = 0
    for _ in range(100):
        shown = (await service.send("GET", "/api/v1/workers/status")).json()["workers_show"]
        busy = max(busy, sum(worker["status"] == "busy" for worker in shown))
        if busy == workers:
            break
        await asyncio.sleep(0.1)
    for job_id in job_ids:
        await service.ended(job_id)
        await service.send("DELETE", f"{JOBS}/{job_id}")
    expect(busy == workers, f"at most {busy} of {workers} workers were busy")
