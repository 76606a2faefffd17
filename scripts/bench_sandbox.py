"""What the sandbox service costs, and what it bears: one run prints one table.

    python scripts/bench_sandbox.py [--sections overhead,throughput,http,queue] [--runners docker,bubblewrap]
                                    [--size 1.0]

    overhead     one empty program through the service, against the bare engine's and bare bubblewrap's own cost
    throughput   a queue of empty programs, against the engine or bubblewrap alone with as many at once
    http         submissions per second, one by one and in batches; an answer while 400 long polls are open
    queue        the paper's whole evaluation as waiting jobs: submit, kill -9, restart, lease

Repeats are interleaved and medians compared; compare figures of one run only. The bare container has the host
configuration that the engine reports of the service's own container, without its mounts. Zygote, like bubblewrap, is
held against bare bubblewrap with a cold interpreter. Processor time, where this process may make a control group, is
that of the service and all that it starts, or of the bare program; without the engine's, so for Docker there is none.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import docker
import httpx
from bench_sandbox_parts import (
    BATCH,
    JOBS,
    Action,
    Row,
    Running,
    Wire,
    ended,
    markdown,
    payload,
    post_all,
    process,
    processor_meter,
    row,
    scratch,
    served,
    submit,
    submit_many,
    timed,
)
from openmle_gym.jobs import MIB
from sandbox_service.dispatch.local import JOB_LABEL
from sandbox_service.store import JobStore

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

SETTLE_SECONDS = 0.05
"""For what goes on after an answer, such as clearing away."""


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
    with processor_meter() as meter, served(folder, f"runner={runner}", *SMALL, "workers=1") as service:
        async with service.client() as http:

            async def through_the_service() -> None:
                await ended(http, await submit(http, EMPTY))

            bare, goal = ("docker run", 1.15) if runner == "docker" else ("bwrap", 1.5)
            actions = {bare: process(DOCKER_RUN if runner == "docker" else BUBBLEWRAP), "service": through_the_service}
            if runner == "docker":
                actions["engine through the SDK"] = await engine_alone(http)
            for action in actions.values():
                await action()
            if meter:
                await meter.until_quiet()  # a zygote's parents start
            wall: dict[str, list[float]] = {name: [] for name in actions}
            used: dict[str, list[float]] = {name: [] for name in actions}
            for _ in range(max(3, round(30 * size))):
                for name, action in actions.items():
                    before = meter.seconds() if meter else 0.0
                    wall[name].append(await timed(action))
                    await asyncio.sleep(SETTLE_SECONDS)
                    used[name].append(meter.seconds() - before if meter else 0.0)
    rows: list[Row] = []
    for what, seconds in (("", wall), (", processor time", used if meter and runner != "docker" else {})):
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        rows += [row("overhead", f"{runner}: {name}{what}", 1000 * median, "ms") for name, median in medians.items()]
        if medians:
            ratio = medians["service"] / medians[bare]
            rows.append(row("overhead", f"{runner}: service / {bare}{what}", ratio, "x", at_most=goal))
    return rows


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
