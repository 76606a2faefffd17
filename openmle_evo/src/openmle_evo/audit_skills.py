"""Whether prompts showed of other tasks what the manifest says, and nothing of the run's own task."""

import re
from collections.abc import Mapping

from openmle_evo.run import RunManifest
from openmle_evo.skills import Skill, SkillFacts, Source, TaskMarks, overlap

_HEADING = "\n\n# Experience from other tasks\n\n"
_END = "\n\n# Output\n\n"
_CUT = re.compile(r"\n\[\.\.\. \d+ characters cut \.\.\.\]\n")


def skills_fault(manifest: RunManifest, prompts: Mapping[int, str]) -> str | None:
    """What is wrong with a run's experience from other tasks; None when nothing is.

    Args:
        prompts: By attempt.
    """
    record = manifest.skills
    if bool(record.text) != bool(record.given):
        return f"the manifest has a text of {len(record.text)} characters from {len(record.given)} skills"
    if both := {each.file for each in record.given} & {each.file for each in record.refused}:
        return f"{', '.join(sorted(both))}: refused, and given all the same"
    described = next((_section(prompt, "\n\n# Task\n\n", "\n\n# ") for prompt in prompts.values()), "")
    for given in record.given:
        facts = SkillFacts(sources=tuple(Source(task=task) for task in given.sources))
        own = TaskMarks(manifest.task, manifest.title, frozenset(), described)
        if (touches := overlap(Skill(name=given.file, facts=facts, text=record.text), own)) is not None:
            return f"{given.file}: {touches}"
    strange = [attempt for attempt, prompt in prompts.items() if not _is_of(_shown(prompt), record.text)]
    return f"the prompts of attempts {strange} show other experience than the manifest" if strange else None


def _section(prompt: str, heading: str, end: str) -> str:
    return prompt.partition(heading)[2].partition(end)[0]


def _shown(prompt: str) -> str:
    """The section of a prompt, the last one before its end; empty where there is none."""
    section = prompt.rpartition(_END)[0].rpartition(_HEADING)
    is_in_a_program = "\n```" in section[2] and not section[2].startswith("```")
    return "" if is_in_a_program or not section[1] else section[2]


def _is_of(shown: str, text: str) -> bool:
    """Whether a section is the whole text, or both its ends."""
    ends = _CUT.split(shown)
    return text.startswith(ends[0]) and text.rstrip().endswith(ends[-1].rstrip()) and len(ends) <= 2
