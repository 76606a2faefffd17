"""One task from what it is about to its package: describe, prepare, metric, verify."""

import logging
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from openmle_gym.assemble import is_complete
from openmle_gym.build.asking import Desk, spent
from openmle_gym.build.attempts import (
    Attempt,
    Judgement,
    attempt_until_good,
    best_attempt,
    load_attempts,
    read_program,
)
from openmle_gym.build.description import with_description
from openmle_gym.build.drafts import BuiltBy, Draft, put_in_place
from openmle_gym.build.judge_metric import judge_metric
from openmle_gym.build.judge_prepare import judge_prepare
from openmle_gym.build.profile import Profile
from openmle_gym.build.profile_text import profile_text
from openmle_gym.build.request import BuildRequest, BuiltTask
from openmle_gym.build.run_prepare import run_prepare
from openmle_gym.build.spec import TaskSpec
from openmle_gym.build.specify import advice_for, describe
from openmle_gym.build.split_advisor import SplitAdvice
from openmle_gym.build.stages import Outcome, Stages
from openmle_gym.build.state import changed_files, fresh, shortened, tree_digest, tree_hashes, write_whole
from openmle_gym.build.template import render_prepare
from openmle_gym.build.wording import About, metric_request, prepare_request, question
from openmle_gym.chat import ChatModel
from openmle_gym.check import check_package
from openmle_gym.contracts import Contract, read_record
from openmle_gym.isolation.runner import Runner
from openmle_gym.manifest import MANIFEST_NAME, Columns
from openmle_gym.metrics import METRICS, render_metric_module
from openmle_gym.task import load_package

_SHOWN_ROWS = 4
logger = logging.getLogger(__name__)


class Described(Contract):
    """What the describe stage makes."""

    spec: TaskSpec
    advice: SplitAdvice


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRoad:
    """All that the stages of one task work with."""

    request: BuildRequest
    label: str
    """Names the task in the state and in the work folder."""
    proposed: TaskSpec | None
    """The task, where it was proposed before; else the describe stage finds one."""
    profile: Profile
    profile_digest: str
    raw_digest: str
    about: About
    leaderboard: str
    """`info/leaderboard.csv`; empty where there is none."""
    stages: Stages
    model: ChatModel | None
    runner: Runner

    @property
    def folder(self) -> Path:
        """The task's part of the work folder."""
        return self.request.work / "tasks" / self.label

    @property
    def raw(self) -> Path:
        """The raw data."""
        return self.request.work / "raw"

    async def build(self) -> BuiltTask:
        """Walks the road.

        Raises:
            StageFailed: A stage's answers will not do.
            InfrastructureError: Machinery failed.
        """
        request, place = self.request, self.folder
        wishes: list[JsonValue] = [*request.wishes(), request.name, request.title, request.seed]
        proposed = self.proposed.model_dump(mode="json") if self.proposed else None
        described = await self.stages.run(
            f"{self.label}/describe",
            [self.profile_digest, self.about.model_dump(), wishes, proposed, self.model is None],
            self._describe,
            intact=(place / "described.json").is_file,
        )
        prepared = await self.stages.run(
            f"{self.label}/prepare", [described.output, self.raw_digest], self._prepare, intact=self._data_is_there
        )
        metric = await self.stages.run(
            f"{self.label}/metric", [prepared.output], self._metric, intact=(place / "metric.py").is_file
        )
        spec = self._described().spec
        destination = request.output / spec.name
        await self.stages.run(
            f"{self.label}/verify",
            [metric.output, prepared.output, self.leaderboard, request.keep_raw, request.licence, str(destination)],
            self._verify,
            intact=lambda: (destination / MANIFEST_NAME).is_file() and is_complete(load_package(destination)),
        )
        warnings = (place / "warnings.txt").read_text(encoding="utf-8").splitlines()
        return BuiltTask(name=spec.name, package=str(destination), warnings=tuple(warnings))

    def _described(self) -> Described:
        return read_record(self.folder / "described.json", Described)

    def _data_is_there(self) -> bool:
        return (self.folder / "prepare.py").is_file() and (self.folder / "data" / "private").is_dir()

    def _draft(self) -> Draft:
        described, place = self._described(), self.folder
        source = (place / "prepare.py").read_text(encoding="utf-8") if (place / "prepare.py").is_file() else ""
        about = self.about
        if self.request.licence:
            about = about.model_copy(update={"licence": self.request.licence})
        return Draft(
            spec=described.spec,
            advice=described.advice,
            source=self.request.source,
            about=about,
            data=place / "data",
            prepare=source,
        )

    def _stage_folder(self, name: str, goes_on: bool) -> Path:
        folder = self.folder / name
        return folder if goes_on and folder.is_dir() else fresh(folder)

    async def _describe(self, goes_on: bool) -> Outcome:
        folder = self._stage_folder("describe", goes_on)
        desk = Desk(self.model, folder)
        attempts: list[Attempt] = []
        if self.proposed is not None:
            spec = self.proposed
        else:
            found = await describe(self.request, self.profile, self.about, desk, folder)
            spec, attempts = found.spec, found.attempts
        if spec is None:
            return _outcome(attempts, desk)
        advice = advice_for(spec, self.profile, self.raw)
        described = Described(spec=spec, advice=advice)
        logger.info("%s: %s by %s, %s", self.label, ", ".join(spec.target), spec.metric, advice.text())
        write_whole(self.folder / "described.json", described.model_dump_json(indent=2).encode())
        return _outcome(attempts, desk, output=tree_digest({"described": described.model_dump_json()}))

    async def _prepare(self, goes_on: bool) -> Outcome:
        folder, draft = self._stage_folder("prepare", goes_on), self._draft()

        async def judge(source: str, number: int) -> Judgement:
            settings = self.request.prepare
            judgement = await judge_prepare(
                source, draft, raw=self.raw, runner=self.runner, settings=settings, scratch=fresh(folder / "runs")
            )
            shutil.rmtree(folder / "runs")
            return _logged(f"{self.label}/prepare", number, judgement)

        desk = Desk(self.model, folder)
        if self.model is None:
            source = render_prepare(draft.spec, self.profile, draft.advice, seed=self.request.seed)
            attempts = [Attempt(number=1, answer=source, judgement=await judge(source, 1))]
        else:
            ask = prepare_request(draft.spec, self.profile, draft.advice, _libraries(self.profile))
            attempts = await attempt_until_good(
                folder,
                budget=self.request.attempts,
                desk=desk,
                prompt=lambda done: question(ask, done),
                read=read_program,
                judge=judge,
            )
            last = attempts[-1]
            if last.judgement.accepted and not (draft.data / "private").is_dir():
                await judge(last.answer, last.number)
        return self._kept("prepare.py", attempts, desk, output=tree_digest(tree_hashes(draft.data)))

    async def _metric(self, goes_on: bool) -> Outcome:
        folder, draft = self._stage_folder("metric", goes_on), self._draft()

        async def judge(source: str, number: int) -> Judgement:
            judgement = await judge_metric(source, draft, runner=self.runner, scratch=fresh(folder / "runs"))
            shutil.rmtree(folder / "runs")
            return _logged(f"{self.label}/metric", number, judgement)

        desk, attempts = Desk(self.model, folder), []
        if self.model is not None:
            ask = metric_request(draft.spec, _first_lines(draft.data))
            attempts = await attempt_until_good(
                folder,
                budget=self.request.attempts,
                desk=desk,
                prompt=lambda done: question(ask, done),
                read=read_program,
                judge=judge,
            )
        spec = draft.spec
        if spec.metric in METRICS and not (attempts and attempts[-1].judgement.accepted):
            source = render_metric_module(METRICS[spec.metric], Columns(id=spec.id, target=spec.target))
            if attempts:
                logger.warning("%s: no attempt will do; the library's %s stands in", self.label, spec.metric)
            number = len(attempts) + 1
            attempts.append(Attempt(number=number, answer=source, judgement=await judge(source, number)))
        return self._kept("metric.py", attempts, desk, output="")

    def _kept(self, name: str, attempts: list[Attempt], desk: Desk, *, output: str) -> Outcome:
        """Writes the best attempt, under its name where it was accepted, else beside it."""
        best = best_attempt(attempts)
        accepted = best is not None and best.judgement.accepted
        if best is not None:
            place = self.folder / (name if accepted else f"best_{name}")
            write_whole(place, best.answer.encode("utf-8", "surrogatepass"))
        if not accepted:
            return _outcome(attempts, desk)
        source = tree_digest({name: best.answer if best else ""})
        return _outcome(attempts, desk, output=tree_digest({"source": source, "made": output}))

    async def _verify(self, goes_on: bool) -> Outcome:
        """Makes the package once more from itself, checks it whole, and puts it in place."""
        request, draft, place = self.request, self._draft(), self.folder
        description = (draft.data / "public" / "description.txt").read_text(encoding="utf-8")
        prepare = with_description(draft.prepare, description)
        scratch = fresh(place / "verify")
        made = await run_prepare(
            prepare, self.raw, scratch / "again", runner=self.runner, settings=request.prepare, hash_seed=3
        )
        if made.code:
            return Outcome(code=made.code, message=made.feedback)
        if changed := changed_files(tree_hashes(draft.data), made.hashes):
            message = f"prepare.py made other files the third time: {shortened(changed)}"
            return Outcome(code="not_deterministic", message=message)
        destination = request.output / draft.spec.name
        if problem := _in_the_way(destination, request):
            return Outcome(code="destination_taken", message=problem)
        destination.parent.mkdir(parents=True, exist_ok=True)
        metric = (place / "metric.py").read_text(encoding="utf-8")
        whole = Draft(
            **{name: getattr(draft, name) for name in ("spec", "advice", "source", "about", "data")},
            prepare=prepare,
            metric=metric,
        )
        with tempfile.TemporaryDirectory(prefix=f".{destination.name}.building-", dir=destination.parent) as building:
            root = whole.write(
                Path(building) / destination.name,
                raw=self.raw if request.keep_raw else None,
                raw_text=profile_text(self.profile),
                leaderboard=self.leaderboard,
                built=self._built_by(draft),
            )
            report = await check_package(root, runner=self.runner)
            allowed = {"mle_bench_slug"} if request.allow_mle_bench else set()
            errors = [each for each in report.findings if each.severity == "error" and each.id not in allowed]
            if errors:
                message = "; ".join(f"{each.id}: {each.message}" for each in errors)
                return Outcome(code=errors[0].id, message=message)
            put_in_place(root, destination)
        warnings = [f"{each.id}: {each.message}" for each in report.findings if each.severity == "warning"]
        write_whole(place / "warnings.txt", "\n".join(warnings).encode())
        shutil.rmtree(scratch)
        return Outcome(output=tree_digest(load_package(destination).manifest.files))

    def _built_by(self, draft: Draft) -> BuiltBy:
        calls = {name: Desk(None, self.folder / name).calls() for name in ("describe", "prepare", "metric")}
        model = next((call.completion.model for each in calls.values() for call in each[-1:]), "")
        return BuiltBy(
            source=self.request.source.provenance,
            model=model,
            prepare_attempts=len(load_attempts(self.folder / "prepare")),
            metric_attempts=len(load_attempts(self.folder / "metric")),
            prompt_sha256={name: each[-1].prompt_sha256 for name, each in calls.items() if each},
            spec=draft.spec,
            advice=draft.advice,
        )


def _outcome(attempts: list[Attempt], desk: Desk, *, output: str = "") -> Outcome:
    usage, cost = spent(desk.calls())
    best = best_attempt(attempts) or (attempts[-1] if attempts else None)
    bad = best is not None and not best.judgement.accepted
    return Outcome(
        output=output,
        code=best.judgement.code if best is not None and bad else "",
        message=best.judgement.feedback[:2000] if best is not None and bad else "",
        attempts=len(attempts),
        usage=usage,
        cost_usd=cost,
    )


def _logged(stage: str, number: int, judgement: Judgement) -> Judgement:
    what = "accepted" if judgement.accepted else judgement.code
    logger.info("%s: attempt %d: %s", stage, number, what)
    return judgement


def _in_the_way(destination: Path, request: BuildRequest) -> str:
    """Why the package may not be put there: something else is."""
    if not destination.exists():
        return ""
    record = destination / "info" / "build.json"
    if record.is_file():
        source = read_record(record, BuiltBy).source
        if source == request.source.provenance:
            return ""
    return f"{destination}: is there already, and is not of this source; choose another output or name"


def _first_lines(data: Path) -> str:
    parts = []
    for name in ("public/sample_submission.csv", "private/test_answer.csv"):
        with open(data / name, encoding="utf-8") as file:
            lines = "".join(line for _, line in zip(range(_SHOWN_ROWS), file, strict=False))
        parts.append(f"{'A submission' if 'sample' in name else 'The answers'}:\n```\n{lines}```")
    return "\n".join(parts)


def _libraries(profile: Profile) -> list[str]:
    formats = {table.format for table in profile.tables}
    return ["pyarrow"] * ("parquet" in formats) + ["openpyxl"] * ("excel" in formats)
