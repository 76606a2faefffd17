"""What the published clients rely on: three of them read these endpoints, fields and statuses."""

import asyncio
import uuid

from sandbox_service.conformance.check import Failed, Group, Severity, Skipped, check, expect
from sandbox_service.conformance.programs import SUBMIT
from sandbox_service.conformance.service import ABSENT, JOBS, Service, answer, moment

LABELS = (
    "success",
    "code_execution_error",
    "code_missing",
    "submission_missing",
    "scoring_failed",
    "timeout",
    "rejected",
)


@check(Group.PROTOCOL)
async def health_needs_no_key(service: Service) -> None:
    """GET /health answers 2xx to anybody."""
    response = await service.send("GET", "/health", keyed=False)
    expect(response.is_success, f"GET /health answers {response.status_code}")


@check(Group.PROTOCOL)
async def a_submission_is_answered_with_its_id(service: Service) -> None:
    """POST answers 2xx with a JSON object that holds job_id and status."""
    response = await service.send("POST", JOBS, json=service.payload("pass"))
    body = answer(response, 200, 201, 202)
    expect(isinstance(body.get("job_id"), str) and body["job_id"], body)
    expect(body.get("status") in ("queued", "running", "completed"), body)


@check(Group.PROTOCOL)
async def states_are_those_the_clients_know(service: Service) -> None:
    """A job goes from queued over running to completed, and through no other state."""
    job_id = await service.submit("import time\ntime.sleep(1.5)")
    seen: list[object] = []
    for _ in range(600):
        status = (await service.view(job_id)).get("status")
        if not seen or seen[-1] != status:
            seen.append(status)
        if status not in ("queued", "running"):
            break
        await asyncio.sleep(0.2)
    expect(seen[-1] == "completed" and "running" in seen, f"it went through {seen}")


@check(Group.PROTOCOL)
async def a_failed_program_is_a_completed_job(service: Service) -> None:
    """A program that fails is a job that completed, with status 200, a label and no score."""
    ran = await service.run("raise SystemExit(3)")
    expect(ran.view.get("status") == "completed" and ran.outcome == "code_execution_error", ran)
    expect(ran.score is None, ran)


@check(Group.PROTOCOL)
async def the_result_has_the_fields_that_clients_read(service: Service) -> None:
    """A result holds result, score, valid_score, validation_score, test_score, scores_by_split, eval_split, run_log."""
    ran = await service.run(SUBMIT + "submit()")
    fields = (
        *("result", "score", "valid_score", "validation_score", "test_score"),
        *("scores_by_split", "eval_split", "run_log"),
    )
    missing = [name for name in fields if name not in ran.result]
    expect(not missing, f"missing: {missing}: {ran}")
    expect(ran.outcome in LABELS and isinstance(ran.score, float | int), ran)


@check(Group.PROTOCOL)
async def the_score_stands_under_all_its_names(service: Service) -> None:
    """A validation score is the same as score, valid_score, validation_score and in scores_by_split."""
    ran = await service.run(SUBMIT + "submit(lambda x: 2 * x + 3)")
    result = ran.result
    names = [result.get("score"), result.get("valid_score"), result.get("validation_score")]
    expect(names == [2.0] * 3 and (result.get("scores_by_split") or {}).get("validation") == 2.0, ran)


@check(Group.PROTOCOL)
async def times_are_iso_with_z(service: Service) -> None:
    """created_at, started_at and completed_at are ISO 8601 in UTC with Z, in that order."""
    ran = await service.run("pass")
    names = ("created_at", "started_at", "completed_at")
    texts = [str(ran.view.get(name)) for name in names]
    expect(all(text.endswith("Z") for text in texts), f"{dict(zip(names, texts, strict=True))}")
    moments = [moment(ran.view, name) for name in names]
    expect(moments == sorted(moments), f"out of order: {texts}")


@check(Group.PROTOCOL)
async def the_worker_is_named(service: Service) -> None:
    """A job that ran names its worker_id."""
    ran = await service.run("pass")
    expect(isinstance(ran.view.get("worker_id"), str) and ran.view["worker_id"], ran)


@check(Group.PROTOCOL)
async def the_view_names_its_job(service: Service) -> None:
    """The answer about a job holds its own job_id."""
    job_id = await service.submit("pass")
    expect((await service.view(job_id)).get("job_id") == job_id, "another job_id came back")


@check(Group.PROTOCOL)
async def workers_are_shown(service: Service) -> None:
    """GET /api/v1/workers/status holds workers_show, a list whose entries have a status."""
    body = answer(await service.send("GET", "/api/v1/workers/status"), 200)
    workers = body.get("workers_show")
    expect(isinstance(workers, list) and workers, body)
    expect(all(worker.get("status") in ("idle", "busy") for worker in workers or ()), body)


@check(Group.PROTOCOL)
async def the_same_key_is_the_same_job(service: Service) -> None:
    """A submission that is sent again with its idempotency key is the same job, at once and after its end."""
    key = uuid.uuid4().hex
    first = await service.submit("print(1)", idempotency_key=key)
    again = await service.submit("print(1)", idempotency_key=key)
    await service.ended(first)
    after = await service.submit("print(1)", idempotency_key=key)
    expect(first == again == after, f"three jobs for one key: {first}, {again}, {after}")


@check(Group.PROTOCOL)
async def the_same_key_at_the_same_moment(service: Service) -> None:
    """Twenty submissions with one key at one moment are one job."""
    key = uuid.uuid4().hex
    ids = set(await asyncio.gather(*(service.submit("print(1)", idempotency_key=key) for _ in range(20))))
    expect(len(ids) == 1, f"{len(ids)} jobs for one key")


@check(Group.PROTOCOL)
async def the_same_key_for_another_program(service: Service) -> None:
    """A key that has a job is refused with 409 for another payload, and the job stays."""
    key = uuid.uuid4().hex
    first = await service.submit("print(1)", idempotency_key=key)
    response = await service.send("POST", JOBS, json=service.payload("print(2)", idempotency_key=key))
    expect(response.status_code == 409, f"answers {response.status_code}: {response.text[:300]}")
    expect("1" in (await service.ended(first)).log, "the first job's program did not run")


@check(Group.PROTOCOL)
async def two_keys_are_two_jobs(service: Service) -> None:
    """The same program under two keys, or under none, is a job each time."""
    keys = [uuid.uuid4().hex, uuid.uuid4().hex]
    ids = {await service.submit("pass", idempotency_key=key) for key in keys}
    ids |= {await service.submit("pass") for _ in range(2)}
    expect(len(ids) == 4, f"{len(ids)} jobs for four submissions")


@check(Group.PROTOCOL)
async def an_unknown_job_is_404(service: Service) -> None:
    """A job that does not exist is answered 404."""
    response = await service.send("GET", ABSENT)
    expect(response.status_code == 404, f"answers {response.status_code}")


@check(Group.PROTOCOL)
async def broken_json_is_400(service: Service) -> None:
    """A body that is no JSON, or no object, is answered 400 or 422, with an error in JSON."""
    for content in (b"", b"{", b"[1, 2]", b'"text"', b"\xff\xfe", b'{"code": "pass"', b"[" * 100_000):
        response = await service.send("POST", JOBS, content=content)
        expect(response.status_code in (400, 422), f"{content[:20]!r} is answered {response.status_code}")
        answer(response, response.status_code)


@check(Group.PROTOCOL)
async def a_bad_field_is_named(service: Service) -> None:
    """A field that is missing or has a wrong value is answered 422 or 400, with the field's name."""
    bad: dict[str, object] = {"code": 7, "timeout": -1, "data_dir": "", "resource_type": "abacus", "eval_split": "all"}
    for name, value in bad.items():
        response = await service.send("POST", JOBS, json={**service.payload("pass"), name: value})
        expect(response.status_code in (400, 422), f"{name}={value!r} is answered {response.status_code}")
        expect(name in response.text, f"{name}={value!r}: the answer does not name it: {response.text[:300]}")
    for name in ("code", "data_dir"):
        payload = service.payload("pass")
        del payload[name]
        response = await service.send("POST", JOBS, json=payload)
        expect(response.status_code in (400, 422), f"without {name} it is answered {response.status_code}")
        expect(name in response.text, f"without {name}: the answer does not name it: {response.text[:300]}")


@check(Group.PROTOCOL)
async def a_data_dir_outside_is_refused(service: Service) -> None:
    """A data_dir outside of the task roots, or one that does not exist, is answered 4xx and tells nothing."""
    for place in ("/etc", "../../../etc", "/", "no-such-task", "/proc/self/root", "x\0y", "a" * 5000):
        response = await service.send("POST", JOBS, json=service.payload("pass", data_dir=place))
        expect(400 <= response.status_code < 500, f"{place[:30]!r} is answered {response.status_code}")
        expect("root:" not in response.text, response.text[:300])


@check(Group.PROTOCOL)
async def unknown_fields_are_ignored(service: Service) -> None:
    """A submission with fields that a later client may send is accepted."""
    await service.submit("pass", a_field_of_the_future={"x": 1}, trace_id="abc")


@check(Group.PROTOCOL)
async def any_priority_is_accepted(service: Service) -> None:
    """Published clients send 1, 2 and sometimes other numbers as the priority."""
    for priority in (1, 2, 0, 7):
        await service.submit("pass", priority=priority)


@check(Group.PROTOCOL)
async def a_trace_id_header_is_accepted(service: Service) -> None:
    """The header X-Trace-ID, which a published client sends, does no harm."""
    headers = {"X-Trace-ID": uuid.uuid4().hex}
    answer(await service.send("POST", JOBS, json=service.payload("pass"), headers=headers), 200, 201, 202)


@check(Group.PROTOCOL)
async def a_body_that_is_too_large_is_413(service: Service) -> None:
    """A body over the limit is answered 413, with and without a declared length, and the service lives."""
    payload = b'{"code": "' + b"x" * int(service.config.max_body_mib * 1024 * 1024) + b'"}'
    response = await service.send("POST", JOBS, content=payload)
    expect(response.status_code == 413, f"answers {response.status_code}")
    expect((await service.send("GET", "/health")).is_success, "the service does not answer any more")


@check(Group.PROTOCOL)
async def wrong_methods_and_paths_are_4xx(service: Service) -> None:
    """Methods and paths that do not exist are answered 404 or 405."""
    for method, path in (("PUT", JOBS), ("PATCH", JOBS), ("GET", "/api/v1/nothing"), ("POST", "/health")):
        response = await service.send(method, path)
        expect(response.status_code in (404, 405), f"{method} {path} answers {response.status_code}")


@check(Group.PROTOCOL)
async def no_key_is_401(service: Service) -> None:
    """Where the service has keys, requests without one are answered 401 and tell nothing."""
    if not service.has_key:
        raise Skipped("no key was given; a service without keys answers everybody")
    for method, path in (("POST", JOBS), ("GET", ABSENT), ("GET", "/api/v1/workers/status")):
        response = await service.send(method, path, keyed=False)
        expect(response.status_code == 401, f"{method} {path} answers {response.status_code}")


@check(Group.PROTOCOL)
async def a_wrong_key_is_401(service: Service) -> None:
    """A key that is not one of the service's is answered 401 (or 403), whatever it looks like."""
    if not service.has_key:
        raise Skipped("no key was given; a service without keys answers everybody")
    right = service.secrets[0]
    for key in ("wrong", "", right[:-1], right + "x", "x" * 5000, "submit:" + right):
        response = await service.send("GET", ABSENT, keyed=False, headers={"X-API-Key": key})
        expect(response.status_code in (401, 403, 431), f"a wrong key is answered {response.status_code}")


@check(Group.PROTOCOL)
async def test_scores_need_a_key_that_may(service: Service) -> None:
    """A key that may only submit can ask for the test split neither alone nor with validation (403)."""
    for split in ("test", "both"):
        response = await service.send("POST", JOBS, json=service.payload("pass", eval_split=split))
        expect(response.status_code in (401, 403), f"eval_split={split} is answered {response.status_code}")


@check(Group.PROTOCOL)
async def test_scores_for_a_key_that_may(service: Service) -> None:
    """A key that may has the test score by asking, and the submitting key does not see it in that job."""
    grader = service.grader()
    job_id = await grader.submit(SUBMIT + "submit(lambda x: 2 * x + 3)", eval_split="both")
    graded = await grader.ended(job_id)
    expect(graded.result.get("test_score") == 2.0 and graded.result.get("validation_score") == 2.0, graded)
    response = await service.send("GET", f"{JOBS}/{job_id}")
    if response.status_code == 200:
        result = response.json().get("result") or {}
        seen = result.get("test_score") is not None or "test" in (result.get("scores_by_split") or {})
        expect(not seen, f"the submitting key sees the test score: {result}")
    else:
        expect(response.status_code in (403, 404), f"answers {response.status_code}")


@check(Group.PROTOCOL)
async def a_plain_job_has_no_test_score(service: Service) -> None:
    """A job that did not ask for it has no test score."""
    ran = await service.run(SUBMIT + "submit()")
    expect(ran.result.get("test_score") is None and "test" not in (ran.result.get("scores_by_split") or {}), ran)


@check(Group.PROTOCOL, Severity.SHOULD)
async def errors_tell_nothing_of_the_inside(service: Service) -> None:
    """Error answers hold no traceback."""
    for content in (b"{", b'{"code": {"a": 1}}'):
        response = await service.send("POST", JOBS, content=content)
        expect("Traceback" not in response.text and ".py" not in response.text, response.text[:500])


@check(Group.PROTOCOL, alone=True)
async def a_full_queue_says_when_to_come_back(service: Service) -> None:
    """A full queue is answered 429 or 503 with a numeric Retry-After, and never with another 4xx."""
    most = service.config.max_queued
    if not 0 < most <= 2000:
        raise Skipped("no max_queued of at most 2000 was given")
    accepted: list[str] = []
    try:
        for _ in range(most + 100):
            response = await service.send("POST", JOBS, json=service.payload("import time\ntime.sleep(2)"))
            if not response.is_success:
                break
            accepted.append(response.json()["job_id"])
        else:
            raise Failed(f"{len(accepted)} jobs were accepted by a queue of {most}")
        after = response.headers.get("Retry-After", "")
        expect(response.status_code in (429, 503), f"answers {response.status_code}")
        expect(after.replace(".", "", 1).isdigit() and float(after) <= 30, f"Retry-After is {after!r}")
    finally:
        for job_id in accepted:
            await service.send("DELETE", f"{JOBS}/{job_id}")
