"""What the service's tests are made of: a tiny task, a runner whose programs end when the test says, a service."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from openmle_gym.client import JobClient
from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.runner import Artifact, BoundedLog, Isolation, RunResult, RunSpec
from openmle_gym.jobs import JobRequest, Limits
from openmle_gym.manifest import Columns, HiddenSplit, Manifest, Metric, write_manifest
from openmle_gym.signature import PROGRAM_FILE
from pydantic import SecretStr
from sandbox_service.app import create_app
from sandbox_service.artifact_store import ArtifactStore
from sandbox_service.auth import Keys
from sandbox_service.dispatch.local import LocalDispatcher
from sandbox_service.gpu import Gpus
from sandbox_service.packages import Packages
from sandbox_service.records import QueuePolicy
from sandbox_service.scheduler import Scheduler
from sandbox_service.slots import Slots
from sandbox_service.store import JobStore
from starlette.applications import Starlette

URL = "http://127.0.0.1:6580"
KEYS = SecretStr("submit:s3cret,submit:other,grade:gr4de,admin:4dmin")
METRIC = """\
class ShareMetrics:
    def __init__(self, value="share", higher_is_better=True):
        self.value = value
        self.higher_is_better = higher_is_better

    def evaluate(self, y_true, y_pred):
        return float((y_true["target"].astype(float) == y_pred["target"].astype(float)).mean())
"""
SUBMITS_ONES = """\
import csv, os
with open(os.environ["DATA_DIR"] + "/test.csv") as rows, open("submission.csv", "w") as out:
    out.write("id,target\\n")
    for row in csv.DictReader(rows):
        out.write(row["id"] + ",1\\n")
print("Final Validation Score: 0.5")
"""


def make_task(root: Path) -> Path:
    """A package of 8 hidden rows, ids 0 to 7, of which 6 and 7 are 0 and the others 1; graded by the share that is right.

    Ordered by answer, every 4th row is in the validation half: two ones. The test half has two zeros and four ones.
    """
    public, private = root / "data" / "public", root / "data" / "private"
    for folder in (public, private, root / "utils"):
        folder.mkdir(parents=True)
    (public / "description.txt").write_text("Predict target.")
    (public / "train.csv").write_text("id,target\n100,1\n101,0\n")
    (public / "test.csv").write_text("id\n" + "".join(f"{row}\n" for row in range(8)))
    (public / "sample_submission.csv").write_text("id,target\n" + "".join(f"{row},0\n" for row in range(8)))
    answers = "id,target\n" + "".join(f"{row},{int(row < 6)}\n" for row in range(8))
    (private / "test_answer.csv").write_text(answers)
    (root / "utils" / "metric.py").write_text(METRIC)
    manifest = Manifest(
        name="tiny",
        metric=Metric(name="share", higher_is_better=True),
        columns=Columns(id=("id",), target=("target",)),
        hidden_split=HiddenSplit(validation_fraction=0.25),
    )
    write_manifest(manifest, root / "task.toml")
    return root


class HeldRunner:
    """Runs nothing: a program "runs" until the test releases it, and ends with exit code 0 and no submission.

    What a test may set: `troubles` are raised by the next runs, in order; `down_for_checks` is how many checks will
    still find the engine down, and no run starts until then; `log` is what programs have printed; `files` is what they
    leave; `specs` are those that were run.
    """

    isolation = Isolation.PROCESS

    def __init__(self, *, held: bool = False) -> None:
        self.started: list[str] = []
        self.finished: list[str] = []
        self.killed: list[str] = []
        self.troubles: list[Exception] = []
        self.down_for_checks = 0
        self.checks = 0
        self.log = BoundedLog(head="hello\n")
        self.files: dict[str, bytes] = {}
        self.specs: list[RunSpec] = []
        self._changed = asyncio.Condition()
        self._held = held

    async def check(self) -> None:
        self.checks += 1
        if self.down_for_checks:
            self.down_for_checks -= 1
            raise RunnerUnavailable("engine down")

    async def run(self, spec: RunSpec) -> RunResult:
        code = spec.files[PROGRAM_FILE].decode()
        if self.down_for_checks:
            raise RunnerUnavailable("engine down")
        self.specs.append(spec)
        if spec.on_log:
            spec.on_log(lambda: self.log)
        await self._note(self.started, code)
        if self.troubles:
            raise self.troubles.pop(0)
        try:
            await self.until(lambda: not self._held)
        except asyncio.CancelledError:
            self.killed.append(code)
            raise
        await self._note(self.finished, code)
        return RunResult(
            exit_code=0,
            wall_seconds=0.25,
            log=self.log,
            artifacts={name: self._artifact(name, most) for name, most in spec.artifacts.items()},
            isolation=self.isolation,
        )

    def _artifact(self, name: str, most: int) -> Artifact:
        content = self.files.get(name)
        if content is None:
            return Artifact(refusal="missing")
        return Artifact(content=content) if len(content) <= most else Artifact(refusal="too_large")

    async def release(self) -> None:
        async with self._changed:
            self._held = False
            self._changed.notify_all()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Waits for a condition on this runner."""
        async with self._changed:
            await self._changed.wait_for(reached)

    async def _note(self, where: list[str], code: str) -> None:
        async with self._changed:
            where.append(code)
            self._changed.notify_all()


def make_scheduler(
    folder: Path,
    runner: HeldRunner,
    *,
    workers: int = 1,
    gpus: Gpus | None = None,
    gpu_on_cpu: bool = True,
    artifact_bytes: int = 1000,
    most_artifact_bytes: int = 1_000_000,
    **policy: float,
) -> Scheduler:
    """A scheduler on `folder`, with one task, `tiny`; `policy` goes into a QueuePolicy."""
    if not (folder / "tasks").exists():
        make_task(folder / "tasks" / "tiny")
    packages = Packages([folder / "tasks"], staging=folder / "staging")
    dispatcher = LocalDispatcher(
        runner=runner,
        packages=packages,
        limits=Limits(wall_seconds=30.0),
        slots=Slots(cpu=workers, gpus=gpus, look_seconds=0.001),
        artifact_bytes=artifact_bytes,
        service_id="test",
    )
    return Scheduler(
        store=JobStore(folder / "jobs.sqlite", QueuePolicy(**{"max_queued": 1000, **policy})),  # pyright: ignore[reportArgumentType]
        packages=packages,
        dispatcher=dispatcher,
        artifacts=ArtifactStore(folder / "artifacts"),
        gpu_on_cpu=gpu_on_cpu,
        most_artifact_bytes=most_artifact_bytes,
    )


@asynccontextmanager
async def serving(
    folder: Path,
    runner: HeldRunner,
    *,
    secret: SecretStr | None = None,
    max_body_bytes: int = 100_000,
    **settings: float,
) -> AsyncIterator[Starlette]:
    """The application over a scheduler on `folder`."""
    async with make_scheduler(folder, runner, **settings) as scheduler:
        yield create_app(scheduler, Keys(secret), max_body_bytes=max_body_bytes)


def http(app: Starlette, key: str | None = None) -> httpx.AsyncClient:
    """A bare client, as others write one."""
    headers = {"X-API-Key": key} if key else {}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=URL, headers=headers)


def job_client(app: Starlette, key: str | None = None) -> JobClient:
    """Our client."""
    api_key = SecretStr(key) if key else None
    return JobClient(URL, api_key=api_key, patience_seconds=0.0, transport=httpx.ASGITransport(app))


def request(code: str = "pass", **fields: object) -> JobRequest:
    """A job on the tiny task."""
    return JobRequest.model_validate({"code": code, "data_dir": "tiny", **fields})
