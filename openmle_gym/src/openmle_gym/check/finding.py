"""What a check says."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, JsonValue

from openmle_gym.contracts import Contract

Severity = Literal["error", "warning", "info"]


class Finding(Contract):
    """One thing that is wrong with a package, or worth knowing."""

    id: str
    """A row of `docs/checks.md`."""
    severity: Severity
    """`error`: the package must not be used; `warning`: somebody should look; `info`: a fact."""
    message: str
    evidence: Mapping[str, JsonValue] = Field(default_factory=dict)
    """Names and numbers that show it; never an answer."""


class Report(Contract):
    """All that `check` found."""

    package: str
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    """The ids that were looked for."""
    not_checked: Mapping[str, str] = Field(default_factory=dict)
    """The ids that could not be looked for, and why."""

    @property
    def passed(self) -> bool:
        """Whether there is no error."""
        return all(finding.severity != "error" for finding in self.findings)

    def ids(self, severity: Severity | None = None) -> set[str]:
        """The ids found, of one severity or of all."""
        return {finding.id for finding in self.findings if severity in (None, finding.severity)}


def error(id: str, message: str, **evidence: JsonValue) -> Finding:
    """A finding that rules the package out."""
    return Finding(id=id, severity="error", message=message, evidence=evidence)


def warning(id: str, message: str, **evidence: JsonValue) -> Finding:
    """A finding that somebody should look at."""
    return Finding(id=id, severity="warning", message=message, evidence=evidence)


def info(id: str, message: str, **evidence: JsonValue) -> Finding:
    """A fact."""
    return Finding(id=id, severity="info", message=message, evidence=evidence)
