"""What `bench_sandbox.py` measures with: a service of its own, clients of it, processor time, and rows of a table."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from openmle_gym.isolation.disk import unmount_below
from openmle_gym.isolation.workspace import remove_tree
from sandbox_service.conformance.package import write_package

JOBS = "/api/v1/jobs"
BATCH = 500
Action = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, and what it should be."""

    section: str
    what: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None
    """None where there is no target."""


def row(
    section: str, what: str, value: float, unit: str, *, at_most: float | None = None, at_least: float | None = None
) -> Row:
    """A figure, with its target where it has one."""
    if at_most is not None:
        return Row(section=section, what=what, value=value, unit=unit, target=f"<= {at_most:g}", met=value <= at_most)
    if at_least is not None:
        return Row(section=section, what=what, value=value, unit=unit, target=f">= {at_least:g}", met=value >= at_least)
    return Row(section=section, what=what, value=value, unit=unit)


def markdown(rows: Sequence[Row]) -> str:
    """The table."""
    lines = ["| section | what | value | unit | target | met |", "|---|---|---:|---|---|---|"]
    for each in rows:
        met = {True: "yes", False: "**no**", None: ""}[each.met]
        value = f"{each.value:,.0f}" if each.value >= 1000 else f"{each.value:.4g}"
        lines.append(f"| {each.section} | {each.what} | {value} | {each.unit} | {each.target} | {met} |")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service in a process of its own."""

    url: str
    process: subprocess.Popen[bytes]
    ready_seconds: float

    def client(self) -> httpx.AsyncClient:
        """A client that waits for long answers."""
        return httpx.AsyncClient(base_url=self.url, timeout=300, trust_env=False)

    def rss_mib(self) -> float:
        """Resident memory of the service itself."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024

    def cpu_seconds(self) -> float:
        """Processor time that the service itself has used; a busy machine does not change it much."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(folder: Path, *settings: str) -> Iterator[Running]:
    """A service on `folder`; killed by -9 in the end."""
    if not (folder / "tasks").exists():
        write_package(folder / "tasks" / "conformance")
    ready, log = folder / "ready", folder / "log"
    ready.unlink(missing_ok=True)
    words = ["port=0", f"ready_file={ready}", f"state_dir={folder}/state", f"task_roots=[{folder}/tasks]"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENMLE_SANDBOX")}
    began = time.perf_counter()
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "sandbox_service", "serve", *words, *settings], stderr=stderr, env=environment
        )
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit(f"the service did not start: {log.read_text()[-2000:]}")
            time.sleep(0.01)
        yield Running(url=ready.read_text(), process=process, ready_seconds=time.perf_counter() - began)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder, removed in the end with what services that were killed have left mounted there."""
    folder = Path(tempfile.mkdtemp(prefix="openmle-bench-"))
    try:
        yield folder
    finally:
        unmount_below(folder)
        remove_tree(folder)


def payload(code: str, **fields: object) -> dict[str, object]:
    """A submission."""
    return {"code": code, "data_dir": "conformance", "timeout": 600, **fields}


async def submit(http: httpx.AsyncClient, code: str) -> str:
    """Submits one program and returns the job's id."""
    response = await http.post(JOBS, json=payload(code))
    return response.raise_for_status().json()["job_id"]


async def submit_many(http: httpx.AsyncClient, jobs: Sequence[dict[str, object]]) -> list[str]:
    """Submits in batches."""
    ids: list[str] = []
    for start in range(0, len(jobs), BATCH):
        response = await http.post(f"{JOBS}/batch", json={"jobs": jobs[start : start + BATCH]})
        ids += [item["job"]["job_id"] for item in response.raise_for_status().json()["jobs"]]
    return ids


async def ended(http: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    """The job at its end."""
    while True:
        view = (await http.get(f"{JOBS}/{job_id}", params={"wait": 30})).raise_for_status().json()
        if view["status"] not in ("queued", "running"):
            return view


class Meter:
    """Counts the processor time of all that this process has started, and that those have started, from now on.

    By a control group, since who starts a sandbox does not wait for all that runs in it.
    """

    def __init__(self, folder: Path, usage: str, unit_seconds: float) -> None:
        self._folder, self._usage, self._unit_seconds = folder, usage, unit_seconds

    def seconds(self) -> float:
        """Used so far; what this very process used is left out."""
        words = (self._folder / self._usage).read_text().split()  # a number alone, or `usage_usec` before it
        return self._unit_seconds * int(words[0] if words[0].isdigit() else words[1]) - time.process_time()

    async def until_quiet(self) -> None:
        """Waits until what was started has come to rest."""
        before = -1.0
        while (now := self.seconds()) > before + 0.01:
            before = now
            await asyncio.sleep(1.0)


@contextmanager
def processor_meter() -> Iterator[Meter | None]:
    """A meter; None where this process may not make a control group."""
    first, second = Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup")  # of the first version and of the second
    parent, usage, unit_seconds = (first, "cpuacct.usage", 1e-9) if first.exists() else (second, "cpu.stat", 1e-6)
    if not ((parent / usage).exists() and os.access(parent, os.W_OK)):
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="openmle-bench-", dir=parent))
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield Meter(folder, usage, unit_seconds)
    finally:
        (parent / "cgroup.procs").write_text(str(os.getpid()))
        deadline = time.monotonic() + 10
        while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:  # what was killed is going
            time.sleep(0.01)
        folder.rmdir()


async def timed(action: Action) -> float:
    """Seconds that an action takes."""
    began = time.perf_counter()
    await action()
    return time.perf_counter() - began


def process(command: Sequence[str]) -> Action:
    """Runs a command."""

    async def run() -> None:
        started = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        if await started.wait():
            raise SystemExit(f"{' '.join(command)} failed")

    return run


class Wire:
    """HTTP/1.1 by hand on one kept connection: a client library costs more than the answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, url: str) -> "Wire":
        """Connects."""
        address = httpx.URL(url)
        return cls(*await asyncio.open_connection(address.host, address.port))

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """One request; the answer's body.

        Raises:
            SystemExit: It was refused.
        """
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        content = await self._reader.readexactly(length)
        if answer[9:10] != b"2":
            raise SystemExit(f"{method} {path}: {answer.decode()}{content.decode()}")
        return content


async def post_all(wires: Sequence[Wire], path: str, bodies: Sequence[bytes]) -> None:
    """Posts all bodies, each on the next wire that is free."""
    left = iter(bodies)

    async def post_on(wire: Wire) -> None:
        for body in left:
            await wire.ask("POST", path, body)

    await asyncio.gather(*map(post_on, wires))
