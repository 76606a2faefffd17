"""What the doctor says of a machine, on facts that the test gives; and its probes, on the machine that is there."""

import dataclasses
import json
import socket
from pathlib import Path

import pytest
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.isolation.runner import Isolation
from openmle_gym.jobs import MIB
from sandbox_service.config import ServeConfig
from sandbox_service.doctor import Check, Report, check_keys, examine, tell
from sandbox_service.doctor_probe import (
    EngineFacts,
    Facts,
    Folder,
    GpuFacts,
    MachineFacts,
    RunnerFacts,
    engine_time,
    filesystem_of,
    probe,
    run_smoke,
)
from sandbox_service.gpu import Gpu

GIB = 1024 * MIB
FOLDER = Folder(path="/srv", filesystem="ext4", writable=True, free_bytes=90 * GIB, free_inodes=10**6)
HEALTHY = Facts(
    engine=EngineFacts(version="28.1", cgroup_version="2", runtimes=("runc", "runsc"), image="sha256:0123456789abcdef"),
    runners=tuple(RunnerFacts(name=name, smoke_seconds=0.4) for name in ("docker", "zygote", "bubblewrap")),
    gpu=GpuFacts(trouble="GPUs: no NVIDIA driver answers"),
    machine=MachineFacts(
        kernel="6.12",
        user_namespaces=None,
        root=False,
        state_dir=FOLDER,
        work_dir=FOLDER,
        clock_synchronised=True,
        port_trouble=None,
        memory_bytes=64 * GIB,
        dmem=False,
        missing_task_roots=(),
    ),
    service_answers=False,
)
KEYS = Check(name="keys", grade="ok", finding="read")
CARD = Gpu(uuid="GPU-a", name="large", total_bytes=24 * GIB)
SMALL = Gpu(uuid="GPU-b", name="small", total_bytes=8 * GIB)
PARTITION = Gpu(uuid="MIG-c", name="part", total_bytes=10 * GIB)


def config(**settings: object) -> ServeConfig:
    return dataclasses.replace(ServeConfig(workers=2), **settings)  # pyright: ignore[reportArgumentType]


def with_machine(**changes: object) -> Facts:
    machine = dataclasses.replace(HEALTHY.machine, **changes)  # pyright: ignore[reportArgumentType]
    return dataclasses.replace(HEALTHY, machine=machine)


def with_engine(**changes: object) -> Facts:
    engine = dataclasses.replace(HEALTHY.engine, **changes)  # pyright: ignore[reportArgumentType]
    return dataclasses.replace(HEALTHY, engine=engine)


def with_runners(**troubles: str | None) -> Facts:
    runners = tuple(RunnerFacts(name=name, trouble=trouble) for name, trouble in troubles.items())
    return dataclasses.replace(HEALTHY, runners=runners)


def with_gpu(*gpus: Gpu, **facts: str) -> Facts:
    return dataclasses.replace(HEALTHY, gpu=GpuFacts(driver="615.71", gpus=gpus, **facts))


def check(name: str, facts: Facts, settings: ServeConfig | None = None) -> Check:
    report = examine(settings or config(), facts, KEYS)
    return next(check for check in report.checks if check.name == name)


def test_a_healthy_machine_is_ok_in_everything() -> None:
    report = examine(config(), HEALTHY, KEYS)
    assert {check.grade for check in report.checks} == {"ok"}
    assert report.grade == "ok"
    assert not any(check.advice for check in report.checks)
    names = [check.name for check in report.checks]
    assert len(set(names)) == len(names)


def test_the_worst_finding_is_the_reports() -> None:
    assert examine(config(), with_machine(clock_synchronised=False), KEYS).grade == "warn"
    facts = with_machine(clock_synchronised=False, port_trouble="Address already in use")
    assert examine(config(), facts, KEYS).grade == "fail"


def test_everything_that_is_not_ok_says_what_to_do() -> None:
    broken = Facts(
        engine=EngineFacts(trouble="no socket"),
        runners=(RunnerFacts(name="docker", trouble="down"), RunnerFacts(name="bubblewrap", open_calls=("ptrace",))),
        gpu=GpuFacts(driver="1", gpus=(SMALL,), engine_trouble="no toolkit"),
        machine=dataclasses.replace(
            HEALTHY.machine,
            user_namespaces="Operation not permitted",
            state_dir=dataclasses.replace(FOLDER, filesystem="nfs4"),
            work_dir=dataclasses.replace(FOLDER, writable=False),
            clock_synchronised=False,
            port_trouble="Address already in use",
            memory_bytes=GIB,
            missing_task_roots=("tasks",),
        ),
        service_answers=False,
    )
    report = examine(config(gpus="all"), broken, KEYS)
    bad = [check for check in report.checks if check.grade != "ok"]
    assert len(bad) >= 11
    assert all(check.advice for check in bad), [check.name for check in bad if not check.advice]


@pytest.mark.parametrize(
    ("settings", "grade"),
    [({}, "warn"), ({"runner": "docker"}, "fail"), ({"docker_runtime": "runsc"}, "fail"), ({"gpus": "all"}, "fail")],
)
def test_a_missing_engine_is_as_bad_as_the_settings_need_it(settings: dict[str, str], grade: str) -> None:
    assert check("engine", with_engine(trouble="no socket"), config(**settings)).grade == grade


def test_a_missing_image_names_the_command_that_builds_it() -> None:
    found = check("image", with_engine(image=None), config(docker_image="mine:1", runner="docker"))
    assert (found.grade, found.advice) == ("fail", "openmle-sandbox image build tag=mine:1")


def test_a_runtime_has_to_be_among_the_engines() -> None:
    assert check("runtime", HEALTHY, config(docker_runtime="runsc")).grade == "ok"
    found = check("runtime", HEALTHY, config(docker_runtime="kata"))
    assert (found.grade, found.finding) == ("fail", "no kata, but runc, runsc")


def test_the_first_isolation_that_works_is_named_and_a_forced_one_is_never_replaced() -> None:
    facts = with_runners(docker="down", zygote=None, bubblewrap=None)
    assert check("isolation", facts).finding == "programs will be held by zygote"
    assert check("docker", facts).grade == "warn"
    assert check("isolation", facts, config(runner="docker")).grade == "fail"
    assert check("docker", facts, config(runner="docker")).grade == "fail"


def test_without_any_isolation_only_consent_helps() -> None:
    facts = with_runners(docker="down", bubblewrap="no bwrap")
    assert check("isolation", facts).grade == "fail"
    assert check("isolation", facts, config(allow_process=True)).grade == "warn"


@pytest.mark.parametrize(
    "runner", [RunnerFacts(name="docker", open_calls=("AF_VSOCK",)), RunnerFacts(name="docker", user=0)]
)
def test_a_sandbox_that_leaves_a_risky_call_open_or_runs_as_root_fails(runner: RunnerFacts) -> None:
    facts = dataclasses.replace(HEALTHY, runners=(runner,))
    assert check("seccomp docker", facts).grade == "fail"


def test_a_slow_start_is_told() -> None:
    facts = dataclasses.replace(HEALTHY, runners=(RunnerFacts(name="docker", smoke_seconds=10.5),))
    assert check("docker", facts).grade == "warn"


def test_user_namespaces_matter_to_users_only() -> None:
    refused = with_machine(user_namespaces="Operation not permitted")
    assert check("user namespaces", refused).grade == "warn"
    assert check("user namespaces", with_machine(user_namespaces="Operation not permitted", root=True)).grade == "ok"


def test_gpus_fail_only_where_they_are_to_be_handed_out() -> None:
    assert check("gpus", HEALTHY).grade == "ok"
    assert check("gpus", HEALTHY, config(gpus="all")).grade == "fail"
    assert "gpus=all" in check("gpus", with_gpu(CARD)).advice
    assert check("gpus", with_gpu(CARD), config(gpus="all")).grade == "ok"
    assert check("gpus", with_gpu(), config(gpus="all")).grade == "fail"
    assert check("gpus", with_gpu(CARD, engine_trouble="no toolkit"), config(gpus="all")).grade == "fail"


def test_what_holds_the_gpu_memory_is_told_truthfully() -> None:
    handed_out = config(gpus="all")
    assert "by watchdog" in check("gpu memory", with_gpu(CARD), handed_out).finding
    assert "by mig" in check("gpu memory", with_gpu(PARTITION), handed_out).finding
    assert check("gpu memory", with_gpu(PARTITION), handed_out).grade == "ok"
    assert "by watchdog" in check("gpu memory", with_gpu(PARTITION, CARD), handed_out).finding
    small = check("gpu memory", with_gpu(CARD, SMALL), handed_out)
    assert (small.grade, "less on GPU-b" in small.finding) == ("warn", True)


def test_programs_that_do_not_fit_the_memory_together_are_told() -> None:
    fits, too_much = with_machine(memory_bytes=10 * GIB), with_machine(memory_bytes=4 * GIB)
    assert check("memory", fits, config(memory_mib=4096)).grade == "ok"
    found = check("memory", too_much, config(memory_mib=2048))
    assert (found.grade, found.finding) == ("warn", "2 programs of 2048 MiB, and the machine has 4096 MiB")


@pytest.mark.parametrize("filesystem", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_the_database_cannot_lie_on_the_network_but_files_of_programs_can(filesystem: str) -> None:
    networked = dataclasses.replace(FOLDER, filesystem=filesystem)
    assert check("state_dir", with_machine(state_dir=networked)).grade == "fail"
    assert check("work_dir", with_machine(work_dir=networked)).grade == "ok"


@pytest.mark.parametrize("change", [{"free_bytes": 2047 * MIB}, {"free_inodes": 99_999}])
def test_a_disk_that_is_nearly_full_is_told(change: dict[str, int]) -> None:
    assert check("state_dir", with_machine(state_dir=dataclasses.replace(FOLDER, **change))).grade == "warn"


def test_clocks_that_differ_are_told() -> None:
    assert (
        check("clock", with_engine(clock_skew_seconds=-6.0)).finding == "the engine's clock is -6 s off this machine's"
    )
    assert check("clock", with_engine(clock_skew_seconds=4.0)).grade == "ok"


def test_a_taken_port_fails_unless_it_is_ours() -> None:
    taken = with_machine(port_trouble="Address already in use")
    assert check("port", taken).grade == "fail"
    assert check("port", dataclasses.replace(taken, service_answers=True)).grade == "ok"


def test_keys_are_judged_as_the_service_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENMLE_SANDBOX_KEYS_FILE", raising=False)
    monkeypatch.delenv("OPENMLE_SANDBOX_KEYS", raising=False)
    assert check_keys(config()).grade == "warn"
    assert check_keys(config(host="0.0.0.0")).grade == "fail"
    monkeypatch.setenv("OPENMLE_SANDBOX_KEYS", "submit:abc-secret,grade:def-secret")
    assert check_keys(config(host="0.0.0.0")).grade == "ok"
    monkeypatch.setenv("OPENMLE_SANDBOX_KEYS", "nonsense-secret")
    found = check_keys(config())
    assert found.grade == "fail"
    assert "secret" not in found.finding


def test_the_file_system_is_that_of_the_nearest_mount() -> None:
    mounts = [
        "1 0 0:1 / / rw,relatime shared:1 - overlay overlay rw",
        "2 1 0:2 / /srv rw - ext4 /dev/sda1 rw",
        "3 2 0:3 / /srv/data rw master:1 propagate_from:2 - nfs4 host:/x rw",
        "4 1 0:4 / /srv2 rw - xfs /dev/sdb rw",
        "5 1 0:5 / /srv rw - btrfs /dev/sdc rw",
    ]
    where = {path: filesystem_of(path, mounts) for path in ("/", "/home/x", "/srv", "/srv/a", "/srv/data/a", "/srv2")}
    assert where == {
        "/": "overlay", "/home/x": "overlay", "/srv": "btrfs", "/srv/a": "btrfs", "/srv/data/a": "nfs4", "/srv2": "xfs",
    }  # fmt: skip


def test_the_engines_time_is_read_with_its_zone() -> None:
    assert engine_time("1970-01-01T00:00:10.123456789Z") == 10.0
    assert engine_time("1970-01-01T02:00:10.123456789+02:00") == 10.0
    assert engine_time("1970-01-01T00:00:10Z") == 10.0


async def test_the_smoke_program_sees_what_an_open_sandbox_leaves_open() -> None:
    found = await run_smoke(ProcessRunner(allow_no_isolation=True))
    assert found.trouble is None
    assert {"ptrace", "AF_NETLINK"} <= set(found.open_calls)


async def test_the_probes_look_at_this_machine(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = config(
            task_roots=[str(tmp_path), str(tmp_path / "absent")],
            state_dir=str(tmp_path / "state"),
            port=taken.getsockname()[1],
            docker_image="openmle/there-is-no-such-image:ever",
        )
        facts = await probe(settings)
    assert facts.machine.missing_task_roots == (str(tmp_path / "absent"),)
    assert "Address already in use" in (facts.machine.port_trouble or "")
    assert not facts.service_answers
    assert facts.machine.state_dir.path == str(tmp_path)
    assert facts.machine.state_dir.writable
    assert facts.machine.state_dir.filesystem != "unknown"
    assert facts.engine.image is None
    assert [runner.name for runner in facts.runners] == [Isolation.DOCKER, Isolation.ZYGOTE, Isolation.BUBBLEWRAP]
    assert facts.runners[0].trouble is not None
    assert not any(runner.open_calls for runner in facts.runners)
    assert abs(facts.engine.clock_skew_seconds) < 3600
    assert not (tmp_path / "state").exists()


def test_the_table_goes_to_stderr_whole_and_the_json_to_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    facts = dataclasses.replace(HEALTHY, gpu=GpuFacts(trouble="install it[gpu]"))
    assert tell(examine(config(), facts, KEYS)) == 0
    said = capsys.readouterr()
    assert Report.model_validate(json.loads(said.out)).checks[0].name == "engine"
    assert "install it[gpu]" in said.err
    assert tell(examine(config(gpus="all"), facts, KEYS)) == 1
