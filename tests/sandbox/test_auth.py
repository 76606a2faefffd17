"""Keys and scopes; and a service that has none."""

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


@pytest.mark.parametrize("secret", ["hunter2", "submit:", "root:hunter2", "submit:a,hunter2", ":hunter2"])
def test_a_misspelt_key_list_is_refused_without_quoting_it(secret: str) -> None:
    with pytest.raises(ConfigError, match="OPENMLE_SANDBOX_KEYS: entry") as error:
        Keys(SecretStr(secret))
    assert "hunter2" not in str(error.value)


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENMLE_SANDBOX_KEYS", "grade:abc")
    assert scope_of(Keys.from_environment(), "abc") is Scope.GRADE
    monkeypatch.setenv("OPENMLE_SANDBOX_KEYS", " , ")
    assert not Keys.from_environment()


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
    assert Keys(None).caller({"host": host, "origin": f"http://{host}"}).scope is Scope.SUBMIT


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
