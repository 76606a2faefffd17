"""What each isolation costs: an empty program, run on every runner in turn, side by side in one sitting.

    python scripts/bench_isolation.py [RUNS] [IMAGE]

Compare the rows of one run with each other and nothing else: the machine's load is in all of them.
"""

import asyncio
import statistics
import sys
import time

from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.bubblewrap import BubblewrapRunner
from openmle_gym.isolation.docker import DockerRunner
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.isolation.runner import PYTHON, Runner, RunSpec

EMPTY_PROGRAM = RunSpec(argv=(PYTHON, "-c", "pass"))


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


async def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    image = sys.argv[2] if len(sys.argv) > 2 else "openmle/sandbox:cpu"
    runners = await available([DockerRunner(image=image), BubblewrapRunner(), ProcessRunner(allow_no_isolation=True)])
    seconds: dict[str, list[float]] = {"bare subprocess": [], **{str(runner.isolation): [] for runner in runners}}
    for _ in range(runs):
        seconds["bare subprocess"].append(await bare_seconds())
        for runner in runners:
            seconds[str(runner.isolation)].append(await isolated_seconds(runner))
    print(f"{'empty program, ms':<20}{'median':>8}{'p95':>8}   n={runs}")
    for name, values in seconds.items():
        p95 = statistics.quantiles(values, n=20, method="inclusive")[-1]
        print(f"{name:<20}{statistics.median(values) * 1000:>8.0f}{p95 * 1000:>8.0f}")


if __name__ == "__main__":
    asyncio.run(main())
