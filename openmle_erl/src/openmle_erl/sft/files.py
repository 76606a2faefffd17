"""Files that are there whole or not at all, and their hashes."""

import hashlib
import os
from pathlib import Path

from openmle_gym.errors import ConfigError, PackageError
from openmle_gym.task import TaskPackage, load_package


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that a reader, or a kill, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file; of a folder, of its files' names and contents."""
    digest = hashlib.sha256()
    if path.is_file():
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    else:
        for each in sorted(found for found in path.rglob("*") if found.is_file()):
            digest.update(f"{each.relative_to(path).as_posix()}\0{sha256_of(each)}\n".encode())
    return digest.hexdigest()


def find_packages(places: list[str], *, setting: str) -> list[TaskPackage]:
    """Loads task packages: folders of packages, or folders that hold some.

    Raises:
        ConfigError: A place holds no package, or two packages have one name.
        PackageError: A package cannot be used.
    """
    packages: dict[str, TaskPackage] = {}
    for place in places:
        root = Path(place)
        roots = (
            [root]
            if (root / "data" / "public").is_dir()
            else sorted(p.parent.parent for p in root.glob("*/data/public"))
        )
        if not roots:
            raise ConfigError(f"{setting}: {place}: no task package there")
        for each in roots:
            package = load_package(each)
            if package.name in packages and packages[package.name].root != package.root:
                raise PackageError(f"{package.root}: named {package.name}, as is {packages[package.name].root}")
            packages[package.name] = package
    return list(packages.values())
