"""`openmle-sandbox doctor`: what a service with these settings would find on this machine, and what to do about it.

`ok` is as it should be, `warn` works with a weakness or is not needed by these settings, `fail` keeps the service from
doing what the settings ask.
"""

import os
import sys
from collections.abc import Iterator
from typing import Literal

from openmle_gym.console import print_json
from openmle_gym.contracts import Contract
from openmle_gym.errors import ConfigError
from openmle_gym.isolation.runner import Isolation
from openmle_gym.jobs import MIB

from sandbox_service.auth import Keys
from sandbox_service.config import ServeConfig
from sandbox_service.doctor_probe import Facts, Folder, RunnerFacts, probe

NETWORK_FILESYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "gpfs", "glusterfs", "afs")
LEAST_FREE_BYTES = 2048 * MIB
LEAST_FREE_INODES = 100_000
SLOW_START_SECONDS = 10.0
MOST_SKEW_SECONDS = 5.0

Grade = Literal["ok", "warn", "fail"]


class Check(Contract):
    """One finding."""

    name: str
    grade: Grade
    finding: str
    advice: str = ""
    """What to do about it; empty when there is nothing to do."""


class Report(Contract):
    """All findings."""

    grade: Grade
    """The worst of them."""
    checks: list[Check]


async def run_doctor(config: ServeConfig) -> int:
    """The sub-command; returns its exit code."""
    return tell(examine(config, await probe(config), check_keys(config)))


def tell(report: Report) -> int:
    """JSON to stdout, a table to stderr; 1 when something fails."""
    _show(report)
    print_json(report.model_dump())
    return 1 if report.grade == "fail" else 0


def examine(config: ServeConfig, facts: Facts, keys: Check) -> Report:
    """Judges what was found."""
    checks = [
        *check_engine(config, facts),
        *(check for runner in facts.runners for check in check_runner(config, runner)),
        check_isolation(config, facts),
        check_user_namespaces(facts),
        *check_gpus(config, facts),
        check_memory(config, facts),
        check_folder("state_dir", facts.machine.state_dir, database=True),
        check_folder("work_dir", facts.machine.work_dir, database=False),
        check_clock(facts),
        check_port(config, facts),
        check_task_roots(facts),
        keys,
    ]
    grades = {check.grade for check in checks}
    return Report(grade="fail" if "fail" in grades else "warn" if "warn" in grades else "ok", checks=checks)


def _docker_wanted(config: ServeConfig) -> Grade:
    """How bad it is when Docker cannot be had."""
    return "fail" if config.runner == Isolation.DOCKER or config.docker_runtime or config.gpus != "none" else "warn"


def check_engine(config: ServeConfig, facts: Facts) -> Iterator[Check]:
    """The engine, its cgroups, its runtimes and the image."""
    engine, missing = facts.engine, _docker_wanted(config)
    if engine.trouble:
        advice = "install and start Docker, and let this user reach it; without it the service uses another isolation"
        yield Check(name="engine", grade=missing, finding=engine.trouble, advice=advice)
        return
    rootless = " (rootless)" if engine.rootless else ""
    yield Check(name="engine", grade="ok", finding=f"Docker {engine.version}{rootless} answers")
    yield Check(name="cgroups", grade="ok", finding=f"version {engine.cgroup_version}")
    runtime, known = config.docker_runtime, ", ".join(engine.runtimes)
    if runtime is not None and runtime not in engine.runtimes:
        advice = "add it to the engine's daemon.json and restart the engine, or change docker_runtime"
        yield Check(name="runtime", grade="fail", finding=f"no {runtime}, but {known}", advice=advice)
    else:
        yield Check(name="runtime", grade="ok", finding=f"{runtime or 'the default'} of {known}")
    if engine.image is None:
        advice = f"openmle-sandbox image build tag={config.docker_image}"
        yield Check(name="image", grade=missing, finding=f"no {config.docker_image}", advice=advice)
    else:
        yield Check(name="image", grade="ok", finding=f"{config.docker_image} is {engine.image[:19]}")


def check_runner(config: ServeConfig, runner: RunnerFacts) -> Iterator[Check]:
    """One isolation: that it works, and that its filter of system calls is in force."""
    if runner.trouble:
        yield Check(
            name=runner.name,
            grade="fail" if config.runner == runner.name else "warn",
            finding=runner.trouble,
            advice="only needed when nothing stronger works, or when set by runner",
        )
        return
    slow = runner.smoke_seconds > SLOW_START_SECONDS
    yield Check(
        name=runner.name,
        grade="warn" if slow else "ok",
        finding=f"a trivial program takes {runner.smoke_seconds:.2f} s",
        advice="the machine is overloaded, or the runtime is slow: every job pays this" if slow else "",
    )
    user = "root" if runner.user == 0 else f"user {runner.user}"
    if runner.open_calls or runner.user == 0:
        finding = f"a program runs as {user} and can use {', '.join(runner.open_calls) or 'no risky call'}"
        advice = "the filter of system calls is not in force: do not run untrusted programs on this"
        yield Check(name=f"seccomp {runner.name}", grade="fail", finding=finding, advice=advice)
    else:
        yield Check(name=f"seccomp {runner.name}", grade="ok", finding=f"{user}; risky calls and sockets are refused")


def check_isolation(config: ServeConfig, facts: Facts) -> Check:
    """What would hold the programs."""
    working = [runner.name for runner in facts.runners if runner.trouble is None]
    wanted = working if config.runner == "auto" else [name for name in working if name == config.runner]
    if wanted:
        return Check(name="isolation", grade="ok", finding=f"programs will be held by {wanted[0]}")
    if config.runner in ("auto", Isolation.PROCESS) and config.allow_process:
        advice = "only for programs that you trust; install Docker, or bubblewrap"
        return Check(name="isolation", grade="warn", finding="programs will run without isolation", advice=advice)
    advice = "see the findings above; install Docker, or bubblewrap"
    return Check(name="isolation", grade="fail", finding=f"runner={config.runner}: nothing works", advice=advice)


def check_user_namespaces(facts: Facts) -> Check:
    """What bubblewrap and zygote need where they are not root."""
    if facts.machine.user_namespaces is None:
        return Check(name="user namespaces", grade="ok", finding=f"can be made (Linux {facts.machine.kernel})")
    return Check(
        name="user namespaces",
        grade="ok" if facts.machine.root else "warn",
        finding=f"cannot be made: {facts.machine.user_namespaces}"
        + ("; root does not need them" if facts.machine.root else ""),
        advice=""
        if facts.machine.root
        else "sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces=10000; on "
        "Ubuntu also kernel.apparmor_restrict_unprivileged_userns=0",
    )


def check_gpus(config: ServeConfig, facts: Facts) -> Iterator[Check]:
    """The GPUs, whether containers can have them, and what holds a program to its share of the memory."""
    gpu, wanted = facts.gpu, config.gpus != "none"
    if gpu.trouble:
        advice = "install NVIDIA's driver and openmle-sandbox[gpu], or set gpus=none" if wanted else ""
        yield Check(name="gpus", grade="fail" if wanted else "ok", finding=gpu.trouble, advice=advice)
        return
    names = ", ".join(f"{one.name} ({one.uuid}, {one.total_bytes // MIB} MiB)" for one in gpu.gpus) or "none"
    if not wanted:
        advice = "gpus=all hands them out" if gpu.gpus else ""
        yield Check(name="gpus", grade="ok", finding=f"not handed out: {names}", advice=advice)
        return
    grade: Grade = "fail" if gpu.engine_trouble or not gpu.gpus else "ok"
    trouble = f"; {gpu.engine_trouble}" if gpu.engine_trouble else ""
    advice = "install the NVIDIA container toolkit and restart the engine" if gpu.engine_trouble else ""
    yield Check(name="gpus", grade=grade, finding=f"driver {gpu.driver}: {names}{trouble}", advice=advice)
    share = config.vram_mib * MIB
    small = [one.uuid for one in gpu.gpus if one.total_bytes < share]
    held = all(one.partition and one.total_bytes <= share for one in gpu.gpus)
    kernel = "; this kernel could do it (dmem), which is not used" if facts.machine.dmem else ""
    yield Check(
        name="gpu memory",
        grade="warn" if small and not held else "ok",
        finding=f"{config.vram_mib} MiB a program, enforced by {'mig' if held else 'watchdog'}{kernel}"
        + (f"; less on {', '.join(small)}" if small else ""),
        advice="set vram_mib to what the smallest GPU has" if small and not held else "",
    )


def check_memory(config: ServeConfig, facts: Facts) -> Check:
    """Whether all programs fit at once."""
    most = config.worker_count() * config.memory_mib
    there = facts.machine.memory_bytes // MIB
    finding = f"{config.worker_count()} programs of {config.memory_mib} MiB, and the machine has {there} MiB"
    if most <= there * 0.9:
        return Check(name="memory", grade="ok", finding=finding)
    return Check(name="memory", grade="warn", finding=finding, advice="lower workers or memory_mib")


def check_folder(name: str, folder: Folder, *, database: bool) -> Check:
    """A folder: its file system, its space, and whether we may write there."""
    free = f"{folder.free_bytes // MIB} MiB free on {folder.filesystem} at {folder.path}"
    if not folder.writable:
        return Check(name=name, grade="fail", finding=f"{folder.path}: not writable", advice=f"set {name}")
    networked = folder.filesystem in NETWORK_FILESYSTEMS or folder.filesystem.startswith("fuse.")
    if networked and database:
        advice = f"set {name} to a folder on a disk of this machine: the database needs its locks"
        return Check(name=name, grade="fail", finding=f"{folder.path} is on {folder.filesystem}", advice=advice)
    if folder.free_bytes < LEAST_FREE_BYTES or folder.free_inodes < LEAST_FREE_INODES:
        finding = f"{free}, {folder.free_inodes} inodes"
        return Check(name=name, grade="warn", finding=finding, advice="make room, or set it to another disk")
    return Check(name=name, grade="ok", finding=free)


def check_clock(facts: Facts) -> Check:
    """The clock: times of jobs are shown to clients, and compared across machines."""
    skew = facts.engine.clock_skew_seconds
    if abs(skew) > MOST_SKEW_SECONDS:
        finding = f"the engine's clock is {skew:+.0f} s off this machine's"
        return Check(name="clock", grade="warn", finding=finding, advice="run NTP on both")
    if not facts.machine.clock_synchronised:
        advice = "run chrony or systemd-timesyncd, unless the machine below keeps it"
        return Check(name="clock", grade="warn", finding="nothing keeps this machine's clock right", advice=advice)
    return Check(name="clock", grade="ok", finding="synchronised")


def check_port(config: ServeConfig, facts: Facts) -> Check:
    """The address to listen on."""
    place = f"{config.host}:{config.port}"
    if facts.machine.port_trouble is None:
        return Check(name="port", grade="ok", finding=f"{place} is free")
    if facts.service_answers:
        return Check(name="port", grade="ok", finding=f"a service answers at {place} already")
    return Check(name="port", grade="fail", finding=f"{place}: {facts.machine.port_trouble}", advice="set host or port")


def check_task_roots(facts: Facts) -> Check:
    """The folders of tasks."""
    if facts.machine.missing_task_roots:
        missing = ", ".join(facts.machine.missing_task_roots)
        return Check(
            name="task_roots", grade="fail", finding=f"no folder {missing}", advice="make it, or set task_roots"
        )
    return Check(name="task_roots", grade="ok", finding="all there")


def check_keys(config: ServeConfig) -> Check:
    """The API keys of this environment."""
    try:
        keys = Keys.from_environment(config.keys_file)
        keys.check_host(config.host)
    except ConfigError as error:
        return Check(name="keys", grade="fail", finding=str(error), advice="see openmle-sandbox serve --help")
    if not keys:
        finding, advice = "none: this machine only, and no test scores", "set OPENMLE_SANDBOX_KEYS=submit:KEY,grade:KEY"
        return Check(name="keys", grade="warn", finding=finding, advice=advice)
    return Check(name="keys", grade="ok", finding="read")


def _show(report: Report) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"openmle-sandbox doctor: {report.grade}", title_justify="left")
    for column in ("check", "", "finding", "what to do"):
        table.add_column(column, overflow="fold")
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    for check in report.checks:
        grade = f"[{colours[check.grade]}]{check.grade}"
        table.add_row(check.name, grade, escape(check.finding), escape(check.advice))
    width = None if sys.stderr.isatty() else int(os.environ.get("COLUMNS", "140"))
    Console(stderr=True, width=width).print(table)
