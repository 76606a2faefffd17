"""Edits that teach nothing: detected from a step's program, its parents' programs and how they ended. Pure."""

import re
from collections.abc import Sequence

from openmle_gym.experience import ExperienceCard
from openmle_gym.jobs import Outcome
from openmle_gym.operators import Operator

from openmle_erl.sft.canonical import canonical, parse
from openmle_erl.sft.reasons import Drop
from openmle_erl.sft.units import Unit, units_of

RESOURCE_SIGNATURES = frozenset({"oom", "timeout", "disk_full", "signal_9", "MemoryError"})
_SUBSAMPLING = re.compile(
    r"\.(sample|head|tail|truncate)\(|nrows=|max_samples=|subsample=|train_size=|resample\(|\[:\d+\]|\.iloc\[|"
    r"rng\.choice\(|random\.choice\("
)


def uninstructive(step: ExperienceCard, parents: Sequence[ExperienceCard]) -> Drop | None:
    """Why a step teaches nothing; None when it may.

    Args:
        parents: The step's parents, in the order of the prompt; none for a Draft.
    """
    if not parents:
        return None
    if any(canonical(step.source) == canonical(parent.source) for parent in parents):
        if step.operator is Operator.CROSSOVER:
            return Drop.COPY_OF_PARENT
        return Drop.BLIND_RETRY if step.operator is Operator.DEBUG else Drop.COSMETIC_EDIT
    if any(canonical(step.source, mask_seeds=True) == canonical(each.source, mask_seeds=True) for each in parents):
        return Drop.BLIND_RETRY
    if step.operator is not Operator.DEBUG:
        return None
    (parent,) = parents
    if _fails_alike(step, parent):
        return Drop.REPEATED_FAILURE
    if failed_for_resources(parent) and only_downscales(parent.source, step.source):
        return Drop.RESOURCE_DOWNSCALE
    return None


def _fails_alike(step: ExperienceCard, parent: ExperienceCard) -> bool:
    same = (step.outcome, step.error_signature, step.message) == (
        parent.outcome,
        parent.error_signature,
        parent.message,
    )
    return same and step.outcome is not Outcome.SUCCESS


def failed_for_resources(card: ExperienceCard) -> bool:
    """Whether a program failed for want of time, memory or disk."""
    signature = (card.error_signature or "").partition("@")[0]
    return card.outcome is Outcome.TIMEOUT or (card.outcome is not Outcome.SUCCESS and signature in RESOURCE_SIGNATURES)


def only_downscales(parent: str, step: str) -> bool:
    """Whether an edit does nothing but make a program smaller: lower numbers, fewer statements, subsampled data.

    A larger number beside lower ones (a learning rate for fewer rounds) does not change that; an edit that only raises
    numbers (more jobs, larger chunks) is no downscale, and neither is one that adds anything new.
    """
    if parse(parent) is None or parse(step) is None:
        return False
    before, after = units_of([parent, step])
    gone, new = before - after, after - before
    shapes_gone = [_shape(unit) for unit in gone.elements()]
    reduced = False
    for unit in new.elements():
        shape = _shape(unit)
        if shape in shapes_gone:
            shapes_gone.remove(shape)
        elif _SUBSAMPLING.search(unit.text):
            reduced = True
        elif not _is_part_of(shape, shapes_gone):
            return False
        else:
            reduced = True
    return reduced or bool(shapes_gone) or _lowers(gone, new)


def _shape(unit: Unit) -> str:
    return re.sub(r"(?<![\w.])-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?", "0", unit.text)


def _is_part_of(shape: str, gone: Sequence[str]) -> bool:
    """Whether a statement is what is left of one that is gone when some of its calls or words are taken out."""
    words = re.findall(r"\w+", shape)
    return any(set(words) <= set(re.findall(r"\w+", other)) and len(shape) < len(other) for other in gone)


def _lowers(gone: "dict[Unit, int]", new: "dict[Unit, int]") -> bool:
    """Whether a number is lower in a statement that is the same but for its numbers."""
    by_shape: dict[str, list[list[float]]] = {}
    for unit in gone:
        by_shape.setdefault(_shape(unit), []).append(_numbers(unit.text))
    for unit in new:
        for numbers in by_shape.get(_shape(unit), []):
            now = _numbers(unit.text)
            if len(now) == len(numbers) and any(late < early for early, late in zip(numbers, now, strict=True)):
                return True
    return False


def _numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(?<![\w.])-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?", text)]
