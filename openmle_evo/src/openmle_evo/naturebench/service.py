"""The client of NatureBench's evaluation service.

GET  /health
POST /register      task_name, data_dir, timeout, out_dir, batch_name     409 where it is registered already
POST /start_timer   task_name, batch_name
POST /evaluate      task_name, batch_name, output_dir    -> attempt, raw_scores, per_instance_improvement, ...
"""

import math
from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple, Self

import httpx
from openmle_gym.contracts import ForeignContract, one_line
from openmle_gym.errors import ConfigError, ExecutorUnavailable
from openmle_gym.retry import retrying
from pydantic import JsonValue, ValidationError

PATIENCE_SECONDS = 120.0


class Evaluation(ForeignContract):
    """What the service says of one set of outputs."""

    attempt: int | None = None
    raw_scores: JsonValue = None
    per_instance_improvement: JsonValue = None
    aggregate_improvement: float | None = None
    """The mean relative improvement over the state of the art; None where nothing could be scored."""

    @property
    def gap(self) -> float | None:
        """The aggregate, where it is a number."""
        aggregate = self.aggregate_improvement
        return aggregate if aggregate is not None and math.isfinite(aggregate) else None


class Answer(NamedTuple):
    """An evaluation, or why there is none."""

    evaluation: Evaluation | None
    refusal: str = ""
    """What the evaluator said of outputs that it could not score."""


class EvaluationService:
    """One batch at a service. Every call is made by us, none by a program."""

    def __init__(self, base_url: str, *, evaluation_seconds: float, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Args:
        evaluation_seconds: How long one evaluation may take.
        patience_seconds: How long a service that does not answer is asked again.
        """
        if not base_url:
            raise ConfigError("nature.service: the address of NatureBench's evaluation service is missing")
        self.base_url = base_url.rstrip("/")
        self._patience_seconds = patience_seconds
        self._evaluation_seconds = evaluation_seconds
        # The service is ours and near; a proxy from the environment would see hidden scores.
        self._http = httpx.AsyncClient(base_url=self.base_url, timeout=10.0, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def check(self) -> None:
        """Asks for a sign of life.

        Raises:
            ExecutorUnavailable: There is none.
        """
        await self._asked("GET", "/health")

    async def register(self, task: str, *, batch: str, data_dir: str, out_dir: str, timeout_seconds: float) -> None:
        """Makes a task known and starts its clock; one that is known already goes on.

        Raises:
            ExecutorUnavailable: The service did not answer, or refused; the message quotes it.
        """
        known = await self._asked(
            "POST",
            "/register",
            {
                "task_name": task,
                "batch_name": batch,
                "data_dir": data_dir,
                "out_dir": out_dir,
                "timeout": int(timeout_seconds),
            },
            answered=(409,),
        )
        if known.status_code != 409:
            await self._asked("POST", "/start_timer", {"task_name": task, "batch_name": batch})

    async def evaluate(self, task: str, *, batch: str, output_dir: str) -> Answer:
        """Has outputs scored; the same outputs again is another attempt there and harms nothing.

        Raises:
            ExecutorUnavailable: The service did not answer, or not as NatureBench's does.
        """
        asked = {"task_name": task, "batch_name": batch, "output_dir": output_dir}
        response = await self._asked("POST", "/evaluate", asked, answered=(500,), seconds=self._evaluation_seconds)
        if response.status_code == 500:
            return Answer(None, response.text[:2000])
        try:
            return Answer(Evaluation.model_validate_json(response.content))
        except ValidationError as error:
            raise ExecutorUnavailable(f"{self.base_url}/evaluate: not an evaluation: {one_line(error)}") from error

    async def _asked(
        self,
        method: str,
        path: str,
        content: Mapping[str, JsonValue] | None = None,
        *,
        answered: tuple[int, ...] = (),
        seconds: float = 10.0,
    ) -> httpx.Response:
        """The answer, which is a success or has one of the statuses that are answers too."""

        async def call() -> httpx.Response:
            response = await self._http.request(method, path, json=content, timeout=httpx.Timeout(10.0, read=seconds))
            return response if response.status_code in answered else response.raise_for_status()

        return await retrying(
            call,
            place=f"{method} {self.base_url}{path}",
            patience_seconds=self._patience_seconds,
            unavailable=ExecutorUnavailable,
        )
