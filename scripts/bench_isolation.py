"""What each isolation costs: an empty program, run on every runner in turn, side by side in one sitting; then jobs per
minute, program and grading, of programs that the recipe policy drafts for the quickstart's task, two at once.

    python scripts/bench_isolation.py [RUNS] [PROGRAMS] [IMAGE]

Compare the rows of one run with each other and nothing else: the machine's load is in all of them.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from openmle_gym.anchors import build_anchor
from openmle_gym.errors import RunnerUnavailable
from openmle_gym.execute import LocalExecutor
from openmle_gym.isolation.bubblewrap import BubblewrapRunner
from openmle_gym.isolation.docker import DockerRunner
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.isolation.runner import PYTHON, Isolation, Runner, RunSpec
from openmle_gym.isolation.zygote import ZygoteRunner
from openmle_gym.jobs import JobRequest, JobResult, Limits
from openmle_gym.operators import Operator
from openmle_gym.policies.recipes import RecipePolicy
from openmle_gym.program import parse_reply
from openmle_gym.prompts import Surroundings, build_prompt, public_task
from openmle_gym.signature import PROGRAM_FILE
from openmle_gym.task import TaskPackage

EMPTY_PROGRAM = RunSpec(argv=(PYTHON, "-u", PROGRAM_FILE), files={PROGRAM_FILE: b""})
TASK = "diamonds"
AT_ONCE = 2


async def available(runners: list[Runner]) -> list[Runner]:
    """Those whose check passes; it also warms them up."""
    found: list[Runner] = []
    for runner in runners:
        try:
            await runner.check()
            found.append(runner)
        except RunnerUnavailable as error:
            print(f"without {runner.isolation}: {error}", file=sys.stderr)
    return found


async def bare_seconds() -> float:
    """The same program with nothing around it."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "pass")
    await process.wait()
    return time.perf_counter() - began


async def isolated_seconds(runner: Runner) -> float:
    """From the call to the result: preparation, start, program, collection and clearing away."""
    began = time.perf_counter()
    result = await runner.run(EMPTY_PROGRAM)
    if result.exit_code != 0:
        raise RunnerUnavailable(f"{runner.isolation}: the empty program failed: {result}")
    return time.perf_counter() - began


async def print_latencies(runners: Sequence[Runner], runs: int) -> None:
    """The cost of nothing."""
    seconds: dict[str, list[float]] = {"bare subprocess": [], **{str(runner.isolation): [] for runner in runners}}
    for _ in range(runs):
        seconds["bare subprocess"].append(await bare_seconds())
        for runner in runners:
            seconds[str(runner.isolation)].append(await isolated_seconds(runner))
    print(f"{'empty program, ms':<20}{'median':>8}{'p95':>8}   n={runs}")
    for name, values in seconds.items():
        p95 = statistics.quantiles(values, n=20, method="inclusive")[-1]
        print(f"{name:<20}{statistics.median(values) * 1000:>8.0f}{p95 * 1000:>8.0f}")


async def drafted_programs(package: TaskPackage, count: int) -> list[str]:
    """What the recipe policy answers when it is asked for first programs."""
    policy = RecipePolicy()
    messages = build_prompt(Operator.DRAFT, public_task(package), (), Surroundings(limits=Limits()))
    replies = [await policy.complete(messages, seed=seed) for seed in range(count)]
    return [parse_reply(reply.text).source for reply in replies]


async def print_throughput(runners: Sequence[Runner], programs: Sequence[str], package: TaskPackage) -> None:
    """Jobs per minute, and where a job's time goes."""
    print(f"\n{f'{TASK}, {AT_ONCE} at once':<20}{'jobs/min':>10}{'program s':>11}{'grading s':>11}   n={len(programs)}")
    for runner in runners:
        executor = LocalExecutor(task_root=package.root.parent, runner=runner, parallel=AT_ONCE)
        jobs = [JobRequest(code=source, data_dir=package.root.name) for source in programs]
        await asyncio.gather(*(executor.run(job) for job in jobs[:AT_ONCE]))  # what is started once is not counted
        began = time.perf_counter()
        results: list[JobResult] = await asyncio.gather(*(executor.run(job) for job in jobs))
        minutes = (time.perf_counter() - began) / 60
        program = statistics.mean(result.program_seconds for result in results)
        graded = [result.grading_seconds for result in results if result.grading_seconds]
        row = f"{len(jobs) / minutes:>10.0f}{program:>11.2f}{statistics.mean(graded):>11.2f}"
        scored = sum(result.score is not None for result in results)
        print(f"{runner.isolation:<20}{row}   {scored} with a score")


async def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    image = sys.argv[3] if len(sys.argv) > 3 else "openmle/sandbox:cpu"
    runners = await available(
        [DockerRunner(image=image), ZygoteRunner(), BubblewrapRunner(), ProcessRunner(allow_no_isolation=True)]
    )
    await print_latencies(runners, runs)
    compared = [runner for runner in runners if runner.isolation in (Isolation.ZYGOTE, Isolation.BUBBLEWRAP)]
    if compared and count:
        with tempfile.TemporaryDirectory() as folder:
            package = await build_anchor(TASK, Path(folder) / TASK, runner=compared[0])
            await print_throughput(compared, await drafted_programs(package, count), package)


if __name__ == "__main__":
    asyncio.run(main())
