"""What runs on some tasks taught, for searches on others: method families, moves, errors, with counts; by rules.

Nothing but cards is read of a run, and of a card neither its test score nor its validation score: programs are compared
by their standing among the valid ones of their own run, which means the same on every task.
"""

import ast
import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openmle_gym.chat import ChatModel, Message
from openmle_gym.contracts import Contract, one_line
from openmle_gym.errors import ConfigError, PackageError
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import method_family, new_bests
from openmle_gym.operators import Operator
from openmle_gym.prompts import middle_cut
from openmle_gym.task import TaskPackage, load_package
from pydantic import Field, ValidationError

from openmle_evo.reading import RunFacts, read_run
from openmle_evo.row_marks import row_sketch
from openmle_evo.skills import (
    SKETCH_SIZE,
    Size,
    Skill,
    SkillFacts,
    Source,
    data_hashes,
    inset,
    size_class,
    sketch,
    split_front_matter,
)

SKILL_LENGTH = 2_500
"""Characters of a skill's text."""
_LISTED = 6
"""Families, moves and errors that a skill lists at most, each."""
_PLAIN = {"DataFrame", "Series", "Index", "Path"}
"""Classes that say nothing of a method."""
_REWRITE = (
    "You write guidance for machine-learning engineers. Below is evidence from searches on one kind of task. Write it "
    "down as advice for a different task of the same kind: what to try first, what to avoid, which errors to expect. "
    "Keep to the evidence and cite its counts. Plain Markdown, at most {length} characters, nothing else."
)


@dataclass(slots=True)
class _Family:
    programs: int = 0
    standings: list[float] = field(default_factory=list)
    """Of each valid program: the share of its run's other valid programs that it beats; ties count half."""


@dataclass(slots=True)
class _Move:
    attempts: int = 0
    new_bests: int = 0
    changes: list[str] = field(default_factory=list)
    """What changed where it set a new best."""


@dataclass(slots=True)
class _Error:
    times: int = 0
    mending: int = 0
    mended: int = 0
    changes: list[str] = field(default_factory=list)
    """What changed where mending worked."""


@dataclass(slots=True, kw_only=True)
class Evidence:
    """What the cards of some runs say, added up."""

    runs: int = 0
    programs: int = 0
    valid: int = 0
    families: dict[str, _Family] = field(default_factory=lambda: defaultdict(_Family))
    moves: dict[str, _Move] = field(default_factory=lambda: defaultdict(_Move))
    errors: dict[str, _Error] = field(default_factory=lambda: defaultdict(_Error))

    def add_run(self, cards: Sequence[ExperienceCard]) -> None:
        """Adds one run's cards, in the order of their commits."""
        by_attempt = {card.attempt: card for card in cards}
        bests = {card.attempt for card in new_bests(cards)[1:]}  # the first valid program beats nothing
        standings = _standings(cards)
        self.runs += 1
        for card in cards:
            if card.program_id is None:
                continue
            parents = [by_attempt[number] for number in card.parents if number in by_attempt]
            self.programs += 1
            self.valid += card.valid
            family = self.families[method_family(card.source)]
            family.programs += 1
            if card.valid:
                family.standings.append(standings[card.attempt])
            self._add_move(card, parents, is_best=card.attempt in bests)
            self._add_error(card, parents)

    def _add_move(self, card: ExperienceCard, parents: Sequence[ExperienceCard], *, is_best: bool) -> None:
        move = self.moves[_move(card, parents)]
        move.attempts += 1
        if is_best:
            move.new_bests += 1
            move.changes.append(_change(card, parents))

    def _add_error(self, card: ExperienceCard, parents: Sequence[ExperienceCard]) -> None:
        if card.error_signature:
            self.errors[card.error_signature].times += 1
        if card.operator is Operator.DEBUG and parents and parents[0].error_signature:
            error = self.errors[parents[0].error_signature]
            error.mending += 1
            if card.valid:
                error.mended += 1
                error.changes.append(_change(card, parents))


def _standings(cards: Iterable[ExperienceCard]) -> dict[int, float]:
    utilities = {card.attempt: card.validation.utility for card in cards if card.validation is not None}
    values = list(utilities.values())
    others = len(values) - 1
    return {
        attempt: (sum(value < own for value in values) + (values.count(own) - 1) / 2) / others if others else 0.5
        for attempt, own in utilities.items()
    }


def _move(card: ExperienceCard, parents: Sequence[ExperienceCard]) -> str:
    family = method_family(card.source)
    before = [method_family(parent.source) for parent in parents]
    if not before:
        return f"{card.operator}: {family}"
    if set(before) == {family}:
        return f"{card.operator}: within {family}"
    return f"{card.operator}: from {' and '.join(before)} to {family}"


def _change(card: ExperienceCard, parents: Sequence[ExperienceCard]) -> str:
    """The classes that a program builds and its parents don't, those that it no longer builds, and its plan's start."""
    own = _built(card.source)
    before = set().union(*(_built(parent.source) for parent in parents))
    parts = []
    if parents and (added := sorted(own - before)):
        parts.append(f"adds {', '.join(added[:4])}")
    if parents and (dropped := sorted(before - own)):
        parts.append(f"drops {', '.join(dropped[:4])}")
    plan = next((line for line in map(_bare, card.plan.splitlines()) if line), "")
    if plan:
        parts.append(f'"{plan if len(plan) <= 160 else plan[:157] + "..."}"')
    return "; ".join(parts)


def _bare(line: str) -> str:
    return re.sub(r"[`#*_]+", "", line).strip(" -")


def _built(source: str) -> set[str]:
    """Names beginning with a capital letter that a program calls."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in calls}
    return {name for name in names if name[:1].isupper()} - _PLAIN


def render_evidence(evidence: Evidence, facts: SkillFacts) -> str:
    """The evidence as a skill's text."""
    direction = {True: " (higher is better)", False: " (lower is better)", None: ""}[facts.higher_is_better]
    kind = f"{facts.task_type} on {'/'.join(facts.modality)} data, {facts.metric}{direction}"
    tasks = ", ".join(source.task for source in facts.sources)
    lines = [
        f"## {kind}",
        "",
        f"Tasks: {tasks}; runs: {evidence.runs}; programs: {evidence.programs}, of these valid: {evidence.valid}.",
        "",
        "Method families (standing: mean share of the run's other valid programs that were beaten):",
    ]
    lines += [
        f"- {name}: {len(each.standings)} of {each.programs} programs valid"
        + (f", standing {sum(each.standings) / len(each.standings):.2f}" if each.standings else "")
        for name, each in sorted(evidence.families.items(), key=lambda item: (-_mean(item[1].standings), item[0]))
    ][:_LISTED]
    moves = sorted(evidence.moves.items(), key=lambda item: (-item[1].new_bests, item[1].attempts, item[0]))
    if won := [(name, each) for name, each in moves if each.new_bests][:_LISTED]:
        lines += ["", "Moves that set a new best:"]
        lines += [
            f"- {name}: {each.new_bests} of {each.attempts} attempts{_example(each.changes)}" for name, each in won
        ]
    errors = sorted(evidence.errors.items(), key=lambda item: (-item[1].times, item[0]))
    if errors:
        lines += ["", "Frequent errors:"]
        lines += [
            f"- {name}: {each.times} x; mended in {each.mended} of {each.mending} attempts{_example(each.changes)}"
            for name, each in errors[:_LISTED]
        ]
    return "\n".join(lines)


def _mean(standings: Sequence[float]) -> float:
    return sum(standings) / len(standings) if standings else -1.0


def _example(changes: Sequence[str]) -> str:
    """The change that came up most, the earliest among equals."""
    counts = Counter(each for each in changes if each)
    return f", e.g. {counts.most_common(1)[0][0]}" if counts else ""


def distill(runs: Sequence[Path], *, packages: Path | None = None, pool: bool = False) -> list[Skill]:
    """Turns finished runs into skills: one of each task, or with `pool` one of each kind of task.

    Pooled counts say more, but such a file is refused whole when one of its tasks is the one that is searched.

    Args:
        packages: Where the tasks' packages are now, by name; by default where each run found its own.

    Raises:
        ConfigError: A run's package is gone, so that the overlap guard would not know its task again.
        StoreError: A folder holds no run.
    """
    groups: dict[tuple[object, ...], list[tuple[RunFacts, TaskPackage]]] = {}
    for path in runs:
        facts = read_run(path)
        package = _package(facts, packages)
        manifest = package.manifest
        kind = (manifest.modality, manifest.task_type, manifest.metric.name)
        groups.setdefault(kind if pool else (package.name,), []).append((facts, package))
    return [_skill(group, pooled=pool) for group in groups.values()]


def _package(facts: RunFacts, packages: Path | None) -> TaskPackage:
    place = packages / facts.manifest.task if packages else Path(facts.manifest.package)
    try:
        return load_package(place)
    except PackageError as error:
        raise ConfigError(
            f"{facts.path}: {error}; the overlap guard needs the task's package: name its folder by --packages"
        ) from error


def _skill(group: Sequence[tuple[RunFacts, TaskPackage]], *, pooled: bool) -> Skill:
    evidence = Evidence()
    for run, _ in group:
        evidence.add_run(run.cards)
    packages = {package.name: package for _, package in group}
    sources = tuple(
        Source(
            task=name,
            runs=tuple(run.manifest.run_id for run, own in group if own.name == name),
            files=data_hashes(package),
            sketch=sketch(package.description),
            rows=row_sketch(package, SKETCH_SIZE),
        )
        for name, package in packages.items()
    )
    manifest = group[0][1].manifest
    sizes: set[Size] = {size_class(package) for package in packages.values()}
    facts = SkillFacts(
        modality=manifest.modality,
        task_type=manifest.task_type,
        metric=manifest.metric.name,
        higher_is_better=manifest.metric.higher_is_better,
        prediction=manifest.metric.prediction,
        size=sizes.pop() if len(sizes) == 1 else None,
        sources=sources,
    )
    name = "-".join([*manifest.modality, manifest.task_type, manifest.metric.name]) if pooled else manifest.name
    text = middle_cut(render_evidence(evidence, facts), SKILL_LENGTH, len)
    return Skill(name=f"{_file_stem(name)}.md", facts=facts, text=inset(text))


class _ArtefactFacts(Contract):
    """The front matter of a public artefact: a write-up or a program of other tasks."""

    tasks: tuple[str, ...] = Field(min_length=1)
    """The tasks that it is about, by name."""
    modality: tuple[str, ...] = ()
    task_type: str = ""
    metric: str = ""
    higher_is_better: bool | None = None
    prediction: str = ""
    size: Size | None = None
    url: str = ""
    description: str = ""
    """The tasks' statement, for the guard; it is not shown."""
    files: tuple[str, ...] = ()
    """SHA-256, in hex, of the tasks' data files."""


def read_artefact(path: Path) -> Skill:
    """A Markdown or Python file with a front matter, as a skill.

    Raises:
        ConfigError: It has no front matter, or a wrong one; names the file.
    """
    table, text = split_front_matter(path)
    try:
        given = _ArtefactFacts.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{path}: {one_line(error)}") from error
    sources = tuple(
        Source(task=task, url=given.url, files=given.files, sketch=sketch(given.description)) for task in given.tasks
    )
    shared = given.model_dump(exclude={"tasks", "url", "description", "files"})
    text = middle_cut(text, SKILL_LENGTH, len)
    if path.suffix == ".py":
        text = f"A program for {', '.join(given.tasks)}:\n\n```python\n{text}\n```"
    return Skill(name=f"{_file_stem(path.stem)}.md", facts=SkillFacts(**shared, sources=sources), text=inset(text))


async def rewrite(skill: Skill, model: ChatModel, *, length: int = SKILL_LENGTH) -> Skill:
    """The skill with its text in a model's words; as it was when the model says nothing.

    Raises:
        ModelUnavailable: The model is out of reach.
    """
    messages = [
        Message(role="system", content=_REWRITE.format(length=length)),
        Message(role="user", content=skill.text),
    ]
    reply = await model.complete(messages, seed=0)
    text = middle_cut(reply.text.strip(), length, len)
    return dataclasses.replace(skill, text=inset(text)) if text else skill


def write_skills(skills: Sequence[Skill], folder: Path) -> list[Path]:
    """Writes the files, in place of those of the same names.

    Raises:
        ConfigError: Two skills have one name.
    """
    twice = [name for name, count in Counter(skill.name for skill in skills).items() if count > 1]
    if twice:
        raise ConfigError(f"{folder / twice[0]}: two sources would be written there; rename one")
    folder.mkdir(parents=True, exist_ok=True)
    for skill in skills:
        (folder / skill.name).write_text(skill.render(), encoding="utf-8")
    return [folder / skill.name for skill in skills]


def _file_stem(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)
