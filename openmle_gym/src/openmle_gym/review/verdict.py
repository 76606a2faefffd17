"""What the reviewer says of a program, and its settings."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from openmle_gym.errors import ConfigError
from openmle_gym.experience import ReviewVerdict

FAIL_POLICIES = ("fail_closed", "fail_open", "unknown")


class Review(NamedTuple):
    """What the reviewer says of a program."""

    verdict: ReviewVerdict
    signature: str | None = None
    """Which detector refused; `judge` for the model, `review_unknown` where there is no verdict."""
    message: str = ""
    line: int | None = None
    """Of the program, where the evidence stands."""
    by: Literal["detectors", "judge"] = "detectors"

    @property
    def accepted(self) -> bool:
        """Whether somebody looked and found nothing; False where the verdict is unknown."""
        return self.verdict == "accepted"


@dataclass
class ReviewConfig:
    """The reward-hack reviewer. Its detectors always run; a model judges after them where it is asked to."""

    judge: bool = False
    """Let a model, the policy's, judge each program that the detectors let pass."""
    fail: str = "unknown"
    """What becomes of a program on which the model gives no verdict (no answer, an unclear one, budget spent).
    `fail_closed`: it does not run; `fail_open`: it runs and counts, and its card says `unknown`; `unknown`: it runs,
    its score is kept on the card as withheld, and it is not valid."""
    calls: int | None = None
    """The most judgements of a run."""
    dollars: float | None = None
    """The most that the judgements of a run may cost, where prices are known."""
    source_length: int = 24_000
    """Characters of a program that the judge is shown; the verdict on a longer one is unknown."""

    def __post_init__(self) -> None:
        if self.fail not in FAIL_POLICIES:
            raise ConfigError(f"review.fail: must be one of {', '.join(FAIL_POLICIES)}, got {self.fail!r}")
        for name in ("calls", "dollars", "source_length"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise ConfigError(f"review.{name}: must be 0 or more, got {value}")
