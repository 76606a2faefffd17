"""Where a run's randomness comes from: its seed, and what the random number is for."""

import hashlib
import random


def attempt_seed(seed: int, attempt: int) -> int:
    """The seed of everything random in an attempt, the policy's call included; in [0, 2**31)."""
    return _number(f"{seed}/{attempt}")


def seeded(seed: int, purpose: str, number: int) -> random.Random:
    """A generator for one purpose of a run beside its attempts."""
    return random.Random(_number(f"{seed}/{purpose}/{number}"))


def _number(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") >> 1
