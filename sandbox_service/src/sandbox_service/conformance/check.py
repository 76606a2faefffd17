"""What a check is, how it ends, and the list of all checks.

A check is a plain async function that takes the service, returns when the service behaves, and raises `Failed` with
evidence when it does not. Its name is its id and its docstring is what it asserts, in one sentence.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from openmle_gym.contracts import Contract

if TYPE_CHECKING:
    from sandbox_service.conformance.service import Service

LONGEST_EVIDENCE = 2000


class Group(StrEnum):
    """What a check is about."""

    LIMITS = "limits"
    KILL = "kill"
    OUTPUT = "output"
    ARTIFACTS = "artifacts"
    SECRETS = "secrets"
    NETWORK = "network"
    KERNEL = "kernel"
    GRADING = "grading"
    PROTOCOL = "protocol"
    """What the published clients rely on."""
    EXTENSIONS = "extensions"
    """What OpenMLE's own service offers beyond."""
    FAIRNESS = "fairness"
    RECOVERY = "recovery"


class Severity(StrEnum):
    """What it means that a check fails."""

    MUST = "must"
    """The service is unsafe, or wrong."""
    SHOULD = "should"
    """The service works, less well than it could."""


class CheckState(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It needs something that was not given, or that the service does not offer."""


class Failed(Exception):
    """The service does not behave; the message is the evidence."""


class Skipped(Exception):
    """The check cannot be made; the message says what is missing."""


CheckFunction = Callable[["Service"], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One behaviour."""

    id: str
    group: Group
    severity: Severity
    asserts: str
    alone: bool
    """It must not run beside others: it measures the queue, or restarts the service."""
    function: CheckFunction


class CheckReport(Contract):
    """How one check ended."""

    id: str
    group: Group
    severity: Severity
    asserts: str
    state: CheckState
    evidence: str = ""
    """What was seen, when it failed; what is missing, when it was skipped."""
    seconds: float


CHECKS: dict[str, Check] = {}
"""All checks by id, in the order in which they are defined."""


def check(
    group: Group, severity: Severity = Severity.MUST, *, alone: bool = False
) -> Callable[[CheckFunction], CheckFunction]:
    """Adds an async function to the list of checks."""

    def add(function: CheckFunction) -> CheckFunction:
        name = getattr(function, "__name__", "")
        add_check(name, inspect.getdoc(function) or "", function, group=group, severity=severity, alone=alone)
        return function

    return add


def add_check(
    name: str,
    asserts: str,
    function: CheckFunction,
    *,
    group: Group,
    severity: Severity = Severity.MUST,
    alone: bool = False,
) -> None:
    """Adds a check of a family whose members differ in one value."""
    check_id = name.replace("_", "-")
    if check_id in CHECKS or not asserts:
        raise ValueError(f"check {check_id}: it is listed twice, or says nothing of what it asserts")
    CHECKS[check_id] = Check(
        id=check_id,
        group=group,
        severity=severity,
        asserts=" ".join(asserts.split()),
        alone=alone,
        function=function,
    )


def expect(holds: object, evidence: object) -> None:
    """Raises:
    Failed: It does not hold.
    """
    if not holds:
        raise Failed(shortened(str(evidence)))


def shortened(text: str) -> str:
    """The two ends of a long text."""
    if len(text) <= LONGEST_EVIDENCE:
        return text
    return f"{text[: LONGEST_EVIDENCE // 2]} [...] {text[-LONGEST_EVIDENCE // 2 :]}"
