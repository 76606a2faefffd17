"""Measures the search itself, and two ways to search against each other: the published one and AIRA's, or others.

    .venv/bin/python scripts/bench_evo.py                     harness, resume, store, utilisation: about a minute
    .venv/bin/python scripts/bench_evo.py matched --results matched.jsonl
                                                              six anchors, three seeds, both ways: 1,800 real programs;
                                                              give it again to go on, or with --seeds 1 for a table of
                                                              the first seed alone
    .venv/bin/python scripts/bench_evo.py matched --attempts 6 --seeds 2 --tasks diabetes penguins      48 programs
    .venv/bin/python scripts/bench_evo.py matched --ways search=openmle "search=openmle selection.normalise=rank"

Prints Markdown tables. The stand-ins of the first part answer at once, so what is left is the harness.
"""

import argparse
import asyncio
import dataclasses
import heapq
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from openmle_erl.rl.simulation import VirtualLoop
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

PROGRAMS = Path(sys.executable).parent
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
    """Answers with a program of ordinary length, at once or after a time of its own."""

    def __init__(self, seconds: Sequence[float] = ()) -> None:
        self._seconds = iter(seconds)

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        await asyncio.sleep(next(self._seconds, 0.0))
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
    path: Path,
    config: SearchConfig,
    executor: InstantExecutor,
    on_card: Callable[[ExperienceCard], None] = lambda card: None,
    *,
    policy: InstantPolicy | None = None,
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
        policy=policy or InstantPolicy(),
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


def measure_utilisation(folder: Path, *, slots: int = 8) -> list[tuple[str, str]]:
    """Heavy-tailed runtimes on a sandbox of eight slots: log-normal, sigma 1.2.

    Once by the clock on the wall, with programs so short that the harness counts and replies at once; and on a virtual
    clock as it might be with a model: programs of a minute and replies of twenty seconds in the median.
    """
    rng = random.Random(0)
    short = [min(rng.lognormvariate(-1.6, 1.2), 3.0) for _ in range(120)]
    long = [min(rng.lognormvariate(math.log(60), 1.2), 3600.0) for _ in range(400)]
    replies = [rng.lognormvariate(math.log(20), 0.5) for _ in range(400)]
    mean = statistics.fmean
    ways = [
        (f"wall clock, programs of {mean(short):.1f} s, replies at once", short, [], asyncio.new_event_loop, (8, 12)),
        (f"virtual clock, programs of {mean(long):.0f} s, replies of {mean(replies):.0f} s", long, replies, VirtualLoop, (8, 12, 16)),
    ]  # fmt: skip
    rows = []
    for name, programs, thinking, loop, workers in ways:
        for count in workers:
            executor = InstantExecutor(slots=slots, seconds=programs)
            config = SearchConfig(task="bench", workers=count, budget=BudgetConfig(attempts=len(programs)))
            search = make_search(folder / f"{len(thinking)}-{count}", config, executor, policy=InstantPolicy(thinking))
            with asyncio.Runner(loop_factory=loop) as runner:
                took = runner.run(seconds_of(search))
            search.run.close()
            share = ideal_seconds(executor.taken, slots) / took
            rows.append((f"{count} workers on {slots} slots, {name}: of the ideal list schedule", f"{share:.1%}"))
    return rows


async def seconds_of(search: Search) -> float:
    """How long a search takes by its loop's clock."""
    clock = asyncio.get_running_loop().time
    started = clock()
    await search.run_to_end()
    return clock() - started


class RunCost(NamedTuple):
    """What a run cost and found."""

    prompt_tokens: int
    """Of every call of the model, notes included."""
    note_tokens: int
    """Of these, the prompts of notes."""
    reply_tokens: int
    calls: int
    new_bests: int
    improve_lengths: list[int]
    """Of its Improve prompts, in characters."""
    utility: float
    """The best validation score, larger is better; NaN without any."""

    @property
    def bests_per_million_tokens(self) -> float:
        """New bests for a million tokens of prompts and replies."""
        return 1e6 * self.new_bests / max(self.prompt_tokens + self.reply_tokens, 1)


class Key(NamedTuple):
    """Which run it was; what else there is to set is the same for all runs of a file of results."""

    task: str
    seed: int
    way: str
    attempts: int


def measure_matched(
    folder: Path, keys: Sequence[Key], costs: dict[Key, RunCost], *, runner: str, results: Path | None, parallel: int
) -> None:
    """Makes the runs that are missing, with the built-in policy and real programs, and adds what they cost.

    Args:
        results: A file of rows, one for each run; each run is added when it ends.
        parallel: Runs at once. Each has one worker, so what it does follows from its seed.
    """
    missing = [key for key in keys if key not in costs]
    for task in sorted({key.task for key in missing}):
        build = [PROGRAMS / "openmle-gym", "anchors", "build", task, "--output", folder / "tasks"]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    pool = ThreadPoolExecutor(parallel)
    try:
        made = [pool.submit(make_run, folder, number, key, runner) for number, key in enumerate(missing)]
        for count, run in enumerate(as_completed(made), start=1):
            key, cost, seconds = run.result()
            costs[key] = cost
            if results is not None:
                with results.open("a") as file:
                    file.write(json.dumps([key, cost]) + "\n")
            told = {**cost._asdict(), "improve_lengths": len(cost.improve_lengths)}
            print(f"{count} of {len(missing)}, {seconds:.0f} s: {key} {told}", file=sys.stderr, flush=True)
    finally:
        pool.shutdown(cancel_futures=True)


def make_run(folder: Path, number: int, key: Key, runner: str) -> tuple[Key, RunCost, float]:
    """Makes one run in a folder of its own; returns also how many seconds it took."""
    run, started = folder / f"run-{number}", time.perf_counter()
    command = [PROGRAMS / "openmle-evo", "search", f"task={folder / 'tasks' / key.task}", *key.way.split(), "workers=1"]
    command += [f"run_dir={run}", f"seed={key.seed}", f"budget.attempts={key.attempts}", f"runner={runner}"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode not in (0, 1):  # 1: no valid program, which is a result
        raise SystemExit(f"{key}: {ended.stderr}")
    return key, run_cost(run), time.perf_counter() - started


def read_costs(results: Path | None) -> dict[Key, RunCost]:
    """What the runs of a file of results cost; nothing where there is none."""
    if results is None or not results.is_file():
        return {}
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    return {Key(*key): RunCost(*cost) for key, cost in rows}


def print_matched(pairs: Sequence[tuple[str, RunCost, RunCost]], ways: Sequence[str]) -> None:
    """The table; each difference is the first way less the second on the same task and seed, with its error over tasks."""
    print(f"| mean of runs | {ways[0]} | {ways[1]} | difference | p over tasks |\n|---|---|---|---|---|")
    for name in ("prompt_tokens", "note_tokens", "reply_tokens", "calls", "new_bests", "bests_per_million_tokens"):
        values = [(task, float(getattr(one, name)), float(getattr(other, name))) for task, one, other in pairs]
        told = paired((task, one - other) for task, one, other in values)
        first, second = with_error([one for _, one, _ in values]), with_error([other for _, _, other in values])
        difference = f"{told.mean:+,.1f}" + ("" if told.standard_error is None else f" +/- {told.standard_error:,.1f}")
        print(f"| {name.replace('_', ' ')} | {first} | {second} | {difference} | {told.test.p_value:.2g} |")
    sides = [[one for _, one, _ in pairs], [other for _, _, other in pairs]]
    tokens = [sum(each.prompt_tokens for each in side) for side in sides]
    print(
        f"| prompt tokens, all runs | {tokens[0]:,} | {tokens[1]:,} | {tokens[0] / tokens[1] - 1:+.1%} (goal against aira: -50%) | |"
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
    return RunCost(
        prompt_tokens=facts.usage.prompt_tokens,
        note_tokens=sum(call.usage.prompt_tokens for call in facts.calls if call.purpose == "note"),
        reply_tokens=facts.usage.completion_tokens,
        calls=len(facts.calls),
        new_bests=len(new_bests(facts.cards)),
        improve_lengths=lengths,
        utility=max((card.validation.utility for card in facts.cards if card.validation), default=math.nan),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("harness", "matched"), default="harness")
    parser.add_argument("--tasks", nargs="+", default=ANCHORS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attempts", type=int, default=50, help="of each run; a published one had 52 in the mean")
    parser.add_argument("--parallel", type=int, default=2, help="matched: runs at once")
    parser.add_argument("--runner", default="auto", help="where programs run: auto, docker, zygote, bubblewrap")
    parser.add_argument("--results", type=Path, help="matched: a file of rows, read first, and added to run by run")
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
        if options.part == "harness":
            rows = measure_harness(Path(folder)) + measure_utilisation(Path(folder))
            print("| | |\n|---|---|")
            for name, value in rows:
                print(f"| {name} | {value} |")
            return
        ways, seeds = options.ways, range(options.seeds)
        keys = [Key(task, seed, way, options.attempts) for seed in seeds for task in options.tasks for way in ways]
        costs, parallel = read_costs(options.results), options.parallel
        measure_matched(Path(folder), keys, costs, runner=options.runner, results=options.results, parallel=parallel)
    pairs = [(one.task, costs[one], costs[other]) for one, other in zip(keys[::2], keys[1::2], strict=True)]
    size = f"{len(options.tasks)} tasks x {options.seeds} seeds x {options.attempts} attempts"
    print(f"{size}, built-in policy, tokens estimated\n")
    print_matched(pairs, ways)


if __name__ == "__main__":
    main()
