"""The prompts of a build: `prompts/*.md`, filled in."""

import json
from collections.abc import Sequence
from functools import cache, partial
from importlib import resources

from openmle_gym.build.attempts import Attempt, best_attempt
from openmle_gym.build.profile import Profile
from openmle_gym.build.profile_text import profile_text
from openmle_gym.build.source import Source
from openmle_gym.build.spec import TaskSpec, spec_fields
from openmle_gym.build.split_advisor import SplitAdvice
from openmle_gym.chat import Message
from openmle_gym.contracts import Contract
from openmle_gym.metrics import METRICS

_ANSWER_CHARACTERS = 24_000
_ABOUT_CHARACTERS = 10_000


class About(Contract):
    """What the source says of itself."""

    title: str = ""
    text: str = ""
    """A description, as somebody wrote it."""
    licence: str = ""


@cache
def wording(name: str) -> str:
    """The text of `prompts/<name>.md`."""
    return resources.files("openmle_gym.build").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8").strip()


def fill(name: str, **values: str) -> str:
    """A prompt with its places filled in."""
    text = wording(name)
    parts = text.split("{{")
    filled = [parts[0]]
    for part in parts[1:]:
        place, _, rest = part.partition("}}")
        filled.append(values[place] + rest)
    return "".join(filled)


def question(request: str, attempts: Sequence[Attempt]) -> list[Message]:
    """A request, and where attempts were made, the best of them with what is wrong with it."""
    messages = [Message(role="system", content=wording("system")), Message(role="user", content=request)]
    if not attempts:
        return messages
    best = best_attempt(attempts)
    last = attempts[-1]
    history = "\n".join(
        f"{each.number}. {each.judgement.code}: {_first_line(each.judgement.feedback)}" for each in attempts
    )
    shown = best or last
    mend = fill(
        "mend",
        history=history,
        number=str(shown.number),
        answer=f"```\n{shown.answer[:_ANSWER_CHARACTERS]}\n```" if shown.answer else "It held no answer.",
        feedback=shown.judgement.feedback
        + (f"\n\nThe last attempt (number {last.number}): {last.judgement.feedback}" if shown is not last else ""),
    )
    return [*messages, Message(role="user", content=mend)]


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:200]


def describe_request(about: About, profile: Profile, source: Source, wishes: Sequence[str]) -> str:
    """Asks for one task."""
    return fill(
        "describe",
        about=_about(about, source),
        profile=profile_text(profile),
        metrics=_metrics(),
        wishes="\n".join(f"- {wish}" for wish in wishes) or "None.",
        fields=spec_fields(),
    )


def propose_request(about: About, profile: Profile, source: Source, wishes: Sequence[str], count: int) -> str:
    """Asks for several tasks."""
    return fill(
        "propose",
        about=_about(about, source),
        profile=profile_text(profile),
        metrics=_metrics(),
        wishes="\n".join(f"- {wish}" for wish in wishes) or "None.",
        fields=spec_fields(),
        count=str(count),
    )


def prepare_request(spec: TaskSpec, profile: Profile, advice: SplitAdvice, libraries: Sequence[str]) -> str:
    """Asks for prepare.py."""
    table = profile.table(spec.table)
    new = [name for name in spec.id if table is not None and table.column(name) is None]
    ids = f"`{', '.join(spec.id)}` names a row: the raw column, unchanged, in all four tables."
    if new or table is None:
        ids = (
            f"`{', '.join(spec.id)}` names a row and is made by you: running numbers over all rows, given after the rows "
            "were shuffled with a fixed seed, in all four tables."
        )
    reasons = "; ".join(advice.reasons)
    return fill(
        "prepare",
        task=spec_text(spec),
        split=f"{advice.text()}." + (f" The reason: {reasons}." if reasons else ""),
        profile=profile_text(profile),
        targets=", ".join(f"`{name}`" for name in spec.target),
        header=",".join(spec.header),
        ids=ids,
        libraries="".join(f", {name}" for name in libraries),
    )


def metric_request(spec: TaskSpec, files: str) -> str:
    """Asks for metric.py."""
    definition = spec.metric_definition
    if not definition and spec.metric in METRICS:
        function = METRICS[spec.metric].function
        plain, settings = (function.func, function.keywords) if isinstance(function, partial) else (function, {})
        definition = " ".join(
            [*(plain.__doc__ or "").split(), *(f"{key} = {value}." for key, value in settings.items())]
        )
    several = len(spec.target) > 1
    if several and spec.metric in METRICS and METRICS[spec.metric].columns == "each":
        definition += " Computed for each target column by itself, then averaged."
    return fill(
        "metric",
        task=spec_text(spec),
        metric=f"{spec.metric}: {definition}",
        files=files,
        value=repr(spec.target[0]),
        higher=repr(spec.higher_is_better),
        header=",".join(spec.header),
        ids=", ".join(f"`{name}`" for name in spec.id),
        direction="higher" if spec.higher_is_better else "lower",
    )


def spec_text(spec: TaskSpec) -> str:
    """A task as JSON, as the model that wrote it knows it."""
    return f"```json\n{json.dumps(spec.model_dump(mode='json'), indent=2, ensure_ascii=False)}\n```"


def _about(about: About, source: Source) -> str:
    lines = [f"Source: {source.provenance}"]
    lines += [f"Title: {about.title}"] if about.title else []
    lines += [f"Licence: {about.licence}"] if about.licence else []
    lines += [about.text[:_ABOUT_CHARACTERS]] if about.text else []
    return "\n".join(lines)


def _metrics() -> str:
    return "\n".join(
        f"- {spec.name} ({'higher' if spec.higher_is_better else 'lower'} is better; of each {spec.prediction})"
        for spec in METRICS.values()
    )
