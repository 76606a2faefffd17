"""The reward-hack reviewer: refuses a program that goes for the score instead of learning from the data.

Detectors over the syntax tree come first (`detectors`); then, where it is asked to, a model judges (`judge`).
"""

from openmle_gym.program import Program
from openmle_gym.review.detectors import first_evidence
from openmle_gym.review.judge import Asked, Reviewer
from openmle_gym.review.verdict import Review, ReviewConfig

__all__ = ["Asked", "Review", "ReviewConfig", "Reviewer", "review_program"]


def review_program(program: Program) -> Review:
    """What the detectors say; a program that does not parse is accepted, as it cannot run."""
    found = None if program.syntax_error is not None else first_evidence(program.source)
    if found is None:
        return Review("accepted")
    signature, (line, message) = found
    return Review("refused", signature, f"line {line} {message}", line)
