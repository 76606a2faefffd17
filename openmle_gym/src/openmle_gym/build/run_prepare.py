"""Runs a prepare.py isolated and brings what it made back, or says how it failed in words that help to mend it."""

import errno
import re
import shutil
from pathlib import Path

from pydantic import ValidationError

from openmle_gym.build.state import changed_files, fresh, shortened, tree_hashes
from openmle_gym.build.unpack import UnpackLimits, unpack
from openmle_gym.contracts import Contract, ForeignContract
from openmle_gym.errors import PackageError
from openmle_gym.isolation.runner import INPUTS, PYTHON, Runner, RunResult, RunSpec
from openmle_gym.jobs import MIB, Limits

CHILD = Path(__file__).with_name("prepare_child.py")
_TAIL_CHARACTERS = 4000
_LISTED = 40
_READ_ONLY = f"OSError: [Errno {errno.EROFS}]"  # where the isolation keeps a program from writing at all
_RUN_FOLDER = re.compile(r"/[^\s'\"]*?openmle-run-\w+/(?:work/|inputs/)?")


class PrepareSettings(Contract):
    """What a prepare.py may use."""

    limits: Limits = Limits(wall_seconds=900.0, memory_bytes=8192 * MIB, disk_bytes=16384 * MIB)
    output_bytes: int = 4096 * MIB
    """The most that it may make."""


class _Report(ForeignContract):
    raw_changed: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


class Made(Contract):
    """What came of one run."""

    hashes: dict[str, str]
    """Of every file, `public/...` and `private/...`; empty after a failure."""
    code: str = ""
    """Why it failed, in one word; else empty."""
    feedback: str = ""


async def run_prepare(
    source: str, raw: Path, target: Path, *, runner: Runner, settings: PrepareSettings, hash_seed: int
) -> Made:
    """Runs it once; `target` then holds `public` and `private`.

    Args:
        hash_seed: Of Python's own hashes, which order sets: another one for another run shows what depends on it.

    Raises:
        RunnerUnavailable: It could not be started.
        PackageError: The raw data on this machine changed meanwhile.
    """
    before = tree_hashes(raw)
    result = await runner.run(
        RunSpec(
            argv=(
                PYTHON,
                "-B",
                "prepare_child.py",
                f"{INPUTS}/raw",
            ),  # an interpreter of its own, so that the seed holds
            files={"prepare_child.py": CHILD.read_bytes(), "prepare.py": source.encode("utf-8", "surrogatepass")},
            inputs={"raw": raw},
            environment={"PYTHONHASHSEED": str(hash_seed)},
            limits=settings.limits,
            artifacts={"report.json": MIB, "made.tar": settings.output_bytes},
            labels={"purpose": "prepare"},
        )
    )
    if changed := changed_files(before, tree_hashes(raw)):
        raise PackageError(f"{raw}: changed while prepare.py ran: {shortened(changed)}")
    fresh(target)
    if result.exit_code != 0:
        code, why = _how_it_ended(result, settings.limits)
        return Made(hashes={}, code=code, feedback=f"{why}\n\n{output_tail(result)}\n\n{_files_of(raw)}")
    try:
        report = _Report.model_validate_json(result.artifacts["report.json"].content or b"")
    except ValidationError:
        return Made(hashes={}, code="no_report", feedback=f"It ended before it was done.\n\n{output_tail(result)}")
    if trouble := _trespass(report):
        return trouble
    packed = result.artifacts["made.tar"]
    if packed.content is None:
        return Made(hashes={}, code="output_refused", feedback=f"What it made cannot be taken: {packed.refusal}.")
    scratch = target / "made.tar"
    scratch.write_bytes(packed.content)
    try:
        _bring(scratch, target, settings.output_bytes)
    except PackageError as error:
        return Made(hashes={}, code="output_refused", feedback=str(error))
    finally:
        scratch.unlink(missing_ok=True)
    return Made(hashes=tree_hashes(target))


def _bring(packed: Path, target: Path, most_bytes: int) -> None:
    """Unpacks the outer archive alone: what lies in it stays as it is."""
    inside = target / "content"
    unpack(packed, inside, limits=UnpackLimits(bytes=most_bytes, ratio=1e9), nested=False)
    for name in ("public", "private"):
        (inside / name).mkdir(exist_ok=True)
        shutil.move(inside / name, target / name)
    shutil.rmtree(inside)


def _trespass(report: _Report) -> Made | None:
    if report.raw_changed:
        what = f"prepare() changed the raw data: {shortened(report.raw_changed)}. Raw files are read only."
        return Made(hashes={}, code="raw_modified", feedback=what)
    if report.outside:
        names = shortened(_without_run_folder(name) for name in report.outside)
        what = f"prepare() wrote outside of its two folders: {names}. Write below `public` and `private` only."
        return Made(hashes={}, code="wrote_outside", feedback=what)
    if report.links:
        what = f"prepare() made links: {shortened(report.links)}. Copy the files."
        return Made(hashes={}, code="links", feedback=what)
    return None


def _how_it_ended(result: RunResult, limits: Limits) -> tuple[str, str]:
    if result.timed_out:
        return "timeout", f"prepare() was not done after {limits.wall_seconds:g} seconds."
    if result.out_of_memory:
        return "out_of_memory", f"prepare() used more than {limits.memory_bytes // MIB} MiB of memory."
    if result.disk_full:
        return "disk_full", f"prepare() wrote more than {limits.disk_bytes // MIB} MiB."
    if result.exit_code is None:
        return "killed", f"The process was ended by signal {result.signal}."
    error = last_error(result.log.text)
    if error.startswith(_READ_ONLY):
        if "/inputs/raw/" in error:
            return "raw_modified", f"prepare() would have changed the raw data, which are read only: {error}"
        return "wrote_outside", f"prepare() may write below `public` and `private` only: {error}"
    return error.partition(":")[0].rpartition(".")[2] or "failed", f"prepare() failed: {error}"


def last_error(log: str) -> str:
    """The last line of a traceback, else of the output."""
    lines = [line for line in log.strip().splitlines() if line.strip()]
    return _without_run_folder(lines[-1])[:500] if lines else "no output"


def output_tail(result: RunResult) -> str:
    """The end of the output, tracebacks with it, without the names of our own folders."""
    text = _without_run_folder(result.log.text.strip())
    return f"The end of its output:\n```\n{text[-_TAIL_CHARACTERS:] or '(none)'}\n```"


def _without_run_folder(text: str) -> str:
    return _RUN_FOLDER.sub("", text)


def _files_of(raw: Path) -> str:
    names = _names_and_sizes(raw)
    listed = "\n".join(names[:_LISTED])
    more = f"\nand {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"The files in `raw`:\n```\n{listed}{more}\n```"


def _names_and_sizes(root: Path) -> list[str]:
    """Relative paths and sizes."""
    return [
        f"{path.relative_to(root).as_posix()} ({path.stat().st_size} bytes)"
        for path in sorted(root.rglob("*"))
        if path.is_file()
    ]


def first_difference(first: Path, second: Path, hashes: dict[str, str], again: dict[str, str]) -> str:
    """Where two runs' files differ, in a few lines; empty where they are equal."""
    changed = changed_files(hashes, again)
    if not changed:
        return ""
    name = changed[0]
    lines = []
    if name in hashes and name in again and Path(name).suffix in (".csv", ".txt", ".json", ".tsv"):
        texts = [
            (folder / name).read_text(encoding="utf-8", errors="replace").splitlines() for folder in (first, second)
        ]
        pairs = zip(*texts, strict=False)
        place = next((number for number, (one, other) in enumerate(pairs) if one != other), min(map(len, texts)))
        lines = [f"line {place + 1}: {(text[place] if place < len(text) else '(end)')[:200]!r}" for text in texts]
    return f"Two runs differ in {shortened(changed)}.\n" + "\n".join(lines)
