"""The card: the facts of one judged attempt, fixed at birth.

Rank, current best, novelty, gain and family statistics are not facts of an attempt; `openmle_gym.features` derives
them from all cards when somebody asks.
"""

from typing import Literal

from pydantic import Field

from openmle_gym.chat import Usage
from openmle_gym.contracts import Contract
from openmle_gym.jobs import Outcome
from openmle_gym.operators import Operator
from openmle_gym.scores import Provenance, SelfReportedScore, TestScore, ValidationScore

ROOT_ATTEMPT = -1

ReviewVerdict = Literal["accepted", "refused", "unknown"]
"""What the reward-hack reviewer says of a program."""


class Candidate(Contract):
    """One program that was considered as a parent, and why it stood where it stood."""

    attempt: int
    score: float
    """Utility scaled to [0, 1] over the candidates."""
    gain: float
    """Improvement over its own best parent, scaled to [0, 1] over the candidates."""
    novelty: float
    """1 / sqrt(1 + other candidates of its method family)."""
    utility: float
    """The weighted sum that the probability follows from."""
    probability: float
    visits: int = 0
    """How often it was a parent before."""


class Selection(Contract):
    """Why this operator and these parents."""

    reason: str
    """One phrase: `no valid program yet`, `attempt 3 failed`, `drawn by score, gain and novelty`, ..."""
    committed: int = 0
    """How many cards the run had when this was decided: all that the decision knew."""
    provenance: Provenance = Provenance.VALIDATION
    """What kind of score the decision went by: self-reported ones only under the protocol `self_valid`."""
    island: int = 0
    """The island that the parents were drawn from, or that a Draft was made for."""
    weights: tuple[float, float, float] | None = None
    """Of score, gain and novelty; None where nothing was weighed."""
    temperature: float | None = None
    candidates: tuple[Candidate, ...] = ()
    """The likeliest first, parents included; empty where nothing was weighed."""


class ExperienceCard(Contract):
    """One judged attempt."""

    schema_version: Literal[1] = 1
    run_id: str
    task: str
    attempt: int = Field(ge=0)
    """The attempt's number in its run; its identity there."""
    operator: Operator
    parents: tuple[int, ...] = ()
    """Attempt numbers, in the order that the prompt showed them."""
    selection: Selection
    program_id: str | None
    """None when the reply held no program."""
    source: str
    """The whole program; empty when the reply held none."""
    plan: str
    """What the reply said beside the program."""
    review: ReviewVerdict | None = None
    """The reviewer's verdict; None when there was no program. `unknown`: a model was to judge and gave no verdict."""
    outcome: Outcome
    validation: ValidationScore | None = None
    withheld: ValidationScore | None = None
    """The score of a program whose review is `unknown` under the fail policy `unknown`; `validation` is then None, so
    the program is not valid: nothing selects, submits or rewards it."""
    test: TestScore | None = None
    """None on every card of a search; only a report of a finished run fills it."""
    self_reported: SelfReportedScore | None = None
    error_signature: str | None = None
    message: str = ""
    """What went wrong, fit to show a model; empty on success."""
    log_head: str = ""
    log_tail: str = ""
    truncated_bytes: int = 0
    isolation: str = ""
    model: str = ""
    usage: Usage = Usage()
    cost_usd: float | None = None
    """None when no price is known."""
    timeout_seconds: float | None = None
    """What the program was given; less than the run's limit where its budget had less left. None on older cards."""
    sandbox_seconds: float = 0.0
    """Wall clock of the program and of its grading."""
    queue_seconds: float = 0.0
    model_seconds: float = 0.0
    finished_at: str
    """ISO 8601 with Z."""

    @property
    def valid(self) -> bool:
        """Whether the program ran to a validation score."""
        return self.validation is not None

    def may_parent(self, operator: Operator) -> bool:
        """Whether the operator accepts this card's program as a parent."""
        return self.program_id is not None and operator.accepts(self.outcome, scored=self.valid)
