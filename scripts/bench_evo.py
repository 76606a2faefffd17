"""Measures the search itself, and the published search against AIRA's way, on one machine in one run.

    .venv/bin/python scripts/bench_evo.py                     harness, resume, store, utilisation: about a minute
    .venv/bin/python scripts/bench_evo.py matched             six anchors, three seeds, both ways: real programs
    .venv/bin/python scripts/bench_evo.py matched --attempts 20 --seeds 3 --tasks diamonds diabetes

Prints Markdown tables. The stand-ins of the first part answer at once, so what is left is the harness.
"""

import argparse
import asyncio
import dataclasses
import heapq
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from openmle_evo.config import BudgetConfig, SearchConfig
from openmle_evo.evaluation.statistics import paired_permutation_test
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
    moments: list[float] = []

    def on_card(card: ExperienceCard) -> None:
        moments.append(time.process_time())

    search = make_search(folder / "run", config, InstantExecutor(), on_card)
    asyncio.run(search.run_to_end())
    search.run.close()
    rows = []
    for at in (50, 100, 400, 800):
        around = [moments[n] - moments[n - 1] for n in range(at - 20, at + 20)]
        rows.append((f"harness, CPU ms per attempt at {at}", f"{1000 * statistics.median(around):.2f}"))
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


def measure_matched(folder: Path, tasks: Sequence[str], seeds: int, attempts: int, runner: str) -> None:
    """Both ways on the same tasks, seeds and number of attempts, with the built-in policy and real programs."""
    programs = Path(sys.executable).parent
    for task in tasks:
        build = [programs / "openmle-gym", "anchors", "build", task, "--output", folder / "tasks"]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    facts: dict[str, list[dict[str, float]]] = {"openmle": [], "aira": []}
    for task in tasks:
        for seed in range(seeds):
            for way in facts:
                run = folder / f"{task}-{seed}-{way}"
                command = [programs / "openmle-evo", "search", f"task={folder / 'tasks' / task}", f"search={way}"]
                command += [f"run_dir={run}", f"seed={seed}", f"budget.attempts={attempts}", f"runner={runner}"]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                facts[way].append(run_facts(run))
                print(f"{task} seed {seed} {way}: {json.dumps(facts[way][-1])}", file=sys.stderr)
    print(f"\n{len(tasks)} tasks x {seeds} seeds x {attempts} attempts, built-in policy, tokens estimated\n")
    print("| | openmle | aira |\n|---|---|---|")
    for name in ("prompt_tokens", "calls", "bests_per_million_tokens", "longest_improve"):
        means = [statistics.fmean(each[name] for each in facts[way]) for way in ("openmle", "aira")]
        print(f"| {name.replace('_', ' ')}, mean of runs | {means[0]:,.1f} | {means[1]:,.1f} |")
    tokens = [sum(each["prompt_tokens"] for each in facts[way]) for way in ("openmle", "aira")]
    print(f"| prompt tokens, all runs | {tokens[0]:,.0f} | {tokens[1]:,.0f} ({1 - tokens[0] / tokens[1]:.0%} fewer) |")
    longest = sorted(length for each in facts["openmle"] for length in each["improve_lengths"])  # type: ignore[attr-defined]
    print(f"| p99 Improve prompt, characters | {longest[int(0.99 * (len(longest) - 1))]:,} | |")
    pairs = list(zip(facts["openmle"], facts["aira"], strict=True))
    differences = [one["utility"] - other["utility"] for one, other in pairs]
    scaled = [d / (max(abs(one["utility"]), 1e-12)) for d, (one, _) in zip(differences, pairs, strict=True)]
    test = paired_permutation_test(scaled)
    assert test is not None
    print(
        f"| final validation score | {sum(d > 0 for d in differences)} better, {sum(d == 0 for d in differences)} equal | "
        f"{sum(d < 0 for d in differences)} better; mean relative difference {statistics.fmean(scaled):+.2%}, "
        f"p = {test.p_value:.2g} |"
    )


def run_facts(run: Path) -> dict:
    """What a run cost and found."""
    facts = read_run(run)
    exchanges = read_exchanges(run)
    improved = {card.attempt for card in facts.cards if card.operator is Operator.IMPROVE}
    lengths = [sum(len(m.content) for m in each.messages) for number, each in exchanges.items() if number in improved]
    best = max((card.validation.utility for card in facts.cards if card.validation), default=float("nan"))
    tokens = facts.usage.prompt_tokens + facts.usage.completion_tokens
    return {
        "prompt_tokens": facts.usage.prompt_tokens,
        "calls": len(facts.calls),
        "bests_per_million_tokens": 1e6 * len(new_bests(facts.cards)) / max(tokens, 1),
        "longest_improve": max(lengths, default=0),
        "improve_lengths": lengths,
        "utility": best,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("harness", "matched"), default="harness")
    parser.add_argument("--tasks", nargs="+", default=ANCHORS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attempts", type=int, default=20)
    parser.add_argument("--runner", default="auto")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        if options.part == "matched":
            measure_matched(Path(folder), options.tasks, options.seeds, options.attempts, options.runner)
            return
        rows = measure_harness(Path(folder)) + measure_utilisation(Path(folder))
    print("| | |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
