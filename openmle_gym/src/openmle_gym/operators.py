"""The four operators: what search and training both do to programs."""

from enum import StrEnum

from openmle_gym.jobs import Outcome


class Operator(StrEnum):
    """One kind of program transformation."""

    DRAFT = "draft"
    """Writes a program from nothing."""
    IMPROVE = "improve"
    """Changes one thing in a scored program."""
    DEBUG = "debug"
    """Mends a program that failed."""
    CROSSOVER = "crossover"
    """Joins two scored programs."""

    @property
    def parent_count(self) -> int:
        """How many parents the operator takes."""
        return {Operator.DRAFT: 0, Operator.IMPROVE: 1, Operator.DEBUG: 1, Operator.CROSSOVER: 2}[self]

    def accepts(self, outcome: Outcome, *, scored: bool) -> bool:
        """Whether a program that ended so may be this operator's parent.

        Improve and Crossover build on what has a validation score. Debug mends what ran and failed: a reply without a
        program has nothing to mend, and a program that the reviewer refused is not shown again.
        """
        if self is Operator.DRAFT:
            return False
        if self is Operator.DEBUG:
            return outcome in DEBUGGABLE
        return outcome is Outcome.SUCCESS and scored


DEBUGGABLE = frozenset(
    {Outcome.CODE_EXECUTION_ERROR, Outcome.SUBMISSION_MISSING, Outcome.SCORING_FAILED, Outcome.TIMEOUT}
)
