"""Calls that share a transaction."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from openmle_gym.errors import StoreError
from openmle_gym.jobs import JobState
from sandbox.make import request
from sandbox_service.records import QueueFull, QueuePolicy, Submitted
from sandbox_service.store import JobStore
from sandbox_service.store_thread import StoreThread


@pytest.fixture
async def thread(tmp_path: Path) -> AsyncIterator[StoreThread]:
    thread = StoreThread(JobStore(tmp_path / "jobs.sqlite", QueuePolicy(max_queued=2)))
    yield thread
    await thread.close()


def submit(store: JobStore) -> Submitted:
    return store.submit(request(), owner="me")


def damaged(store: JobStore) -> None:
    submit(store)
    raise sqlite3.OperationalError("disk I/O error")


def buggy(store: JobStore) -> None:
    submit(store)
    raise ZeroDivisionError


@asynccontextmanager
async def busy(thread: StoreThread) -> AsyncIterator[None]:
    """The calls made inside wait for a call under way, and are then carried out in one transaction."""
    entered, gate = threading.Event(), threading.Event()

    def block(store: JobStore) -> None:
        entered.set()
        gate.wait()

    blocker = asyncio.create_task(thread.call(block))
    await asyncio.to_thread(entered.wait)
    yield
    gate.set()
    await blocker


async def together(thread: StoreThread, *operations: Callable[[JobStore], object]) -> list[object]:
    """What the operations return or raise in one transaction."""
    async with busy(thread):
        calls = [asyncio.create_task(thread.call(operation)) for operation in operations]
        await asyncio.sleep(0)
    return await asyncio.gather(*calls, return_exceptions=True)


async def queued(thread: StoreThread) -> int:
    return await thread.call(lambda store: store.count(JobState.QUEUED))


async def test_a_refused_call_does_not_undo_its_neighbours(thread: StoreThread) -> None:
    outcomes = await together(thread, submit, submit, submit, lambda store: store.count(JobState.QUEUED))
    assert isinstance(outcomes[2], QueueFull)
    assert (outcomes[3], await queued(thread)) == (2, 2)


@pytest.mark.parametrize(("trouble", "error"), [(damaged, StoreError), (buggy, ZeroDivisionError)])
async def test_when_a_transaction_fails_all_in_it_fail_and_the_next_works(
    thread: StoreThread, trouble: Callable[[JobStore], None], error: type[Exception]
) -> None:
    outcomes = await together(thread, submit, trouble, submit)
    assert [type(outcome) for outcome in outcomes] == [error] * 3
    assert await queued(thread) == 0
    assert (await thread.call(submit)).created


async def test_a_call_that_nobody_awaits_any_more_is_carried_out(thread: StoreThread) -> None:
    async with busy(thread):
        dropped = asyncio.create_task(thread.call(submit))
        await asyncio.sleep(0)
        dropped.cancel()
        await asyncio.wait({dropped})
    assert (dropped.cancelled(), await queued(thread)) == (True, 1)


async def test_closing_carries_out_the_calls_made_before(tmp_path: Path) -> None:
    thread = StoreThread(JobStore(tmp_path / "jobs.sqlite"))
    calls = [asyncio.create_task(thread.call(submit)) for _ in range(2)]
    await asyncio.sleep(0)
    await thread.close()
    assert [(await call).created for call in calls] == [True, True]
    reopened = JobStore(tmp_path / "jobs.sqlite")
    assert reopened.count(JobState.QUEUED) == 2
    reopened.close()
