"""The CPU time that advantages take, for 256 and for 65,536 groups of 16.

Against two yardsticks: the bisection of arXiv:2607.28568, appendix B.5, written plainly for one group and run group
by group; and group normalisation alone, which any trainer does anyway. With torch installed, also on CPU tensors.

    python scripts/bench_rewards.py
"""

import math
import time
from collections.abc import Callable

import numpy as np
from openmle_erl.rewards import entropic_advantages, group_normalised_advantages

GROUP_SIZE = 16
SIZES = (256, 65_536)
REPEATS = 7
SAMPLE = 1024
"""Groups that the plain bisection is timed on; its time is proportional to their number."""


def bisected_advantages(rewards: np.ndarray, target_kl: float = math.log(2.0)) -> np.ndarray:
    """The paper's entropic advantages of one group: double the bracket, bisect 60 times."""
    if len(rewards) < 2 or np.allclose(rewards, rewards[0]):
        return np.zeros(len(rewards))
    centred = rewards - rewards.max()

    def divergence(beta: float) -> float:
        weights = np.exp(beta * centred)
        total = weights.sum()
        return float(beta * (weights @ centred) / total - math.log(total) + math.log(len(rewards)))

    low, high = 0.0, 1.0
    while high < 1e6 and divergence(high) < target_kl:
        high *= 2.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if divergence(middle) < target_kl:
            low = middle
        else:
            high = middle
    weights = np.exp(high * centred)
    others = (weights.sum() - weights) / (len(weights) - 1)
    return weights / (others + 1e-12) - 1.0


def group_by_group(rewards: np.ndarray) -> np.ndarray:
    """The yardstick over a batch whose groups are of one size and in order."""
    return np.concatenate([bisected_advantages(group) for group in rewards.reshape(-1, GROUP_SIZE)])


def seconds(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """CPU seconds of the fastest of some runs; all of it is one thread, and other programs may be running."""
    best = math.inf
    for _ in range(repeats):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    """Prints the figures of each size."""
    for groups in SIZES:
        rewards = np.random.default_rng(0).random(groups * GROUP_SIZE)
        ids = np.repeat(np.arange(groups), GROUP_SIZE)
        ours = seconds(lambda rewards=rewards, ids=ids: entropic_advantages(rewards, ids))
        alone = seconds(lambda rewards=rewards, ids=ids: group_normalised_advantages(rewards, ids))
        sample = rewards[: SAMPLE * GROUP_SIZE]
        plain = seconds(lambda sample=sample: group_by_group(sample), repeats=3) * groups / min(SAMPLE, groups)
        error = np.abs(entropic_advantages(rewards, ids)[: len(sample)] - group_by_group(sample)).max()
        print(f"{groups} groups of {GROUP_SIZE}; largest difference from the plain bisection {error:.1e}")
        print(f"  plain bisection, group by group  {plain * 1e3:10.2f} ms")
        print(f"  entropic, all groups at once     {ours * 1e3:10.2f} ms   {plain / ours:.0f} x the speed")
        print(
            f"  group normalisation alone        {alone * 1e3:10.2f} ms   entropic takes {ours / alone:.1f} x as long"
        )
        tensors = on_tensors(rewards, ids)
        if tensors is not None:
            print(f"  entropic, on CPU tensors         {tensors * 1e3:10.2f} ms   {plain / tensors:.0f} x the speed")


def on_tensors(rewards: np.ndarray, ids: np.ndarray) -> float | None:
    """Seconds on float32 tensors; None without torch."""
    try:
        import torch
    except ImportError:
        return None
    reward_tensor, id_tensor = torch.from_numpy(rewards).float(), torch.from_numpy(ids)
    return seconds(lambda: entropic_advantages(reward_tensor, id_tensor))


if __name__ == "__main__":
    main()
