"""`openmle-erl sft-data`, as it is typed."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from openmle_erl.cli import main
from openmle_erl.sft.config import CONFIGS, AuditConfig, BuildConfig, CollectConfig
from openmle_erl.sft.reasons import MEANINGS, Drop
from openmle_gym.configuration import load_config
from openmle_gym.errors import ConfigError
from openmle_gym.store import CardStore
from toy import write_toy_package

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "sft_data.md").read_text()
RELEASED = [
    {"id": "a-1", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Task Description:\nx"},
                               {"role": "assistant", "content": "<think>\nhm\n</think>\n\n```python\nimport os\nos.sync()\n```"}]},
    {"id": "a-2", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "no program here"}]},
]  # fmt: skip


def audited(path: Path, capsys: pytest.CaptureFixture[str], *settings: str) -> tuple[int, dict]:
    code = main(["sft-data", "audit", str(path), *settings])
    return code, json.loads(capsys.readouterr().out)


def write_lines(path: Path, rows: list) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_the_released_format_is_read_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = audited(write_lines(tmp_path / "traces.jsonl", RELEASED), capsys)
    assert (code, report["rows"], report["problems"]) == (0, 2, {})
    assert report["programs"] == {"program": 1, "no_code": 1}
    assert report["roles"] == {"system user assistant": 1, "user assistant": 1}
    assert (report["with_thinking"], report["operators"]) == (1, {"not stated": 2})
    assert report["characters"]["most"] == sum(len(message["content"]) for message in RELEASED[0]["messages"])


def test_an_audit_names_what_is_wrong_with_which_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        RELEASED[0],
        "{broken",
        RELEASED[0] | {"id": "b"},
        RELEASED[1] | {"id": "a-1"},
        {"id": "c", "messages": []},
        {"id": "d", "messages": [{"role": "user", "content": "q"}]},
        {"id": "e", "messages": [{"role": "tool", "content": "q"}]},
        {"id": None, "messages": [{"role": "user", "content": "q2"}, {"role": "assistant", "content": "a"}]},
    ]
    code, report = audited(write_lines(tmp_path / "bad.jsonl", rows), capsys)
    assert code == 1
    assert [(problem["row"], problem["kind"]) for problem in report["first_problems"]] == [
        (2, "not_an_object"),
        (3, "messages_twice"),
        (4, "id_twice"),
        (5, "no_messages"),
        (6, "no_reply"),
        (7, "bad_message"),
        (8, "no_id"),
    ]
    assert report["problems"] == {problem["kind"]: 1 for problem in report["first_problems"]}


def test_an_audit_finds_reserved_tasks_and_near_duplicates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = " ".join(f"word{number}" for number in range(200))

    def row(number: int, task: str, reply: str) -> dict:
        user = {"role": "user", "content": f"Task Description:\n\n{task}\n\nData Description:\n\nnone"}
        return {"id": number, "messages": [user, {"role": "assistant", "content": reply}]}

    path = write_lines(tmp_path / "t.jsonl", [row(1, "one", long), row(2, "two", long + " more"), row(3, long, "x")])
    reserved = write_lines(tmp_path / "reserved.jsonl", [{"task": "secret", "description": long}])
    code, report = audited(path, capsys, f"reserved.tasks=[{reserved}]")
    assert (code, report["problems"], report["first_problems"][0]["row"]) == (1, {"reserved_exact": 1}, 3)
    assert report["near_duplicates"] == 1
    assert (report["first_near_duplicates"][0]["first"], report["first_near_duplicates"][0]["second"]) == ("1", "2")


def test_parquet_is_audited_as_json_lines_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.Table.from_pylist(RELEASED), tmp_path / "t.parquet")
    code, report = audited(tmp_path / "t.parquet", capsys)
    assert (code, report["rows"], report["programs"]) == (0, 2, {"program": 1, "no_code": 1})


def test_an_audit_of_nothing_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = audited(write_lines(tmp_path / "empty.jsonl", []), capsys)
    assert (code, report["rows"], report["problems"]) == (1, 0, {})


def test_hostile_rows_are_problems_and_their_quotes_are_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(row_id: str, number: int) -> str:
        question, reply = {"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": f"a{number}"}
        return f'{{"id": {row_id}, "messages": {json.dumps([question, reply])}}}'

    rows = [
        line("true", 1),
        '{"id": "b", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "\\ud83d"}]}',
        line("[" * 900 + "]" * 900, 3),
        "[" * 100_000,
        line("9" * 5000, 5),
        line(f'"{"x" * 5000}"', 6),
        line(f'"{"x" * 5000}"', 7),
        b"\xff\xfe\x00".decode("latin-1"),
    ]
    path = tmp_path / "hostile.jsonl"
    path.write_bytes("".join(row + "\n" for row in rows).encode("latin-1"))
    code, report = audited(path, capsys)
    assert (code, report["rows"]) == (1, 8)
    assert [(problem["row"], problem["kind"]) for problem in report["first_problems"]] == [
        (1, "no_id"),
        (2, "bad_message"),
        (3, "no_id"),
        (4, "not_an_object"),
        (5, "not_an_object"),
        (7, "id_twice"),
        (8, "not_an_object"),
    ]
    assert "lone surrogate" in report["first_problems"][1]["detail"]
    assert max(len(problem["detail"]) for problem in report["first_problems"]) == 200


def test_parquet_that_cannot_be_read_is_named_and_other_columns_are_not_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    messages = pa.array([row["messages"] for row in RELEASED])
    never = pa.array([2**62, 0], pa.timestamp("us"))  # a time that no Python object can stand for
    parquet.write_table(pa.table({"id": ["a", "b"], "messages": messages, "at": never}), tmp_path / "t.PARQUET")
    code, report = audited(tmp_path / "t.PARQUET", capsys)
    assert (code, report["rows"], report["programs"]) == (0, 2, {"program": 1, "no_code": 1})

    offsets = pa.array([0, 2, 3], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfea")])
    parquet.write_table(pa.table({"id": broken, "messages": messages}), tmp_path / "bad.parquet")
    parquet.write_table(pa.table({"id": ["a", "b"], "messages": messages}), tmp_path / "cut.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "cut.parquet").read_bytes()[:-20])
    for name in ("bad.parquet", "cut.parquet"):
        assert main(["sft-data", "audit", str(tmp_path / name)]) == 2
        assert f"{name}: after row 0: " in capsys.readouterr().err


def test_misuse_ends_with_2_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, complaint in [
        (["collect", "out=x", "tasks=[nowhere]"], "tasks: nowhere: no task package there"),
        (["collect", "out=x", "tasks=[a]", "qouta=3"], "qouta"),
        (["collect", "tasks=[a]"], "out: missing"),
        (["build", "out=x"], "name at least one"),
        (["build", "out=x", "runs=[y]", "inheritance=2"], "inheritance: must be in [0, 1]"),
        (["audit", str(tmp_path / "none.jsonl")], "none.jsonl: No such file"),
        (["collect", "out=x", "tasks=[a]", "acceptance.policy=best"], "acceptance.policy: must be one of"),
        (["collect", "out=x", "tasks=[a]", "filters.max_tokens=5"], "filters.tokenizer: missing"),
        (["collect", "out=x", "tasks=[a]", "policy.kind=none"], "somebody must write"),
    ]:
        assert main(["sft-data", *arguments]) == 2, arguments
        captured = capsys.readouterr()
        assert captured.out == ""
        assert complaint in captured.err


def test_the_shipped_profiles_load_with_the_published_values() -> None:
    needed = ["tasks=[a]", "out=b", "profile=paper_collect", "filters.tokenizer=there"]
    collect = load_config(CollectConfig, "sft_data_collect", configs=CONFIGS, overrides=needed)
    assert (collect.batch, collect.quota, collect.limit, collect.timeout_seconds) == (4, 4, 32, 3600.0)
    assert (collect.filters.max_tokens, collect.filters.max_gap) == (32768, 0.12)
    needed = ["out=b", "profile=paper_build", "filters.tokenizer=there"]
    build = load_config(BuildConfig, "sft_data_build", configs=CONFIGS, overrides=needed)
    assert (build.drafts_per_task, build.parquet, build.filters.max_tokens) == (4, True, 32768)
    with pytest.raises(ConfigError, match=r"filters\.tokenizer"):
        load_config(BuildConfig, "sft_data_build", configs=CONFIGS, overrides=needed[:2])
    audit = load_config(AuditConfig, "sft_data_audit", configs=CONFIGS, overrides=[])
    assert audit == AuditConfig()


def test_every_drop_reason_is_documented() -> None:
    for reason in Drop:
        assert f"`{reason.value}`" in DOCUMENT, reason
        assert MEANINGS[reason]


def commands_of_the_document() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", DOCUMENT, re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def run_command(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program, *arguments = shlex.split(line)
    binary = Path(sys.executable).parent / program
    return subprocess.run([str(binary), *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_commands_of_the_document_run_as_they_are_printed(tmp_path: Path) -> None:
    lines = [line for line in commands_of_the_document() if not line.startswith("#")]
    assert len(lines) >= 4
    for line in lines:
        done = run_command(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "corpus" / "corpus.jsonl").read_text().count("\n") >= 1


@pytest.mark.slow
def test_an_interrupted_collection_ends_cleanly_and_the_same_command_goes_on(tmp_path: Path) -> None:
    write_toy_package(tmp_path / "toy")
    command = [
        str(Path(sys.executable).parent / "openmle-erl"), "sft-data", "collect", f"tasks=[{tmp_path / 'toy'}]",
        f"out={tmp_path / 'drafts'}", "workers=1", "quota=6", "limit=6", "batch=6", "runner=process", "allow_process=true",
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A suite that was started in the background ignores SIGINT, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    store = tmp_path / "drafts" / "store.sqlite"
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if store.exists() and (tmp_path / "drafts" / "manifest.json").exists() and CardStore(store).cards():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    before = {card.attempt: card.finished_at for card in CardStore(store).cards()}
    assert process.returncode == 130, err
    assert (out, len(before) >= 1) == ("", True)
    assert "the same command goes on" in err
    assert "Traceback" not in err
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["attempts"] == 6
    after = {card.attempt: card.finished_at for card in CardStore(store).cards()}
    assert len(after) == 6
    assert before.items() <= after.items()  # nothing was judged again
