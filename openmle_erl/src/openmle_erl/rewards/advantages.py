"""Advantages: a reward relative to its group, for all groups of a batch at once.

A *group* is the samples of one prompt. Groups may differ in size and may be scattered over the batch; advantages come
back in the order of the rewards. A member whose reward is None, NaN, infinite or beyond 1e150 is *masked*: it gets
advantage 0.0, and its group is treated as if it were not there. A group has no signal, and its members get 0.0, when
fewer than two members are left, or when all rewards are equal within 1e-8 plus 1e-5 of their magnitude.
Advantages are therefore always finite.

Entropic advantages, from arXiv:2607.28568, equation 2 and appendix B.5. With q proportional to exp(beta r) at the
beta whose divergence KL(q || uniform) is `target_kl`, and w the weights before they are normalised,

    advantage_i = w_i / (mean of the other members' w + 1e-12) - 1

What departs from the paper, and why:

* beta is found for all groups together, by Newton steps on log KL over log beta inside a bracket that bisection
  falls back to, on rewards divided by their spread. The result is the bisection's to 1e-9, and does not depend on
  the rewards' scale down to the tolerance above, while the paper's beta ends at 2**20 (`published`).
* A group of two could spend log 2 only with all weight on one member, which made its advantage 1e12. At most three
  quarters of the log(k) that a group of k could spend is spent: a group of two stops at 22.0, larger ones spend log 2
  as published. `published` takes this back.
* Masked members do not make their group NaN; equality does not depend on the order of the members.

Shape suffixes are those of `groups`, and _L groups with signal.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np

from openmle_erl.rewards.groups import Batch, Ids, Segments
from openmle_erl.rewards.mapping import FloatArray, Numbers, Tensor, Values

TensorT = TypeVar("TensorT", bound=Tensor)
AdvantageKind: TypeAlias = Literal["entropic", "group_normalised", "leave_one_out"]

LOG_2 = math.log(2.0)
DENOMINATOR_EPSILON = 1e-12
MAX_KL_SHARE = 0.75
"""Of the log(k) that a group of k could spend."""
PUBLISHED_MAX_BETA = 2.0**20
WINNER_TAKES_ALL = 1e300
"""A beta at which only the best members keep weight."""
NEWTON_STEPS = 16
BISECTION_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSettings:
    """Which advantage, and how; see the functions of the same names."""

    kind: AdvantageKind = "entropic"
    target_kl: float = LOG_2
    cap: float | None = None
    centre: bool = False
    published: bool = False
    epsilon: float = 1e-6
    """Added to the standard deviation of group-normalised advantages."""

    def __post_init__(self) -> None:
        _check(target_kl=self.target_kl, cap=self.cap, epsilon=self.epsilon)


def _check(*, target_kl: float = LOG_2, cap: float | None = None, epsilon: float = 1e-6) -> None:
    if not 0.0 < target_kl < math.inf:
        raise ValueError(f"target_kl must be positive and finite, got {target_kl}")
    if cap is not None and not cap > 0.0:
        raise ValueError(f"cap must be positive, got {cap}")
    if not 0.0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be finite and not negative, got {epsilon}")


class NoSignal(StrEnum):
    """Why all advantages of a group are zero."""

    NO_REWARD = "no_reward"
    """Every member is masked."""
    ONE_MEMBER = "one_member"
    """Only one member has a reward."""
    EQUAL_REWARDS = "equal_rewards"


def group_advantages(rewards: Values, group_ids: Ids, settings: AdvantageSettings) -> Any:
    """The advantages of the kind that the settings name; a tensor for a tensor, else float64."""
    match settings.kind:
        case "entropic":
            return entropic_advantages(
                rewards,
                group_ids,
                target_kl=settings.target_kl,
                cap=settings.cap,
                centre=settings.centre,
                published=settings.published,
            )
        case "group_normalised":
            return group_normalised_advantages(rewards, group_ids, epsilon=settings.epsilon)
        case "leave_one_out":
            return leave_one_out_advantages(rewards, group_ids)
        case _:
            raise ValueError(f"unknown kind of advantage {settings.kind!r}")


@overload
def entropic_advantages(
    rewards: TensorT,
    group_ids: Ids,
    *,
    target_kl: float = ...,
    cap: float | None = ...,
    centre: bool = ...,
    published: bool = ...,
) -> TensorT: ...
@overload
def entropic_advantages(
    rewards: Numbers,
    group_ids: Ids,
    *,
    target_kl: float = ...,
    cap: float | None = ...,
    centre: bool = ...,
    published: bool = ...,
) -> FloatArray: ...
def entropic_advantages(
    rewards: Any,
    group_ids: Ids,
    *,
    target_kl: float = LOG_2,
    cap: float | None = None,
    centre: bool = False,
    published: bool = False,
) -> Any:
    """Upper-tail weighted advantages at a fixed divergence from uniform; see the module's docstring.

    They rise with the reward, are at least -1, and are not zero-mean: their mean over a group is positive.

    Args:
        rewards: [N] rewards; a list, an array, or a tensor of any device.
        group_ids: [N] what group each member is of: numbers, or anything hashable.
        target_kl: The divergence to spend, in nats. Where ties at the best make it unreachable, all weight is on them.
        cap: Largest advantage; None for no limit. 20 is a good one.
        centre: Subtract the group's mean, after the cap, so that each group sums to zero.
        published: Solve within the paper's limits instead of ours: beta up to 2**20 per unit of reward, and nothing
            kept back of log(k).

    Returns:
        [N] advantages in the order of the rewards: a tensor of the rewards' device and dtype for a tensor (float32
        where that is not a floating type), else float64.

    Raises:
        ValueError: Shapes that do not match, a group id that is NaN, a `target_kl` that is not positive and finite, or
            a `cap` that is not positive.
    """
    _check(cap=cap)
    batch = Batch.of(rewards, group_ids)
    weighting = entropic_weighting(batch, target_kl=target_kl, published=published)
    segments, weights = batch.segments, weighting.weights_M
    others = segments.spread(segments.sum(weights)) - weights
    mean_of_others = others / (segments.spread(segments.sizes) - 1)
    advantages = weights / (mean_of_others + DENOMINATOR_EPSILON) - 1.0
    if cap is not None:
        advantages = np.minimum(advantages, cap)
    if centre:
        advantages -= segments.spread(segments.mean(advantages))
    return batch.restore(advantages, rewards)


@overload
def group_normalised_advantages(rewards: TensorT, group_ids: Ids, *, epsilon: float = ...) -> TensorT: ...
@overload
def group_normalised_advantages(rewards: Numbers, group_ids: Ids, *, epsilon: float = ...) -> FloatArray: ...
def group_normalised_advantages(rewards: Any, group_ids: Ids, *, epsilon: float = 1e-6) -> Any:
    """(r - mean) / (standard deviation + epsilon) in each group, with the unbiased deviation. GRPO, arXiv:2402.03300.

    Arguments, result and masking are those of `entropic_advantages`.
    """
    _check(epsilon=epsilon)
    batch = Batch.of(rewards, group_ids)
    segments = batch.segments
    centred = batch.rewards_M - segments.spread(segments.mean(batch.rewards_M))
    deviation = np.sqrt(segments.sum(centred * centred) / (segments.sizes - 1))
    return batch.restore(centred / segments.spread(deviation + epsilon), rewards)


@overload
def leave_one_out_advantages(rewards: TensorT, group_ids: Ids) -> TensorT: ...
@overload
def leave_one_out_advantages(rewards: Numbers, group_ids: Ids) -> FloatArray: ...
def leave_one_out_advantages(rewards: Any, group_ids: Ids) -> Any:
    """r - mean of the other members' rewards. RLOO, arXiv:2402.14740.

    Arguments, result and masking are those of `entropic_advantages`.
    """
    batch = Batch.of(rewards, group_ids)
    segments = batch.segments
    centred = batch.rewards_M - segments.spread(segments.mean(batch.rewards_M))
    return batch.restore(centred * segments.spread(segments.sizes / (segments.sizes - 1)), rewards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """The entropic weights of the groups with signal."""

    weights_M: FloatArray
    """exp(beta (r - best of the group)): 1 for the best member."""
    beta_L: FloatArray
    """Inverse temperature, per unit of reward; infinite where all weight is on the best."""
    kl_L: FloatArray
    """The divergence from uniform that the weights have, in nats."""


def entropic_weighting(batch: Batch, *, target_kl: float = LOG_2, published: bool = False) -> Weighting:
    """Solves for beta; the arguments are those of `entropic_advantages`."""
    _check(target_kl=target_kl)
    segments = batch.segments
    top = segments.max(batch.rewards_M)
    span = top - segments.min(batch.rewards_M)
    x = (batch.rewards_M - segments.spread(top)) / segments.spread(span)  # the best at 0, the worst at -1
    ties = segments.sum((x == 0.0).astype(np.intp))
    log_size = np.log(segments.sizes)
    most = math.inf if published else MAX_KL_SHARE * log_size
    budget = np.broadcast_to(np.minimum(target_kl, most), span.shape)

    beta = np.full(len(span), WINNER_TAKES_ALL)
    reachable = budget < np.log(segments.sizes / ties)
    chosen = segments.spread(reachable)
    beta[reachable] = _solve(x[chosen], Segments(segments.sizes[reachable]), budget[reachable])
    if published:
        beta = np.minimum(beta, PUBLISHED_MAX_BETA * span)
    weights = np.exp(segments.spread(beta) * x)
    total = segments.sum(weights)
    kl = beta * segments.sum(weights * x) / total - np.log(total) + log_size
    return Weighting(weights_M=weights, beta_L=np.where(beta < WINNER_TAKES_ALL, beta / span, np.inf), kl_L=kl)


def _solve(x: FloatArray, segments: Segments, budget: FloatArray) -> FloatArray:
    """The beta of each segment at which softmax(beta x) is `budget` nats from uniform.

    Each segment's x lies in [-1, 0] and holds both ends, and its budget is below the log(k / ties) of beta = infinity.
    KL rises with beta. It is at most beta**2 / 8 (Hoeffding's lemma), which gives the bracket's lower end; the upper
    end is where even the second best has no weight left in double precision.
    """
    solved = np.zeros(len(budget))
    todo = np.arange(len(budget))
    log_size = np.log(segments.sizes)
    tolerance = 1e-14 * (1.0 + log_size)
    gap = segments.min(np.where(x < 0.0, -x, np.inf))
    low = 0.5 * np.log(8.0 * budget)
    high = np.minimum(np.log(800.0) - np.log(gap), math.log(WINNER_TAKES_ALL))
    variance = segments.mean(x * x) - segments.mean(x) ** 2
    log_beta = np.clip(0.5 * np.log(2.0 * budget / variance), low, high)
    for step in range(NEWTON_STEPS + BISECTION_STEPS):
        if len(todo) == 0:
            break
        beta = np.exp(log_beta)
        weights = np.exp(segments.spread(beta) * x)
        total = segments.sum(weights)
        weights *= x
        mean = segments.sum(weights) / total
        weights *= x
        variance = segments.sum(weights) / total - mean**2
        kl = beta * mean - np.log(total) + log_size
        low = np.where(kl < budget, log_beta, low)
        high = np.where(kl < budget, high, log_beta)
        with np.errstate(all="ignore"):  # a step that is not a number is not taken
            newton = log_beta + np.log(budget / kl) * kl / (beta**2 * variance)
        inside = (low < newton) & (newton < high) & (step < NEWTON_STEPS)
        following = np.where(inside, newton, 0.5 * (low + high))

        solved[todo] = beta
        going = np.abs(kl - budget) > tolerance
        todo, log_beta, low, high = todo[going], following[going], low[going], high[going]
        budget, log_size, tolerance = budget[going], log_size[going], tolerance[going]
        x, segments = x[segments.spread(going)], Segments(segments.sizes[going])
    return solved
