"""What a task is about, before its files are made: written by a model or worked out from the profile, then checked."""

import json
import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from openmle_gym.build.profile import Profile
from openmle_gym.build.split_advisor import SplitStrategy
from openmle_gym.chat import Completion
from openmle_gym.configuration import field_docs
from openmle_gym.contracts import Contract, ForeignContract
from openmle_gym.errors import ReplyError
from openmle_gym.manifest import TaskType
from openmle_gym.metrics import METRICS
from openmle_gym.submission import Prediction

Difficulty = Literal["easy", "medium", "hard"]
SHORTEST_STATEMENT = 60
_FENCE = re.compile(r"```(?:json|JSON)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
_WORD = re.compile(r"[a-z0-9]+")
_STOP = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "each",
        "for",
        "from",
        "given",
        "has",
        "have",
        "in",
        "is",
        "it",
        "its",
        "of",
        "on",
        "or",
        "our",
        "predict",
        "predicted",
        "prediction",
        "that",
        "the",
        "their",
        "this",
        "to",
        "using",
        "we",
        "what",
        "which",
        "whose",
        "will",
        "with",
        "you",
        "your",
        "task",
        "model",
        "rows",
        "row",
        "data",
        "dataset",
    ]
)
SAME_WORDS = 0.55
"""From this share of common words two statements about one target are one statement."""


class TaskSpec(Contract):
    """One task."""

    name: str = Field(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=100)
    """Short, in lower case with hyphens; the package's folder."""
    title: str = Field(min_length=3, max_length=120)
    """A few words for people."""
    statement: str = Field(min_length=SHORTEST_STATEMENT, max_length=6000)
    """What the rows are, what is to be predicted, what for."""
    table: str = ""
    """The file with the labelled rows, relative to the raw data; empty where folders of files name the classes."""
    id: tuple[str, ...] = Field(min_length=1)
    """The columns that together name a row in a submission; a new name such as row_id where no column does."""
    target: tuple[str, ...] = Field(min_length=1)
    """The columns to predict."""
    metric: str = Field(pattern=r"^[A-Za-z0-9_@.-]+$")
    """A name of the metric library where it has the metric, else another."""
    metric_definition: str = ""
    """How it is computed; needed where the library has not the metric."""
    higher_is_better: bool
    """Whether a larger score is better."""
    theoretical_min: float | None = None
    """The least score that can be, null where there is none."""
    theoretical_max: float | None = None
    """The largest score that can be, null where there is none."""
    prediction: Prediction = "number"
    """What a prediction is: `number`, `probability` (between 0 and 1) or `label` (as in the training rows)."""
    task_type: TaskType = "other"
    """`classification`, `regression` or `other`."""
    modality: tuple[str, ...] = ("tabular",)
    """What the inputs are, one or more of: tabular, text, image, audio, video, time-series."""
    split: SplitStrategy = "stratified"
    """How rows are divided: `random`, `stratified`, `grouped` or `time`."""
    split_column: str = ""
    """The group or the time, for `grouped` and `time`; else empty."""
    difficulty: Difficulty = "medium"
    """`easy`, `medium` or `hard`."""

    @model_validator(mode="before")
    @classmethod
    def _library_knows(cls, fields: object) -> object:
        """Takes direction, bounds and prediction of a library metric from the library; another direction is refused."""
        if not isinstance(fields, dict):
            return fields
        spec = METRICS.get(str(fields.get("metric", "")).strip().casefold().replace(" ", "_"))
        if spec is None:
            return fields
        said = fields.get("higher_is_better", spec.higher_is_better)
        if said != spec.higher_is_better:
            raise ValueError(f"higher_is_better: {spec.name} has it {spec.higher_is_better}, not {said}")
        known = spec.declaration().model_dump()
        kept = ("higher_is_better", "theoretical_min", "theoretical_max", "prediction")
        return {**fields, "metric": spec.name, **{name: known[name] for name in kept}}

    @model_validator(mode="after")
    def _sound(self) -> "TaskSpec":
        both = set(self.id) & set(self.target)
        if both:
            raise ValueError(f"columns {sorted(both)} are both id and target")
        if self.metric not in METRICS and len(self.metric_definition) < 20:
            raise ValueError(f"metric_definition: {self.metric!r} is not in the library, so say how it is computed")
        if self.split in ("grouped", "time") and not self.split_column:
            raise ValueError(f"split_column: a {self.split} split needs a column")
        return self

    @property
    def header(self) -> tuple[str, ...]:
        """The columns of a submission."""
        return (*self.id, *self.target)


class SpecList(ForeignContract):
    """Several tasks, as a model proposes them; each is validated by itself."""

    tasks: tuple[dict[str, object], ...] = Field(min_length=1)


def spec_fields() -> str:
    """The fields of a task in words, from their own documentation."""
    lines = []
    schema = TaskSpec.model_json_schema()
    for name, docs in zip(TaskSpec.model_fields, _field_docs(), strict=True):
        need = "required" if name in schema["required"] else "optional"
        lines.append(f"- `{name}` ({_json_type(schema['properties'][name])}, {need}): {docs}")
    return "\n".join(lines)


def _field_docs() -> list[str]:
    docs = field_docs(TaskSpec)
    return [docs.get(name, "") for name in TaskSpec.model_fields]


def _json_type(facts: dict[str, object]) -> str:
    kind = facts.get("type")
    if kind == "array":
        return "list of strings"
    if "anyOf" in facts:
        return "number or null"
    return str(kind or "string")


def read_json(completion: Completion) -> str:
    """The JSON object of a reply: in the last fence, or the reply itself.

    Raises:
        ReplyError: There is none, or the reply was cut within it.
    """
    text = completion.text.rpartition("</think>")[2]
    pieces = [*reversed(_FENCE.findall(text)), text, text[text.find("{") : text.rfind("}") + 1]]
    for piece in pieces:
        try:
            if isinstance(json.loads(piece), dict):
                return piece.strip()
        except ValueError:
            continue
    if completion.finish_reason == "length":
        raise ReplyError("truncated_reply", "the reply was cut before its JSON object was complete; be shorter")
    raise ReplyError("no_code", "the reply holds no JSON object that can be read")


def parse_spec(fields: object) -> TaskSpec | str:
    """A task, or what is wrong with it."""
    try:
        return TaskSpec.model_validate(fields)
    except ValidationError as error:
        return "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'the object'}: {each['msg']}" for each in error.errors()[:8]
        )


def spec_problems(spec: TaskSpec, profile: Profile) -> list[str]:
    """What the profile says against a task; nothing where it can be built."""
    if not spec.table:
        if profile.class_folder or not profile.tables:
            return []
        names = ", ".join(f"`{table.path}`" for table in profile.tables[:10])
        return [f"table: name the file with the labelled rows, one of {names}"]
    table = profile.table(spec.table)
    if table is None:
        names = ", ".join(f"`{table.path}`" for table in profile.tables[:10])
        return [f"table: there is no table `{spec.table}`; there are {names or 'none'}"]
    problems = []
    complete = len(table.columns) == table.column_count
    for target in spec.target:
        column = table.column(target)
        if column is None and complete:
            problems.append(f"target: `{spec.table}` has no column {target!r}; it has {', '.join(table.names[:30])}")
        elif column is not None and column.distinct < 2:
            problems.append(f"target: column {target!r} has a single value")
        elif column is not None and spec.prediction == "number" and spec.metric in METRICS and not column.numeric:
            problems.append(f"metric: {spec.metric} needs numbers, and column {target!r} holds {column.kind}")
    if spec.split in ("grouped", "time") and complete and table.column(spec.split_column) is None:
        problems.append(f"split_column: `{spec.table}` has no column {spec.split_column!r}")
    return problems


def distinct_specs(specs: Sequence[TaskSpec]) -> tuple[list[TaskSpec], dict[str, str]]:
    """The tasks that no earlier one is nearly the same as; and of the others, by name, which one that is and why."""
    kept: list[TaskSpec] = []
    dropped: dict[str, str] = {}
    for spec in specs:
        reason = next((why for other in kept if (why := _same(spec, other))), "")
        if reason:
            dropped[spec.name if spec.name not in dropped else f"{spec.name}#{len(dropped)}"] = reason
        else:
            kept.append(spec)
    return kept, dropped


def _same(spec: TaskSpec, other: TaskSpec) -> str:
    if spec.name.casefold() == other.name.casefold():
        return f"has the name of {other.name}"
    if (spec.table, set(spec.target), spec.metric) == (other.table, set(other.target), other.metric):
        return f"has the target and the metric of {other.name}"
    if (spec.table, set(spec.target)) == (other.table, set(other.target)) and _likeness(spec, other) >= SAME_WORDS:
        return f"says what {other.name} says"
    return ""


def _likeness(spec: TaskSpec, other: TaskSpec) -> float:
    """The share of common words, without endings and without words that say nothing."""
    words = [
        {word[:6] for word in _WORD.findall(f"{each.title} {each.statement}".casefold()) if word not in _STOP}
        for each in (spec, other)
    ]
    return len(words[0] & words[1]) / max(1, len(words[0] | words[1]))
