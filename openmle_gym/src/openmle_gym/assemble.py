"""Makes a whole task package from its parts: runs its prepare.py isolated, and puts it in place all at once."""

import hashlib
import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from openmle_gym.errors import PackageError
from openmle_gym.isolation.runner import INPUTS, PYTHON, Runner, RunSpec
from openmle_gym.jobs import MIB, Limits
from openmle_gym.manifest import MANIFEST_NAME, Manifest, write_manifest
from openmle_gym.task import TaskPackage, load_package

PUBLIC_FILES = ("description.txt", "train.csv", "test.csv", "sample_submission.csv")
PRIVATE_FILE = "test_answer.csv"
OTHERS = "others.zip"
"""Holds the other public files on their way out of the isolation, such as images."""
FILE_BYTES = 256 * MIB
PREPARE_LIMITS = Limits(wall_seconds=300.0, memory_bytes=4096 * MIB)

_DRIVER = f"""\
import shutil
import sys
import zipfile
from pathlib import Path

sys.path.insert(0, ".")
from prepare import prepare

public, private = Path("public"), Path("private")
public.mkdir()
private.mkdir()
prepare(Path(sys.argv[1]), public, private)
for name in {PUBLIC_FILES!r}:
    shutil.copyfile(public / name, name)
shutil.copyfile(private / {PRIVATE_FILE!r}, {PRIVATE_FILE!r})
names = sorted(path.relative_to(public).as_posix() for path in public.rglob("*") if path.is_file())
if others := [name for name in names if name not in {PUBLIC_FILES!r}]:
    with zipfile.ZipFile({OTHERS!r}, "w") as archive:
        for name in others:
            archive.write(public / name, name)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageParts:
    """What a package is made from; the same parts make the same bytes."""

    manifest: Manifest
    """Without file hashes; they are added."""
    raw: Mapping[str, bytes]
    """The files of `raw/`, by plain name."""
    prepare: str
    """The source of `utils/prepare.py`."""
    metric: str
    """The source of `utils/metric.py`."""
    leaderboard: str | None = None
    """`info/leaderboard.csv`."""


async def assemble_package(parts: PackageParts, destination: Path, *, runner: Runner) -> TaskPackage:
    """Builds the package beside its destination and renames it there; replaces a package that is there already.

    Raises:
        PackageError: prepare.py failed, or the destination is something other than a package of ours.
        RunnerUnavailable: The isolation cannot run it.
    """
    building = _begin(destination)
    try:
        for name, content in parts.raw.items():
            _write(building / "raw" / name, content)
        outputs = await run_prepare(parts.prepare, building / "raw", runner=runner)
        for name, content in outputs.items():
            _write(building / "data" / ("private" if name == PRIVATE_FILE else "public") / name, content)
        return _finish(parts, building, destination)
    finally:
        shutil.rmtree(building.parent)


def _begin(destination: Path) -> Path:
    """A folder to build in, alone in a scratch folder on the destination's own disk."""
    destination = destination.resolve()
    if not replaceable(destination):
        raise PackageError(f"{destination}: is there already, and is no package with a {MANIFEST_NAME}")
    destination.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{destination.name}.building-", dir=destination.parent))
    return scratch / destination.name


def _finish(parts: PackageParts, building: Path, destination: Path) -> TaskPackage:
    """Completes and checks the built package, and puts it in place."""
    destination = destination.resolve()
    _write(building / "utils" / "prepare.py", parts.prepare.encode())
    _write(building / "utils" / "metric.py", parts.metric.encode())
    if parts.leaderboard is not None:
        _write(building / "info" / "leaderboard.csv", parts.leaderboard.encode())
    write_manifest(parts.manifest.model_copy(update={"files": hash_files(building)}), building / MANIFEST_NAME)
    load_package(building)
    if destination.exists():
        os.rename(destination, building.parent / "replaced")
    os.rename(building, destination)
    return load_package(destination)


async def run_prepare(source: str, raw: Path, *, runner: Runner) -> dict[str, bytes]:
    """The files that a prepare.py makes from the raw data: the five by plain name, other public ones by relative path.

    Raises:
        PackageError: It failed, did not write one of the five, or wrote others that are too large or lead elsewhere.
        RunnerUnavailable: The isolation cannot run it.
    """
    spec = RunSpec(
        argv=(PYTHON, "run_prepare.py", f"{INPUTS}/raw"),
        files={"run_prepare.py": _DRIVER.encode(), "prepare.py": source.encode()},
        inputs={"raw": raw},
        limits=PREPARE_LIMITS,
        artifacts=dict.fromkeys((*PUBLIC_FILES, PRIVATE_FILE, OTHERS), FILE_BYTES),
        labels={"purpose": "prepare"},
    )
    result = await runner.run(spec)
    if result.exit_code != 0:
        raise PackageError(f"{raw.parent}: prepare.py failed:\n{result.log.text.strip()[-2000:]}")
    outputs = {}
    for name, artifact in result.artifacts.items():
        if name == OTHERS:
            outputs |= _other_files(artifact.content, raw) if artifact.refusal != "missing" else {}
        elif artifact.content is None:
            raise PackageError(f"{raw.parent}: prepare.py left no usable {name}: {artifact.refusal}")
        else:
            outputs[name] = artifact.content
    return outputs


def _other_files(archive: bytes | None, raw: Path) -> dict[str, bytes]:
    """The files of an archive that the isolation gave out; what wrote it is not trusted."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive or b"")) as opened:
            members = opened.infolist()
            if sum(member.file_size for member in members) > FILE_BYTES:
                raise PackageError(f"{raw.parent}: prepare.py left more than {FILE_BYTES} bytes of other public files")
            for member in members:
                path = PurePosixPath(member.filename)
                if path.is_absolute() or ".." in path.parts or path.name in (*PUBLIC_FILES, PRIVATE_FILE):
                    raise PackageError(f"{raw.parent}: prepare.py left a public file {member.filename!r}")
            return {member.filename: opened.read(member) for member in members}
    except zipfile.BadZipFile as error:
        raise PackageError(f"{raw.parent}: prepare.py left no usable {OTHERS}: {error}") from error


def hash_files(root: Path) -> dict[str, str]:
    """SHA-256 of every file below a package's root but its manifest, by relative path."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != MANIFEST_NAME)
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def is_complete(package: TaskPackage) -> bool:
    """Whether every file that the manifest names is there unchanged, and no other is."""
    return package.manifest.files == hash_files(package.root)


def replaceable(destination: Path) -> bool:
    """Whether nothing would be lost there but a package: it is absent, empty, or has a manifest."""
    if not destination.exists():
        return True
    return destination.is_dir() and ((destination / MANIFEST_NAME).is_file() or not any(destination.iterdir()))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
