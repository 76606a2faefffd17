"""The settings of the service and its command line."""

import dataclasses
import os
from pathlib import Path

import pytest
from openmle_gym.configuration import field_docs, load_config
from openmle_gym.errors import ConfigError
from openmle_gym.jobs import MIB, Limits
from sandbox_service.__main__ import CONFIGS, main
from sandbox_service.config import ServeConfig
from sandbox_service.records import QueuePolicy


def load(*overrides: str) -> ServeConfig:
    return load_config(ServeConfig, "serve", configs=CONFIGS, overrides=overrides)


def test_settings_come_from_the_dataclass_and_the_command_line() -> None:
    assert load() == ServeConfig()
    config = load(
        "port=0", "task_roots=[a,/b]", "workers=3", "runner=process", "allow_process=true", "max_body_mib=0.5"
    )
    assert (config.port, config.task_roots, config.workers, config.max_body_mib) == (0, ["a", "/b"], 3, 0.5)


@pytest.mark.parametrize(
    "override",
    [
        "prot=1", "port=70000", "port=x", "task_roots=[]", "runner=chroot", "runner=process", "workers=-1", "cpus=0",
        "memory_mib=0", "max_timeout_seconds=-1", "max_timeout_seconds=.inf", "max_body_mib=0", "max_attempts=0",
        "max_queued=0", "log_kib=1", "output_mib=0", "processes=0", "disk_mib=0", "vram_mib=0", "drain_seconds=-1", "keep_days=0",
        "max_running_per_key=-1", "max_queued_per_key=-1", "max_queue_seconds=-1", "aging_seconds=.nan",
        "artifact_mib=-1", "max_artifacts_mib=-1", "docker_starts=-1", "tls_certificate=/missing", "tls_key=/missing",
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(override: str) -> None:
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        load(override)


def test_every_setting_has_a_default_and_a_doc() -> None:
    docs = field_docs(ServeConfig)
    assert all(docs[field.name] for field in dataclasses.fields(ServeConfig))


def test_limits_are_what_the_settings_say() -> None:
    config = ServeConfig(
        max_timeout_seconds=5, memory_mib=7, cpus=2, processes=9, disk_mib=11, log_kib=13, output_mib=17
    )
    assert config.limits() == Limits(
        wall_seconds=5,
        memory_bytes=7 * MIB,
        cpus=2,
        processes=9,
        disk_bytes=11 * MIB,
        log_bytes=13 * 1024,
        output_bytes=17 * MIB,
    )


def test_without_a_number_there_are_as_many_workers_as_programs_fit_the_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert ServeConfig(workers=7).worker_count() == 7
    assert ServeConfig().worker_count() == cores
    assert ServeConfig(cpus=cores).worker_count() == 1
    assert ServeConfig(cpus=cores + 1).worker_count() == 1
    assert ServeConfig(cpus=0.5).worker_count() == 2 * cores


@pytest.mark.parametrize(("arguments", "says"), [(["serve", "--help"], "max_queued=100000"), (["--version"], "0.1.0")])
def test_help_lists_every_setting_and_version_the_version(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert says in shown
    assert arguments == ["--version"] or all(f"{field.name}=" in shown for field in dataclasses.fields(ServeConfig))


def test_a_container_runtime_needs_docker() -> None:
    assert load("docker_runtime=runsc", "runner=docker").docker_runtime == "runsc"
    with pytest.raises(ConfigError, match="docker_runtime=runsc"):
        load("docker_runtime=runsc", "runner=bubblewrap")


def test_the_queues_policy_is_what_the_settings_say() -> None:
    settings = (
        "max_queued=1",
        "max_queued_per_key=2",
        "max_running_per_key=3",
        "max_queue_seconds=4",
        "aging_seconds=5",
    )
    assert load(*settings, "max_attempts=6").policy() == QueuePolicy(
        max_queued=1,
        max_queued_per_key=2,
        max_running_per_key=3,
        queue_seconds=4.0,
        aging_seconds=5.0,
        max_attempts=6,
    )


def test_a_wrong_setting_ends_the_command_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "prot=1"]) == 2
    assert "prot" in capsys.readouterr().err


def test_a_public_address_without_keys_ends_the_command_with_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENMLE_SANDBOX_KEYS", raising=False)
    assert main(["serve", "host=0.0.0.0", f"task_roots=[{tmp_path}]", f"state_dir={tmp_path}/state"]) == 2
    assert "host=0.0.0.0" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
