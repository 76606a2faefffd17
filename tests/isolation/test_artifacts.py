import errno
import os
import socket
import sys
from pathlib import Path

import pytest
from openmle_gym.isolation import artifacts
from openmle_gym.isolation.artifacts import read_artifact
from openmle_gym.isolation.disk import mount_memory, unmount_below
from openmle_gym.isolation.runner import Artifact

NO_SUCH_CALL = 100_000
"""No kernel has a system call of this number."""


@pytest.fixture(autouse=True, params=["at once", "by parts"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test here runs with the kernel's `openat2`, where it has one, and with a kernel that says it has none."""
    if request.param == "by parts":
        monkeypatch.setattr(artifacts, "_OPENAT2", NO_SUCH_CALL)
    return request.param


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    private = tmp_path / "private"
    private.mkdir()
    (private / "answers.csv").write_text("id,target\n1,0\n")
    return private / "answers.csv"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def refusal(root: Path, name: str, max_bytes: int = 1000) -> str | None:
    artifact = read_artifact(root, name, max_bytes)
    assert artifact.content is None
    return artifact.refusal


def test_a_regular_file_is_read_whole(out: Path):
    (out / "submission.csv").write_bytes(b"id,target\n1,\xff\n")
    assert read_artifact(out, "submission.csv", 1000) == Artifact(content=b"id,target\n1,\xff\n")


def test_a_file_below_is_read_by_its_relative_path(out: Path):
    (out / "a" / "b").mkdir(parents=True)
    (out / "a" / "b" / "c.csv").write_bytes(b"x")
    assert read_artifact(out, "a/b/c.csv", 1).content == b"x"


def test_a_file_of_exactly_the_limit_is_read_and_one_byte_more_is_refused(out: Path):
    (out / "full").write_bytes(b"12345")
    assert read_artifact(out, "full", 5).content == b"12345"
    assert refusal(out, "full", 4) == "too_large"


def test_an_empty_file_is_empty_and_not_missing(out: Path):
    (out / "empty").touch()
    assert read_artifact(out, "empty", 0) == Artifact(content=b"")


def test_a_sparse_file_is_refused_before_a_byte_is_read(out: Path):
    with (out / "sparse").open("wb") as file:
        file.truncate(10 * 1024**3)
    assert refusal(out, "sparse") == "too_large"


@pytest.mark.parametrize(
    "target", ["../private/answers.csv", "/proc/self/environ", "/etc/passwd", "submission.csv", "nowhere", "/dev/zero"]
)
def test_a_link_is_never_followed(out: Path, secret: Path, target: str):
    (out / "submission.csv").symlink_to(target)
    assert refusal(out, "submission.csv") == "not_regular"


def test_a_link_by_absolute_path_is_never_followed(out: Path, secret: Path):
    (out / "submission.csv").symlink_to(secret)
    assert refusal(out, "submission.csv") == "not_regular"


def test_a_folder_that_is_a_link_is_never_entered(out: Path, secret: Path):
    (out / "sub").symlink_to(secret.parent)
    assert refusal(out, "sub/answers.csv") == "not_regular"


def test_a_root_that_became_a_link_is_refused(tmp_path: Path, secret: Path):
    (tmp_path / "root").symlink_to(secret.parent)
    assert refusal(tmp_path / "root", "answers.csv") == "not_regular"


def test_a_fifo_is_refused_without_waiting_for_a_writer(out: Path):
    os.mkfifo(out / "submission.csv")
    assert refusal(out, "submission.csv") == "not_regular"


def test_a_socket_is_refused(out: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(out)  # a socket's path may not be long
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("submission.csv")
        assert refusal(out, "submission.csv") == "not_regular"


def test_a_folder_is_refused(out: Path):
    (out / "submission.csv").mkdir()
    assert refusal(out, "submission.csv") == "not_regular"


def test_a_hard_link_is_refused(out: Path, secret: Path):
    os.link(secret, out / "submission.csv")
    assert refusal(out, "submission.csv") == "hard_link"


def test_what_is_not_there_is_missing(out: Path, tmp_path: Path):
    assert refusal(out, "submission.csv") == "missing"
    assert refusal(tmp_path / "no_such_root", "submission.csv") == "missing"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../private/answers.csv", "/etc/passwd", "a//b", "a/../../private/answers.csv", "a\0b", "\ud800"],
)
def test_a_name_that_no_file_below_can_have_is_missing(out: Path, secret: Path, name: str):
    (out / "a").mkdir()
    assert refusal(out, name) == "missing"


def test_no_descriptor_stays_open(out: Path, secret: Path):
    (out / "good").write_bytes(b"x")
    (out / "bad").symlink_to(secret)
    before = len(os.listdir("/proc/self/fd"))
    for name in ("good", "bad", "missing", "good/below"):
        read_artifact(out, name, 10)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root on Linux can mount")
def test_a_file_on_a_file_system_that_was_mounted_below_is_refused(out: Path):
    (out / "mounted").mkdir()
    mount_memory(out / "mounted", 1 << 20, user=0, mode=0o755)
    try:
        (out / "mounted" / "file").write_bytes(b"x")
        assert refusal(out, "mounted/file") == "unreadable"
    finally:
        unmount_below(out)


@pytest.mark.skipif(sys.platform != "linux", reason="openat2 is Linux's")
def test_a_kernel_without_the_call_says_so(out: Path, monkeypatch: pytest.MonkeyPatch):
    (out / "file").touch()
    folder = os.open(out, os.O_RDONLY)
    monkeypatch.setattr(artifacts, "_OPENAT2", NO_SUCH_CALL)
    try:
        with pytest.raises(OSError, match="file") as refused:
            artifacts._open_at_once(folder, "file")
    finally:
        os.close(folder)
    assert refused.value.errno in (errno.ENOSYS, errno.EPERM)
