"""The whole road of a build: fetch, unpack, profile, then for each task describe, prepare, metric, verify."""

import asyncio
import logging
import shutil
from pathlib import Path

from openmle_gym.build.asking import Desk, spent
from openmle_gym.build.kaggle import download_data, download_leaderboard, read_about, require_kaggle
from openmle_gym.build.profile import Profile, profile_folder
from openmle_gym.build.request import BuildReport, BuildRequest, BuiltTask
from openmle_gym.build.source import refuse_benchmark
from openmle_gym.build.spec import TaskSpec
from openmle_gym.build.specify import Proposals, propose
from openmle_gym.build.stages import Outcome, Progress, StageFailed, Stages
from openmle_gym.build.state import (
    StageRecord,
    StateFile,
    files_below,
    fingerprint,
    fresh,
    listing,
    locked,
    tree_digest,
    tree_hashes,
    write_whole,
)
from openmle_gym.build.task_road import TaskRoad
from openmle_gym.build.unpack import unpack
from openmle_gym.build.wording import About
from openmle_gym.chat import ChatModel, Usage
from openmle_gym.contracts import Contract, read_record
from openmle_gym.errors import PackageError
from openmle_gym.isolation.runner import Runner

_SINGLE = "task"
logger = logging.getLogger(__name__)


class Fetched(Contract):
    """What the fetch stage makes, beside the data."""

    about: About
    leaderboard: str
    """`info/leaderboard.csv`; empty where there is none."""


def log_progress(stage: str, record: StageRecord, was_done: bool) -> None:
    """One line for each stage."""
    how = "done before" if was_done else f"{record.status} in {record.seconds:.1f} s"
    tokens = record.usage.prompt_tokens + record.usage.completion_tokens
    asked = f", {record.attempts} attempts, {tokens} tokens" if tokens else ""
    why = f": {record.code}: {record.message.partition(chr(10))[0][:300]}" if record.code else ""
    logger.info("%s: %s%s%s", stage, how, asked, why)


async def build_package(
    request: BuildRequest,
    *,
    model: ChatModel | None,
    runner: Runner,
    progress: Progress = log_progress,
) -> BuildReport:
    """Builds one task, or several, from a source. The same request with the same work folder goes on where it stopped.

    Args:
        model: Writes descriptions, prepare.py and metric.py; None builds from the profile and the metric library.
        runner: What holds the code of prepare.py and metric.py.
        progress: Told of every stage when it is on disk.

    Raises:
        ConfigError: The source is one of MLE-Bench's, or Kaggle's credentials are missing.
        StoreError: The work folder belongs to another build, or another one is at work in it.
        InfrastructureError: The model, Kaggle or the isolation cannot be had; run it again later.
    """
    if not request.allow_mle_bench:
        refuse_benchmark(request.source)
    with locked(request.work):
        file = StateFile(request.work, f"{request.source.kind} {request.source.name}")
        return await _Build(request, model, runner, file, Stages(file, progress)).run()


class _Build:
    def __init__(
        self, request: BuildRequest, model: ChatModel | None, runner: Runner, file: StateFile, stages: Stages
    ) -> None:
        self._request, self._model, self._runner = request, model, runner
        self._file, self._stages = file, stages
        work = request.work
        self._download, self._raw, self._mark = work / "download", work / "raw", work / "raw.listing"

    async def run(self) -> BuildReport:
        """From the source to the report."""
        work, request = self._request.work, self._request
        tasks: list[BuiltTask] = []
        dropped: dict[str, str] = {}
        try:
            fetched = await self._stages.run("fetch", [self._origin()], self._fetch, intact=self._is_fetched)
            limits = request.unpacking
            unpacked = await self._stages.run(
                "unpack", [fetched.output, limits.bytes, limits.files], self._unpack, intact=self._is_unpacked
            )
            profiled = await self._stages.run(
                "profile", [unpacked.output], self._profile, intact=(work / "profile.json").is_file
            )
            facts = read_record(work / "fetched.json", Fetched)
            profile = read_record(work / "profile.json", Profile)
            specs: dict[str, TaskSpec | None] = {_SINGLE: None}
            if request.tasks > 1:
                proposals = await self._proposals(profiled, profile, facts.about)
                specs, dropped = {spec.name: spec for spec in proposals.specs}, proposals.dropped
        except StageFailed as failure:
            name = request.name or request.source.task_name
            return self._report([_failed(name, failure)], {})
        for label, spec in specs.items():
            road = TaskRoad(
                request=request,
                label=label,
                proposed=spec,
                profile=profile,
                profile_digest=profiled.output,
                raw_digest=unpacked.output,
                about=facts.about,
                leaderboard=facts.leaderboard,
                stages=self._stages,
                model=self._model,
                runner=self._runner,
            )
            try:
                tasks.append(await road.build())
            except StageFailed as failure:
                tasks.append(_failed(spec.name if spec else request.name or request.source.task_name, failure))
        return self._report(tasks, dropped)

    def _report(self, tasks: list[BuiltTask], dropped: dict[str, str]) -> BuildReport:
        usage, records = Usage(), self._file.state.stages.values()
        for record in records:
            usage = usage + record.usage
        costs = [record.cost_usd for record in records if record.usage.prompt_tokens]
        known = [cost for cost in costs if cost is not None]
        return BuildReport(
            source=self._request.source.provenance,
            work=str(self._request.work),
            tasks=tuple(tasks),
            dropped=dropped,
            usage=usage,
            cost_usd=sum(known) if known and len(known) == len(costs) else None,
        )

    def _origin(self) -> str:
        source = self._request.source
        if source.kind != "local":
            return f"{source.kind} {source.name}"
        if not source.path.exists():
            raise PackageError(f"{source.path}: there is no such file or folder")
        return listing(source.path)

    def _archive(self) -> Path | None:
        return next(iter(files_below(self._download)), None) if self._download.is_dir() else None

    def _is_fetched(self) -> bool:
        local = self._request.source.kind == "local"
        there = local or self._archive() is not None or self._mark.is_file()
        return there and (self._request.work / "fetched.json").is_file()

    async def _fetch(self, goes_on: bool) -> Outcome:
        """Downloads what is not on this machine; what is stays where it is, and is only named."""
        source, work = self._request.source, self._request.work
        if source.kind == "local":
            facts = Fetched(about=About(title=self._request.title), leaderboard="")
            output = self._origin()
        else:
            require_kaggle()
            if not goes_on:
                self._mark.unlink(missing_ok=True)
                fresh(self._download)
            archive = await download_data(source, self._download)
            about = await read_about(source, work / "about")
            board = await download_leaderboard(source, work / "board") if source.kind == "competition" else ""
            facts = Fetched(about=about, leaderboard=board)
            output = tree_digest(tree_hashes(archive.parent))
        write_whole(work / "fetched.json", facts.model_dump_json(indent=2).encode())
        return Outcome(output=output, message=facts.about.title)

    def _is_unpacked(self) -> bool:
        return self._mark.is_file() and self._mark.read_text() == listing(self._raw)

    async def _unpack(self, goes_on: bool) -> Outcome:
        source = self._request.source
        origin = source.path if source.kind == "local" else self._archive()
        if origin is None:
            raise PackageError(f"{self._download}: the download is gone; remove {self._request.work} and build anew")
        self._mark.unlink(missing_ok=True)
        fresh(self._raw)
        done = await asyncio.to_thread(unpack, origin, self._raw, limits=self._request.unpacking)
        if not done.files:
            return Outcome(code="nothing", message=f"{source.name}: holds no files")
        write_whole(self._mark, listing(self._raw).encode())
        shutil.rmtree(self._download, ignore_errors=True)
        message = f"{done.files} files, {done.bytes} bytes, out of {len(done.archives)} archives"
        return Outcome(output=tree_digest(tree_hashes(self._raw)), message=message)

    async def _profile(self, goes_on: bool) -> Outcome:
        profile = await asyncio.to_thread(profile_folder, self._raw)
        content = profile.model_dump_json(indent=2)
        write_whole(self._request.work / "profile.json", content.encode())
        message = f"{len(profile.tables)} tables, {len(profile.groups)} groups of other files"
        return Outcome(output=fingerprint(content), message=message)

    async def _proposals(self, profiled: StageRecord, profile: Profile, about: About) -> Proposals:
        request, place = self._request, self._request.work / "proposals.json"

        async def work(goes_on: bool) -> Outcome:
            folder = request.work / "propose"
            folder = folder if goes_on and folder.is_dir() else fresh(folder)
            desk = Desk(self._model, folder)
            found = await propose(request, profile, about, desk, folder)
            usage, cost = spent(desk.calls())
            if found.proposals is None:
                last = found.attempts[-1].judgement
                return Outcome(
                    code=last.code,
                    message=last.feedback,
                    attempts=len(found.attempts),
                    usage=usage,
                    cost_usd=cost,
                )
            for name, why in found.proposals.dropped.items():
                logger.info("propose: %s is dropped: %s", name, why)
            content = found.proposals.model_dump_json(indent=2)
            write_whole(place, content.encode())
            return Outcome(output=fingerprint(content), attempts=len(found.attempts), usage=usage, cost_usd=cost)

        made_from = [profiled.output, about.model_dump(), [*request.wishes()], request.tasks, request.name]
        await self._stages.run("propose", [*made_from, self._model is None], work, intact=place.is_file)
        return read_record(place, Proposals)


def _failed(name: str, failure: StageFailed) -> BuiltTask:
    record = failure.record
    return BuiltTask(name=name, failed_stage=failure.stage, code=record.code, message=record.message)
