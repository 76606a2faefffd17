"""The service as the checks see it: requests, jobs, and what came of them, as the JSON that was sent.

Answers stay JSON objects here, on purpose: a model would put right, or refuse as a whole, what a check is to judge.
"""

import asyncio
import copy
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx
from pydantic import SecretStr

from sandbox_service.conformance.check import Failed, Skipped, expect, shortened
from sandbox_service.conformance.config import ConformanceConfig
from sandbox_service.conformance.programs import FACT

Json = dict[str, Any]
JOBS = "/api/v1/jobs"
ABSENT = f"{JOBS}/00000000-there-is-no-such-job"
SLEEPS = "import time\ntime.sleep(300)\n"
ENDED = ("completed", "failed", "cancelled")
BUSY = (429, 503)
POLL_SECONDS = 5.0
BETWEEN_POLLS_SECONDS = 0.2
NOT_OFFERED = (404, 405, 501)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A job that ended."""

    view: Json
    """The whole answer."""

    @property
    def result(self) -> Json:
        """The `result` object; empty when there is none."""
        return self.view.get("result") or {}

    @property
    def outcome(self) -> str | None:
        """The label."""
        return self.result.get("result")

    @property
    def score(self) -> object:
        """The score; None when there is none."""
        return self.result.get("score")

    @property
    def log(self) -> str:
        """What the program printed, with the service's markers."""
        return str(self.result.get("run_log") or "")

    @property
    def facts(self) -> Json:
        """What the program told."""
        facts: Json = {}
        for line in self.log.splitlines():
            if line.startswith(FACT):
                facts |= json.loads(line.removeprefix(FACT))
        return facts

    def fact(self, name: str) -> Any:
        """One thing that the program told.

        Raises:
            Failed: It did not come to tell it.
        """
        expect(name in self.facts, f"the program did not report {name!r}: {self}")
        return self.facts[name]

    def seconds(self) -> float:
        """From start to end, by the service's own times."""
        return (moment(self.view, "completed_at") - moment(self.view, "started_at")).total_seconds()

    def expect_outcome(self, *outcomes: str) -> None:
        """Raises:
        Failed: It ended otherwise.
        """
        expect(self.outcome in outcomes, f"expected {' or '.join(outcomes)}: {self}")

    def __str__(self) -> str:
        return shortened(json.dumps(self.view, ensure_ascii=True))


def moment(view: Json, name: str) -> datetime:
    """A time of a job.

    Raises:
        Failed: It is missing, or no time.
    """
    try:
        return datetime.fromisoformat(str(view.get(name)))
    except ValueError:
        raise Failed(f"{name} is no time: {view.get(name)!r}") from None


class Service:
    """One running service."""

    def __init__(
        self,
        config: ConformanceConfig,
        *,
        key: SecretStr | None = None,
        second_key: SecretStr | None = None,
        grade_key: SecretStr | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Args:
        key: What checks submit with; None for a service without keys.
        second_key: Another user's.
        grade_key: One that may have test scores.
        transport: For tests: how requests travel.
        """
        self.config = config
        self.has_key = key is not None
        self._key = key
        self._second_key = second_key
        self._grade_key = grade_key
        self._http = httpx.AsyncClient(
            base_url=config.url,
            transport=transport,
            trust_env=False,
            timeout=httpx.Timeout(30.0, read=config.patience_seconds),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        )
        self._shared: dict[str, asyncio.Task[Ran]] = {}

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    @property
    def secrets(self) -> list[str]:
        """The keys, to look for where they must not be."""
        return [key.get_secret_value() for key in (self._key, self._second_key, self._grade_key) if key]

    def second(self) -> "Service":
        """The service as another user sees it.

        Raises:
            Skipped: No second key was given.
        """
        return self._as(self._second_key, "second_key_variable")

    def grader(self) -> "Service":
        """The service as one who may have test scores sees it.

        Raises:
            Skipped: No such key was given.
        """
        return self._as(self._grade_key, "grade_key_variable")

    def _as(self, key: SecretStr | None, setting: str) -> "Service":
        if key is None:
            raise Skipped(f"no {setting} was given")
        other = copy.copy(self)
        other._key = key
        return other

    async def send(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        params: Mapping[str, str | float] | None = None,
        headers: Mapping[str, str] | None = None,
        keyed: bool = True,
    ) -> httpx.Response:
        """One request.

        Raises:
            Failed: The service did not answer.
        """
        key = {"X-API-Key": self._key.get_secret_value()} if self._key and keyed else {}
        kind = {"Content-Type": "application/json"} if content is not None else {}
        try:
            return await self._http.request(
                method, path, json=json, content=content, params=params, headers={**key, **kind, **(headers or {})}
            )
        except httpx.TransportError as error:
            raise Failed(f"{method} {path}: the service did not answer: {error!r}") from error

    def payload(self, code: str, **fields: object) -> Json:
        """What the published clients send, around a program."""
        data_dir = self.config.data_dir
        return {
            "name": data_dir,
            "code": code,
            "data_dir": data_dir,
            "timeout": 60,
            "resource_type": "cpu",
            "priority": 1,
            "environment": {"EXECUTION_MODE": "shell", "DATA_DIR": data_dir, "SANDBOX_DATA_DIR": data_dir},
            **fields,
        }

    async def submit(self, code: str, **fields: object) -> str:
        """Submits a program and returns the job's id. A service that is busy is asked again, as published clients do.

        Raises:
            Failed: It refused.
        """
        deadline = self._clock() + self.config.patience_seconds
        while True:
            response = await self.send("POST", JOBS, json=self.payload(code, **fields))
            if response.status_code not in BUSY or self._clock() > deadline:
                break
            await asyncio.sleep(1.0)
        body = answer(response, 200, 201, 202)
        expect(isinstance(body.get("job_id"), str), f"the answer to a submission holds no job_id: {body}")
        return body["job_id"]

    async def view(self, job_id: str, *, wait_seconds: float = 0.0) -> Json:
        """How a job stands."""
        params = {"wait": wait_seconds} if wait_seconds else None
        return answer(await self.send("GET", f"{JOBS}/{job_id}", params=params), 200)

    async def until(self, job_id: str, *states: str, within_seconds: float) -> Json:
        """A job once it stands in one of the states, or has ended.

        Raises:
            Failed: It did not get there in time.
        """
        deadline = self._clock() + within_seconds
        waits = states == ENDED
        while True:
            view = await self.view(job_id, wait_seconds=POLL_SECONDS if waits else 0.0)
            if view.get("status") in (*states, *ENDED):
                return view
            expect(self._clock() < deadline, f"after {within_seconds:g} seconds the job is not {states}: {view}")
            await asyncio.sleep(BETWEEN_POLLS_SECONDS)

    async def ended(self, job_id: str, *, limit_seconds: float = 60.0) -> Ran:
        """A job at its end: its time limit, the grace and the patience may pass.

        Raises:
            Failed: It did not end in time, or without a result.
        """
        within = limit_seconds + self.config.grace_seconds + self.config.patience_seconds
        view = await self.until(job_id, *ENDED, within_seconds=within)
        ran = Ran(view=view)
        expect(view.get("status") == "completed" and ran.result, f"the job has no result: {ran}")
        return ran

    async def run(  # the limit has the name that it has on the wire
        self,
        code: str,
        *,
        timeout: float = 60.0,  # noqa: ASYNC109
        **fields: object,
    ) -> Ran:
        """Runs a program to its end."""
        return await self.ended(await self.submit(code, timeout=timeout, **fields), limit_seconds=timeout)

    async def sleeping(self) -> str:
        """A job that runs, and goes on until it is cancelled.

        Raises:
            Failed: It does not get to run.
        """
        job_id = await self.submit(SLEEPS + f"# {uuid.uuid4()}", timeout=60)
        view = await self.until(job_id, "running", within_seconds=self.config.patience_seconds)
        expect(view["status"] == "running", f"a program that sleeps does not run: {view}")
        return job_id

    async def shared(self, code: str) -> Ran:
        """Runs a program once for all checks that read what it tells."""
        if code not in self._shared:
            self._shared[code] = asyncio.create_task(self.run(code))
        return await asyncio.shield(self._shared[code])

    async def workers(self) -> int:
        """How many programs run at once.

        Raises:
            Skipped: Too many to fill.
        """
        body = answer(await self.send("GET", "/api/v1/workers/status"), 200)
        number = len(body.get("workers_show") or ())
        expect(number, f"workers_show is empty: {body}")
        if number > 16:
            raise Skipped(f"{number} workers are more than this check fills")
        return number

    async def offers(self, method: str, path: str, what: str, **arguments: Any) -> httpx.Response:
        """The answer of an endpoint that a service need not have.

        Raises:
            Skipped: It has none.
        """
        response = await self.send(method, path, **arguments)
        if response.status_code in NOT_OFFERED:
            raise Skipped(f"the service does not offer {what} ({method} {path} answers {response.status_code})")
        return response

    @staticmethod
    def _clock() -> float:
        return asyncio.get_running_loop().time()


def answer(response: httpx.Response, *statuses: int) -> Json:
    """A response's JSON object.

    Raises:
        Failed: It has another status, or is none.
    """
    place = f"{response.request.method} {response.request.url.path}"
    expect(
        response.status_code in statuses,
        f"{place} answers {response.status_code}, not {' or '.join(map(str, statuses))}: {response.text[:500]}",
    )
    try:
        body = json.loads(response.content)
    except ValueError as error:
        raise Failed(f"{place}: the answer is not JSON: {error}: {response.text[:500]}") from error
    expect(isinstance(body, dict), f"{place}: the answer is no JSON object: {response.text[:500]}")
    return body
