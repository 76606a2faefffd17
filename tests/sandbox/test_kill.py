"""kill -9 of a process that runs the queue, at points that hypothesis chooses: nothing accepted is lost, nothing ends
twice, what was told stays true."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sandbox.make import make_task

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
JOBS = 12
LIFE = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from sandbox.make import HeldRunner, make_scheduler, request

def tell(**fact):
    print(json.dumps(fact), flush=True)

async def main(folder, jobs):
    runner = HeldRunner()
    async with make_scheduler(folder, runner, workers=3, max_attempts=1000) as scheduler:
        async def one(number):
            job = request(f"job {number}", idempotency_key=f"k{number}", labels={"run": f"r{number % 2}"})
            job_id = (await scheduler.submit(job, owner="me")).view.job_id
            tell(number=number, job_id=job_id)
            view = await scheduler.get(job_id, wait_seconds=600)
            tell(number=number, job_id=job_id, ended=view.model_dump_json())
        await asyncio.gather(*(one(number) for number in range(jobs)))
    tell(done=True, ran=runner.finished)

asyncio.run(main(Path(sys.argv[2]), int(sys.argv[3])))
"""


def life(folder: Path, *, killed_after: int | None) -> list[dict]:
    """What a process tells that submits all jobs and waits for them, killed when it has told so many lines, or not."""
    command = [sys.executable, "-c", LIFE, str(TESTS), str(folder), str(JOBS)]
    told: list[dict] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told.append(json.loads(line))
            if len(told) == killed_after:
                process.kill()
                break
        # What it told in between counts too; a line cut in the middle was not told.
        told += [json.loads(line) for line in process.stdout if line.endswith("}\n")]
    assert killed_after is not None or process.returncode == 0
    return told


@given(st.lists(st.integers(1, 2 * JOBS), min_size=1, max_size=2))
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_killed_at_any_point_no_job_is_lost_and_what_was_told_stays_true(kills: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_task(folder / "tasks" / "tiny")
        told: list[dict] = []
        for killed_after in kills:
            told += life(folder, killed_after=killed_after)
        last = life(folder, killed_after=None)
    final = {fact["number"]: fact for fact in last if "ended" in fact}
    assert sorted(final) == list(range(JOBS))
    assert all(json.loads(fact["ended"])["status"] == "completed" for fact in final.values())
    for fact in told:
        if "number" in fact:
            assert fact["job_id"] == final[fact["number"]]["job_id"]
            assert fact.get("ended") in (None, final[fact["number"]]["ended"])
    ran_last = next(fact["ran"] for fact in last if "ran" in fact)
    ended_before = {f"job {fact['number']}" for fact in told if "ended" in fact}
    assert not ended_before & set(ran_last)
    assert len(ran_last) == len(set(ran_last))
