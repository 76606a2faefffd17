"""A build from end to end: what is kept, what is dropped for which reason, and that the sums add up."""

import asyncio
import json
import sqlite3
import sys
import zlib
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from erl.sft.sft_make import CharTokenizer, CountingExecutor, SeededPolicy, card, write_run
from hypothesis import given, settings
from hypothesis import strategies as st
from openmle_erl.sft import build as build_module
from openmle_erl.sft.acceptance import task_facts
from openmle_erl.sft.build import Build, build_corpus
from openmle_erl.sft.collect import Collector, CollectTask
from openmle_erl.sft.collection import Collection, CollectionManifest
from openmle_erl.sft.config import AcceptanceConfig, BuildConfig, FilterConfig, PolicyConfig, ReservedConfig
from openmle_erl.sft.judge import Judge, read_verdict
from openmle_erl.sft.messages import strip_comments, without_comments
from openmle_erl.sft.reasons import MEANINGS, Drop, Ledger
from openmle_erl.sft.segments import choose_steps, segments
from openmle_erl.sft.sources import TaskBook, read_run
from openmle_erl.sft.stopping import Budget
from openmle_erl.sft.tokens import ChatTokenizer
from openmle_gym.chat import Completion, Message, Usage
from openmle_gym.errors import ConfigError, ModelUnavailable, StoreError
from openmle_gym.evaluate import JobSettings
from openmle_gym.experience import ExperienceCard
from openmle_gym.jobs import Limits, Outcome
from openmle_gym.operators import Operator
from openmle_gym.program import parse_reply, program_id
from openmle_gym.prompts import Surroundings, build_prompt, public_task
from openmle_gym.scores import TestScore
from openmle_gym.store import CardStore
from openmle_gym.task import TaskPackage
from toy import write_toy_package

BASE = "import os\nimport pandas as pd\nframe = pd.read_csv(os.path.join('a', 'train.csv'))\nmodel = fit(frame)\n"
WRITES = BASE + "model.predict(frame).to_csv('submission.csv')\n"
BETTER = WRITES.replace("fit(frame)", "fit(frame.dropna())")


@pytest.fixture
def package(tmp_path: Path) -> TaskPackage:
    return write_toy_package(tmp_path / "tasks" / "toy")


def built(tmp_path: Path, **settings) -> Build:
    return asyncio.run(build_corpus(BuildConfig(out=str(tmp_path / "corpus"), **settings)))


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def tree() -> list[ExperienceCard]:
    """A Draft that is mended, improved, retried and mended in vain."""
    return [
        card(0, source=BASE, outcome=Outcome.SUBMISSION_MISSING, signature="submission_missing"),
        card(1, 3.0, operator=Operator.DEBUG, parents=(0,), source=WRITES),
        card(2, 2.0, operator=Operator.IMPROVE, parents=(1,), source=BETTER),
        card(3, 4.0, operator=Operator.IMPROVE, parents=(1,), source=WRITES.replace("fit", "fit_less")),
        card(4, 1.0, operator=Operator.IMPROVE, parents=(1,), source="# the same\n" + WRITES),
        card(5, source="", outcome=Outcome.CODE_MISSING, signature="no_code"),
        card(6, operator=Operator.DEBUG, parents=(0,), source=BASE + "1 / 0\n", signature="ZeroDivisionError@<module>"),
    ]


def collect(folder: Path, package: TaskPackage, *, accepted_every: int | None = 1) -> Path:
    """A collection of eight Drafts."""
    manifest = CollectionManifest(
        collection_id="c0", created_at="", openmle_version="0", policy="seeded", isolation="none",
        settings={"tasks": [str(package.root)], "timeout_seconds": 60.0, "memory_mib": 2048},
    )  # fmt: skip
    collection = Collection.open(folder, manifest)
    collector = Collector(
        collection=collection,
        policy=SeededPolicy(),
        executor=CountingExecutor(accepted_every),
        limits=Limits(),
        acceptance=AcceptanceConfig(),
        filters=FilterConfig(),
    )
    task = CollectTask(
        public=public_task(package),
        facts=task_facts(package, {}),
        job=JobSettings(data_dir=str(package.root), timeout_seconds=60),
        budget=Budget(batch=8, limit=8),
    )
    asyncio.run(collector.run([task]))
    collection.close()
    return folder


def test_a_search_becomes_the_steps_that_led_to_good_endpoints(tmp_path: Path, package: TaskPackage) -> None:
    run = write_run(tmp_path / "run", package.root, tree())
    manifest, _ = built(tmp_path, runs=[str(run)])
    origins = lines(tmp_path / "corpus" / "provenance.jsonl")
    assert [(each["attempt"], each["operator"]) for each in origins] == [(0, "draft"), (1, "debug"), (2, "improve")]
    assert [each["endpoint"] for each in origins] == [1, 1, 2]
    dropped = {each["id"]: each["reason"] for each in lines(tmp_path / "corpus" / "dropped.jsonl")}
    assert dropped == {
        "run/3": "not_better_than_parent",
        "run/4": "cosmetic_edit",
        "run/5": "failed_segment",
        "run/6": "off_the_inherited_path",
    }
    counts = manifest.counts["search"]
    assert (counts.candidates, counts.kept, sum(counts.dropped.values())) == (7, 3, 4)


def test_examples_have_the_prompts_of_search_and_teach_the_judged_program(tmp_path: Path, package: TaskPackage) -> None:
    run = write_run(tmp_path / "run", package.root, tree())
    built(tmp_path, runs=[str(run)])
    rows = {each["id"]: each["messages"] for each in lines(tmp_path / "corpus" / "corpus.jsonl")}
    debug = [Message(**message) for message in rows["run/1"]]
    limits = Limits(wall_seconds=60.0, memory_bytes=2048 * 1024**2)
    parent = tree()[0]
    expected = build_prompt(Operator.DEBUG, public_task(package), [parent], Surroundings(limits=limits))
    assert debug[0] == expected[0]
    assert "submission_missing" in debug[1].content
    assert debug[1].content.startswith(expected[1].content.partition("# Output")[0].rstrip()[:2000])
    assert [message.role for message in debug] == ["system", "user", "assistant"]
    assert parse_reply(debug[2].content).source == WRITES
    assert set(lines(tmp_path / "corpus" / "corpus.jsonl")[0]) == {"id", "messages"}


def test_what_a_search_recorded_goes_before_what_could_be_built_again(tmp_path: Path, package: TaskPackage) -> None:
    """In the form in which searches keep it; so the thinking is learnt as well."""
    run = write_run(tmp_path / "run", package.root, [card(0, 0.5)])
    store = sqlite3.connect(run / "store.sqlite")
    store.execute("CREATE TABLE exchanges (attempt INTEGER PRIMARY KEY, messages BLOB NOT NULL, reply BLOB NOT NULL)")
    said = {"text": "unused", "reasoning": "I thought."}, [{"role": "user", "content": "# Operator: draft"}]
    reply, messages = (zlib.compress(json.dumps(each).encode()) for each in said)
    store.execute("INSERT INTO exchanges VALUES (0, ?, ?)", (messages, reply))
    store.commit()
    store.close()
    built(tmp_path, runs=[str(run)])
    (row,) = lines(tmp_path / "corpus" / "corpus.jsonl")
    assert row["messages"][0] == {"role": "user", "content": "# Operator: draft"}
    assert row["messages"][1]["content"].startswith("<think>\nI thought.\n</think>\n\nplan 0\n\n```python\n")
    (origin,) = lines(tmp_path / "corpus" / "provenance.jsonl")
    assert (origin["prompt"], origin["thinking"]) == ("recorded", True)


def test_collected_drafts_keep_their_prompt_and_their_thinking(tmp_path: Path, package: TaskPackage) -> None:
    """Of equal validation scores in a lower-is-better task the four lowest are kept."""
    folder = collect(tmp_path / "drafts", package)
    manifest, _ = built(tmp_path, collections=[str(folder)])
    origins = lines(tmp_path / "corpus" / "provenance.jsonl")
    assert [each["validation"] for each in origins] == [1.0, 2.0, 3.0, 4.0]
    assert all(each["thinking"] and each["prompt"] == "recorded" for each in origins)
    reply = lines(tmp_path / "corpus" / "corpus.jsonl")[0]["messages"][-1]["content"]
    assert reply.startswith("<think>\nThe seed is ")
    assert manifest.counts["parallel"].dropped == {"beyond_top_k": 4}


@pytest.mark.parametrize(("higher", "kept"), [(False, [0, 1]), (True, [4, 5])])
def test_the_best_of_each_task_are_kept_by_the_metrics_direction(
    higher: bool, kept: list[int], tmp_path: Path, package: TaskPackage
) -> None:
    """The release ranked raw scores downwards whatever the metric: of log-loss tasks it kept the worst four."""
    toml = package.root / "task.toml"
    toml.write_text(toml.read_text().replace("higher_is_better = false", f"higher_is_better = {str(higher).lower()}"))
    cards = [card(number, number / 10, higher_is_better=higher) for number in range(6)]
    run = write_run(tmp_path / "run", package.root, cards)
    built(tmp_path, runs=[str(run)], segments_per_task=2)
    assert [each["attempt"] for each in lines(tmp_path / "corpus" / "provenance.jsonl")] == kept


def test_different_programs_of_equal_scores_are_all_kept(tmp_path: Path, package: TaskPackage) -> None:
    """The release dropped a program whose score another one had, however different it was."""
    run = write_run(tmp_path / "run", package.root, [card(0, 0.5), card(1, 0.5), card(2, 0.5)])
    manifest, _ = built(tmp_path, runs=[str(run)])
    assert manifest.examples == 3


def test_a_segments_steps_stay_together_when_the_best_segments_are_chosen(tmp_path: Path, package: TaskPackage) -> None:
    run = write_run(tmp_path / "run", package.root, [*tree()[:2], card(2, 5.0)])
    built(tmp_path, runs=[str(run)], segments_per_task=1)
    assert [each["attempt"] for each in lines(tmp_path / "corpus" / "provenance.jsonl")] == [0, 1]


@pytest.fixture
def char_tokenizer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A tokenizer's folder that loads as the tests' tokenizer: the libraries are not needed to install us."""
    (tmp_path / "chars").mkdir()
    monkeypatch.setattr(build_module, "load_tokenizer", lambda path: CharTokenizer())
    return str(tmp_path / "chars")


def test_conversations_over_the_limit_are_dropped_and_counted(
    char_tokenizer: str, tmp_path: Path, package: TaskPackage
) -> None:
    long = "import os\n" + "os.sync()\n" * 2000
    run = write_run(tmp_path / "run", package.root, [card(0, 1.0), card(1, 1.0, source=long)])
    filters = FilterConfig(tokenizer=char_tokenizer, max_tokens=10_000)
    manifest, _ = built(tmp_path, runs=[str(run)], filters=filters)
    assert manifest.counts["search"].dropped == {"too_many_tokens": 1}
    (origin,) = lines(tmp_path / "corpus" / "provenance.jsonl")
    assert origin["tokens"] == manifest.tokens
    assert origin["tokens"] > 1000


def test_counts_that_are_all_equal_stop_the_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: TaskPackage
) -> None:
    class Two(CharTokenizer):
        def encode(self, text: str) -> list[int]:
            return [1, 2]

    monkeypatch.setattr(build_module, "load_tokenizer", lambda path: Two())
    (tmp_path / "two").mkdir()
    run = write_run(tmp_path / "run", package.root, [card(0, 1.0), card(1, 1.0, source=BASE)])
    with pytest.raises(ConfigError, match="counted 2 tokens for each of the conversations"):
        built(tmp_path, runs=[str(run)], filters=FilterConfig(tokenizer=str(tmp_path / "two")))
    assert not (tmp_path / "corpus" / "manifest.json").exists()


def test_reserved_tasks_give_no_examples(tmp_path: Path, package: TaskPackage) -> None:
    run = write_run(tmp_path / "run", package.root, tree())
    manifest, _ = built(tmp_path, runs=[str(run)], reserved=ReservedConfig(tasks=[str(package.root)]))
    assert manifest.examples == 0
    assert manifest.counts["search"].dropped["reserved_name"] == 3


def test_equal_examples_of_two_runs_are_kept_once(tmp_path: Path, package: TaskPackage) -> None:
    first = write_run(tmp_path / "first", package.root, [card(0, 0.5)])
    second = write_run(tmp_path / "second", package.root, [card(0, 0.5, run_id="other")], run_id="other")
    manifest, _ = built(tmp_path, runs=[str(first), str(second)])
    assert manifest.counts["search"].dropped == {"duplicate_messages": 1}
    (dropped,) = lines(tmp_path / "corpus" / "dropped.jsonl")
    assert (dropped["id"], dropped["detail"]) == ("other/0", "run/0")


def test_a_program_that_only_looks_different_is_no_second_draft(tmp_path: Path, package: TaskPackage) -> None:
    folder = collect(tmp_path / "drafts", package)
    store = CardStore(folder / "store.sqlite")
    twins = [refreshed(each, run_id="c1-toy", source=f"# again\n{each.source}") for each in store.cards()]
    copy = write_collection(tmp_path / "copies", package, twins)
    manifest, _ = built(tmp_path, collections=[str(folder), str(copy)], drafts_per_task=None)
    assert manifest.counts["parallel"].dropped == {"duplicate_program": 8}


def refreshed(each: ExperienceCard, **changes) -> ExperienceCard:
    """The card with changes, and the program's id that follows from them."""
    changed = each.model_copy(update=changes)
    return changed.model_copy(update={"program_id": program_id(changed.source)})


def write_collection(folder: Path, package: TaskPackage, cards: Sequence[ExperienceCard]) -> Path:
    folder.mkdir()
    manifest = CollectionManifest(
        collection_id="c1", created_at="", openmle_version="0", policy="seeded", isolation="none",
        settings={"tasks": [str(package.root)]},
    )  # fmt: skip
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    store = CardStore(folder / "store.sqlite")
    for each in cards:
        store.append(each)
    store.close()
    return folder


def test_the_gap_filter_is_asked_of_drafts_and_of_endpoints(tmp_path: Path, package: TaskPackage) -> None:
    cards = [card(0, 1.0, claimed=1.05), card(1, 1.0, claimed=3.0), card(2, 1.0)]  # the board spans 9.5
    run = write_run(tmp_path / "run", package.root, cards)
    manifest, _ = built(tmp_path, runs=[str(run)], filters=FilterConfig(max_gap=0.12))
    assert manifest.counts["search"].dropped == {"no_comparable_scores": 1, "score_gap": 1}


def test_the_same_inputs_give_the_same_bytes_and_a_changed_input_shows_in_the_manifest(
    tmp_path: Path, package: TaskPackage
) -> None:
    run = write_run(tmp_path / "run", package.root, tree())
    first, _ = built(tmp_path / "one", runs=[str(run)])
    second, _ = built(tmp_path / "two", runs=[str(run)])
    names = sorted(path.name for path in (tmp_path / "one" / "corpus").iterdir())
    assert names == [
        "README.md",
        "corpus.jsonl",
        "dropped.jsonl",
        "manifest.json",
        "near_duplicates.jsonl",
        "provenance.jsonl",
    ]
    for name in names:
        assert (tmp_path / "one/corpus" / name).read_bytes() == (tmp_path / "two/corpus" / name).read_bytes()
    other = write_run(tmp_path / "other", package.root, [*tree(), card(7, 9.0)])
    third, _ = built(tmp_path / "three", runs=[str(other)])
    assert first == second
    assert first.inputs[0].sha256 != third.inputs[0].sha256
    (package.public_dir / "description.txt").write_text("Predict z.")
    fourth, _ = built(tmp_path / "four", runs=[str(run)])
    assert first.tasks != fourth.tasks


def test_a_corpus_is_not_overwritten_unless_asked_to(tmp_path: Path, package: TaskPackage) -> None:
    run = write_run(tmp_path / "run", package.root, tree())
    built(tmp_path, runs=[str(run)])
    with pytest.raises(ConfigError, match="already holds a corpus"):
        built(tmp_path, runs=[str(run)])
    manifest, _ = built(tmp_path, runs=[str(run)], overwrite=True, keep_failed_steps=False)
    assert manifest.counts["search"].dropped["failed_step"] == 1


def test_what_cannot_be_built_from_is_named(tmp_path: Path, package: TaskPackage) -> None:
    run = write_run(tmp_path / "run", package.root, tree())
    with pytest.raises(ConfigError, match="name at least one"):
        built(tmp_path)
    with pytest.raises(ConfigError, match="named twice: run"):
        built(tmp_path, runs=[str(run), str(run)])
    with pytest.raises(StoreError, match="holds no run"):
        built(tmp_path, runs=[str(tmp_path)])
    with pytest.raises(StoreError, match="holds no collection"):
        built(tmp_path, collections=[str(tmp_path)])
    gone = write_run(tmp_path / "gone", tmp_path / "nowhere", tree())
    with pytest.raises(ConfigError, match="no package of task 'toy'"):
        built(tmp_path, runs=[str(gone)])
    manifest, _ = built(tmp_path, runs=[str(gone)], tasks=[str(package.root)])
    assert manifest.examples == 3


class ScriptedJudge:
    """Says of each step what it is told to say, by the step's operator."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers, self.calls = answers, 0

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        self.calls += 1
        operator = messages[-1].content.partition("Operator: ")[2].split(";")[0]
        return Completion(text=self.answers[operator], usage=Usage(prompt_tokens=10, completion_tokens=5))


def steps_of(run: Path):
    source = read_run(run, TaskBook(BuildConfig(out=""), {}))
    kept = []
    for segment in segments(source.cards):
        if segment.endpoint is not None and segment.root.attempt == 0:
            kept += choose_steps(segment, source.by_attempt, least_inherited=0.5, keep_failed_steps=True)[0]
    return kept


async def test_the_judge_is_asked_once_for_each_step_over_all_builds(tmp_path: Path, package: TaskPackage) -> None:
    steps = steps_of(write_run(tmp_path / "run", package.root, tree()))
    model = ScriptedJudge({"draft": "I am not sure.", "debug": 'So: {"inherited": false, "reason": "retry"}'})
    judge = Judge(model, tmp_path / "judge.sqlite")
    verdicts = await judge.judge(steps)
    assert [verdict.inherited for verdict in verdicts] == [None, False]
    counts = judge.counts()
    assert (counts.asked, counts.calls, counts.unclear, counts.usage.prompt_tokens) == (2, 2, 1, 20)
    judge.close()
    again = Judge(model, tmp_path / "judge.sqlite")
    assert await again.judge(steps) == verdicts
    assert (again.counts().asked, again.counts().calls, model.calls) == (2, 0, 2)


async def test_a_judge_out_of_reach_stops_the_build_and_drops_nothing(tmp_path: Path, package: TaskPackage) -> None:
    """A judge that fails open, as the release's, lets everything pass; one that fails closed throws examples away."""

    class Down(ScriptedJudge):
        async def complete(self, messages, *, seed=None):
            raise ModelUnavailable("down")

    steps = steps_of(write_run(tmp_path / "run", package.root, tree()))
    with pytest.raises(ModelUnavailable):
        await Judge(Down({}), tmp_path / "judge.sqlite").judge(steps)


def test_the_judges_word_drops_a_step_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: TaskPackage
) -> None:
    yes = '{"inherited": true, "reason": "kept"}'
    model = ScriptedJudge({"draft": yes, "improve": yes, "debug": '{"inherited": false, "reason": "a mere retry"}'})

    @asynccontextmanager
    async def opened(config, profiles):
        yield model

    monkeypatch.setattr(build_module, "open_policy", opened)
    run = write_run(tmp_path / "run", package.root, tree())
    manifest, counts = built(tmp_path, runs=[str(run)], judge=PolicyConfig(kind="openai"))
    assert manifest.counts["search"].dropped["judged_not_inherited"] == 1
    dropped = {each["id"]: each["detail"] for each in lines(tmp_path / "corpus" / "dropped.jsonl")}
    assert dropped["run/1"] == "a mere retry"
    assert [each["judged"] for each in lines(tmp_path / "corpus" / "provenance.jsonl")] == ["kept", "kept"]
    assert counts is not None
    assert counts.asked == 3  # the cosmetic edit was not worth asking about


@pytest.mark.parametrize(
    ("text", "inherited"),
    [
        ('{"inherited": true, "reason": "x"}', True),
        ('```json\n{"inherited": false}\n```', False),
        ('first {"inherited": true}, no: {"inherited": false}', False),
        ('{"inherited": "yes"}', None),
        ("yes", None),
        ("{", None),
    ],
)
def test_a_verdict_is_the_last_object_that_says_so(text: str, inherited: bool | None) -> None:
    assert read_verdict(text).inherited is inherited


def test_the_card_counts_by_operator_and_source_and_explains_every_reason(tmp_path: Path, package: TaskPackage) -> None:
    run = write_run(tmp_path / "run", package.root, tree())
    built(tmp_path, runs=[str(run)], collections=[str(collect(tmp_path / "drafts", package))])
    text = (tmp_path / "corpus" / "README.md").read_text()
    assert "| draft | 4 | 1 | 5 |" in text
    assert "| improve | 0 | 1 | 1 |" in text
    assert "| all | 4 | 3 | 7 |" in text
    assert "| search | 7 | 3 | 4 |" in text
    assert "| `cosmetic_edit` | 1 | Only comments" in text
    assert set(MEANINGS) == set(Drop)


def test_no_prompt_and_no_sidecar_holds_a_test_score(tmp_path: Path, package: TaskPackage) -> None:
    tested = [each.model_copy(update={"test": TestScore(value=0.987654321, higher_is_better=False)}) for each in tree()]
    run = write_run(tmp_path / "run", package.root, tested)
    built(tmp_path, runs=[str(run)])
    for path in (tmp_path / "corpus").iterdir():
        assert "0.987654321" not in path.read_text()


def test_a_ledger_that_does_not_add_up_is_a_fault() -> None:
    ledger = Ledger()
    ledger.candidate("search")
    with pytest.raises(AssertionError, match="1 candidates, but 0 kept or dropped"):
        ledger.tallies()


SOURCES = ["", BASE, WRITES, BETTER, "# the same\n" + WRITES, "x = (\n", WRITES.replace("frame", "table"), "print(1)\n"]


@given(
    plan=st.lists(
        st.tuples(
            st.sampled_from(list(Operator)), st.integers(0, 30), st.one_of(st.none(), st.floats(-2, 2)),
            st.sampled_from(SOURCES), st.sampled_from(["timeout", "oom", "KeyError@f"]), st.one_of(st.none(), st.floats(-2, 2)),
        ),
        max_size=12,
    ),
    policy=st.sampled_from(["all", "scored", "medal"]),
    most=st.sampled_from([None, 1, 2]),
    max_gap=st.sampled_from([None, 0.12]),
)  # fmt: skip
@settings(max_examples=25)
def test_every_candidate_is_kept_or_dropped_for_one_reason_and_the_sums_add_up(
    plan, policy: str, most: int | None, max_gap: float | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sums")
    package = write_toy_package(folder / "toy")
    cards: list[ExperienceCard] = []
    for number, (wanted, where, value, source, signature, claimed) in enumerate(plan):
        able = [each.attempt for each in cards if each.may_parent(wanted)]
        operator = wanted if wanted.parent_count and able else Operator.DRAFT
        parents = tuple(able[(where + n) % len(able)] for n in range(operator.parent_count)) if able else ()
        outcome = Outcome.CODE_MISSING if not source else None
        score = value if source else None
        cards.append(card(number, score, operator=operator, parents=parents, source=source, signature=signature,
                          outcome=outcome, claimed=claimed))  # fmt: skip
    run = write_run(folder / "run", package.root, cards)
    drafts = [refreshed(each, run_id="c1-toy", operator=Operator.DRAFT, parents=())
              for each in cards if each.source]  # fmt: skip
    copies = write_collection(folder / "copies", package, drafts)
    manifest, _ = built(
        folder,
        runs=[str(run)],
        collections=[str(copies)],
        acceptance=AcceptanceConfig(policy=policy),
        segments_per_task=most,
        drafts_per_task=most,
        filters=FilterConfig(max_gap=max_gap),
    )
    out = folder / "corpus"
    kept, dropped = lines(out / "corpus.jsonl"), lines(out / "dropped.jsonl")
    assert sum(counts.candidates for counts in manifest.counts.values()) == len(cards) + len(drafts)
    assert len(kept) + len(dropped) == len(cards) + len(drafts)
    ids = [each["id"] for each in kept + dropped]
    assert len(ids) == len(set(ids))
    assert manifest.examples == len(kept) == sum(counts.kept for counts in manifest.counts.values())
    for example in kept:
        assert parse_reply(example["messages"][-1]["content"]).source


def test_parquet_is_refused_in_one_line_where_pyarrow_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: TaskPackage
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    run = write_run(tmp_path / "run", package.root, tree())
    with pytest.raises(ConfigError, match="parquet: needs pyarrow"):
        built(tmp_path, runs=[str(run)], parquet=True)
    assert not (tmp_path / "corpus" / "manifest.json").exists()


def test_parquet_holds_the_same_rows(tmp_path: Path, package: TaskPackage) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run = write_run(tmp_path / "run", package.root, tree())
    manifest, _ = built(tmp_path, runs=[str(run)], parquet=True)
    assert parquet.read_table(tmp_path / "corpus/corpus.parquet").to_pylist() == lines(tmp_path / "corpus/corpus.jsonl")
    assert "corpus.parquet" in manifest.outputs


def test_the_stand_in_is_a_chat_tokenizer() -> None:
    tokenizer: ChatTokenizer = CharTokenizer()
    assert tokenizer.decode(tokenizer.encode("<think>a</think>")) == "<think>a</think>"


def test_comments_can_be_left_out_of_replies_and_of_parents() -> None:
    source = 'x = "# no comment"  # one\n# two\nif x:\n    # three\n    y = 1\n'
    plain = 'x = "# no comment"\nif x:\n    y = 1\n'
    assert strip_comments(source) == plain
    assert strip_comments("# one\n  x = (\n# two\n") == "  x = (\n"  # cannot be cut into tokens
    prompt = Message(role="user", content=f"# Parent program 1 of 1\n\n```python\n{source}```\n")
    (changed,) = without_comments([prompt], [source])
    assert changed.content == f"# Parent program 1 of 1\n\n```python\n{plain}```\n"
