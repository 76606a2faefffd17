"""The baseline filters of accepted programs: tokens, then the gap between the program's own score and ours.

Feedback (the program must have run to a score) is checked by acceptance, before. Each filter is on when it is set:
an unset tokenizer switches the token filter off and never rejects.
"""

from openmle_gym.experience import ExperienceCard

from openmle_erl.sft.acceptance import TaskFacts
from openmle_erl.sft.config import FilterConfig
from openmle_erl.sft.gap import score_gap
from openmle_erl.sft.reasons import Drop


def baseline_drop(
    card: ExperienceCard,
    facts: TaskFacts,
    config: FilterConfig,
    *,
    tokens: int | None,
    task_scale: float | None = None,
) -> Drop | None:
    """Why an accepted program is dropped all the same; None when it is kept.

    Args:
        tokens: Of the whole conversation; None where no tokenizer is set.
        task_scale: See `openmle_erl.sft.gap.task_scale`.
    """
    if config.max_tokens is not None:
        assert tokens is not None, "max_tokens needs a tokenizer; the settings see to that"
        if tokens > config.max_tokens:
            return Drop.TOO_MANY_TOKENS
    if config.max_gap is None:
        return None
    gap = score_gap(
        card.self_reported.value if card.self_reported else None,
        card.validation.value if card.validation else None,
        facts.metric,
        leaderboard=facts.leaderboard,
        task_scale=task_scale,
        threshold=config.max_gap,
    )
    if gap is None:
        return Drop.NO_COMPARABLE_SCORES if config.require_own_score else None
    return Drop.SCORE_GAP if gap.too_large else None
