"""What OpenMLE's service offers beyond the published protocol; where a service does not offer it, checks are skipped."""

import asyncio
import json
import time
import uuid

from sandbox_service.conformance.check import Group, Severity, Skipped, check, expect
from sandbox_service.conformance.programs import SUBMIT
from sandbox_service.conformance.service import JOBS, Service, answer


async def _offers_waiting(service: Service, job_id: str) -> None:
    began = time.monotonic()
    await service.view(job_id, wait_seconds=1.0)
    if time.monotonic() - began < 0.5:
        raise Skipped("the service does not offer ?wait=")


@check(Group.EXTENSIONS)
async def a_long_poll_waits(service: Service) -> None:
    """?wait=SECONDS is answered after so many seconds while the job still runs."""
    job_id = await service.sleeping()
    try:
        await _offers_waiting(service, job_id)
        began = time.monotonic()
        view = await service.view(job_id, wait_seconds=2.0)
        waited = time.monotonic() - began
        expect(1.5 < waited < 10 and view["status"] == "running", f"answered after {waited:.1f} s: {view['status']}")
    finally:
        await service.send("DELETE", f"{JOBS}/{job_id}")


@check(Group.EXTENSIONS)
async def a_long_poll_is_answered_at_the_end(service: Service) -> None:
    """A long poll returns as soon as the job has ended, long before its time is up."""
    job_id = await service.submit("import time\ntime.sleep(4)")
    await service.until(job_id, "running", within_seconds=service.config.patience_seconds)
    await _offers_waiting(service, job_id)
    began = time.monotonic()
    view = await service.view(job_id, wait_seconds=50.0)
    expect(view["status"] == "completed" and time.monotonic() - began < 30, f"{time.monotonic() - began} s: {view}")


@check(Group.EXTENSIONS)
async def a_bad_wait_is_refused(service: Service) -> None:
    """?wait= of a word or a negative number is answered 400 or 422."""
    job_id = await service.sleeping()
    try:
        await _offers_waiting(service, job_id)
        for wait in ("soon", "-1", "nan"):
            response = await service.send("GET", f"{JOBS}/{job_id}", params={"wait": wait})
            expect(response.status_code in (400, 422), f"wait={wait} is answered {response.status_code}")
    finally:
        await service.send("DELETE", f"{JOBS}/{job_id}")


@check(Group.EXTENSIONS)
async def keys_do_not_share_idempotency(service: Service) -> None:
    """Two users' jobs with the same idempotency key are two jobs."""
    key = uuid.uuid4().hex
    mine, theirs = [await each.submit("pass", idempotency_key=key) for each in (service, service.second())]
    expect(mine != theirs, f"both are {mine}")


@check(Group.EXTENSIONS)
async def jobs_are_listed(service: Service) -> None:
    """GET /api/v1/jobs lists jobs, the newest first, filtered by label and status, at most ?limit=."""
    label = uuid.uuid4().hex
    ids = [await service.submit(f"print({number})", labels={"run": label}) for number in range(3)]
    await asyncio.gather(*(service.ended(job_id) for job_id in ids))
    ask = {"label": f"run={label}"}
    listed = answer(await service.offers("GET", JOBS, "a list of jobs", params=ask), 200)["jobs"]
    expect([view["job_id"] for view in listed] == ids[::-1], f"submitted {ids}, listed {listed}")
    for more, number in (({"limit": 2}, 2), ({"status": "completed"}, 3), ({"status": "queued"}, 0)):
        listed = answer(await service.send("GET", JOBS, params={**ask, **more}), 200)["jobs"]
        expect(len(listed) == number, f"{more}: expected {number} jobs: {listed}")


@check(Group.EXTENSIONS)
async def pages_follow_each_other(service: Service) -> None:
    """The pages of a list, by next_before, hold each job once."""
    label = uuid.uuid4().hex
    ids = [await service.submit(f"print({number})", labels={"run": label}) for number in range(5)]
    found: list[str] = []
    params: dict[str, str | float] = {"label": f"run={label}", "limit": 2}
    for _ in range(5):
        body = answer(await service.offers("GET", JOBS, "a list of jobs", params=params), 200)
        if "next_before" not in body:
            raise Skipped("the service does not offer pages")
        found += [view["job_id"] for view in body["jobs"]]
        if body["next_before"] is None:
            break
        params["before"] = body["next_before"]
    expect(found == ids[::-1], f"submitted {ids}, found {found}")


@check(Group.EXTENSIONS)
async def a_bad_filter_is_refused(service: Service) -> None:
    """A status or a limit that cannot be is answered 400 or 422."""
    await service.offers("GET", JOBS, "a list of jobs")
    for params in ({"status": "sleeping"}, {"limit": "many"}, {"label": "no-equals-sign"}):
        response = await service.send("GET", JOBS, params=params)
        expect(response.status_code in (400, 422), f"{params} is answered {response.status_code}")


@check(Group.EXTENSIONS)
async def labels_come_back(service: Service) -> None:
    """The labels of a submission stand in the job's view."""
    labels = {"run": "a run", "attempt": "7", "ключ": "значение"}
    job_id = await service.submit("pass", labels=labels)
    view = await service.view(job_id)
    if "labels" not in view:
        raise Skipped("the service does not offer labels")
    expect(view["labels"] == labels, view)


@check(Group.EXTENSIONS)
async def many_in_one_request(service: Service) -> None:
    """A batch accepts its good jobs, and says of each bad one what is wrong, in the order given."""
    key = uuid.uuid4().hex
    jobs = [
        service.payload("print('first')", idempotency_key=key),
        service.payload("pass", timeout=-1),
        service.payload("pass", data_dir="/etc"),
        service.payload("print('first')", idempotency_key=key),
    ]
    response = await service.offers("POST", f"{JOBS}/batch", "batches", json={"jobs": jobs})
    items = answer(response, 200, 201, 207)["jobs"]
    statuses = [item["status"] for item in items]
    expect(statuses[0] == 201 and statuses[1] in (400, 422) and statuses[2] in (400, 422), statuses)
    expect(statuses[3] == 200 and items[0]["job"]["job_id"] == items[3]["job"]["job_id"], items)
    expect("first" in (await service.ended(items[0]["job"]["job_id"])).log, "the accepted job did not run")


@check(Group.EXTENSIONS)
async def the_log_by_itself(service: Service) -> None:
    """GET .../logs is the program's output as plain text, whole or its head or tail."""
    ran = await service.run("for number in range(100): print(f'line {number}')")
    path = f"{JOBS}/{ran.view['job_id']}/logs"
    whole = await service.offers("GET", path, "logs")
    expect(whole.status_code == 200 and "line 0\n" in whole.text and "line 99" in whole.text, whole.text[:500])
    expect(whole.headers["content-type"].startswith("text/plain"), whole.headers["content-type"])
    for params, there, absent in (({"tail": 2}, "line 99", "line 50"), ({"head": 2}, "line 0", "line 50")):
        text = (await service.send("GET", path, params=params)).text
        expect(there in text and absent not in text, f"{params}: {text[:300]}")


@check(Group.EXTENSIONS)
async def the_log_of_a_running_job(service: Service) -> None:
    """What a program has printed can be read while it runs."""
    job_id = await service.submit("import time\nprint('so far', flush=True)\ntime.sleep(20)", timeout=60)
    try:
        view = await service.until(job_id, "running", within_seconds=service.config.patience_seconds)
        expect(view["status"] == "running", view)
        for _ in range(40):
            response = await service.offers("GET", f"{JOBS}/{job_id}/logs", "logs")
            if "so far" in response.text:
                return
            await asyncio.sleep(0.25)
        expect((await service.view(job_id))["status"] != "running", "the log stayed empty while the program ran")
    finally:
        await service.send("DELETE", f"{JOBS}/{job_id}")


@check(Group.EXTENSIONS)
async def files_can_be_fetched(service: Service) -> None:
    """GET .../artifacts lists the submission, and GET .../artifacts/submission.csv returns its bytes as a download."""
    ran = await service.run(SUBMIT + "submit()")
    path = f"{JOBS}/{ran.view['job_id']}/artifacts"
    listed = answer(await service.offers("GET", path, "artifacts"), 200)
    expect("submission.csv" in json.dumps(listed), listed)
    response = await service.send("GET", f"{path}/submission.csv")
    expect(response.status_code == 200 and response.text.startswith("id,y\n100,201"), response.text[:200])
    kind = response.headers["content-type"]
    expect("html" not in kind, f"a browser would show it: {kind}")
    expect("attachment" in response.headers.get("content-disposition", ""), "a browser would show it, not save it")


@check(Group.EXTENSIONS)
async def files_of_others_cannot_be_fetched(service: Service) -> None:
    """Names that lead out of a job's files are answered 4xx."""
    ran = await service.run(SUBMIT + "submit()")
    path = f"{JOBS}/{ran.view['job_id']}/artifacts"
    await service.offers("GET", path, "artifacts")
    for name in ("..%2f..%2fjobs.sqlite", "%2e%2e/%2e%2e/etc/passwd", "%2fetc%2fpasswd", "program.py%00", "absent.csv"):
        response = await service.send("GET", f"{path}/{name}")
        expect(400 <= response.status_code < 500, f"{name} is answered {response.status_code}: {response.text[:200]}")


@check(Group.EXTENSIONS)
async def a_refused_submission_cannot_be_fetched(service: Service) -> None:
    """A submission that is a link is not followed when it is fetched."""
    ran = await service.run("import os\nos.symlink('/etc/passwd', 'submission.csv')")
    path = f"{JOBS}/{ran.view['job_id']}/artifacts"
    await service.offers("GET", path, "artifacts")
    response = await service.send("GET", f"{path}/submission.csv")
    expect(400 <= response.status_code < 500 and "root:" not in response.text, f"answers {response.status_code}")


@check(Group.EXTENSIONS)
async def events_end_with_the_job(service: Service) -> None:
    """GET .../events streams server-sent events with the output, and ends when the job has ended."""
    job_id = await service.submit("import time\nprint('streamed', flush=True)\ntime.sleep(1.5)")
    async with asyncio.timeout(service.config.patience_seconds):
        response = await service.offers("GET", f"{JOBS}/{job_id}/events", "server-sent events")
    expect(response.status_code == 200, f"answers {response.status_code}")
    expect(response.headers["content-type"].startswith("text/event-stream"), response.headers["content-type"])
    expect("streamed" in response.text and "completed" in response.text, response.text[:1000])


@check(Group.EXTENSIONS)
async def figures_for_prometheus(service: Service) -> None:
    """GET /metrics answers in Prometheus' text format, with no key or program in it."""
    response = await service.offers("GET", "/metrics", "metrics")
    expect(response.status_code == 200 and "# TYPE" in response.text, response.text[:300])
    expect(not any(secret in response.text for secret in service.secrets), "a key stands in the metrics")


@check(Group.EXTENSIONS)
async def the_api_describes_itself(service: Service) -> None:
    """GET /openapi.json describes the endpoints that the service has."""
    document = answer(await service.offers("GET", "/openapi.json", "an OpenAPI document"), 200)
    expect(JOBS in document.get("paths", {}) and f"{JOBS}/{{job_id}}" in document["paths"], list(document))


@check(Group.EXTENSIONS)
async def logs_are_never_a_page(service: Service) -> None:
    """What a program prints is never served so that a browser runs it."""
    ran = await service.run("print('<html><script>alert(1)</script></html>')")
    for end in ("", "/logs"):
        response = await service.send("GET", f"{JOBS}/{ran.view['job_id']}{end}")
        kind = response.headers.get("content-type", "")
        expect("html" not in kind and "javascript" not in kind, f"{end}: {kind}")


@check(Group.EXTENSIONS, Severity.SHOULD)
async def the_isolation_is_told(service: Service) -> None:
    """/health and each result say what held the program, and it is an isolation."""
    told = answer(await service.send("GET", "/health"), 200).get("isolation")
    ran = await service.run("pass")
    expect(told and told != "process", f"/health says {told}")
    expect(ran.result.get("isolation") == told, ran)


@check(Group.EXTENSIONS)
async def printed_scores_are_told_apart(service: Service) -> None:
    """self_reported_score is what the program printed last, apart from the score."""
    ran = await service.run(
        SUBMIT + "submit()\nprint('Final Validation Score: 0.1')\nprint('Final Validation Score: 0.25')"
    )
    if "self_reported_score" not in ran.result:
        raise Skipped("the service does not offer self_reported_score")
    expect(ran.result["self_reported_score"] == 0.25 and ran.score == 0.0, ran)


@check(Group.EXTENSIONS, Severity.SHOULD)
async def equal_failures_have_equal_signatures(service: Service) -> None:
    """Two programs that fail in the same way have the same error_signature, and others another."""
    fail = "def fit():\n    return {}['absent']\nfit()\n"
    first, same, other = [await service.run(code) for code in (fail, "# another\n" + fail, "1 / 0")]
    signatures = [ran.result.get("error_signature") for ran in (first, same, other)]
    expect(signatures[0] and signatures[0] == signatures[1] != signatures[2], signatures)


@check(Group.EXTENSIONS)
async def seconds_add_up(service: Service) -> None:
    """program_seconds is the program's own time, within the time between the job's start and end."""
    ran = await service.run("import time\ntime.sleep(1)")
    seconds = ran.result.get("program_seconds")
    if seconds is None:
        raise Skipped("the service does not offer program_seconds")
    expect(1.0 <= seconds <= ran.seconds() + 0.1, f"program_seconds {seconds}, by its moments {ran.seconds()}")
