"""Keys and scopes; a file of keys that changes; and a service that has none."""

import logging
import os
from pathlib import Path

import pytest
from openmle_gym.errors import ConfigError
from openmle_gym.jobs import JobResult, JobState, JobView, Outcome
from pydantic import SecretStr
from sandbox.make import KEYS, HeldRunner, http, request, serving
from sandbox_service.auth import AccessDenied, Caller, Keys, Scope

JOB = {"code": "pass", "data_dir": "tiny"}
VIEW = JobView.model_validate(
    {
        "job_id": "j",
        "status": JobState.COMPLETED,
        "created_at": "2026-01-01T00:00:00Z",
        "result": JobResult(
            outcome=Outcome.SUCCESS, score=0.5, validation_score=0.5, test_score=0.75, eval_split="both"
        ),
    }
)


def scope_of(keys: Keys, key: str) -> Scope:
    return keys.caller({"x-api-key": key}).scope


def test_keys_have_scopes_and_several_keys_may_share_one() -> None:
    keys = Keys(KEYS)
    assert [scope_of(keys, key) for key in ("s3cret", "other", "gr4de", "4dmin")] == [1, 1, 2, 3]
    assert keys.caller({"x-api-key": "s3cret"}).owner != keys.caller({"x-api-key": "other"}).owner
    assert scope_of(Keys(SecretStr("grade:twice, submit:twice")), "twice") is Scope.GRADE
    assert scope_of(Keys(SecretStr("submit:with:colon")), "with:colon") is Scope.SUBMIT


@pytest.mark.parametrize(
    "secret",
    ["hunter2", "submit:", "root:hunter2", "submit:a,hunter2", ":hunter2", "submit@:hunter2", "submit@a b:hunter2"],
)
def test_a_misspelt_key_list_is_refused_without_quoting_it(secret: str) -> None:
    with pytest.raises(ConfigError, match="OPENMLE_SANDBOX_KEYS: entry") as error:
        Keys(SecretStr(secret))
    assert "hunter2" not in str(error.value)


def test_a_key_travels_in_either_header() -> None:
    keys = Keys(KEYS)
    assert keys.caller({"authorization": "Bearer gr4de"}) == keys.caller({"x-api-key": "gr4de"})
    assert keys.caller({"authorization": "bearer  gr4de "}).scope is Scope.GRADE
    for wrong in ({"authorization": "Basic gr4de"}, {"authorization": "gr4de"}, {"authorization": "Bearer"}, {}):
        with pytest.raises(AccessDenied) as refusal:
            keys.caller(wrong)
        assert refusal.value.status == 401


def test_keys_of_one_owner_share_what_is_submitted() -> None:
    keys = Keys(SecretStr("submit@alice:a,grade@alice:b,submit:c"))
    assert [keys.caller({"x-api-key": key}).owner for key in "ab"] == ["alice", "alice"]
    assert keys.caller({"x-api-key": "c"}).owner != "alice"


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENMLE_SANDBOX_KEYS", "grade:abc")
    assert scope_of(Keys.from_environment(), "abc") is Scope.GRADE
    monkeypatch.setenv("OPENMLE_SANDBOX_KEYS", " , ")
    assert not Keys.from_environment()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    write_keys(file, "# the service's keys\n\nsubmit@alice:first\n  grade:second\n")
    return file


def write_keys(file: Path, text: str, mode: int = 0o600) -> None:
    """Puts a file of keys in the place of the one before, as one does that must never be half written."""
    part = file.with_name("part")
    part.write_text(text)
    part.chmod(mode)
    part.replace(file)


def test_a_file_holds_one_key_a_line(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(None, key_file)
    assert [scope_of(keys, key) for key in ("first", "second")] == [Scope.SUBMIT, Scope.GRADE]
    assert keys.caller({"x-api-key": "first"}).owner == "alice"
    keys.check_host("0.0.0.0")
    monkeypatch.setenv("OPENMLE_SANDBOX_KEYS_FILE", str(key_file))
    monkeypatch.setenv("OPENMLE_SANDBOX_KEYS", "admin:third")
    both = Keys.from_environment()
    assert [scope_of(both, key) for key in ("first", "second", "third")] == [1, 2, 3]
    other = key_file.with_name("other")
    write_keys(other, "submit:fourth")
    assert scope_of(Keys.from_environment(str(other)), "fourth") is Scope.SUBMIT
    with pytest.raises(AccessDenied):
        scope_of(Keys.from_environment(str(other)), "first")


def test_keys_are_rotated_by_a_new_file_and_the_owner_stays(key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = Keys(SecretStr("admin:fixed"), key_file)
    before = keys.caller({"x-api-key": "first"})
    caplog.set_level(logging.INFO)
    write_keys(key_file, "submit@alice:renewed")
    assert keys.caller({"x-api-key": "renewed"}) == before
    assert scope_of(keys, "fixed") is Scope.ADMIN
    for gone in ("first", "second"):
        with pytest.raises(AccessDenied):
            scope_of(keys, gone)
    assert "read 2 keys" in caplog.text
    assert "renewed" not in caplog.text


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("submit:hunter2\nhunter2\n", 0o600, "entry 2 is not"),
        ("# nobody\n", 0o600, "names no key"),
        ("submit:hunter2", 0o640, "has mode 640"),
        ("submit:hunter2", 0o604, "chmod 600"),
        ("submit:\udcff", 0o600, "cannot read the keys"),
    ],
)
def test_a_broken_file_is_refused_at_the_start_and_changes_nothing_later(
    key_file: Path, text: str, mode: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys = Keys(None, key_file)
    key_file.write_bytes(text.encode(errors="surrogateescape"))
    key_file.chmod(mode)
    for _ in range(2):
        assert scope_of(keys, "first") is Scope.SUBMIT
        with pytest.raises(AccessDenied):
            scope_of(keys, "hunter2")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert why in caplog.text
    assert "hunter2" not in caplog.text
    with pytest.raises(ConfigError, match=why) as error:
        Keys(None, key_file)
    assert "hunter2" not in str(error.value)


def test_a_file_that_is_gone_or_no_file_keeps_the_old_keys(key_file: Path) -> None:
    keys = Keys(None, key_file)
    key_file.unlink()
    assert scope_of(keys, "first") is Scope.SUBMIT
    os.mkfifo(key_file, 0o600)
    assert scope_of(keys, "first") is Scope.SUBMIT
    key_file.unlink()
    write_keys(key_file, "grade:third")
    assert scope_of(keys, "third") is Scope.GRADE
    with pytest.raises(ConfigError, match="cannot read the keys"):
        Keys(None, key_file.with_name("missing"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "sandbox.example.org", ""])
def test_other_machines_need_keys(host: str) -> None:
    with pytest.raises(ConfigError, match="OPENMLE_SANDBOX_KEYS"):
        Keys(None).check_host(host)
    Keys(KEYS).check_host(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_needs_none(host: str) -> None:
    Keys(None).check_host(host)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:6580"},
        {"host": "evil.example:6580", "origin": "http://evil.example:6580"},
        {"host": "127.0.0.1:6580", "origin": "http://evil.example"},
        {"host": "127.0.0.1:6580", "origin": "null"},
        {"host": "127.0.0.1.evil.example"},
        {},
    ],
)
def test_without_keys_a_web_page_elsewhere_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(AccessDenied) as refusal:
        Keys(None).caller(headers)
    assert refusal.value.status == 403


@pytest.mark.parametrize("host", ["127.0.0.1:6580", "localhost", "[::1]:6580", "[::1]"])
def test_without_keys_everybody_here_may_submit(host: str) -> None:
    assert Keys(None).caller({"host": host}).scope is Scope.SUBMIT
    for scheme in ("http", "https"):
        assert Keys(None).caller({"host": host, "origin": f"{scheme}://{host}"}).scope is Scope.SUBMIT


@pytest.mark.parametrize("split", ["test", "both"])
@pytest.mark.parametrize(("key", "status"), [("s3cret", 403), ("gr4de", 201), ("4dmin", 201)])
async def test_test_scores_need_the_scope_grade(tmp_path: Path, split: str, key: str, status: int) -> None:
    async with serving(tmp_path, HeldRunner(), secret=KEYS) as app, http(app, key) as client:
        answer = await client.post("/api/v1/jobs", json=JOB | {"eval_split": split})
    assert answer.status_code == status


async def test_without_keys_nobody_gets_test_scores(tmp_path: Path) -> None:
    async with serving(tmp_path, HeldRunner()) as app, http(app) as client:
        answer = await client.post("/api/v1/jobs", json=JOB | {"eval_split": "test"})
    assert (answer.status_code, "grade" in answer.json()["error"]) == (403, True)


@pytest.mark.parametrize(("split", "score"), [("both", 0.5), ("test", None)])
def test_below_grade_a_result_shows_no_test_score(split: str, score: float | None) -> None:
    assert VIEW.result is not None
    update = {"eval_split": split, "validation_score": score, "score": 0.75 if split == "test" else 0.5}
    view = VIEW.model_copy(update={"result": VIEW.result.model_copy(update=update)})
    shown = Caller(owner="o", scope=Scope.SUBMIT).shown(view)
    assert "0.75" not in shown.model_dump_json()
    assert shown.result is not None
    assert shown.result.score == score
    assert Caller(owner="o", scope=Scope.GRADE).shown(view) == view


async def test_only_the_submitter_and_admin_cancel_a_job(tmp_path: Path) -> None:
    async with serving(tmp_path, HeldRunner(held=True), secret=KEYS) as app, http(app) as client:
        ids = []
        for number in range(2):
            body = request(f"job {number}").model_dump(mode="json", by_alias=True)
            answer = await client.post("/api/v1/jobs", json=body, headers={"X-API-Key": "s3cret"})
            ids.append(answer.json()["job_id"])
        for key, job, status in [("other", 0, 403), ("gr4de", 0, 403), ("s3cret", 0, 200), ("4dmin", 1, 200)]:
            answer = await client.delete(f"/api/v1/jobs/{ids[job]}", headers={"X-API-Key": key})
            assert answer.status_code == status, key
            assert status == 403 or answer.json()["status"] == "cancelled"
