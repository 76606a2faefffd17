"""The tasks that ship with OpenMLE: small, real, and built on the spot from data that installed packages carry.

Each is a folder here; `definition` says what is in one. Learning experiments train on `TRAIN_TASKS` and measure on
`HELD_OUT_TASKS`, which have no data set in common.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from openmle_gym.anchors.definition import Anchor, load_anchors
from openmle_gym.anchors.raw import export_raw
from openmle_gym.assemble import PackageParts, assemble_package, is_complete
from openmle_gym.errors import PackageError
from openmle_gym.isolation.runner import Runner
from openmle_gym.task import TaskPackage, load_package

ANCHORS: Mapping[str, Anchor] = load_anchors()
TRAIN_TASKS = tuple(anchor.name for anchor in ANCHORS.values() if anchor.side == "train")
HELD_OUT_TASKS = tuple(anchor.name for anchor in ANCHORS.values() if anchor.side == "held_out")


async def build_anchor(name: str, destination: Path, *, runner: Runner, force: bool = False) -> TaskPackage:
    """Builds an anchor's task package, or takes the one that is there when it is whole and of this version.

    Args:
        destination: The package's own folder.
        runner: What runs the package's prepare.py.
        force: Build anew even where a whole package is there.

    Raises:
        PackageError: There is no such anchor; the extra `tasks` is not installed; the library's data are not those
            that the anchor was made for; prepare.py failed; or the destination holds something else.
        RunnerUnavailable: The isolation cannot run prepare.py.
    """
    if name not in ANCHORS:
        raise PackageError(f"no anchor {name!r}; there are {', '.join(ANCHORS)}")
    anchor = ANCHORS[name]
    if not force and (package := _present(anchor, destination)):
        return package
    raw = export_raw(anchor.data, anchor.folder)
    for file, content in raw.items():
        digest = hashlib.sha256(content).hexdigest()
        if digest != anchor.raw_sha256.get(file):
            raise PackageError(
                f"anchor {name}: the installed library carries other data ({file} has SHA-256 {digest}) than the anchor "
                f"was made for ({anchor.raw_sha256.get(file)}), so its leaderboard would not hold"
            )
    return await assemble_package(_parts(anchor, raw), destination, runner=runner)


def _parts(anchor: Anchor, raw: Mapping[str, bytes]) -> PackageParts:
    return PackageParts(
        manifest=anchor.manifest(),
        raw=raw,
        prepare=anchor.prepare(),
        metric=anchor.metric_module(),
        leaderboard=anchor.file("leaderboard.csv"),
    )


def _present(anchor: Anchor, destination: Path) -> TaskPackage | None:
    """The package at the destination, when it is this anchor, whole, and made from the files that we would use now."""
    try:
        package = load_package(destination)
    except PackageError:
        return None  # there is none, or a part of one
    same = package.manifest.model_copy(update={"files": {}}) == anchor.manifest()
    current = {
        "utils/prepare.py": anchor.prepare(),
        "utils/metric.py": anchor.metric_module(),
        "info/leaderboard.csv": anchor.file("leaderboard.csv"),
    }
    whole = same and is_complete(package)
    fresh = whole and all((package.root / name).read_text(encoding="utf-8") == text for name, text in current.items())
    return package if fresh else None
