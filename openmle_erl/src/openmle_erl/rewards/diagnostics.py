"""Why a group gave no signal, and how hard the others pull: a report on a batch's rewards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmle_erl.rewards.advantages import AdvantageSettings, NoSignal, entropic_weighting
from openmle_erl.rewards.groups import Batch, Ids, IntArray
from openmle_erl.rewards.mapping import FloatArray, Values

KL_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageReport:
    """One entry per group [G]: ids from an integer array ascending, others by first appearance."""

    groups: Sequence[Any]
    """The group ids."""
    members: IntArray
    """Members with a reward."""
    masked: IntArray
    """Members without one."""
    no_signal: NDArray[np.str_]
    """Why all advantages are zero, a label of `NoSignal`; empty where there is a signal."""
    effective_kl: FloatArray
    """Divergence of the entropic weights from uniform, in nats; NaN without signal or for another advantage."""
    top_weight: FloatArray
    """The weight of a best member, of all the group's weight; NaN likewise. 1 / members is no preference at all."""
    beta: FloatArray
    """Inverse temperature per unit of reward; NaN likewise, infinite where all weight is on the best members."""
    budget_missed: NDArray[np.bool_]
    """Whether less than `target_kl` was spent: too many ties at the best, or too few members."""

    @property
    def zero_variance_share(self) -> float:
        """Share of the groups whose rewards are all equal; NaN without groups."""
        return _share(self.no_signal == NoSignal.EQUAL_REWARDS)

    def summary(self) -> dict[str, float | int | None]:
        """The whole batch in flat numbers, for a log; None where there is nothing to average."""
        return {
            "groups": len(self.groups),
            "members": int(self.members.sum()),
            "masked_members": int(self.masked.sum()),
            **{f"groups_{reason}": int(np.count_nonzero(self.no_signal == reason)) for reason in NoSignal},
            "groups_with_signal": int(np.count_nonzero(self.no_signal == "")),
            "groups_budget_missed": int(np.count_nonzero(self.budget_missed)),
            "zero_variance_share": _number(self.zero_variance_share),
            "mean_effective_kl": _mean(self.effective_kl),
            "mean_top_weight": _mean(self.top_weight),
        }

    def rows(self) -> list[dict[str, object]]:
        """One object per group, fit for JSON: None in place of NaN and infinity."""
        return [
            {
                "group": group,
                "members": int(self.members[place]),
                "masked": int(self.masked[place]),
                "no_signal": str(self.no_signal[place]) or None,
                "effective_kl": _number(self.effective_kl[place]),
                "top_weight": _number(self.top_weight[place]),
                "beta": _number(self.beta[place]),
                "budget_missed": bool(self.budget_missed[place]),
            }
            for place, group in enumerate(self.groups)
        ]


def advantage_report(rewards: Values, group_ids: Ids, settings: AdvantageSettings | None = None) -> AdvantageReport:
    """Looks at what `group_advantages` does with the same arguments.

    Raises:
        ValueError: As `group_advantages`.
    """
    settings = settings or AdvantageSettings()
    batch = Batch.of(rewards, group_ids)
    signal = batch.signal_G
    reasons = np.select(
        [signal, batch.sizes_G == 0, batch.sizes_G == 1],
        ["", NoSignal.NO_REWARD, NoSignal.ONE_MEMBER],
        default=NoSignal.EQUAL_REWARDS,
    )
    kl, top, beta = (np.full(len(signal), np.nan) for _ in range(3))
    missed = np.zeros(len(signal), dtype=bool)
    if settings.kind == "entropic":
        weighting = entropic_weighting(batch, target_kl=settings.target_kl, published=settings.published)
        kl[signal], beta[signal] = weighting.kl_L, weighting.beta_L
        if signal.any():
            top[signal] = 1.0 / batch.segments.sum(weighting.weights_M)
        missed[signal] = weighting.kl_L < settings.target_kl - KL_TOLERANCE
    return AdvantageReport(
        groups=batch.labels,
        members=batch.sizes_G,
        masked=batch.masked_G,
        no_signal=reasons,
        effective_kl=kl,
        top_weight=top,
        beta=beta,
        budget_missed=missed,
    )


def _share(mask: NDArray[np.bool_]) -> float:
    return float(np.mean(mask)) if len(mask) else float("nan")


def _mean(values: FloatArray) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.mean(known)) if len(known) else None


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
