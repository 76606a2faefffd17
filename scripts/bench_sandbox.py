"""What the sandbox service costs, and what it bears: one run prints one table.

    python scripts/bench_sandbox.py [--sections overhead,throughput,http,queue] [--runners docker,bubblewrap] [--size 1.0]

    overhead     one empty program through the service, against the bare engine's and bare bubblewrap's own cost
    throughput   a queue of empty programs, against the engine or bubblewrap alone with as many at once
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
from openmle_gym.isolation.disk import unmount_below
from openmle_gym.isolation.runner import PYTHON, RunSpec
from openmle_gym.isolation.workspace import remove_tree
from openmle_gym.jobs import MIB, Limits
from sandbox_service.conformance.package import write_package
from sandbox_service.dispatch.local import JOB_LABEL
from sandbox_service.store import JobStore

JOBS = "/api/v1/jobs"
IMAGE = "openmle/sandbox:cpu"
INSIDE = "/opt/venv/bin/python"
EMPTY = "pass"
SLEEPER = "import time\ntime.sleep(600)"
LONG_PROGRAM = "x = 1\n" * 250
EVALUATION = 52_800
"""66 tasks with 800 programs each."""
RUNS = 66
LONG_POLLS = 400
CONNECTIONS = 64
BATCH = 500
SMALL = ("memory_mib=512", "processes=64", "disk_mib=64")
LONG_QUEUE = ("runner=bubblewrap", "workers=1", "max_queued=1000000")
DOCKER_RUN = f"""\
docker run --rm --network=none --read-only --tmpfs=/tmp:exec,nosuid,nodev,size=64m --memory=512m --memory-swap=512m
--cpus=1 --pids-limit=64 --cap-drop=ALL --security-opt=no-new-privileges --user=65534:65534 --log-driver=none
--entrypoint={INSIDE} {IMAGE} -c {EMPTY}""".split()
BUBBLEWRAP = f"""\
bwrap --unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try --new-session --die-with-parent
--cap-drop ALL --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64
--proc /proc --dev /dev --tmpfs /tmp --dir /work --chdir /work --ro-bind {sys.prefix} {sys.prefix}
--ro-bind {sys.base_prefix} {sys.base_prefix} {sys.executable} -c {EMPTY}""".split()

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


async def engine_alone(http: httpx.AsyncClient) -> Action:
    """One container from creation to removal, with the host configuration of the service's own containers."""
    client = docker.from_env(max_pool_size=64)
    job_id = await submit(http, SLEEPER)
    containers: list[Any] = []
    while not containers:
        containers = client.containers.list(filters={"label": f"{JOB_LABEL}={job_id}"})
        await asyncio.sleep(0.05)
    config = {
        "Image": IMAGE,
        "Entrypoint": [INSIDE, "-c", EMPTY],
        "User": "65534:65534",
        "HostConfig": {**containers[0].attrs["HostConfig"], "Mounts": None, "Binds": None},
    }
    await http.delete(f"{JOBS}/{job_id}")

    def run() -> None:
        container = client.api.create_container_from_config(config)["Id"]
        client.api.start(container)
        if client.api.wait(container)["StatusCode"] != 0:
            raise SystemExit("the bare container failed")
        client.api.remove_container(container, v=True, force=True)

    return lambda: asyncio.to_thread(run)


async def overhead(folder: Path, runner: str, size: float) -> list[Row]:
    """One empty program at a time."""
    with served(folder, f"runner={runner}", *SMALL, "workers=1") as service:
        async with service.client() as http:

            async def through_the_service() -> None:
                await ended(http, await submit(http, EMPTY))

            held = await strongest_runner(runner, docker_image=IMAGE, allow_process=False)
            spec = RunSpec(argv=(PYTHON, "-c", EMPTY), limits=Limits(memory_bytes=512 * MIB, processes=64))
            bare = (
                {"docker run": process(DOCKER_RUN), "engine through the SDK": await engine_alone(http)}
                if runner == "docker"
                else {"bwrap": process(BUBBLEWRAP)}
            )
            actions = {**bare, "our runner without the service": lambda: held.run(spec), "service": through_the_service}
            for action in actions.values():
                await action()
            seconds: dict[str, list[float]] = {name: [] for name in actions}
            for _ in range(max(3, round(30 * size))):
                for name, action in actions.items():
                    seconds[name].append(await timed(action))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    rows = [row("overhead", f"{runner}: {name}", 1000 * median, "ms") for name, median in medians.items()]
    goals = {"docker run": 1.15, "bwrap": 1.5}
    return rows + [
        row("overhead", f"{runner}: service / {name}", medians["service"] / medians[name], "x", at_most=goals.get(name))
        for name in bare
    ]


async def throughput(folder: Path, runner: str, size: float) -> list[Row]:
    """A queue of empty programs, and as many at once without the service."""
    at_once = 2 * (os.cpu_count() or 1)
    each = max(1, round((40 if runner == "docker" else 200) * size) // at_once)
    jobs = each * at_once
    rates: dict[str, list[float]] = {"service": [], "alone": []}
    with served(folder, f"runner={runner}", *SMALL, f"workers={at_once}") as service:
        async with service.client() as http:
            alone = await engine_alone(http) if runner == "docker" else process(BUBBLEWRAP)

            async def one_after_another() -> None:
                for _ in range(each):
                    await alone()

            async def all_alone() -> None:
                await asyncio.gather(*(one_after_another() for _ in range(at_once)))

            async def all_through_the_service() -> None:
                batch = [payload(f"{EMPTY} # {uuid.uuid4()}") for _ in range(jobs)]
                await asyncio.gather(*(ended(http, job_id) for job_id in await submit_many(http, batch)))

            for _ in range(3):
                rates["alone"].append(jobs / await timed(all_alone))
                rates["service"].append(jobs / await timed(all_through_the_service))
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


async def post_all(wires: Sequence[Wire], path: str, bodies: Sequence[bytes]) -> None:
    """Posts all bodies, each on the next wire that is free."""
    left = iter(bodies)

    async def post_on(wire: Wire) -> None:
        for body in left:
            await wire.ask("POST", path, body)

    await asyncio.gather(*map(post_on, wires))


def numbered(number: int) -> dict[str, object]:
    """One of many jobs of the paper's evaluation."""
    labels = {"run": f"run-{number % RUNS}"}
    return payload(f"{LONG_PROGRAM}# {number}", idempotency_key=uuid.uuid4().hex, labels=labels)


async def http_rates(folder: Path, size: float) -> list[Row]:
    """Submissions and polls, while the one worker is held by a sleeping program."""
    number = max(BATCH, round(10_000 * size))
    rows: list[Row] = []
    with served(folder, *LONG_QUEUE) as service:
        wires = [await Wire.open(service.url) for _ in range(CONNECTIONS)]
        held = f"{JOBS}/{json.loads(await wires[0].ask('POST', JOBS, json.dumps(payload(SLEEPER)).encode()))['job_id']}"
        singles = [json.dumps(numbered(place)).encode() for place in range(number)]
        batches = [
            json.dumps({"jobs": [numbered(place) for place in range(start, min(start + BATCH, number))]}).encode()
            for start in range(0, number, BATCH)
        ]
        for what, path, bodies, connections in (
            (f"one by one, {CONNECTIONS} connections", JOBS, singles, CONNECTIONS),
            (f"in batches of {BATCH}", f"{JOBS}/batch", batches, 2),
        ):
            used = service.cpu_seconds()
            seconds = await timed(lambda: post_all(wires[:connections], path, bodies))  # noqa: B023
            used = service.cpu_seconds() - used
            rows += [
                row("http", f"submissions {what}", number / seconds, "1/s", at_least=2000),
                row("http", "the service's own CPU time for each of them", 1e6 * used / number, "us"),
            ]
        polls = [await Wire.open(service.url) for _ in range(LONG_POLLS)]
        waiting = [asyncio.create_task(wire.ask("GET", f"{held}?wait=60")) for wire in polls]
        await asyncio.sleep(1.0)
        gets = [1000 * await timed(lambda: wires[0].ask("GET", held)) for _ in range(300)]
        posts = [1000 * await timed(lambda: wires[0].ask("POST", JOBS, singles[0])) for _ in range(100)]
        await wires[0].ask("DELETE", held)
        woken = 1000 * await timed(lambda: asyncio.gather(*waiting))
    polls_open = f"with {LONG_POLLS} long polls open"
    return [
        *rows,
        row("http", f"GET {polls_open}, median", statistics.median(gets), "ms"),
        row("http", f"GET {polls_open}, p99", statistics.quantiles(gets, n=100)[-1], "ms"),
        row("http", f"POST {polls_open}, median", statistics.median(posts), "ms"),
        row("http", f"all {LONG_POLLS} long polls answered after the end", woken, "ms"),
    ]


def lease_microseconds(state: Path, leases: int = 100) -> float:
    """What one lease costs the store, without its share of the commit, on a copy."""
    with tempfile.TemporaryDirectory() as copy:
        for file in state.glob("jobs.sqlite*"):
            Path(copy, file.name).write_bytes(file.read_bytes())
        store = JobStore(Path(copy, "jobs.sqlite"))
        try:
            with store.transaction():
                began = time.perf_counter()
                for _ in range(leases):
                    if store.lease("bench") is None:
                        raise SystemExit(f"{state}: fewer than {leases} jobs wait")
                return 1e6 * (time.perf_counter() - began) / leases
        finally:
            store.close()


async def fill(service: Running, number: int) -> float:
    """Queues so many programs behind a sleeping one, and returns how many seconds that took."""
    async with service.client() as http:
        sleeper = await submit(http, SLEEPER)
        while (await http.get(f"{JOBS}/{sleeper}")).json()["status"] == "queued":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        jobs = [numbered(place) for place in range(number)]
        return await timed(lambda: submit_many(http, jobs))


async def queue(folder: Path, size: float) -> list[Row]:
    """A queue as long as the paper's whole evaluation."""
    number = max(1000, round(EVALUATION * size))
    short, long = folder / "short", folder / "long"
    for place in (short, long):
        place.mkdir()
    with served(short, *LONG_QUEUE) as service:
        first_start = service.ready_seconds
        await fill(service, 100)
    with served(long, *LONG_QUEUE) as service:
        seconds = await fill(service, number)
        full = service.rss_mib()
    costs = [statistics.median(lease_microseconds(place / "state") for _ in range(5)) for place in (short, long)]
    with served(long, *LONG_QUEUE) as service:
        async with service.client() as http:
            look = [1000 * await timed(lambda: http.get("/api/v1/workers/status")) for _ in range(20)]
        recovery, again = service.ready_seconds, service.rss_mib()
    store = JobStore(long / "state" / "jobs.sqlite")
    lost = number + 1 - sum(store.counts().values())
    store.close()
    return [
        row("queue", f"{number} jobs submitted in batches", seconds, "s"),
        row("queue", "start with nothing there, until it answers", first_start, "s"),
        row("queue", "kill -9, restart: until it answers", recovery, "s"),
        row("queue", "jobs lost by kill -9", lost, "jobs", at_most=0),
        row("queue", "one lease with 100 waiting", costs[0], "us"),
        row("queue", f"one lease with {number} waiting", costs[1], "us"),
        row("queue", "lease cost, long queue / short", costs[1] / costs[0], "x", at_most=2),
        row("queue", "workers/status with the long queue, median", statistics.median(look), "ms"),
        row("queue", "memory of the service, largest", max(full, again) * MIB / 1e6, "MB", at_most=200),
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The table."""
    lines = ["| section | what | value | unit | target | met |", "|---|---|---:|---|---|---|"]
    for each in rows:
        met = {True: "yes", False: "**no**", None: ""}[each.met]
        value = f"{each.value:,.0f}" if each.value >= 1000 else f"{each.value:.4g}"
        lines.append(f"| {each.section} | {each.what} | {value} | {each.unit} | {each.target} | {met} |")
    return "\n".join(lines)


OF_A_RUNNER = {"overhead": overhead, "throughput": throughput}
OF_THE_SERVICE = {"http": http_rates, "queue": queue}


async def main() -> int:
    """Runs the chosen sections; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description="Benchmarks the sandbox service.")
    parser.add_argument("--sections", default="overhead,throughput,http,queue", help="which, between commas")
    parser.add_argument("--runners", default="docker,bubblewrap", help="which, between commas")
    parser.add_argument("--size", type=float, default=1.0, help="share of the full repeats, jobs and queue")
    parser.add_argument("--json", type=Path, help="a file for the table as JSON; without it, stdout")
    options = parser.parse_args()
    sections: list[str] = options.sections.split(",")
    if unknown := set(sections) - OF_A_RUNNER.keys() - OF_THE_SERVICE.keys():
        parser.error(f"--sections: there is no {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    with scratch() as folder:
        places = (folder / str(number) for number in itertools.count())
        for section in sections:
            for runner in options.runners.split(",") if section in OF_A_RUNNER else [""]:
                place = next(places)
                place.mkdir()
                print(f"{section} {runner}...", file=sys.stderr)
                if runner:
                    rows += await OF_A_RUNNER[section](place, runner, options.size)
                else:
                    rows += await OF_THE_SERVICE[section](place, options.size)
    print(markdown(rows))
    table = json.dumps([asdict(each) for each in rows], indent=2)
    if options.json:
        options.json.write_text(table + "\n")
    else:
        print(table)
    return 1 if any(each.met is False for each in rows) else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
