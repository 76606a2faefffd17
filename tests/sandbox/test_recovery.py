"""After a death of the service: nothing of it is left, and nothing of others is touched."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from openmle_gym.errors import ConfigError, RunnerUnavailable
from openmle_gym.isolation import namespaces
from openmle_gym.isolation.disk import mount_memory, mounts_below
from sandbox_service.recovery import fresh_work_dir, reap_containers, service_id
from scripted_server import Asked, Reply, serving


@pytest.fixture(autouse=True)
def _temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())


def test_a_service_keeps_its_name_on_the_same_state(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert service_id(tmp_path / "a") == service_id(tmp_path / "a") != service_id(tmp_path / "b")


def test_what_an_earlier_life_left_is_removed_whatever_it_is(tmp_path: Path) -> None:
    work = fresh_work_dir(tmp_path / "work")
    assert tempfile.gettempdir() == str(work)
    keep = tmp_path / "keep"
    keep.write_text("kept")
    left = Path(tempfile.mkdtemp(prefix="openmle-run-")) / "work"
    left.mkdir()
    (left / "link").symlink_to(tmp_path)
    (left / "locked").mkdir(mode=0o000)
    (work / "file").touch()
    fresh_work_dir(work)
    assert [path.name for path in work.iterdir()] == [".openmle-work"]
    assert keep.read_text() == "kept"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_what_is_mounted_where_an_earlier_life_worked_is_unmounted_and_not_emptied(tmp_path: Path) -> None:
    work, precious = fresh_work_dir(tmp_path / "work"), tmp_path / "precious"
    memory, shown = work / "openmle-run-x" / "work", work / "openmle-run-x" / "shown"
    for folder in (memory, shown, precious):
        folder.mkdir(parents=True)
    (precious / "thesis.tex").write_text("precious")
    assert mount_memory(memory, 1 << 20, user=0, mode=0o711)
    namespaces.bind(str(precious), str(shown))
    with (memory / "open").open("w"):
        fresh_work_dir(work)
    assert mounts_below(work) == []
    assert [path.name for path in work.iterdir()] == [".openmle-work"]
    assert (precious / "thesis.tex").read_text() == "precious"


def test_a_folder_that_is_not_ours_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        fresh_work_dir(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


@pytest.fixture
def containers() -> Iterator[list[str]]:
    """Ids of containers that exist: one of the service `me-test`, running, one dead, and one of `you-test`."""
    import docker

    client = docker.from_env()
    made = []
    try:
        for service, command in (("me-test", "sleep 600"), ("me-test", "true"), ("you-test", "sleep 600")):
            container = client.containers.create(
                "openmle/sandbox:cpu", entrypoint=command.split(), labels={"openmle.service": service}
            )
            made.append(container)
            container.start()
        made[1].wait()
        yield [container.id for container in made]
    finally:
        for container in client.containers.list(all=True, filters={"label": "openmle.service"}):
            if container in made:
                container.remove(force=True)
        client.close()


@pytest.mark.docker
def test_only_containers_of_the_same_service_are_reaped(containers: list[str]) -> None:
    import docker

    assert reap_containers("me-test") == 2
    assert reap_containers("me-test") == 0
    client = docker.from_env()
    left = {container.id for container in client.containers.list(all=True)}
    client.close()
    assert [container in left for container in containers] == [False, False, True]


def test_an_engine_that_breaks_off_while_containers_are_removed_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docker")

    def answer(asked: Asked) -> Reply:
        if "/containers/one" in asked.path:
            return Reply(500, b"{", {"Content-Length": "100"})  # and no more
        return Reply(200, b'[{"Id": "one"}]' if "/containers/json" in asked.path else b'{"ApiVersion": "1.41"}')

    with serving(answer) as url:
        monkeypatch.setenv("DOCKER_HOST", url.replace("http", "tcp"))
        with pytest.raises(RunnerUnavailable, match="cannot remove the containers of an earlier life"):
            reap_containers("me")
