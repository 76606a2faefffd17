"""The quality of one package: mechanical checks, then judges, then both rules.

A package with an error by `check` is not recommended, and no judge is asked. A judge that cannot be reached, or whose
answers cannot be read, leaves the package unjudged: that says nothing about it.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from openmle_gym.chat import ChatModel, Message, Usage
from openmle_gym.check import check_package
from openmle_gym.check.finding import Report
from openmle_gym.contracts import Contract
from openmle_gym.errors import ModelUnavailable
from openmle_gym.isolation.runner import Runner
from openmle_gym.quality.evidence import Evidence, collect_evidence
from openmle_gym.quality.judge import PROMPT_HASH, BadAnswer, judge_prompt, read_judgement
from openmle_gym.quality.rules import FLOOR, Judgement, LegacyVerdict, StrictVerdict, legacy, strict
from openmle_gym.task import load_package

READING_ATTEMPTS = 2
"""How often one judge is asked until its answer can be read."""


class JudgeCall(Contract):
    """One judge, and what became of asking it."""

    model: str
    """As the endpoint names itself; empty when it did not answer."""
    seed: int
    judgement: Judgement | None = None
    failure: str = ""
    """Why there is no judgement."""
    usage: Usage = Usage()
    """Of all its calls."""
    cost_usd: float | None = None
    seconds: float = 0.0


class Assessment(Contract):
    """What is to be said of a package."""

    schema_version: Literal[1] = 1
    package: str
    status: Literal["judged", "failed_checks", "unjudged"]
    """`failed_checks`: no judge was asked."""
    legacy: LegacyVerdict
    strict: StrictVerdict
    errors: tuple[str, ...] = ()
    """The ids of the mechanical errors."""
    provider: str = ""
    """The endpoint's address."""
    prompt_sha256: str = PROMPT_HASH
    calls: tuple[JudgeCall, ...] = ()
    usage: Usage = Usage()
    cost_usd: float | None = Field(default=None)
    """Of all calls; None where a price is not known."""


async def assess_package(
    root: Path, *, runner: Runner, chat: ChatModel, provider: str, judges: int = 3, floor: float = FLOOR
) -> Assessment:
    """Checks a package and, where that finds no error, has it judged.

    Args:
        runner: What holds the metric during the checks.
        provider: Where the judges are, for the record.
        judges: How many are asked, each with a seed of its own.
        floor: See `openmle_gym.quality.rules.strict`.

    Raises:
        RunnerUnavailable: The metric could not be started.
    """
    if judges < 1:
        raise ValueError(f"judges: must be at least 1, got {judges}")
    report = await check_package(root, runner=runner)
    if not report.passed:
        return _failed(report)
    evidence = await asyncio.to_thread(lambda: collect_evidence(load_package(root), report))
    messages = judge_prompt(evidence)
    calls = await asyncio.gather(*(_ask(chat, messages, evidence, seed) for seed in range(judges)))
    judgements = [call.judgement for call in calls if call.judgement is not None]
    verdict = strict(judgements, asked=judges, floor=floor)
    costs = [call.cost_usd for call in calls]
    return Assessment(
        package=report.package,
        status="unjudged" if verdict.recommendation == "unjudged" else "judged",
        legacy=legacy(judgements),
        strict=verdict,
        provider=provider,
        calls=tuple(calls),
        usage=sum((call.usage for call in calls), Usage()),
        cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
    )


def _failed(report: Report) -> Assessment:
    return Assessment(
        package=report.package,
        status="failed_checks",
        legacy=LegacyVerdict(overall=0.0, recommendation="not_recommended"),
        strict=StrictVerdict(overall=0.0, recommendation="not_recommended"),
        errors=tuple(sorted(report.ids("error"))),
    )


async def _ask(chat: ChatModel, messages: Sequence[Message], evidence: Evidence, seed: int) -> JudgeCall:
    call = JudgeCall(model="", seed=seed)
    for attempt in range(READING_ATTEMPTS):
        try:
            reply = await chat.complete(messages, seed=seed + 1000 * attempt)
        except ModelUnavailable as error:
            return call.model_copy(update={"failure": f"the judge did not answer: {error}"})
        spent = {
            "model": reply.model,
            "usage": call.usage + reply.usage,
            "seconds": call.seconds + reply.seconds,
            "cost_usd": None if reply.cost_usd is None else (call.cost_usd or 0.0) + reply.cost_usd,
        }
        call = call.model_copy(update=spent)
        try:
            judgement = read_judgement(reply.text, evidence)
        except BadAnswer as error:
            call = call.model_copy(update={"failure": str(error)})
        else:
            return call.model_copy(update={"judgement": judgement, "failure": ""})
    return call
