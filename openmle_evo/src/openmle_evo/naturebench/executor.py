"""Runs a program of a NatureBench task and has its outputs scored: an `Executor`.

    program -> Runner (problem/data only, no network) -> OUTPUT_DIR, packed, read after death -> evaluation service

A job with a key is judged once: what came of it is kept in a folder, and a resumed run finds it there.
"""

import asyncio
import dataclasses
import hashlib
from importlib import resources
from pathlib import Path

from openmle_gym.bridges.naturebench import NatureTask
from openmle_gym.contracts import Contract, read_record
from openmle_gym.errors import ConfigError
from openmle_gym.execute import judge_run
from openmle_gym.isolation.runner import INPUTS, PYTHON, Isolation, Runner, RunResult, RunSpec
from openmle_gym.jobs import MIB, SUBMISSION, JobRequest, JobResult, Limits, Outcome
from openmle_gym.program import program_id
from openmle_gym.signature import PROGRAM_FILE

from openmle_evo.naturebench.collector import PACKED
from openmle_evo.naturebench.outputs import OutputsRefused, unpack
from openmle_evo.naturebench.service import Answer, Evaluation, EvaluationService
from openmle_evo.naturebench.settings import NatureConfig
from openmle_evo.run import write_whole

OUTPUT_BYTES = 256 * MIB
COLLECTOR = "collector.py"


class Judged(Contract):
    """What came of one job."""

    result: JobResult
    evaluation: Evaluation | None = None


class NatureExecutor:
    """Judges programs of one task in one run."""

    def __init__(
        self,
        task: NatureTask,
        *,
        runner: Runner,
        service: EvaluationService,
        settings: NatureConfig,
        folder: Path,
        suite: Path,
        limits: Limits,
        clock_seconds: float,
        parallel: int = 1,
    ) -> None:
        """Args:
        folder: Where outputs and verdicts are kept; the service reads the outputs there.
        suite: The folder that `settings.outputs` stands for; `folder` lies in it.
        clock_seconds: For how long the service is to take outputs.
        parallel: Programs that run at once.

        Raises:
            ConfigError: The runner would let a program reach the evaluation service.
        """
        if runner.isolation is Isolation.PROCESS:
            raise ConfigError("runner: process cannot keep a program from the evaluation service; use another one")
        self._task = task
        self._runner = runner
        self._service = service
        self._settings = settings
        self._folder = folder
        self._suite = suite
        self._limits = limits
        self._clock_seconds = clock_seconds
        self._slots = asyncio.Semaphore(parallel)
        self._registering = asyncio.Lock()
        self._registered = False

    async def run(self, job: JobRequest) -> JobResult:
        """See `openmle_gym.jobs.Executor`."""
        if job.eval_split != "validation":
            raise ConfigError(f"eval_split {job.eval_split!r}: NatureBench has one evaluation and no other test")
        if job.idempotency_key is None:
            return (await self._judged(job, "unkept")).result
        # A key is free text; its hash is a file's name.
        name = hashlib.sha256(job.idempotency_key.encode()).hexdigest()[:24]
        record = self._folder / f"{name}.json"
        if record.is_file():
            return read_record(record, Judged).result
        judged = await self._judged(job, name)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(record, judged.model_dump_json(by_alias=True))
        return judged.result

    async def _judged(self, job: JobRequest, name: str) -> Judged:
        limits = self._limits.model_copy(update={"wall_seconds": min(self._limits.wall_seconds, job.timeout_seconds)})
        clock = asyncio.get_running_loop().time
        asked = clock()
        async with self._slots:
            queued = clock() - asked
            run = await self._runner.run(self._spec(job, limits))
        packed = run.artifacts[PACKED]
        ended = judge_run(dataclasses.replace(run, artifacts={SUBMISSION: packed}), limits)
        ended = ended.model_copy(update={"higher_is_better": True, "queue_seconds": queued})
        if ended.outcome is Outcome.SUCCESS and packed.content is not None:
            started = clock()
            judged = await self._scored(ended, packed.content, job, name)
            spent = judged.result.model_copy(update={"grading_seconds": clock() - started})
            return judged.model_copy(update={"result": spent})
        return Judged(result=_told_of_outputs(ended, run))

    def _spec(self, job: JobRequest, limits: Limits) -> RunSpec:
        """What a program is given: its text, and the data of the problem. Nothing names the service."""
        collector = resources.files("openmle_evo.naturebench").joinpath(COLLECTOR).read_bytes()
        return RunSpec(
            argv=(PYTHON, "-u", COLLECTOR),
            files={COLLECTOR: collector, PROGRAM_FILE: job.code.encode("utf-8", errors="surrogateescape")},
            inputs={"data": self._task.problem_dir / "data"},
            environment={"DATA_DIR": f"{INPUTS}/data"},
            limits=limits,
            artifacts={PACKED: OUTPUT_BYTES},
            labels={**job.labels, "program_id": program_id(job.code)},
        )

    async def _scored(self, ended: JobResult, packed: bytes, job: JobRequest, name: str) -> Judged:
        outputs = (self._folder / "outputs" / name).resolve()
        try:
            await asyncio.to_thread(unpack, packed, outputs, most_bytes=OUTPUT_BYTES)
        except OutputsRefused as error:
            return Judged(result=_failed(ended, "outputs_refused", str(error)))
        answer = await self._evaluated(job.labels.get("run", "run"), outputs)
        evaluation = answer.evaluation
        if evaluation is None:
            return Judged(
                result=_failed(ended, "evaluator_failed", f"the outputs could not be scored: {answer.refusal}")
            )
        if evaluation.gap is None:
            return Judged(result=_failed(ended, "no_score", "the outputs have no score"), evaluation=evaluation)
        clip = self._settings.clip
        score = max(-clip, min(clip, evaluation.gap)) if clip > 0 else evaluation.gap
        return Judged(
            result=ended.model_copy(update={"validation_score": score, "score": score}), evaluation=evaluation
        )

    async def _evaluated(self, batch: str, outputs: Path) -> Answer:
        settings, task = self._settings, self._task
        async with self._registering:
            if not self._registered:
                await self._service.register(
                    task.root.name,
                    batch=batch,
                    data_dir=settings.seen(settings.packages, task.root, task.root.parent),
                    out_dir=settings.seen(settings.outputs, self._folder, self._suite),
                    timeout_seconds=self._clock_seconds,
                )
                self._registered = True
        there = settings.seen(settings.outputs, outputs, self._suite)
        return await self._service.evaluate(task.root.name, batch=batch, output_dir=there)


def _failed(ended: JobResult, signature: str, message: str) -> JobResult:
    return ended.model_copy(
        update={"outcome": Outcome.SCORING_FAILED, "error_signature": signature, "message": message}
    )


def _told_of_outputs(ended: JobResult, run: RunResult) -> JobResult:
    """A failure in the words of OUTPUT_DIR, where it is one of the outputs."""
    if ended.outcome is Outcome.SUBMISSION_MISSING:
        return ended.model_copy(update={"message": "the program ended without writing a file into OUTPUT_DIR"})
    if ended.outcome is Outcome.SCORING_FAILED:
        refusal = run.artifacts[PACKED].refusal
        return ended.model_copy(update={"message": f"the files in OUTPUT_DIR were refused: {refusal}"})
    return ended


def best_gap_of(folder: Path) -> float | None:
    """The best aggregate, unclipped, of all programs that were judged into a folder; None when none has a score."""
    records = [read_record(path, Judged) for path in sorted(folder.glob("*.json"))]
    return max((r.evaluation.gap for r in records if r.evaluation and r.evaluation.gap is not None), default=None)
