"""One build: from settings to the corpus's folder.

<out>/corpus.jsonl           `id` and `messages`, one example a line
<out>/corpus.parquet         the same, where asked for
<out>/provenance.jsonl       where each example comes from, in the same order
<out>/dropped.jsonl          every candidate that became none, with its reason
<out>/near_duplicates.jsonl  examples whose replies are nearly the same
<out>/README.md              the dataset card
<out>/manifest.json          inputs, settings, versions, counts and hashes; written last: where it is, the corpus is whole
<out>/judge.sqlite           the judge's answers, kept between builds
"""

import contextlib
import dataclasses
import json
import logging
import platform
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from openmle_gym.contracts import Contract
from openmle_gym.errors import ConfigError
from openmle_gym.policies.settings import open_policy
from pydantic import JsonValue

from openmle_erl import __version__
from openmle_erl.sft.acceptance import check_reachable, read_references
from openmle_erl.sft.config import CONFIGS, BuildConfig
from openmle_erl.sft.corpus import Entry, Example, Origin, Pipeline
from openmle_erl.sft.datacard import render_card
from openmle_erl.sft.files import sha256_of, write_whole
from openmle_erl.sft.judge import Judge, JudgeCounts
from openmle_erl.sft.parquet import ParquetFile
from openmle_erl.sft.reasons import Ledger
from openmle_erl.sft.reserved import Reserved, read_reserved
from openmle_erl.sft.shingles import MinHashIndex
from openmle_erl.sft.sources import RunSource, TaskBook, read_collection, read_run
from openmle_erl.sft.tokens import ChatTokenizer, load_tokenizer

NEAR_DUPLICATE = 0.9
"""The estimated similarity of replies from which they are listed."""
NOT_IN_MANIFEST = ("out", "overwrite", "judge_workers")
OUTPUTS = ("corpus.jsonl", "corpus.parquet", "provenance.jsonl", "dropped.jsonl", "near_duplicates.jsonl")

log = logging.getLogger(__name__)


class Input(Contract):
    """One run that a corpus was built from."""

    kind: str
    path: str
    run_id: str
    task: str
    attempts: int
    sha256: str
    """Of its cards, prompts and replies."""


class SourceCounts(Contract):
    """What became of a source's candidates; `candidates` is `kept` and all of `dropped` together."""

    candidates: int
    kept: int
    dropped: dict[str, int]


class JudgeReport(Contract):
    """What the judge was asked."""

    questions: int
    unclear: int


class CorpusManifest(Contract):
    """All that a corpus follows from. It holds no time and no machine's name: equal inputs give an equal manifest."""

    schema_version: int = 1
    kind: str = "corpus"
    versions: dict[str, str]
    settings: dict[str, JsonValue]
    inputs: tuple[Input, ...]
    tasks: dict[str, str]
    """SHA-256 of what prompts say of each task."""
    tokenizer_sha256: str | None
    reserved_tasks: int
    counts: dict[str, SourceCounts]
    examples: int
    tokens: int | None
    """Of all examples; None where none were counted."""
    near_duplicates: int
    judge: JudgeReport | None
    outputs: dict[str, str]
    """SHA-256 by file."""


class Build(NamedTuple):
    """What a build made."""

    manifest: CorpusManifest
    judge: JudgeCounts | None


async def build_corpus(config: BuildConfig) -> Build:
    """Builds a corpus.

    Raises:
        ConfigError: `out` holds a corpus already, nothing was named to build from, or a setting cannot work.
        StoreError: A source is damaged.
        ModelUnavailable: The judge cannot be reached. What it answered is kept; the same command goes on.
    """
    materials = _materials(config)
    out = _fresh_folder(config)
    async with _judge(config, out) as judge:
        with (out / ".spool").open("w+b") as spool, _whole_file(out / "dropped.jsonl") as drops:
            pipeline = Pipeline(
                config=config,
                reserved=materials.reserved,
                tokenizer=materials.tokenizer,
                judge=judge,
                spool=spool,
                drops=drops,
            )
            for number, run in enumerate(materials.runs, start=1):
                await pipeline.take(run)
                log.info("%d of %d: %s, %d attempts", number, len(materials.runs), run.run_id, len(run.cards))
            entries = pipeline.choose(materials.runs)
            near = _write_examples(out, entries, (pipeline.read(entry) for entry in entries), parquet=config.parquet)
        counts = judge.counts() if judge is not None else None
    (out / ".spool").unlink()
    manifest = _manifest(config, materials, pipeline.ledger, [entry.origin for entry in entries], near, counts)
    write_whole(out / "README.md", render_card(manifest, [entry.origin for entry in entries]))
    write_whole(out / "manifest.json", manifest.model_dump_json(indent=2) + "\n")
    return Build(manifest, counts)


class _Materials(NamedTuple):
    runs: list[RunSource]
    reserved: Reserved
    tokenizer: ChatTokenizer | None


def _materials(config: BuildConfig) -> _Materials:
    """All that a build reads, checked before anything is written."""
    if not config.collections and not config.runs:
        raise ConfigError("collections, runs: name at least one collection or search run")
    tokenizer = load_tokenizer(Path(config.filters.tokenizer)) if config.filters.tokenizer else None
    references = config.acceptance.references
    book = TaskBook(config, read_references(Path(references) if references else None))
    runs = [run for place in config.collections for run in read_collection(Path(place), book)]
    runs += [read_run(Path(place), book) for place in config.runs]
    _check_distinct(runs)
    check_reachable(list({run.task.facts.name: run.task.facts for run in runs}.values()), config.acceptance)
    return _Materials(runs, read_reserved(config.reserved), tokenizer)


def _fresh_folder(config: BuildConfig) -> Path:
    out = Path(config.out)
    if (out / "manifest.json").exists() and not config.overwrite:
        raise ConfigError(f"{out}: already holds a corpus; overwrite=true replaces it")
    out.mkdir(parents=True, exist_ok=True)
    (out / "manifest.json").unlink(missing_ok=True)
    return out


def _manifest(
    config: BuildConfig,
    materials: _Materials,
    ledger: Ledger,
    origins: Sequence[Origin],
    near: int,
    judged: JudgeCounts | None,
) -> CorpusManifest:
    out, runs = Path(config.out), materials.runs
    tokenizer = config.filters.tokenizer
    return CorpusManifest(
        versions=_versions(),
        settings={name: each for name, each in dataclasses.asdict(config).items() if name not in NOT_IN_MANIFEST},
        inputs=tuple(_input(run) for run in runs),
        tasks={run.task.facts.name: run.task.digest for run in runs},
        tokenizer_sha256=sha256_of(Path(tokenizer)) if tokenizer else None,
        reserved_tasks=len(materials.reserved),
        counts={source: SourceCounts(**tally._asdict()) for source, tally in ledger.tallies().items()},
        examples=len(origins),
        tokens=sum(origin.tokens or 0 for origin in origins) if materials.tokenizer is not None else None,
        near_duplicates=near,
        judge=JudgeReport(questions=judged.asked, unclear=judged.unclear) if judged else None,
        outputs={name: sha256_of(out / name) for name in OUTPUTS if (out / name).is_file()},
    )


def _check_distinct(runs: Sequence[RunSource]) -> None:
    counts = Counter(run.run_id for run in runs)
    twice = [run_id for run_id, count in counts.items() if count > 1]
    if twice:
        raise ConfigError(f"collections, runs: named twice: {', '.join(twice[:5])}")


@contextlib.asynccontextmanager
async def _judge(config: BuildConfig, out: Path) -> AsyncIterator[Judge | None]:
    if config.judge.kind == "none":
        yield None
        return
    async with open_policy(config.judge, CONFIGS / "policy") as model:
        judge = Judge(model, out / "judge.sqlite", workers=config.judge_workers)
        try:
            yield judge
        finally:
            judge.close()


@contextlib.contextmanager
def _whole_file(path: Path) -> "Iterator":
    """A file to write text to, which is there under its name once all is written."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
        yield file
    partial.replace(path)


def _write_examples(out: Path, entries: Sequence[Entry], examples: Iterable[Example], *, parquet: bool) -> int:
    """Writes the examples in all forms; returns how many near-duplicates there are."""
    index = MinHashIndex(NEAR_DUPLICATE)
    near = 0
    (out / "corpus.parquet").unlink(missing_ok=True)
    with contextlib.ExitStack() as files:
        corpus = files.enter_context(_whole_file(out / "corpus.jsonl"))
        sidecar = files.enter_context(_whole_file(out / "provenance.jsonl"))
        twins = files.enter_context(_whole_file(out / "near_duplicates.jsonl"))
        table = files.enter_context(ParquetFile(out / "corpus.parquet")) if parquet else None
        for entry, example in zip(entries, examples, strict=True):
            corpus.write(example.model_dump_json() + "\n")
            sidecar.write(entry.origin.model_dump_json() + "\n")
            if table is not None:
                table.add(example)
            twin = index.add(example.id, example.messages[-1].content)
            if twin is not None:
                near += 1
                twins.write(json.dumps(twin._asdict()) + "\n")
    return near


def _input(run: RunSource) -> Input:
    return Input(
        kind=run.kind,
        path=str(run.path),
        run_id=run.run_id,
        task=run.task.facts.name,
        attempts=len(run.cards),
        sha256=run.digest,
    )


def _versions() -> dict[str, str]:
    """Of us, of Python, and of the libraries that a build has loaded."""
    versions = {"openmle": __version__, "python": platform.python_version()}
    for name in ("numpy", "transformers", "tokenizers", "pyarrow"):
        if name in sys.modules:
            versions[name] = str(getattr(sys.modules[name], "__version__", ""))
    return versions
