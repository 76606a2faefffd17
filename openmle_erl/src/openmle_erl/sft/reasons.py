"""Why a candidate did not become an example: every reason there is, and the sums that must add up."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Drop(StrEnum):
    """One reason each; a candidate is dropped for the first that applies, in about this order."""

    NO_PROGRAM = "no_program"
    REJECTED_PROGRAM = "rejected_program"
    NOT_SCORED = "not_scored"
    NO_MEDAL = "no_medal"
    BELOW_SCORE_THRESHOLD = "below_score_threshold"
    BELOW_REWARD_THRESHOLD = "below_reward_threshold"
    NOT_BETTER_THAN_REFERENCE = "not_better_than_reference"
    FAILED_SEGMENT = "failed_segment"
    NOT_BETTER_THAN_PARENT = "not_better_than_parent"
    OFF_THE_INHERITED_PATH = "off_the_inherited_path"
    COPY_OF_PARENT = "copy_of_parent"
    COSMETIC_EDIT = "cosmetic_edit"
    BLIND_RETRY = "blind_retry"
    REPEATED_FAILURE = "repeated_failure"
    RESOURCE_DOWNSCALE = "resource_downscale"
    REVERTED_REPAIR = "reverted_repair"
    NOT_INHERITED = "not_inherited"
    JUDGED_NOT_INHERITED = "judged_not_inherited"
    FAILED_STEP = "failed_step"
    DOES_NOT_ROUND_TRIP = "does_not_round_trip"
    TOO_MANY_TOKENS = "too_many_tokens"
    NO_COMPARABLE_SCORES = "no_comparable_scores"
    SCORE_GAP = "score_gap"
    RESERVED_NAME = "reserved_name"
    RESERVED_EXACT = "reserved_exact"
    RESERVED_NORMALISED = "reserved_normalised"
    RESERVED_NEAR_DUPLICATE = "reserved_near_duplicate"
    DUPLICATE_MESSAGES = "duplicate_messages"
    DUPLICATE_PROGRAM = "duplicate_program"
    BEYOND_TOP_K = "beyond_top_k"


MEANINGS: Mapping[Drop, str] = {
    Drop.NO_PROGRAM: "The reply held no program",
    Drop.REJECTED_PROGRAM: "The reward-hack reviewer refused it",
    Drop.NOT_SCORED: "The program failed, or its submission was refused",
    Drop.NO_MEDAL: "The validation score would not have won one of the medals that are asked for",
    Drop.BELOW_SCORE_THRESHOLD: "The validation score is worse than the threshold, by the metric's direction",
    Drop.BELOW_REWARD_THRESHOLD: "The validation score's place between the task's bounds is too low",
    Drop.NOT_BETTER_THAN_REFERENCE: "The validation score is not strictly better than the task's reference",
    Drop.FAILED_SEGMENT: "Neither the attempt that began the segment nor any of its repairs has a validation score",
    Drop.NOT_BETTER_THAN_PARENT: "The segment's endpoint is not strictly better than the best scored parent",
    Drop.OFF_THE_INHERITED_PATH: "The segment was accepted, but its endpoint does not descend from this attempt",
    Drop.COPY_OF_PARENT: "A Crossover that repeats one of its parents",
    Drop.COSMETIC_EDIT: "Only comments, names, layout, imports' order, annotations or logging differ from the parent",
    Drop.BLIND_RETRY: "A repair that changes nothing, or any step that changes only random seeds",
    Drop.REPEATED_FAILURE: "A repair that fails exactly as its parent failed",
    Drop.RESOURCE_DOWNSCALE: "A repair of a lack of time, memory or disk that only makes the program smaller",
    Drop.REVERTED_REPAIR: "A repair whose removed code is back in the endpoint",
    Drop.NOT_INHERITED: "Too little of what the step changed survives into the endpoint",
    Drop.JUDGED_NOT_INHERITED: "The model judge says that the endpoint does not build on the step",
    Drop.FAILED_STEP: "The step's own program failed, and such steps are not wanted",
    Drop.DOES_NOT_ROUND_TRIP: "`parse_reply` does not find the step's program in the assistant's message",
    Drop.TOO_MANY_TOKENS: "The whole conversation is longer than the limit",
    Drop.NO_COMPARABLE_SCORES: "There is no score by the program itself to compare the validation score with",
    Drop.SCORE_GAP: "The program's own score and the validation score are too far apart",
    Drop.RESERVED_NAME: "The task has the name of a reserved task",
    Drop.RESERVED_EXACT: "The prompt holds a reserved task's description, character by character",
    Drop.RESERVED_NORMALISED: "The prompt holds a reserved task's description up to case, spacing and punctuation",
    Drop.RESERVED_NEAR_DUPLICATE: "The prompt's task shares most of its word runs with a reserved task's description",
    Drop.DUPLICATE_MESSAGES: "An earlier example has the same messages, up to the normalisation of whitespace and Unicode",
    Drop.DUPLICATE_PROGRAM: "An earlier Draft of the task is the same program up to comments, names and layout",
    Drop.BEYOND_TOP_K: "Other examples of the task have better validation scores, and only so many are kept",
}


class Tally(NamedTuple):
    """The counts of one source."""

    candidates: int
    kept: int
    dropped: dict[str, int]


class Ledger:
    """Counts candidates, and what became of each."""

    def __init__(self) -> None:
        self._candidates: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._dropped: dict[str, Counter[str]] = {}

    def candidate(self, source: str) -> None:
        """One more attempt was looked at."""
        self._candidates[source] += 1

    def kept(self, source: str) -> None:
        """It became an example."""
        self._kept[source] += 1

    def dropped(self, source: str, reason: Drop) -> None:
        """It did not."""
        self._dropped.setdefault(source, Counter())[reason.value] += 1

    def tallies(self) -> dict[str, Tally]:
        """By source.

        Raises:
            AssertionError: A candidate was neither kept nor dropped, or both: a fault of ours, never of the data.
        """
        sources = sorted(self._candidates | self._kept | Counter(self._dropped.keys()))
        tallies = {
            source: Tally(
                self._candidates[source],
                self._kept[source],
                dict(sorted(self._dropped.get(source, Counter()).items())),
            )
            for source in sources
        }
        for source, tally in tallies.items():
            total = tally.kept + sum(tally.dropped.values())
            assert tally.candidates == total, f"{source}: {tally.candidates} candidates, but {total} kept or dropped"
        return tallies
