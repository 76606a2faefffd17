"""A score is a metric's value with its direction and its provenance.

Provenance is the *type*: a function that selects takes a `ValidationScore`, so a `TestScore` cannot be passed to it
and a type checker says so. A missing score is None, never 0, an infinity or NaN.
"""

import math
from enum import StrEnum
from typing import ClassVar

from pydantic import field_validator

from openmle_gym.contracts import Contract


class Provenance(StrEnum):
    """Who measured a score, and on which rows."""

    SELF_REPORTED = "self_reported"
    VALIDATION = "validation"
    TEST = "test"


class Score(Contract):
    """Base of the three kinds of score; never made as such."""

    provenance: ClassVar[Provenance]
    value: float
    higher_is_better: bool

    @field_validator("value")
    @classmethod
    def _finite(cls, value: float) -> float:
        if not math.isfinite(value):
            raise ValueError(f"a score must be finite, got {value!r}; a missing score is None")
        return value

    @property
    def utility(self) -> float:
        """The value turned so that larger is better."""
        return self.value if self.higher_is_better else -self.value


class SelfReportedScore(Score):
    """Printed by the program itself; trusted by nothing unless a run's protocol says so."""

    provenance = Provenance.SELF_REPORTED


class ValidationScore(Score):
    """Measured by us on the validation half of the hidden answers; what search and RL select on."""

    provenance = Provenance.VALIDATION


class TestScore(Score):
    """Measured by us on the test half, once, for reporting; nothing selects on it and no prompt holds it."""

    __test__ = False  # not a pytest class
    provenance = Provenance.TEST
