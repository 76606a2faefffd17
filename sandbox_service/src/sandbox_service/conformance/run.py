"""Runs the checks against a service: side by side where they may, alone where they must, and reports."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import httpx
from openmle_gym.configuration import secret_from_environment
from openmle_gym.contracts import Contract
from openmle_gym.errors import ConfigError, ExecutorUnavailable
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sandbox_service.conformance import (  # noqa: F401  (each adds its checks)
    answers,
    artifacts,
    cancelling,
    extensions,
    fairness,
    grading,
    kernel,
    kill,
    limits,
    network,
    output,
    protocol,
    recovery,
    secrets,
)
from sandbox_service.conformance.check import (
    CHECKS,
    Check,
    CheckReport,
    CheckState,
    Failed,
    Group,
    Severity,
    Skipped,
    shortened,
)
from sandbox_service.conformance.config import ConformanceConfig
from sandbox_service.conformance.service import Service

LONGEST_CHECK_SECONDS = 900.0


class Report(Contract):
    """What came of all checks of one run."""

    url: str
    isolation: str | None
    """What the service says of itself; None when it does not."""
    version: str | None
    passed: int
    failed_must: int
    failed_should: int
    skipped: int
    seconds: float
    checks: list[CheckReport]

    @property
    def ok(self) -> bool:
        """No check failed that must pass."""
        return self.failed_must == 0


def chosen(only: Sequence[str], skip: Sequence[str]) -> list[Check]:
    """The checks that ids and groups name.

    Raises:
        ConfigError: A word names neither a check nor a group.
    """
    for setting, words in (("only", only), ("skip", skip)):
        for word in words:
            if word not in CHECKS and word not in set(Group):
                raise ConfigError(f"{setting}={word}: no such check or group (groups: {', '.join(Group)})")
    return [
        check
        for check in CHECKS.values()
        if (not only or check.id in only or check.group in only) and check.id not in skip and check.group not in skip
    ]


async def run_conformance(config: ConformanceConfig, *, transport: httpx.AsyncBaseTransport | None = None) -> Report:
    """Makes the checks that the settings choose.

    Args:
        transport: For tests: how requests travel.

    Raises:
        ConfigError: A setting names no check.
        ExecutorUnavailable: Nothing answers at the URL, or not with the task package that checks need.
    """
    checks = chosen(config.only, config.skip)
    service = Service(
        config,
        key=secret_from_environment(config.key_variable),
        second_key=secret_from_environment(config.second_key_variable) if config.second_key_variable else None,
        grade_key=secret_from_environment(config.grade_key_variable) if config.grade_key_variable else None,
        transport=transport,
    )
    began = time.monotonic()
    try:
        health = await _health(service)
        with _progress() as progress:
            bar = progress.add_task("checks", total=len(checks))
            reports = await _all(service, checks, lambda: progress.advance(bar))
    finally:
        await service.aclose()
    return Report(
        url=config.url,
        isolation=health.get("isolation"),
        version=health.get("version"),
        passed=_count(reports, CheckState.PASSED),
        failed_must=_count(reports, CheckState.FAILED, Severity.MUST),
        failed_should=_count(reports, CheckState.FAILED, Severity.SHOULD),
        skipped=_count(reports, CheckState.SKIPPED),
        seconds=round(time.monotonic() - began, 1),
        checks=reports,
    )


async def _health(service: Service) -> dict[str, str]:
    """What the service says of itself, after it has taken a program for the task package."""
    try:
        response = await service.send("GET", "/health", keyed=False)
        await service.submit("pass")
    except Failed as failed:
        raise ExecutorUnavailable(
            f"{service.config.url}, data_dir={service.config.data_dir}: no checks can be made: {failed}. The task "
            "package that they need is written by make_package=FOLDER, below one of the service's task roots."
        ) from failed
    try:
        told = response.json()
    except ValueError:
        return {}
    return {name: str(told[name]) for name in ("isolation", "version") if name in told}


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not sys.stderr.isatty())


async def _all(service: Service, checks: Sequence[Check], advance: Callable[[], None]) -> list[CheckReport]:
    """In the order of the list; those that must be alone come after the others."""
    slots = asyncio.Semaphore(service.config.parallel)
    reports: dict[str, CheckReport] = {}

    async def make(check: Check) -> None:
        async with slots:
            reports[check.id] = await make_check(check, service)
        advance()

    async with asyncio.TaskGroup() as group:
        for check in checks:
            if not check.alone:
                group.create_task(make(check))
    for check in checks:
        if check.alone:
            await make(check)
    return [reports[check.id] for check in checks]


async def make_check(check: Check, service: Service) -> CheckReport:
    """Makes one check. An answer so wrong that the check itself stumbles over it is a failure, too."""
    began = time.monotonic()
    state, evidence = CheckState.PASSED, ""
    try:
        async with asyncio.timeout(LONGEST_CHECK_SECONDS):
            await check.function(service)
    except Skipped as skipped:
        state, evidence = CheckState.SKIPPED, str(skipped)
    except Failed as failed:
        state, evidence = CheckState.FAILED, str(failed)
    except TimeoutError:
        state, evidence = CheckState.FAILED, f"not done after {LONGEST_CHECK_SECONDS:g} seconds"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        state, evidence = CheckState.FAILED, f"an answer is not of the form expected: {error!r}"
    return CheckReport(
        id=check.id,
        group=check.group,
        severity=check.severity,
        asserts=check.asserts,
        state=state,
        evidence=shortened(evidence),
        seconds=round(time.monotonic() - began, 2),
    )


def _count(reports: Iterable[CheckReport], state: CheckState, severity: Severity | None = None) -> int:
    counts = Counter((report.state, report.severity) for report in reports)
    return sum(
        number
        for (is_state, is_severity), number in counts.items()
        if is_state is state and severity in (None, is_severity)
    )
