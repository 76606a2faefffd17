"""After a death of the service: what it left on this machine, and which of it is ours.

Programs of a dead service are never re-adopted. Their jobs are requeued once (`JobStore.recover_running`), so whatever
still runs is killed: containers by label; everything else dies with the service, by the kernel's hand or because its
supervisor's pipe closes. Then the folders of the runs are removed. A container of another service is left alone.
"""

import contextlib
import logging
import secrets
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openmle_gym.errors import ConfigError, RunnerUnavailable
from openmle_gym.isolation.disk import unmount_below
from openmle_gym.isolation.workspace import remove_tree

from sandbox_service.dispatch.local import SERVICE_LABEL

REMOVALS_AT_ONCE = 8
PATIENCE_SECONDS = 5.0
"""How long programs may take to die that hold on to a folder."""

logger = logging.getLogger(__name__)


def service_id(state_dir: Path) -> str:
    """What names the service on `state_dir` on all that it starts, in this life and the next."""
    path = state_dir / "service_id"
    if not path.exists():
        part = path.with_suffix(".part")
        part.write_text(secrets.token_hex(8))
        part.replace(path)
    return path.read_text().strip()


def reap_containers(service: str) -> int:
    """Removes the containers of a service, running or not; returns how many. Blocks.

    Raises:
        RunnerUnavailable: The engine does not answer.
    """
    import docker
    from docker.errors import DockerException, NotFound
    from requests.exceptions import RequestException

    def remove(name: str) -> None:
        with contextlib.suppress(NotFound):
            client.api.remove_container(name, force=True, v=True)

    try:
        client = docker.from_env(timeout=60, max_pool_size=REMOVALS_AT_ONCE)
        with contextlib.closing(client), ThreadPoolExecutor(REMOVALS_AT_ONCE) as threads:
            found = client.api.containers(all=True, filters={"label": f"{SERVICE_LABEL}={service}"})
            list(threads.map(remove, [container["Id"] for container in found]))
    except (DockerException, RequestException) as error:
        raise RunnerUnavailable(f"docker: cannot remove the containers of an earlier life: {error}") from error
    return len(found)


def fresh_work_dir(named: Path | str) -> Path:
    """Makes the folder, or empties it of what an earlier life left, and has this process make its temporary files there.

    Raises:
        ConfigError: It holds something that is not ours, or cannot be made.
    """
    folder = Path(named).resolve()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = folder / ".openmle-work"
        left = [path for path in folder.iterdir() if path != mark]
        if left and not mark.exists():
            raise ConfigError(
                f"work_dir={folder}: holds {left[0].name}, which is not of this service; name another folder"
            )
        mark.touch()
        unmount_below(folder)  # before anything is removed: what is mounted may not be ours
        for path in left:
            _remove(path)
    except OSError as error:
        raise ConfigError(f"work_dir={folder}: {error}") from error
    tempfile.tempdir = str(folder)
    return folder


def _remove(path: Path) -> None:
    """Programs that are about to die may still be writing there."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
            else:
                path.unlink()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                logger.warning("cannot remove %s, which an earlier life left: %s", path, error)
                return
            time.sleep(0.05)
