"""What the sandbox service costs, and what it bears: one run prints one table.

    python scripts/bench_sandbox.py [--sections overhead,throughput,http,queue] [--runners docker,bubblewrap] [--quick]

    overhead     one empty program through the service, against the bare engine's and bare bubblewrap's own cost
    throughput   a queue of empty programs, against the engine alone with as many at once
    http         submissions per second, one by one and in batches; an answer while 400 long polls are open
    queue        the paper's whole evaluation as waiting jobs: submit, kill -9, restart, lease

Repeats are interleaved and medians compared; compare figures of one run only. The bare container has the host
configuration that the engine reports of the service's own container, without its mounts.
"""

import argparse
import asyncio
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import docker
import httpx
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.isolation.runner import PYTHON, RunSpec
from openmle_gym.jobs import MIB, Limits
from sandbox_service.conformance.package import write_package
from sandbox_service.store import JobStore

JOBS = "/api/v1/jobs"
IMAGE = "openmle/sandbox:cpu"
MANAGED = "openmle.managed=1"
EMPTY = "pass"
SLEEPER = "import time\ntime.sleep(600)"
EVALUATION = 52_800
"""66 tasks with 800 programs each."""
RUNS = 66
LONG_POLLS = 400
CONNECTIONS = 64
BATCH = 500
HARD = [
    "--network=none",
    "--read-only",
    "--tmpfs=/tmp:exec,nosuid,nodev,size=64m",
    "--memory=512m",
    "--memory-swap=512m",
    "--cpus=1",
    "--pids-limit=64",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--user=65534:65534",
    "--log-driver=none",
]
BARE_BUBBLEWRAP = [
    "bwrap",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--new-session",
    "--die-with-parent",
    "--cap-drop",
    "ALL",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "--dir",
    "/work",
    "--chdir",
    "/work",
]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service in a process of its own."""

    url: str
    process: subprocess.Popen[bytes]
    ready_seconds: float

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


def payload(code: str, **fields: object) -> dict[str, object]:
    """A submission."""
    return {"code": code, "data_dir": "conformance", "timeout": 600, **fields}


async def submit(http: httpx.AsyncClient, code: str, **fields: object) -> str:
    """Submits one program and returns the job's id."""
    response = await http.post(JOBS, json=payload(code, **fields))
    return response.raise_for_status().json()["job_id"]


async def ended(http: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    """The job at its end."""
    while True:
        view = (await http.get(f"{JOBS}/{job_id}", params={"wait": 30})).raise_for_status().json()
        if view["status"] not in ("queued", "running"):
            return view


async def until_running(http: httpx.AsyncClient, job_id: str) -> None:
    """Looks until the job runs."""
    while (await http.get(f"{JOBS}/{job_id}")).json()["status"] == "queued":  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def submit_many(http: httpx.AsyncClient, jobs: Sequence[dict[str, object]]) -> list[str]:
    """Submits in batches."""
    ids: list[str] = []
    for start in range(0, len(jobs), BATCH):
        response = await http.post(f"{JOBS}/batch", json={"jobs": jobs[start : start + BATCH]})
        ids += [item["job"]["job_id"] for item in response.raise_for_status().json()["jobs"]]
    return ids


class Engine:
    """The container engine alone, with the host configuration of the service's own containers."""

    def __init__(self, host_config: dict[str, Any], command: Sequence[str]) -> None:
        self._client = docker.from_env(max_pool_size=64)
        self._host_config = {**host_config, "Mounts": None, "Binds": None}
        self._command = list(command)

    def run(self) -> None:
        """One container from creation to removal."""
        api = self._client.api
        config = {
            "Image": IMAGE,
            "Entrypoint": self._command,
            "User": "65534:65534",
            "HostConfig": self._host_config,
            "Labels": {},
        }
        container = api.create_container_from_config(config)["Id"]
        api.start(container)
        if api.wait(container)["StatusCode"] != 0:
            raise SystemExit("the bare container failed")
        api.remove_container(container, v=True, force=True)


async def engine_of(http: httpx.AsyncClient) -> Engine:
    """Asks the engine how the service's container of a sleeping program is configured."""
    job_id = await submit(http, SLEEPER)
    client = docker.from_env()
    containers: list[Any] = []
    while not containers:
        containers = client.containers.list(filters={"label": MANAGED})
        await asyncio.sleep(0.05)
    host_config = containers[0].attrs["HostConfig"]
    await http.delete(f"{JOBS}/{job_id}")
    await ended(http, job_id)
    return Engine(host_config, ["/opt/venv/bin/python", "-c", EMPTY])


async def timed(action: Callable[[], Awaitable[object]]) -> float:
    """Seconds that an action takes."""
    began = time.perf_counter()
    await action()
    return time.perf_counter() - began


async def overhead(folder: Path, runner: str, repeats: int) -> list[Row]:
    """One empty program at a time."""
    with served(folder, f"runner={runner}", "memory_mib=512", "processes=64", "disk_mib=64", "workers=1") as service:
        async with httpx.AsyncClient(base_url=service.url, timeout=120, trust_env=False) as http:

            async def through_the_service() -> None:
                await ended(http, await submit(http, EMPTY))

            bare: dict[str, Callable[[], Awaitable[object]]] = {}
            if runner == "docker":
                engine = await engine_of(http)
                command = ["docker", "run", "--rm", *HARD, "--entrypoint=/opt/venv/bin/python", IMAGE, "-c", EMPTY]
                bare["docker run"] = lambda: _process(command)
                bare["engine through the SDK"] = lambda: asyncio.to_thread(engine.run)
            else:
                prefix = [word for place in (sys.prefix, sys.base_prefix) for word in ("--ro-bind", place, place)]
                bare["bwrap"] = lambda: _process([*BARE_BUBBLEWRAP, *prefix, sys.executable, "-c", EMPTY])
            held = await strongest_runner(runner, docker_image=IMAGE, allow_process=False)
            spec = RunSpec(argv=(PYTHON, "-c", EMPTY), limits=Limits(memory_bytes=512 * MIB, processes=64))
            actions = {**bare, "our runner without the service": lambda: held.run(spec), "service": through_the_service}
            for action in actions.values():
                await action()
            seconds: dict[str, list[float]] = {name: [] for name in actions}
            for _ in range(repeats):
                for name, action in actions.items():
                    seconds[name].append(await timed(action))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    rows = [row("overhead", f"{runner}: {name}", 1000 * median, "ms") for name, median in medians.items()]
    goals = {"docker run": 1.15, "bwrap": 1.5}
    return rows + [
        row("overhead", f"{runner}: service / {name}", medians["service"] / medians[name], "x", at_most=goals.get(name))
        for name in bare
    ]


async def _process(command: Sequence[str]) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    if await process.wait():
        raise SystemExit(f"{command} failed")


async def throughput(folder: Path, runner: str, repeats: int, jobs: int) -> list[Row]:
    """A queue of empty programs, and as many at once without the service."""
    at_once = 2 * (os.cpu_count() or 1)
    rates: dict[str, list[float]] = {"service": [], "alone": []}
    settings = ("memory_mib=512", "processes=64", "disk_mib=64", f"workers={at_once}")
    with served(folder, f"runner={runner}", *settings) as service:
        async with httpx.AsyncClient(base_url=service.url, timeout=300, trust_env=False) as http:
            if runner == "docker":
                engine = await engine_of(http)

                async def alone() -> None:
                    await asyncio.to_thread(engine.run)
            else:
                prefix = [word for place in (sys.prefix, sys.base_prefix) for word in ("--ro-bind", place, place)]

                async def alone() -> None:
                    await _process([*BARE_BUBBLEWRAP, *prefix, sys.executable, "-c", EMPTY])

            async def one_after_another() -> None:
                for _ in range(jobs // at_once):
                    await alone()

            async def all_alone() -> None:
                await asyncio.gather(*(one_after_another() for _ in range(at_once)))

            async def all_through_the_service() -> None:
                batch = [payload(f"{EMPTY} # {uuid.uuid4()}") for _ in range(jobs // at_once * at_once)]
                await asyncio.gather(*(ended(http, job_id) for job_id in await submit_many(http, batch)))

            for _ in range(repeats):
                rates["alone"].append(jobs // at_once * at_once / await timed(all_alone))
                rates["service"].append(jobs // at_once * at_once / await timed(all_through_the_service))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return [
        row("throughput", f"{runner}: alone, {at_once} at once", medians["alone"], "jobs/s"),
        row("throughput", f"{runner}: service", medians["service"], "jobs/s"),
        row("throughput", f"{runner}: share", medians["service"] / medians["alone"], "x", at_least=0.9),
    ]


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


async def http_rates(folder: Path, submissions: int) -> list[Row]:
    """Submissions and polls, while the one worker is held by a sleeping program."""
    code = "x = 1\n" * 250
    with served(folder, "runner=bubblewrap", "workers=1", "max_queued=1000000") as service:
        wires = [await Wire.open(service.url) for _ in range(CONNECTIONS)]
        first = json.loads(await wires[0].ask("POST", JOBS, json.dumps(payload(SLEEPER)).encode()))
        bodies = [
            json.dumps(payload(code, idempotency_key=uuid.uuid4().hex, labels={"run": str(number % RUNS)})).encode()
            for number in range(submissions)
        ]
        left = iter(bodies)

        async def submit_on(wire: Wire) -> None:
            for body in left:
                await wire.ask("POST", JOBS, body)

        async def submit_all() -> None:
            await asyncio.gather(*(submit_on(wire) for wire in wires))

        used = service.cpu_seconds()
        one_by_one = submissions / await timed(submit_all)
        single_cpu = 1e6 * (service.cpu_seconds() - used) / submissions
        batches = [
            json.dumps({"jobs": [json.loads(body) | {"idempotency_key": uuid.uuid4().hex} for body in part]}).encode()
            for part in (bodies[start : start + BATCH] for start in range(0, submissions, BATCH))
        ]
        pending = iter(batches)

        async def send_batches(wire: Wire) -> None:
            for body in pending:
                await wire.ask("POST", f"{JOBS}/batch", body)

        async def all_batches() -> None:
            await asyncio.gather(*(send_batches(wire) for wire in wires[:2]))

        used = service.cpu_seconds()
        in_batches = submissions / await timed(all_batches)
        batch_cpu = 1e6 * (service.cpu_seconds() - used) / submissions
        polls = [await Wire.open(service.url) for _ in range(LONG_POLLS)]
        held = [asyncio.create_task(wire.ask("GET", f"{JOBS}/{first['job_id']}?wait=60")) for wire in polls]
        await asyncio.sleep(1.0)
        answers = [1000 * await timed(lambda: wires[0].ask("GET", f"{JOBS}/{first['job_id']}")) for _ in range(300)]
        posts = [1000 * await timed(lambda: wires[0].ask("POST", JOBS, bodies[0])) for _ in range(100)]
        await wires[0].ask("DELETE", f"{JOBS}/{first['job_id']}")
        woken = 1000 * await timed(lambda: asyncio.gather(*held))
    p99 = statistics.quantiles(answers, n=100)[-1]
    polls_open = f"with {LONG_POLLS} long polls open"
    return [
        row("http", f"submissions one by one, {CONNECTIONS} connections", one_by_one, "1/s", at_least=2000),
        row("http", "the service's own CPU time for one of them", single_cpu, "us"),
        row("http", f"submissions in batches of {BATCH}", in_batches, "1/s", at_least=2000),
        row("http", "the service's own CPU time for one in a batch", batch_cpu, "us"),
        row("http", f"GET {polls_open}, median", statistics.median(answers), "ms"),
        row("http", f"GET {polls_open}, p99", p99, "ms"),
        row("http", f"POST {polls_open}, median", statistics.median(posts), "ms"),
        row("http", f"all {LONG_POLLS} long polls answered after the end", woken, "ms"),
    ]


def lease_microseconds(database: Path, leases: int = 100) -> float:
    """What one lease costs the store, without its share of the commit."""
    store = JobStore(database)
    try:
        with store.transaction():
            began = time.perf_counter()
            for _ in range(leases):
                if store.lease("bench") is None:
                    raise SystemExit(f"{database}: fewer than {leases} jobs wait")
            return 1e6 * (time.perf_counter() - began) / leases
    finally:
        store.close()


async def _fill(service: Running, number: int) -> float:
    """Queues so many programs behind a sleeping one, and returns how many seconds that took."""
    code = "x = 1\n" * 250
    async with httpx.AsyncClient(base_url=service.url, timeout=300, trust_env=False) as http:
        await until_running(http, await submit(http, SLEEPER))
        jobs = [
            payload(f"{code}# {place}", idempotency_key=uuid.uuid4().hex, labels={"run": f"run-{place % RUNS}"})
            for place in range(number)
        ]
        return await timed(lambda: submit_many(http, jobs))


async def queue(folder: Path, number: int) -> list[Row]:
    """A queue as long as the paper's whole evaluation."""
    settings = ("runner=bubblewrap", "workers=1", "max_queued=1000000")
    costs: dict[str, float] = {}
    starts: dict[str, float] = {}
    for name, waiting in (("small", 100), ("large", number)):
        place = folder / name
        place.mkdir()
        with served(place, *settings) as service:
            starts[name] = service.ready_seconds
            seconds = await _fill(service, waiting)
            full = service.rss_mib()
        costs[name] = statistics.median(_lease_on_copy(place) for _ in range(5))
    with served(folder / "large", *settings) as service:
        recovery = service.ready_seconds
        async with httpx.AsyncClient(base_url=service.url, timeout=60, trust_env=False) as http:
            status = (await http.get("/api/v1/workers/status")).json()
            look = [1000 * await timed(lambda: http.get("/api/v1/workers/status")) for _ in range(20)]
        again = service.rss_mib()
    kept = status["queued"] + status["running"]
    return [
        row("queue", f"{number} jobs submitted in batches", seconds, "s"),
        row("queue", "start with nothing there, until it answers", starts["large"], "s"),
        row("queue", "kill -9, restart: until it answers", recovery, "s"),
        row("queue", "jobs lost by kill -9", number + 1 - kept, "jobs", at_most=0),
        row("queue", "one lease with 100 waiting", costs["small"], "us"),
        row("queue", f"one lease with {number} waiting", costs["large"], "us"),
        row("queue", "lease cost, long queue / short", costs["large"] / costs["small"], "x", at_most=2),
        row("queue", "workers/status with the long queue, median", statistics.median(look), "ms"),
        row("queue", "memory of the service, largest", max(full, again) * MIB / 1e6, "MB", at_most=200),
    ]


def _lease_on_copy(folder: Path) -> float:
    with tempfile.TemporaryDirectory() as copy:
        for file in (folder / "state").glob("jobs.sqlite*"):
            Path(copy, file.name).write_bytes(file.read_bytes())
        return lease_microseconds(Path(copy, "jobs.sqlite"))


def markdown(rows: Sequence[Row]) -> str:
    """The table."""
    lines = ["| section | what | value | unit | target | met |", "|---|---|---:|---|---|---|"]
    for each in rows:
        met = {True: "yes", False: "**no**", None: ""}[each.met]
        value = f"{each.value:,.0f}" if each.value >= 1000 else f"{each.value:.4g}"
        lines.append(f"| {each.section} | {each.what} | {value} | {each.unit} | {each.target} | {met} |")
    return "\n".join(lines)


async def main() -> int:
    """Runs the chosen sections; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description="Benchmarks the sandbox service.")
    parser.add_argument("--sections", default="overhead,throughput,http,queue", help="which, between commas")
    parser.add_argument("--runners", default="docker,bubblewrap", help="which, between commas")
    parser.add_argument("--quick", action="store_true", help="fewer repeats and a tenth of the queue")
    parser.add_argument("--json", type=Path, help="a file for the table as JSON; without it, stdout")
    options = parser.parse_args()
    sections, runners = options.sections.split(","), options.runners.split(",")
    tenth = 10 if options.quick else 1
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        folders = (Path(folder, str(number)) for number in itertools.count())
        for section in sections:
            for runner in runners if section in ("overhead", "throughput") else [""]:
                place = next(folders)
                place.mkdir()
                print(f"{section} {runner}...", file=sys.stderr)
                if section == "overhead":
                    rows += await overhead(place, runner, 30 // (3 if options.quick else 1))
                elif section == "throughput":
                    rows += await throughput(place, runner, 3, 40 if runner == "docker" else 200)
                elif section == "http":
                    rows += await http_rates(place, 10_000 // tenth)
                elif section == "queue":
                    rows += await queue(place, EVALUATION // tenth)
                else:
                    parser.error(f"--sections: there is no {section!r}")
    print(markdown(rows))
    table = json.dumps([asdict(each) for each in rows], indent=2)
    if options.json:
        options.json.write_text(table + "\n")
    else:
        print(table)
    return 1 if any(each.met is False for each in rows) else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
