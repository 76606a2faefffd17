"""What a final report keeps of how its program was chosen."""

from typing import Literal

from openmle_gym.contracts import Contract
from openmle_gym.scores import ValidationScore

Strategy = Literal["best", "top_k", "blend"]
Method = Literal["mean", "rank", "vote", "auto"]


class Considered(Contract):
    """A program that could have been chosen."""

    attempt: int
    program_id: str
    first: ValidationScore
    """From the search."""
    repeats: tuple[ValidationScore | None, ...] = ()
    """Of its runs after the search, in order; None for one that failed."""
    mean: ValidationScore | None = None
    """Of the repeats alone, since the first score was selected for being good; None without any, or when one failed."""
    best: ValidationScore
    """Of all its runs."""


class BlendPart(Contract):
    """One program in a blend."""

    attempt: int
    program_id: str
    weight: float
    """All weights add up to 1."""


class BlendRecord(Contract):
    """A blend of submissions, chosen or not."""

    method: Method
    parts: tuple[BlendPart, ...]
    """The heaviest first; empty when no blend was better than the best program."""
    fitted: ValidationScore | None = None
    """What the stored submissions scored when they were combined; the weights were fitted to it."""
    whole: ValidationScore | None = None
    """What the one program scored that runs the parts again; None when it failed, or there was nothing to run."""
    jobs: int
    """How many blends were scored."""
    chosen: bool = False
    message: str = ""
    """Why it was not chosen, in a phrase."""
