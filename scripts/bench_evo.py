"""Measures the search itself, and two ways to search against each other: the published one and AIRA's, or others.

    .venv/bin/python scripts/bench_evo.py                     harness, resume, store, utilisation: about a minute
    .venv/bin/python scripts/bench_evo.py matched             six anchors, three seeds, both ways: 720 real programs,
                                                              20 to 40 minutes on two idle cores, three times that beside other work
    .venv/bin/python scripts/bench_evo.py matched --attempts 6 --seeds 2 --tasks diabetes penguins      48 programs
    .venv/bin/python scripts/bench_evo.py matched --ways search=openmle "search=openmle selection.normalise=rank"

Prints Markdown tables. The stand-ins of the first part answer at once, so what is left is the harness.
"""

import argparse
import asyncio
import dataclasses
import heapq
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from openmle_evo.config import BudgetConfig, SearchConfig
from openmle_evo.evaluation.statistics import paired, standard_error
from openmle_evo.reading import read_exchanges, read_run
from openmle_evo.run import RunDirectory, RunManifest
from openmle_evo.search import Search
from openmle_gym.chat import Completion, Message, Usage
from openmle_gym.evaluate import JobSettings
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import new_bests
from openmle_gym.jobs import JobRequest, JobResult, Limits, Outcome
from openmle_gym.manifest import Columns, Manifest, Metric
from openmle_gym.operators import Operator
from openmle_gym.prompts import PublicTask

WAYS = ("search=openmle", "search=aira")
ANCHORS = ("breast-cancer", "concrete", "diabetes", "digits", "olive-oils", "penguins")
TASK = PublicTask(
    manifest=Manifest(
        name="bench",
        task_type="regression",
        metric=Metric(name="rmse", higher_is_better=False),
        columns=Columns(id=("id",), target=("y",)),
    ),
    description="Predict y. " * 100,
    data="`train.csv`: 10 rows, 2 columns",
)
PROGRAM = "import os\n" + "\n".join(f"step_{n} = {n}  # a line of an ordinary program" for n in range(120))


class InstantPolicy:
    """Answers at once with a program of ordinary length."""

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        rng = random.Random(seed)
        lines = PROGRAM.splitlines()
        for _ in range(4):
            lines[rng.randrange(1, 120)] = f"step = {rng.random()}"
        usage = Usage(prompt_tokens=sum(len(m.content) for m in messages) // 4, completion_tokens=1200)
        return Completion(text="A plan.\n```python\n" + "\n".join(lines) + "\n```", model="instant", usage=usage)


class InstantExecutor:
    """Judges a program by a hash of its text, at once or after a time of its own."""

    def __init__(self, *, slots: int = 1, seconds: Sequence[float] = ()) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._seconds = iter(seconds)
        self.taken: list[float] = []

    async def run(self, job: JobRequest) -> JobResult:
        rng = random.Random(job.code)
        if (seconds := next(self._seconds, None)) is not None:
            async with self._slots:
                self.taken.append(seconds)
                await asyncio.sleep(seconds)
        if rng.random() < 0.2:
            signature = rng.choice(["KeyError@main", "ValueError@fit", "TypeError@load"])
            return JobResult(
                outcome=Outcome.CODE_EXECUTION_ERROR, error_signature=signature, higher_is_better=False, message="it"
            )
        log = "epoch 1\n" * 200
        return JobResult(
            outcome=Outcome.SUCCESS,
            validation_score=rng.random(),
            higher_is_better=False,
            run_log=log,
            program_seconds=1,
        )


def make_search(
    path: Path, config: SearchConfig, executor: InstantExecutor, on_card: Callable[[ExperienceCard], None]
) -> Search:
    """A search on the stand-ins, new or gone on with."""
    manifest = RunManifest(
        run_id="bench",
        created_at="2026-01-01T00:00:00Z",
        openmle_version="0",
        task="bench",
        title="bench",
        metric=TASK.manifest.metric,
        package="/nowhere",
        policy="instant",
        executor="instant",
        isolation="none",
        settings=dataclasses.asdict(config),
    )
    run = RunDirectory.resume(path) if (path / "manifest.json").exists() else RunDirectory.create(path, manifest)
    return Search(
        run=run,
        task=TASK,
        policy=InstantPolicy(),
        executor=executor,
        config=config,
        limits=Limits(),
        job=JobSettings(data_dir="bench", timeout_seconds=60),
        on_card=on_card,
    )


def measure_harness(folder: Path) -> list[tuple[str, str]]:
    """Seconds per attempt at three sizes of a run, resume, and what is stored."""
    config = SearchConfig(task="bench", workers=1, budget=BudgetConfig(attempts=820))
    moments: list[tuple[float, float]] = []

    def on_card(card: ExperienceCard) -> None:
        moments.append((time.process_time(), time.perf_counter()))

    search = make_search(folder / "run", config, InstantExecutor(), on_card)
    asyncio.run(search.run_to_end())
    search.run.close()
    rows = []
    for at in (50, 100, 400, 800):
        around = [[moments[n][clock] - moments[n - 1][clock] for n in range(at - 20, at + 20)] for clock in (0, 1)]
        cpu, wall = (1000 * statistics.median(each) for each in around)
        rows.append((f"harness, ms per attempt at {at}", f"{cpu:.2f} of CPU, {wall:.2f} with the waits for the disk"))
    started = time.perf_counter()
    resumed = make_search(folder / "run", config, InstantExecutor(), on_card)
    asyncio.run(resumed.run_to_end())
    rows.append(("resume of 820 attempts, s", f"{time.perf_counter() - started:.2f}"))
    resumed.run.close()
    size = sum(file.stat().st_size for file in (folder / "run").glob("store.sqlite*"))
    rows.append(("store, KiB per attempt", f"{size / 820 / 1024:.1f}"))
    return rows


def ideal_seconds(seconds: Sequence[float], slots: int) -> float:
    """The end of a list schedule: each job, in order, on the slot that is free first."""
    free = [0.0] * slots
    for each in seconds:
        heapq.heappush(free, heapq.heappop(free) + each)
    return max(free)


def measure_utilisation(folder: Path, *, slots: int = 8, attempts: int = 120) -> list[tuple[str, str]]:
    """A heavy-tailed distribution of runtimes (log-normal, sigma 1.2) on a sandbox of eight slots."""
    rng = random.Random(0)
    seconds = [min(rng.lognormvariate(-1.6, 1.2), 3.0) for _ in range(attempts)]
    rows = []
    for workers in (slots, slots + slots // 2):
        executor = InstantExecutor(slots=slots, seconds=seconds)
        config = SearchConfig(task="bench", workers=workers, budget=BudgetConfig(attempts=attempts))
        search = make_search(folder / f"workers-{workers}", config, executor, lambda card: None)
        started = time.perf_counter()
        asyncio.run(search.run_to_end())
        took = time.perf_counter() - started
        search.run.close()
        share = ideal_seconds(executor.taken, slots) / took
        rows.append((f"utilisation, {workers} workers on {slots} slots, of the ideal list schedule", f"{share:.1%}"))
    return rows


class RunCost(NamedTuple):
    """What a run cost and found."""

    prompt_tokens: int
    calls: int
    bests_per_million_tokens: float
    improve_lengths: tuple[int, ...]
    """Of its Improve prompts, in characters."""
    utility: float
    """The best validation score, larger is better; NaN without any."""


def measure_matched(
    folder: Path, tasks: Sequence[str], ways: Sequence[str], *, seeds: int, attempts: int, runner: str
) -> None:
    """Two ways to search on the same tasks, seeds and number of attempts, with the built-in policy and real programs.

    Args:
        ways: The settings of each, separated by spaces.
    """
    programs = Path(sys.executable).parent
    for task in tasks:
        build = [programs / "openmle-gym", "anchors", "build", task, "--output", folder / "tasks"]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    pairs: list[tuple[str, RunCost, RunCost]] = []
    for task in tasks:
        for seed in range(seeds):
            costs: list[RunCost] = []
            for number, way in enumerate(ways):
                run = folder / f"{task}-{seed}-{number}"
                command = [programs / "openmle-evo", "search", f"task={folder / 'tasks' / task}", *way.split()]
                command += [f"run_dir={run}", f"seed={seed}", f"budget.attempts={attempts}", f"runner={runner}"]
                started = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                costs.append(run_cost(run))
                told = {**costs[-1]._asdict(), "improve_lengths": len(costs[-1].improve_lengths)}
                print(f"{task} seed {seed} {way}, {time.perf_counter() - started:.0f} s: {told}", file=sys.stderr)
            pairs.append((task, costs[0], costs[1]))
    print(f"{len(tasks)} tasks x {seeds} seeds x {attempts} attempts, built-in policy, tokens estimated\n")
    print_matched(pairs, ways)


def print_matched(pairs: Sequence[tuple[str, RunCost, RunCost]], ways: Sequence[str]) -> None:
    """The table; each difference is the first way less the second on the same task and seed, with its error over tasks."""
    print(f"| mean of runs | {ways[0]} | {ways[1]} | difference | p over tasks |\n|---|---|---|---|---|")
    for name in ("prompt_tokens", "calls", "bests_per_million_tokens"):
        values = [(task, float(getattr(one, name)), float(getattr(other, name))) for task, one, other in pairs]
        told = paired((task, one - other) for task, one, other in values)
        first, second = with_error([one for _, one, _ in values]), with_error([other for _, _, other in values])
        difference = f"{told.mean:+,.1f}" + ("" if told.standard_error is None else f" +/- {told.standard_error:,.1f}")
        print(f"| {name.replace('_', ' ')} | {first} | {second} | {difference} | {told.test.p_value:.2g} |")
    sides = [[one for _, one, _ in pairs], [other for _, _, other in pairs]]
    tokens = [sum(each.prompt_tokens for each in side) for side in sides]
    print(
        f"| prompt tokens, all runs | {tokens[0]:,} | {tokens[1]:,} | {tokens[0] / tokens[1] - 1:+.0%} (goal against aira: -50%) | |"
    )
    longest = [sorted(length for each in side for length in each.improve_lengths) for side in sides]
    tops = [f"{each[math.ceil(0.99 * len(each)) - 1]:,}" if each else "none" for each in longest]
    print(f"| p99 Improve prompt, characters | {tops[0]} (goal: 54,300) | {tops[1]} | | |")
    found = [pair for pair in pairs if math.isfinite(pair[1].utility) and math.isfinite(pair[2].utility)]
    if found:
        print_scores(found)
    if len(found) < len(pairs):
        print(f"| final score | {len(pairs) - len(found)} pairs without a valid program on one side | | | |")


def print_scores(pairs: Sequence[tuple[str, RunCost, RunCost]]) -> None:
    """The row of final validation scores, as a share of the larger of both."""
    scaled = [(task, (a.utility - b.utility) / max(abs(a.utility), abs(b.utility), 1e-12)) for task, a, b in pairs]
    told = paired(scaled)
    better, worse = (sum(sign * difference > 0 for _, difference in scaled) for sign in (1, -1))
    difference = f"{told.mean:+.2%}" + ("" if told.standard_error is None else f" +/- {told.standard_error:.2%}")
    print(
        f"| final validation score, relative | better in {better} of {len(scaled)} | better in {worse} | {difference} | "
        f"{told.test.p_value:.2g} |"
    )


def with_error(values: Sequence[float]) -> str:
    """A mean and its standard error over runs."""
    error = standard_error(values)
    return f"{statistics.fmean(values):,.1f}" + ("" if error is None else f" +/- {error:,.1f}")


def run_cost(run: Path) -> RunCost:
    """What a run cost and found."""
    facts = read_run(run)
    exchanges = read_exchanges(run)
    improved = {card.attempt for card in facts.cards if card.operator is Operator.IMPROVE}
    lengths = [sum(len(m.content) for m in each.messages) for number, each in exchanges.items() if number in improved]
    tokens = facts.usage.prompt_tokens + facts.usage.completion_tokens
    return RunCost(
        prompt_tokens=facts.usage.prompt_tokens,
        calls=len(facts.calls),
        bests_per_million_tokens=1e6 * len(new_bests(facts.cards)) / max(tokens, 1),
        improve_lengths=tuple(lengths),
        utility=max((card.validation.utility for card in facts.cards if card.validation), default=math.nan),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("harness", "matched"), default="harness")
    parser.add_argument("--tasks", nargs="+", default=ANCHORS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attempts", type=int, default=20)
    parser.add_argument("--runner", default="auto")
    parser.add_argument(
        "--ways",
        nargs=2,
        default=WAYS,
        metavar="SETTINGS",
        help="the two ways to search, such as 'search=openmle' 'search=openmle selection.normalise=rank'",
    )
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        if options.part == "matched":
            measure_matched(
                Path(folder),
                options.tasks,
                options.ways,
                seeds=options.seeds,
                attempts=options.attempts,
                runner=options.runner,
            )
            return
        rows = measure_harness(Path(folder)) + measure_utilisation(Path(folder))
    print("| | |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
