"""A suite: the same search on many tasks, several times each, resumable at every moment.

<suite>/suite.json           the tasks, the number of runs, the search's settings; written once
<suite>/<task>/run-<k>/      a run's directory, as `openmle-evo search` makes it; with NatureBench also `evaluations/`
<suite>/<task>/run-<k>/over  the run is over: its budget is spent, and its best program, if any, is graded

A benchmark is a kind of task: `packages` are task packages, graded on their test split in the end; `naturebench` are
tasks of NatureBench, judged by its evaluation service (`openmle_evo.naturebench`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from openmle_gym.contracts import Contract, read_record
from openmle_gym.errors import ConfigError, StoreError
from openmle_gym.leaderboard import Medal
from openmle_gym.task import load_package
from pydantic import JsonValue

from openmle_evo.config import SearchConfig
from openmle_evo.evaluation.results import RunOutcome
from openmle_evo.launch import Ended, create_run, executors, run_to_end
from openmle_evo.naturebench.executor import best_gap_of
from openmle_evo.naturebench.run import EVALUATIONS, run_nature_task
from openmle_evo.naturebench.settings import NatureConfig
from openmle_evo.reading import RunFacts, read_run
from openmle_evo.run import RunDirectory, read_final, settings_of, write_whole

MANIFEST, OVER = "suite.json", "over"


class SuiteManifest(Contract):
    """What a suite is; fixed at its start."""

    tasks: tuple[str, ...]
    """Folders of task packages."""
    finals: tuple[str, ...] = ()
    """With protocol `two_package`: the packages that are graded in the end, in the order of `tasks`."""
    runs: int
    settings: dict[str, JsonValue]
    nature: dict[str, JsonValue] | None = None
    """With NatureBench: how outputs are scored. None for task packages."""


def open_suite(
    path: Path,
    tasks: Sequence[str],
    runs: int,
    config: SearchConfig,
    *,
    finals: Sequence[str] = (),
    nature: NatureConfig | None = None,
) -> SuiteManifest:
    """Starts a suite, or goes on with the one that is there.

    Args:
        finals: For each task the package that is graded in the end; none where that is the task itself.
        nature: With tasks of NatureBench.

    Raises:
        ConfigError: The one that is there is another.
    """
    if len({Path(task).name for task in tasks}) != len(tasks):
        raise ConfigError(f"tasks: two of them have one name: {', '.join(tasks)}")
    manifest = SuiteManifest(
        tasks=tuple(tasks),
        finals=tuple(finals),
        runs=runs,
        settings=dataclasses.asdict(config),
        nature=None if nature is None else dataclasses.asdict(nature),
    )
    if (path / MANIFEST).exists():
        if read_suite(path) != manifest:
            raise ConfigError(f"{path}: holds a suite with other tasks or settings; choose another suite_dir")
        return manifest
    path.mkdir(parents=True, exist_ok=True)
    write_whole(path / MANIFEST, manifest.model_dump_json(indent=2))
    return manifest


def read_suite(path: Path) -> SuiteManifest:
    """Reads a suite's manifest.

    Raises:
        StoreError: There is none, or it is damaged.
    """
    try:
        return read_record(path / MANIFEST, SuiteManifest)
    except FileNotFoundError as error:
        raise StoreError(f"{path}: holds no suite (no {MANIFEST})") from error


async def run_suite(
    path: Path,
    config: SearchConfig,
    manifest: SuiteManifest,
    on_run: Callable[[str, int], None],
    *,
    nature: NatureConfig | None = None,
) -> bool:
    """Makes every run that is not over yet, one after the other; False when it was interrupted.

    Each run has a seed of its own, the same for every suite: `config.seed` plus the number of the run.

    Raises:
        InfrastructureError: The policy or the executor is out of reach. The suite can be resumed.
    """
    for number in range(manifest.runs):
        for place, task in enumerate(manifest.tasks):
            folder = path / Path(task).name / f"run-{number}"
            if (folder / OVER).exists():
                continue
            on_run(Path(task).name, number)
            own = dataclasses.replace(config, task=task, run_dir=str(folder), seed=config.seed + number)
            if manifest.finals:
                own = dataclasses.replace(own, protocol="two_package", final_task=manifest.finals[place])
            if nature is not None:
                ended = await run_nature_task(Path(task), folder, own, nature, suite=path)
            else:
                ended = await _run_package(folder, own)
            if ended.interrupted:
                return False
            if nature is not None or ended.best is None or read_final(folder) is not None:
                write_whole(folder / OVER, "")
    return True


async def _run_package(folder: Path, config: SearchConfig) -> Ended:
    package = load_package(config.task)
    async with executors(config, package) as place:
        if (folder / "manifest.json").exists():
            run = RunDirectory.resume(folder)
            config = settings_of(run.manifest, run.path)
        else:
            run = await create_run(config, package, place)
        with run.closing():
            return await run_to_end(run, config, package, place)


def outcomes(path: Path) -> list[RunOutcome]:
    """The outcomes of the runs that are over.

    Raises:
        StoreError: There is no suite, or a run of it is damaged.
    """
    manifest = read_suite(path)
    found = []
    for task in manifest.tasks:
        for number in range(manifest.runs):
            folder = path / Path(task).name / f"run-{number}"
            if (folder / OVER).exists():
                facts = read_run(folder)
                found.append(run_outcome(facts, number) if manifest.nature is None else nature_outcome(facts, number))
    return found


def run_outcome(facts: RunFacts, number: int) -> RunOutcome:
    """What a finished run is worth."""
    graded_on = facts.manifest.final_package
    package = load_package(graded_on.package if graded_on else facts.manifest.package)
    final = facts.final
    test = final.test if final else None
    standing = final.standing if final else None
    modality = package.manifest.modality
    return RunOutcome(
        task=facts.manifest.task,
        run=number,
        modality=modality[0] if modality else "",
        valid=test is not None,
        score=test.value if test else None,
        higher_is_better=facts.manifest.metric.higher_is_better,
        has_leaderboard=package.leaderboard is not None,
        fraction_beaten=standing.fraction_beaten if standing else None,
        medal=Medal(standing.medal) if standing and standing.medal else None,
        tokens=facts.usage.prompt_tokens + facts.usage.completion_tokens,
        sandbox_seconds=facts.seconds.sandbox,
    )


def nature_outcome(facts: RunFacts, number: int) -> RunOutcome:
    """What a finished run on a task of NatureBench is worth: the best of all that it tried, as the benchmark counts."""
    gap = best_gap_of(facts.path / EVALUATIONS)
    return RunOutcome(
        task=facts.manifest.task,
        run=number,
        modality="science",
        valid=gap is not None,
        score=gap,
        higher_is_better=True,
        has_leaderboard=False,
        against_sota=True,
        gap=gap,
        tokens=facts.usage.prompt_tokens + facts.usage.completion_tokens,
        sandbox_seconds=facts.seconds.sandbox,
    )
