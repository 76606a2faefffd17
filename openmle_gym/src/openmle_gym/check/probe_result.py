"""What came of running a package's metric on the probes' submissions."""

from pydantic import Field

from openmle_gym.contracts import ForeignContract
from openmle_gym.submission import SubmissionFault


class Outcome(ForeignContract):
    """What the package's metric did with one submission; one of the fields is set."""

    score: float | None = None
    refused: str | None = None
    """By its `validate_submission`."""
    failed: str | None = None
    not_finite: str | None = None

    @property
    def why(self) -> str:
        """Why there is no score."""
        if self.not_finite is not None:
            return f"evaluate() returned {self.not_finite}"
        return self.refused or self.failed or ""


class ProbeRun(ForeignContract):
    """What `probe_child.py` writes."""

    higher_is_better: bool | None = None
    """The metric object's own attribute."""
    outcomes: dict[str, Outcome] = Field(default_factory=dict)


class ProbeResult(ForeignContract):
    """What came of probing the metric."""

    runs: tuple[ProbeRun, ...] = ()
    """Of equal processes; empty when one did not end well."""
    process_failure: str = ""
    """How it ended; else empty."""
    sample_code: SubmissionFault | None = None
    """Why our validation refuses the sample submission; None where it does not."""
    sample_message: str = ""

    def score(self, probe: str) -> float | None:
        """The metric's score, None where there is none."""
        outcome = self.runs[0].outcomes.get(probe) if self.runs else None
        return outcome.score if outcome else None
