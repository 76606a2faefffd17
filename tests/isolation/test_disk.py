"""How much a folder may hold, where nobody but we can tell."""

import asyncio
import os
from pathlib import Path

import pytest
from openmle_gym.isolation.disk import is_over, mount_memory, mounts_below, unmount_below, until_over


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two folders and two files of 8192 bytes, one of them in the inner folder."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "x").write_bytes(bytes(8192))
    (tmp_path / "a" / "b" / "y").write_bytes(bytes(8192))
    return tmp_path


def test_files_and_folders_at_every_depth_count(folder: Path):
    assert is_over(folder, 1 << 30, 3)
    assert not is_over(folder, 1 << 30, 4)


def test_bytes_at_every_depth_count(folder: Path):
    folders = sum((folder / name).stat().st_blocks * 512 for name in ("a", "a/b"))
    assert is_over(folder, 2 * 8192 + folders - 1, 100)
    assert not is_over(folder, 2 * 8192 + folders, 100)


def test_a_hole_takes_no_room_and_a_link_is_not_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "big").write_bytes(bytes(1 << 20))
    (folder / "link").symlink_to(elsewhere)
    with open(folder / "hole", "wb") as file:
        file.truncate(1 << 30)
    assert not is_over(folder, 1 << 19, 100)


def test_a_folder_that_is_gone_holds_nothing(tmp_path: Path):
    assert not is_over(tmp_path / "gone", 0, 0)


async def test_the_watch_ends_when_the_folder_has_grown_over_its_limit(folder: Path):
    watch = asyncio.create_task(until_over(folder, 1 << 20))
    done, _ = await asyncio.wait({watch}, timeout=0.5)
    assert not done
    (folder / "z").write_bytes(bytes(1 << 20))
    await asyncio.wait_for(watch, timeout=60)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_what_is_mounted_in_a_folder_is_unmounted_though_it_is_in_use(tmp_path: Path):
    outer = tmp_path / "with blank"
    (outer / "in use").mkdir(parents=True)
    (tmp_path / "with blank beside").mkdir()
    for place in (outer / "in use", tmp_path / "with blank beside"):
        assert mount_memory(place, 1 << 20, user=7, mode=0o711)
    facts = (outer / "in use").stat()
    assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o7777) == (7, 7, 0o711)
    with open(outer / "in use" / "file", "w"):
        unmount_below(outer)
        assert mounts_below(tmp_path) == [str(tmp_path / "with blank beside")]
    unmount_below(tmp_path)
    assert mounts_below(tmp_path) == []
