"""Texts as sets of word runs, and which of many texts are nearly the same. Pure; numpy."""

import re
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

RUN = 5
"""Words in one run."""
PERMUTATIONS, BANDS = 128, 32
_MULTIPLIERS, _SHIFTS = np.random.default_rng(20260502).integers(1, 2**61, size=(2, PERMUTATIONS), dtype=np.uint64)

Hashes = npt.NDArray[np.uint64]


def plain_words(text: str) -> list[str]:
    """The words of a text, whatever its case, spacing, punctuation and Unicode form."""
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def word_runs(text: str, *, run: int = RUN) -> frozenset[int]:
    """Hashes of all runs of so many consecutive words; of the whole text where it has fewer."""
    words = plain_words(text)
    if not words:
        return frozenset()
    return frozenset(
        zlib.crc32(" ".join(words[start : start + run]).encode()) for start in range(max(1, len(words) - run + 1))
    )


def overlap(one: frozenset[int], other: frozenset[int]) -> float:
    """The share of the smaller set that is in the other; 0 where one is empty."""
    smaller = min(len(one), len(other))
    return len(one & other) / smaller if smaller else 0.0


class NearDuplicate(NamedTuple):
    """Two texts that are nearly the same."""

    first: str
    second: str
    similarity: float
    """Estimated Jaccard similarity of the sets of word runs; the standard error is at most 0.045."""


class MinHashIndex:
    """Finds near-duplicates among many texts, one at a time, keeping a kilobyte of each."""

    def __init__(self, threshold: float) -> None:
        """Args:
        threshold: The estimated similarity from which two texts are near-duplicates.
        """
        self._threshold = threshold
        self._signatures = np.empty((64, PERMUTATIONS), dtype=np.uint64)
        self._ids: list[str] = []
        self._first: dict[bytes, int] = {}
        self._bands: list[defaultdict[bytes, list[int]]] = [defaultdict(list) for _ in range(BANDS)]

    def add(self, text_id: str, text: str) -> NearDuplicate | None:
        """Adds a text; returns its nearest earlier near-duplicate, None where there is none."""
        signature = minhash(word_runs(text))
        own = len(self._ids)
        first = self._first.setdefault(signature.tobytes(), own)
        if first != own:  # it would be a candidate wherever the first is one, and never be nearer
            return NearDuplicate(self._ids[first], text_id, 1.0)
        width = PERMUTATIONS // BANDS
        keys = [signature[band * width : (band + 1) * width].tobytes() for band in range(BANDS)]
        candidates = sorted({number for table, key in zip(self._bands, keys, strict=True) for number in table[key]})
        for table, key in zip(self._bands, keys, strict=True):
            table[key].append(own)
        self._ids.append(text_id)
        if own == len(self._signatures):
            self._signatures = np.concatenate([self._signatures, np.empty_like(self._signatures)])
        self._signatures[own] = signature
        if not candidates:
            return None
        similarities = np.mean(self._signatures[candidates] == signature, axis=1)
        nearest = int(np.argmax(similarities))
        if similarities[nearest] < self._threshold:
            return None
        return NearDuplicate(self._ids[candidates[nearest]], text_id, float(similarities[nearest]))


def minhash(runs: Iterable[int]) -> Hashes:
    """[PERMUTATIONS] the least hash of a set under each permutation; all ones for the empty set."""
    values = np.fromiter(runs, dtype=np.uint64)
    if len(values) == 0:
        return np.full(PERMUTATIONS, np.iinfo(np.uint64).max, dtype=np.uint64)
    with np.errstate(over="ignore"):  # multiply-shift hashing wraps around
        hashed = (values[:, None] * _MULTIPLIERS[None, :] + _SHIFTS[None, :]) >> np.uint64(16)
    return hashed.min(axis=0)
