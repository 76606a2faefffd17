"""Finding out what a task is about: by asking the model, or from the profile alone."""

import json
from pathlib import Path
from typing import NamedTuple

from openmle_gym.build.asking import Desk
from openmle_gym.build.attempts import Attempt, Judgement, attempt_until_good
from openmle_gym.build.profile import Profile
from openmle_gym.build.request import BuildRequest
from openmle_gym.build.spec import SpecList, TaskSpec, distinct_specs, parse_spec, read_json, spec_problems
from openmle_gym.build.split_advisor import SplitAdvice, advise_split
from openmle_gym.build.tables import read_samples
from openmle_gym.build.template import template_specs
from openmle_gym.build.wording import About, describe_request, propose_request, question
from openmle_gym.contracts import Contract

_FLAWED, _GOOD = 2.0, 10.0


class Specified(NamedTuple):
    """A task, None where no attempt will do, and the attempts at it; none where nobody was asked."""

    spec: TaskSpec | None
    attempts: list[Attempt]


class Proposals(Contract):
    """Several tasks."""

    specs: tuple[TaskSpec, ...]
    dropped: dict[str, str]
    """Of those that are not built, by name, why."""


def _from_profile(request: BuildRequest, profile: Profile, count: int) -> list[TaskSpec]:
    return template_specs(
        profile,
        request.source,
        name=request.name or request.source.task_name,
        title=request.title,
        targets=request.targets,
        metric=request.metric,
        id_column=request.id_column,
        table=request.table,
        count=count,
    )


async def describe(request: BuildRequest, profile: Profile, about: About, desk: Desk, folder: Path) -> Specified:
    """One task.

    Raises:
        PackageError: Without a model: nothing can be predicted.
        ModelUnavailable: The model cannot be asked.
    """
    if desk.without_model:
        return Specified(_from_profile(request, profile, 1)[0], [])
    ask = describe_request(about, profile, request.source, request.wishes())

    async def judge(answer: str, number: int) -> Judgement:
        spec = _named(parse_spec(json.loads(answer)), request)
        problems = [spec] if isinstance(spec, str) else [*spec_problems(spec, profile), *_unmet(spec, request)]
        if problems:
            feedback = "The task will not do:\n" + "\n".join(f"- {problem}" for problem in problems)
            rank = _FLAWED + 1 / (1 + len(problems))
            return Judgement(accepted=False, rank=rank, code="unsound_task", feedback=feedback)
        return Judgement(accepted=True, rank=_GOOD)

    attempts = await attempt_until_good(
        folder,
        budget=request.attempts,
        desk=desk,
        prompt=lambda done: question(ask, done),
        read=read_json,
        judge=judge,
    )
    if not attempts[-1].judgement.accepted:
        return Specified(None, attempts)
    spec = _named(parse_spec(json.loads(attempts[-1].answer)), request)
    assert isinstance(spec, TaskSpec)
    return Specified(spec, attempts)


def _named(spec: TaskSpec | str, request: BuildRequest) -> TaskSpec | str:
    """The task by the name that was asked for; a single task is called like its source."""
    if isinstance(spec, str):
        return spec
    return spec.model_copy(update={"name": request.name or request.source.task_name})


def _unmet(spec: TaskSpec, request: BuildRequest) -> list[str]:
    """Wishes that a task does not meet."""
    unmet = []
    if request.targets and set(spec.target) != set(request.targets):
        unmet.append(f"target: predict exactly {', '.join(request.targets)}")
    if request.metric and spec.metric != request.metric:
        unmet.append(f"metric: use {request.metric}")
    if request.id_column and spec.id != (request.id_column,):
        unmet.append(f"id: use {request.id_column}")
    if request.table and spec.table != request.table:
        unmet.append(f"table: use {request.table}")
    return unmet


class Proposed(NamedTuple):
    """Tasks, None where no attempt will do, and the attempts; none where nobody was asked."""

    proposals: Proposals | None
    attempts: list[Attempt]


async def propose(request: BuildRequest, profile: Profile, about: About, desk: Desk, folder: Path) -> Proposed:
    """Up to `request.tasks` tasks, no two of them nearly the same. Raises as `describe` does."""
    if desk.without_model:
        specs = _from_profile(request, profile, request.tasks)
        return Proposed(Proposals(specs=tuple(specs), dropped={}), [])
    ask = propose_request(about, profile, request.source, request.wishes(), request.tasks)

    async def judge(answer: str, number: int) -> Judgement:
        proposals = _proposals(answer, request, profile)
        if isinstance(proposals, Proposals) and proposals.specs:
            rank = _GOOD + len(proposals.specs)
            notes = tuple(f"{name}: {why}" for name, why in proposals.dropped.items())
            return Judgement(accepted=True, rank=rank, notes=notes)
        why = (
            proposals
            if isinstance(proposals, str)
            else "\n".join(f"- {name}: {reason}" for name, reason in proposals.dropped.items())
        )
        return Judgement(
            accepted=False, rank=_FLAWED, code="unsound_task", feedback=f"None of the tasks will do:\n{why}"
        )

    attempts = await attempt_until_good(
        folder,
        budget=request.attempts,
        desk=desk,
        prompt=lambda done: question(ask, done),
        read=read_json,
        judge=judge,
    )
    if not attempts[-1].judgement.accepted:
        return Proposed(None, attempts)
    proposals = _proposals(attempts[-1].answer, request, profile)
    assert isinstance(proposals, Proposals)
    return Proposed(proposals, attempts)


def _proposals(answer: str, request: BuildRequest, profile: Profile) -> Proposals | str:
    """The tasks that can be built; or what is wrong with the whole."""
    content = json.loads(answer)
    if not isinstance(content.get("tasks"), list) or not content["tasks"]:
        return "the object has no list `tasks`"
    sound: list[TaskSpec] = []
    dropped: dict[str, str] = {}
    for number, fields in enumerate(SpecList.model_validate(content).tasks, start=1):
        spec = parse_spec(fields)
        name = str(fields.get("name") or f"task {number}")
        problems = [spec] if isinstance(spec, str) else [*spec_problems(spec, profile), *_unmet(spec, request)]
        if isinstance(spec, str) or problems:
            dropped[name if name not in dropped else f"{name}#{number}"] = "; ".join(problems)
        else:
            prefix = f"{request.name}-" if request.name else ""
            sound.append(spec.model_copy(update={"name": f"{prefix}{spec.name}"}))
    kept, same = distinct_specs(sound)
    late = {spec.name: f"more than the {request.tasks} that were asked for" for spec in kept[request.tasks :]}
    return Proposals(specs=tuple(kept[: request.tasks]), dropped={**dropped, **same, **late})


def advice_for(spec: TaskSpec, profile: Profile, raw: Path) -> SplitAdvice:
    """What the data call for; where they call for nothing, what the task asks for."""
    table = profile.table(spec.table) if spec.table else None
    if table is None:
        return SplitAdvice(strategy="stratified", reasons=("rows are files in folders of their class",))
    advice = advise_split(table, read_samples(raw / table.path)[0].frame, spec.target)
    if advice.strategy in ("grouped", "time"):
        return advice
    if spec.split in ("grouped", "time") and table.column(spec.split_column) is not None:
        asked = ("the task asks for it",)
        return advice.model_copy(update={"strategy": spec.split, "column": spec.split_column, "reasons": asked})
    return advice.model_copy(update={"strategy": "random"}) if spec.split == "random" else advice
