"""A service on a real Ray cluster of several nodes: what is lost with a node, a worker or the service, and what is not."""

import asyncio
import importlib.util
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openmle_gym.errors import PackageError, StoreError
from openmle_gym.isolation.disk import mount_memory, mounts_below, unmount_below
from sandbox.make import SUBMITS_ONES, make_task
from sandbox.service import Service, running_service, until
from sandbox_service.config import ServeConfig
from sandbox_service.dispatch.node import NodeWorker
from sandbox_service.dispatch.shipping import Shipped, describe

from sandbox_service import __version__

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
STORE_BYTES = 80 << 20
REPORTS_ITSELF = "import os; open({pids!r}, 'a').write(str(os.getpid()) + chr(10))\n"


@contextmanager
def ray_cluster(**environment: str) -> Iterator[Any]:
    """A Ray cluster whose head runs no programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # has Ray stay on the loopback interface
        for name, value in environment.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "num_gpus": 0,
                "object_store_memory": STORE_BYTES,
                "node_ip_address": "127.0.0.1",
                "include_dashboard": False,
            },
        )
        yield cluster
        cluster.shutdown()


@pytest.fixture(scope="module")
def head() -> Iterator[Any]:
    with ray_cluster() as cluster:
        yield cluster


class Nodes:
    """Nodes of one test's own, which a custom resource tells from those of others."""

    def __init__(self, cluster: Any, resource: str, count: int) -> None:
        self._cluster = cluster
        self.resource = resource
        self.all = [
            cluster.add_node(
                num_cpus=1,
                num_gpus=0,
                resources={resource: 1},
                object_store_memory=STORE_BYTES,
                node_ip_address=f"127.0.0.{number}",
            )
            for number in range(2, 2 + count)
        ]

    def kill(self, worker_id: str) -> None:
        """Kills the node of a place."""
        node = next(node for node in self.all if node.node_id[:8] in worker_id)
        self.all.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def stop(self) -> None:
        for node in self.all:
            self._cluster.remove_node(node)

    def settings(self, folder: Path) -> list[str]:
        return [
            "dispatch=ray",
            f"ray_address={self._cluster.address}",
            f"ray_resource={self.resource}",
            f"ray_node_dir={folder}/node",
        ]


@pytest.fixture
def nodes(head: Any, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    nodes = Nodes(head, request.node.name, 2)
    yield nodes
    nodes.stop()


def submit(service: Service, code: str, **fields: object) -> str:
    body = {"code": code, "data_dir": "tiny", **fields}
    with service.client() as client:
        return client.post("/api/v1/jobs", json=body).raise_for_status().json()["job_id"]


def view(service: Service, job_id: str, *, wait_seconds: float = 0) -> dict[str, Any]:
    with service.client() as client:
        return client.get(f"/api/v1/jobs/{job_id}", params={"wait": wait_seconds}).raise_for_status().json()


def workers(service: Service) -> list[dict[str, Any]]:
    with service.client() as client:
        return client.get("/api/v1/workers/status").raise_for_status().json()["workers_show"]


def ended(service: Service, job_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while (found := view(service, job_id, wait_seconds=20))["status"] in ("queued", "running"):
        assert time.monotonic() < deadline, found
    return found


def pids(folder: Path) -> list[int]:
    path = folder / "pids"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def held(service: Service) -> str:
    """A program that notes its process id, and submits when the gate is open."""
    return service.held(first=REPORTS_ITSELF.format(pids=str(service.folder / "pids")), last=SUBMITS_ONES)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone, or going while it is read
        return False


def worker_of(pid: int) -> int:
    """The process of the node's worker that started a program."""
    while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::NodeWorker"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1
    return pid


@needs_ray
@pytest.mark.slow
def test_two_nodes_run_two_jobs_at_once_and_the_head_keeps_results_logs_and_files(tmp_path: Path, nodes: Nodes) -> None:
    with running_service(tmp_path, *nodes.settings(tmp_path)) as service:
        until(lambda: len(workers(service)) == 2)
        jobs = [submit(service, held(service)) for _ in range(2)]
        until(lambda: len(pids(tmp_path)) == 2)
        running = [view(service, job) for job in jobs]
        assert {job["status"] for job in running} == {"running"}
        assert len({job["worker_id"] for job in running}) == 2
        with service.client() as client:
            until(lambda: "begun" in client.get(f"/api/v1/jobs/{jobs[0]}/logs").text)
        service.open_gate()
        for job in jobs:
            done = ended(service, job)
            assert done["status"] == "completed", done
            assert done["result"]["validation_score"] == 1.0
            assert "let go" in done["result"]["run_log"]
            with service.client() as client:
                assert client.get(f"/api/v1/jobs/{job}/artifacts/submission.csv").text.startswith("id,target")


@needs_ray
@pytest.mark.slow
def test_the_job_of_a_node_that_dies_runs_once_more_on_another(tmp_path: Path, nodes: Nodes) -> None:
    with running_service(tmp_path, *nodes.settings(tmp_path)) as service:
        until(lambda: len(workers(service)) == 2)
        job = submit(service, held(service))
        until(lambda: len(pids(tmp_path)) == 1)
        lost = view(service, job)["worker_id"]
        nodes.kill(lost)
        until(lambda: len(pids(tmp_path)) == 2)
        again = view(service, job)
        assert again["attempts"] == 2
        assert "lost" in again["error"]
        assert again["worker_id"] != lost
        assert {worker["worker_id"]: worker["status"] for worker in workers(service)}[lost] == "lost"
        until(lambda: not alive(pids(tmp_path)[0]))
        service.open_gate()
        done = ended(service, job)["result"]
        assert done["validation_score"] == 1.0
        assert any("lost" in warning for warning in done["warnings"])
        assert len(pids(tmp_path)) == 2


@needs_ray
@pytest.mark.slow
def test_a_node_that_dies_idle_costs_the_next_job_no_attempt(tmp_path: Path, nodes: Nodes) -> None:
    with running_service(tmp_path, *nodes.settings(tmp_path)) as service:
        until(lambda: len(workers(service)) == 2)
        first = ended(service, submit(service, SUBMITS_ONES))["worker_id"]
        # While the first job had its place, the service took hold of the other one for the next.
        (idle,) = {worker["worker_id"] for worker in workers(service)} - {first}
        nodes.kill(idle)
        until(lambda: {worker["worker_id"]: worker["status"] for worker in workers(service)}[idle] == "lost")
        done = ended(service, submit(service, SUBMITS_ONES))
        assert (done["status"], done["attempts"], done["worker_id"]) == ("completed", 1, first)


@needs_ray
@pytest.mark.slow
def test_a_worker_that_is_killed_takes_its_program_along_and_comes_back(tmp_path: Path, nodes: Nodes) -> None:
    with running_service(tmp_path, *nodes.settings(tmp_path)) as service:
        until(lambda: len(workers(service)) == 2)
        job = submit(service, held(service))
        until(lambda: len(pids(tmp_path)) == 1)
        first = view(service, job)["worker_id"]
        os.kill(worker_of(pids(tmp_path)[0]), signal.SIGKILL)
        until(lambda: len(pids(tmp_path)) == 2)
        until(lambda: not alive(pids(tmp_path)[0]))
        assert view(service, job)["attempts"] == 2
        node = first.partition("/")[0]
        until(lambda: f"{node}.2/cpu-1" in [worker["worker_id"] for worker in workers(service)])
        assert first not in [worker["worker_id"] for worker in workers(service)]
        service.open_gate()
        assert ended(service, job)["result"]["validation_score"] == 1.0


@needs_ray
@pytest.mark.slow
def test_after_kill_9_of_the_service_no_job_is_lost_and_no_program_goes_on(tmp_path: Path, nodes: Nodes) -> None:
    with running_service(tmp_path, *nodes.settings(tmp_path)) as service:
        done = submit(service, SUBMITS_ONES)
        before = ended(service, done)
        job = submit(service, held(service))
        waiting = [submit(service, held(service)) for _ in range(2)]
        until(lambda: len(pids(tmp_path)) == 2)
        service.process.kill()
        service.process.wait()
    first = pids(tmp_path)
    with running_service(tmp_path, *nodes.settings(tmp_path)) as service:
        until(lambda: not any(alive(pid) for pid in first))
        until(lambda: len(pids(tmp_path)) == 4)
        assert view(service, job)["attempts"] == 2
        service.open_gate()
        assert all(ended(service, one)["result"]["validation_score"] == 1.0 for one in (job, *waiting))
        assert view(service, done) == before


@needs_ray
@pytest.mark.slow
def test_when_rays_head_is_killed_the_service_ends_and_the_next_ones_on_both_lose_no_job(tmp_path: Path) -> None:
    # How long Ray's processes wait for a head that is gone; 60 s, if nobody says otherwise.
    with ray_cluster(RAY_gcs_rpc_server_reconnect_timeout_s="20") as first:
        nodes = Nodes(first, "before", 1)
        with running_service(tmp_path, *nodes.settings(tmp_path)) as service:
            done = ended(service, submit(service, SUBMITS_ONES))
            job = submit(service, held(service))
            waiting = submit(service, SUBMITS_ONES)
            until(lambda: len(pids(tmp_path)) == 1)
            first.remove_node(first.head_node, allow_graceful=False)
            assert service.process.wait(timeout=120) != 0
        until(lambda: not alive(pids(tmp_path)[0]))
        nodes.stop()
    with ray_cluster() as second:
        nodes = Nodes(second, "after", 1)
        with running_service(tmp_path, *nodes.settings(tmp_path)) as service:
            until(lambda: len(pids(tmp_path)) == 2)
            assert view(service, job)["attempts"] == 2
            service.open_gate()
            assert [ended(service, one)["result"]["validation_score"] for one in (job, waiting)] == [1.0, 1.0]
            assert view(service, done["job_id"]) == done
        nodes.stop()


@needs_ray
@pytest.mark.slow
def test_a_cancelled_program_is_dead_and_its_place_is_free(tmp_path: Path, nodes: Nodes) -> None:
    with running_service(tmp_path, *nodes.settings(tmp_path)) as service:
        jobs = [submit(service, held(service)) for _ in range(2)]
        until(lambda: len(pids(tmp_path)) == 2)
        with service.client() as client:
            client.delete(f"/api/v1/jobs/{jobs[0]}").raise_for_status()
        until(lambda: sum(alive(pid) for pid in pids(tmp_path)) == 1)
        after = ended(service, submit(service, SUBMITS_ONES))
        assert after["status"] == "completed"
        assert view(service, jobs[1])["status"] == "running"
        service.open_gate()


@needs_ray
@pytest.mark.slow
def test_packages_are_sent_to_nodes_that_do_not_share_the_heads_folders(tmp_path: Path, nodes: Nodes) -> None:
    sees = 'import os; print("sees", os.path.realpath(os.environ["DATA_DIR"]))\n'
    with running_service(tmp_path, *nodes.settings(tmp_path), "ray_ship_packages=true") as service:
        jobs = [submit(service, sees + SUBMITS_ONES) for _ in range(3)]
        assert [ended(service, job)["result"]["validation_score"] for job in jobs] == [1.0] * 3
        [received] = (tmp_path / "node").glob("*/packages/*")
        assert (received / "data" / "public" / "test.csv").is_file()
        assert received.stat().st_ino != (tmp_path / "tasks" / "tiny").stat().st_ino


@needs_ray
@pytest.mark.slow
def test_a_cluster_whose_nodes_can_run_nothing_is_refused(tmp_path: Path, head: Any) -> None:
    with (
        pytest.raises(AssertionError, match="no node offers room for programs"),
        running_service(tmp_path, "dispatch=ray", f"ray_address={head.address}", "ray_resource=nobody_has_this"),
    ):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
async def test_the_next_worker_on_a_machine_clears_what_a_killed_one_left_and_spares_one_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())
    make_task(tmp_path / "tasks" / "tiny")
    config = ServeConfig(
        task_roots=[str(tmp_path / "tasks")], runner="process", allow_process=True, ray_node_dir=str(tmp_path / "node")
    )
    alive, next_one = (
        NodeWorker(config, service_id="service", node_id=name, name=name, cpu_slots=1) for name in ("alive", "next")
    )
    await alive.open(__version__)
    lives = tmp_path / "node" / "service" / "lives"
    for life in ("dead", "alive"):
        run = lives / life / "work" / "openmle-run-x" / "work"
        run.mkdir(parents=True)
        assert mount_memory(run, 1 << 20, user=0, mode=0o711)
    (lives / "dead" / "work" / ".openmle-work").touch()
    await next_one.open(__version__)
    assert mounts_below(lives) == [str(lives / "alive" / "work" / "openmle-run-x" / "work")]
    assert sorted(path.name for path in lives.iterdir() if path.is_dir()) == ["alive", "next"]
    await asyncio.gather(alive.close(), next_one.close())
    unmount_below(lives)


def test_a_package_arrives_as_it_was_and_each_content_crosses_once(tmp_path: Path) -> None:
    root = make_task(tmp_path / "tiny")
    (root / "data" / "public" / "copy.csv").write_bytes((root / "data" / "public" / "test.csv").read_bytes())
    tree = describe(root)
    shipped = Shipped(tmp_path / "node")
    missing = shipped.missing(tree)
    assert len(missing) == len(tree.contents) - 1
    for content in missing:
        data = (root / content.path).read_bytes()
        shipped.receive(content.sha256, 0, data[:5])
        shipped.receive(content.sha256, len(data[:5]), data[5:])
        shipped.keep(content.sha256)
    shipped.assemble(tree)
    assert describe(shipped.packages / tree.digest) == tree
    (root / "data" / "public" / "train.csv").write_text("id,target\n1,1\n")
    changed = describe(root)
    assert changed.digest != tree.digest
    assert [content.path for content in shipped.missing(changed)] == ["data/public/train.csv"]


def test_a_content_that_changed_on_the_way_is_refused(tmp_path: Path) -> None:
    tree = describe(make_task(tmp_path / "tiny"))
    shipped = Shipped(tmp_path / "node")
    shipped.receive(tree.contents[0].sha256, 0, b"something else")
    with pytest.raises(StoreError, match="changed on the way"):
        shipped.keep(tree.contents[0].sha256)
    assert tree.contents[0] in shipped.missing(tree)


def test_a_link_out_of_a_package_is_not_followed(tmp_path: Path) -> None:
    root = make_task(tmp_path / "tiny")
    (root / "data" / "public" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(PackageError, match="leads out"):
        describe(root)
