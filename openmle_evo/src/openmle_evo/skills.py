"""Skill files: experience from other tasks, and the guard that keeps a task's own experience out of its search.

A skill is a Markdown file with TOML between two lines of `+++` at its top:

    +++
    modality = ["tabular"]
    task_type = "regression"
    metric = "rmse"
    higher_is_better = false
    [[sources]]
    task = "diamonds"
    +++
    ## What worked ...

`openmle-evo distill` writes them from finished runs. A search with `skills=FOLDER` first refuses each file that touches
its own task, then gives the most similar ones to the prompts, as far as their budget reaches.
"""

import hashlib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import tomli_w
from openmle_gym.contracts import Contract, one_line
from openmle_gym.errors import ConfigError
from openmle_gym.manifest import Metric
from openmle_gym.memory import Measure
from openmle_gym.prompts import middle_cut
from openmle_gym.task import TaskPackage
from pydantic import Field, ValidationError

from openmle_evo.row_marks import row_sketch

SHINGLE_WORDS = 5
SKETCH_SIZE = 128
NEAR_DUPLICATE = 0.3
"""Descriptions that resemble each other (Jaccard, shingles of five words) at least so much are of one task. Two versions
of one shipped task reach 0.6, different shipped tasks at most 0.05."""
SHARED_ROWS = 0.05
"""Tasks that share at least this part of all the rows of both have the same data."""
QUOTED = 0.3
"""A skill whose text holds at least this share of the description's shingles quotes it."""

Size = Literal["small", "medium", "large"]


class Source(Contract):
    """One task that a skill's experience comes from, and the marks by which the guard knows it again."""

    task: str
    runs: tuple[str, ...] = ()
    """Identifiers of the runs."""
    url: str = ""
    """Where a public artefact was published."""
    files: tuple[str, ...] = ()
    """SHA-256, in hex, of the task's data files."""
    sketch: str = ""
    """The smallest hashes of the description's shingles, in hex, sorted; see `sketch`."""
    rows: str = ""
    """The smallest hashes of the rows of the task's tables, in hex, sorted; see `row_sketch`."""


class SkillFacts(Contract):
    """A skill file's front matter."""

    schema_version: Literal[1] = 1
    modality: tuple[str, ...] = ()
    task_type: str = ""
    metric: str = ""
    higher_is_better: bool | None = None
    """None when it is not known."""
    prediction: str = ""
    """What is predicted: number, probability or label."""
    size: Size | None = None
    """Of the public data: less than 1 MB, less than 100 MB, more."""
    sources: tuple[Source, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """One skill file."""

    name: str
    facts: SkillFacts
    text: str
    """What a prompt may show; no heading of the first level is in it, so that the prompt keeps its sections."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that it comes from."""
        return tuple(source.task for source in self.facts.sources)

    def render(self) -> str:
        """The whole file."""
        return f"+++\n{tomli_w.dumps(self.facts.model_dump(mode='json', exclude_none=True))}+++\n\n{self.text}\n"


class GivenSkill(Contract):
    """A skill that prompts show."""

    file: str
    sha256: str
    sources: tuple[str, ...]
    """The tasks that it comes from."""
    cut: bool = False
    """The budget held it in part alone."""


class RefusedSkill(Contract):
    """A skill that touches the task of the run."""

    file: str
    sha256: str
    reason: str


class SkillsRecord(Contract):
    """What a run was given of other tasks; fixed at its start, so that a resumed run is told the same."""

    text: str = ""
    """What every prompt shows."""
    given: tuple[GivenSkill, ...] = ()
    refused: tuple[RefusedSkill, ...] = ()
    left_out: tuple[str, ...] = ()
    """Files that the budget had no room for, or that have nothing in common with the task."""


class TaskMarks(NamedTuple):
    """All by which a task is known again."""

    name: str
    title: str
    files: frozenset[str]
    description: str
    rows: str = ""
    """As of a `Source`."""


def task_marks(package: TaskPackage) -> TaskMarks:
    """A package's marks."""
    return TaskMarks(
        package.name,
        package.manifest.title,
        frozenset(data_hashes(package)),
        package.description,
        row_sketch(package, SKETCH_SIZE),
    )


def data_hashes(package: TaskPackage) -> tuple[str, ...]:
    """SHA-256, in hex, of a package's data: as its manifest lists them, else of its public files.

    The sample submission and the package's code and board are left out: tasks may share them.
    """
    listed = {
        name: digest
        for name, digest in package.manifest.files.items()
        if not name.startswith(("utils/", "info/")) and Path(name).name != "sample_submission.csv"
    }
    if not listed:
        for path in sorted(package.public_dir.rglob("*")):
            if path.is_file() and path.name != "sample_submission.csv" and path.stat().st_size:
                with path.open("rb") as file:
                    listed[str(path)] = hashlib.file_digest(file, "sha256").hexdigest()
    return tuple(sorted(set(listed.values())))


def size_class(package: TaskPackage) -> Size:
    """How large a package's public data are."""
    total_bytes = sum(path.stat().st_size for path in package.public_dir.rglob("*") if path.is_file())
    return "small" if total_bytes < 1e6 else "medium" if total_bytes < 1e8 else "large"


def _shingles(text: str) -> frozenset[str]:
    """Hashes, in hex, of all runs of five words; of the whole text when it is shorter."""
    words = re.findall(r"\w+", text.lower())
    runs = {" ".join(words[i : i + SHINGLE_WORDS]) for i in range(max(1, len(words) - SHINGLE_WORDS + 1))} - {""}
    return frozenset(hashlib.sha256(run.encode()).hexdigest()[:12] for run in runs)


def sketch(text: str) -> str:
    """The 128 smallest hashes of a text's shingles: enough to tell how much two texts resemble each other."""
    return " ".join(sorted(_shingles(text))[:SKETCH_SIZE])


def resemblance(first: str, second: str) -> float:
    """The Jaccard similarity of two texts' shingles, or two tasks' rows, estimated from their sketches (Broder, 1997)."""
    left, right = set(first.split()), set(second.split())
    smallest = sorted(left | right)[:SKETCH_SIZE]
    return sum(each in left and each in right for each in smallest) / len(smallest) if smallest else 0.0


def overlap(skill: Skill, task: TaskMarks) -> str | None:
    """How a skill touches a task: by name, data files, rows, description, or in its text; None when it doesn't."""
    names = {_slug(task.name), _slug(task.title)} - {""}
    own_sketch = sketch(task.description)
    for source in skill.facts.sources:
        if _slug(source.task) in names:
            return f"its source {source.task} is the task {task.name}"
        if shared := task.files & set(source.files):
            return f"its source {source.task} has a data file of {task.name} (sha256 {min(shared)[:12]}...)"
        if (common := resemblance(source.rows, task.rows)) >= SHARED_ROWS:
            return f"its source {source.task} has rows of {task.name} ({common:.0%} of those of both)"
        if (alike := resemblance(source.sketch, own_sketch)) >= NEAR_DUPLICATE:
            return f"the description of its source {source.task} resembles that of {task.name} ({alike:.0%} alike)"
    words = re.findall(r"[a-z0-9]+", task.name.lower())
    named = r"[\W_]*".join(words)
    if words and re.search(rf"(?<![a-z0-9]){named}(?![a-z0-9])", skill.text.lower()):
        return f"its text names {task.name}"
    described = _shingles(task.description)
    quoted = len(described & _shingles(skill.text)) / len(described) if described else 0.0
    return f"its text quotes {quoted:.0%} of the description of {task.name}" if quoted >= QUOTED else None


def _slug(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


def similarity(facts: SkillFacts, package: TaskPackage) -> float:
    """How near a skill is to a task, from 0 to 1: modality, task type, metric or at least its kind, size class."""
    manifest = package.manifest
    score = 3.0 * bool({each.lower() for each in facts.modality} & {each.lower() for each in manifest.modality})
    score += 2.0 * (facts.task_type == manifest.task_type)
    score += 2.0 * _metric_similarity(facts, manifest.metric)
    score += 1.0 * (facts.size == size_class(package))
    return score / 8.0


def _metric_similarity(facts: SkillFacts, metric: Metric) -> float:
    if _slug(facts.metric) == _slug(metric.name):
        return 1.0
    kind = (facts.prediction, facts.higher_is_better)
    return 0.5 if kind == (metric.prediction, metric.higher_is_better) else 0.0


def give_skills(folder: Path, package: TaskPackage, *, budget: int, measure: Measure = len) -> SkillsRecord:
    """Reads a folder of skills, refuses those that touch the task, and fills the budget with the most similar ones.

    Args:
        budget: The most that the skills take together, in units of `measure`.

    Raises:
        ConfigError: There are no skill files in the folder, or one is damaged.
    """
    paths = sorted(folder.glob("*.md"))
    if not paths:
        raise ConfigError(f"skills={folder}: no *.md file there")
    marks = task_marks(package)
    refused: list[RefusedSkill] = []
    ranked: list[tuple[float, Skill]] = []
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    for path in paths:
        skill = read_skill(path)
        if (reason := overlap(skill, marks)) is not None:
            refused.append(RefusedSkill(file=path.name, sha256=hashes[path.name], reason=reason))
        else:
            ranked.append((similarity(skill.facts, package), skill))
    ranked.sort(key=lambda each: (-each[0], each[1].name))
    text, given = _fill([skill for near, skill in ranked if near > 0], hashes, budget, measure)
    shown = {each.file for each in given}
    left_out = tuple(skill.name for _, skill in ranked if skill.name not in shown)
    return SkillsRecord(text=text, given=given, refused=tuple(refused), left_out=left_out)


def _fill(
    skills: Sequence[Skill], hashes: dict[str, str], budget: int, measure: Measure
) -> tuple[str, tuple[GivenSkill, ...]]:
    """As many skills as fit, whole; when not even the most similar one fits, as much of it as does."""
    text, given = "", []
    for skill in skills:
        longer = f"{text}\n\n{skill.text}" if text else skill.text
        if measure(longer) <= budget:
            text = longer
            given.append(GivenSkill(file=skill.name, sha256=hashes[skill.name], sources=skill.tasks))
    if skills and not given and (text := middle_cut(skills[0].text, budget, measure)):
        first = skills[0]
        given.append(GivenSkill(file=first.name, sha256=hashes[first.name], sources=first.tasks, cut=True))
    return text, tuple(given)


def read_skill(path: Path) -> Skill:
    """Reads a skill file.

    Raises:
        ConfigError: It has no front matter, or a field of it is missing, unknown or wrong; names the file.
    """
    table, text = split_front_matter(path)
    try:
        return Skill(name=path.name, facts=SkillFacts.model_validate(table), text=inset(text))
    except ValidationError as error:
        raise ConfigError(f"{path}: {one_line(error)}") from error


def split_front_matter(path: Path) -> tuple[dict[str, object], str]:
    """A file's front matter, as a table, and the text after it. In Python files each of its lines may begin with `#`.

    Raises:
        ConfigError: There is none, or it is not TOML.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text: {error}") from error
    bare = [re.sub(r"^# ?", "", line) for line in lines] if path.suffix == ".py" else lines
    fences = [number for number, line in enumerate(bare) if line.strip() == "+++"][:2]
    if len(fences) < 2 or "".join(bare[: fences[0]]).strip():
        raise ConfigError(f"{path}: no front matter: TOML between two lines of +++ at the top of the file")
    try:
        table = tomllib.loads("\n".join(bare[fences[0] + 1 : fences[1]]))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: front matter is not TOML: {error}") from error
    return table, "\n".join(lines[fences[1] + 1 :]).strip()


def inset(text: str) -> str:
    """The text with headings of the first level (and comments that look like one) made second."""
    return re.sub(r"^# ", "## ", text.strip(), flags=re.MULTILINE)
