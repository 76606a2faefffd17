"""What the recipes policy knows: everything it reads from a prompt of `openmle_gym.prompts`, and nothing else."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from openmle_gym.chat import Message
from openmle_gym.operators import Operator

MOST_CATEGORIES = 50
"""A text column with more distinct values than this is free text, not a category."""
PICTURE_COLUMNS = 48
"""What a column of image files becomes."""
CLASS_METRICS = re.compile(r"accuracy|auc|f1|f_?beta|log_?loss|kappa|gini|precision|recall|mcc|matthews|brier|entropy")
PROBABILITY_METRICS = re.compile(r"auc|log_?loss|gini|average_precision|brier|entropy")

_FILE = re.compile(r"^`(?P<name>.+)`: (?P<first>first )?(?P<rows>\d+) rows, (?P<columns>\d+) columns$")
_COLUMN = re.compile(
    r"^  - (?P<name>.+): (?P<kind>integer|number|boolean|text), (?P<distinct>\d+) distinct"
    r"(?:, (?P<missing>\d+) missing)?(?:, (?P<low>\S+) to (?P<high>\S+)|, such as (?P<examples>.*))?$"
)
_PARENT = re.compile(
    r"# Parent program \d+ of \d+\n\n(?P<verdict>- outcome: .*?)\n\n(?P<fence>`{3,})python\n", re.DOTALL
)
_OUTPUT = re.compile(r"Its output:\n\n(?P<fence>`{3,})text\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One profiled column."""

    name: str
    kind: Literal["integer", "number", "boolean", "text"]
    distinct: int
    missing: int
    low: float | None
    """None for columns without numbers."""
    high: float | None
    picture: bool = False
    """Whether its values name PNG files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One profiled CSV file."""

    rows: int
    truncated: bool
    """The file has at least `rows` rows, not exactly so many."""
    column_count: int
    columns: tuple[Column, ...]
    """Fewer than `column_count` when the profile was shortened."""

    @property
    def names(self) -> set[str]:
        """The profiled columns' names."""
        return {column.name for column in self.columns}


EMPTY_TABLE = Table(rows=0, truncated=False, column_count=0, columns=())


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """The task, as the prompt states it."""

    metric: str
    higher_is_better: bool
    ids: tuple[str, ...]
    targets: tuple[str, ...]
    """The columns that a submission must have beside the ids."""
    kind: Literal["classification", "regression"]
    output: Literal["label", "probability", "number"]
    wall_seconds: float
    train: Table
    test: Table

    @cached_property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of train.csv to learn: the targets, or the one column that is a label where targets are classes."""
        if self.targets[0] in self.train.names or not self.train.columns:
            return self.targets
        others = [c.name for c in self.train.columns if c.name not in self.test.names and c.name not in self.ids]
        return tuple(others[:1]) or self.targets

    @property
    def one_column_per_class(self) -> bool:
        """Whether a submission holds a probability for each class in a column named after it."""
        return self.label_columns != self.targets

    @cached_property
    def features(self) -> tuple[Column, ...]:
        """The profiled feature columns."""
        return tuple(c for c in self.train.columns if c.name not in self.ids and c.name not in self.label_columns)

    @property
    def feature_count(self) -> int:
        """How many features train.csv has, also where its profile was shortened; a column of images counts as many."""
        listed = max(1, self.train.column_count - len(self.train.columns) + len(self.features))
        return listed + (PICTURE_COLUMNS - 1) * len(self.pictures)

    @property
    def shortened(self) -> bool:
        """Whether there are features that the profile does not show."""
        return len(self.features) + (PICTURE_COLUMNS - 1) * len(self.pictures) < self.feature_count

    @cached_property
    def numeric_count(self) -> int:
        """About how many features are numbers."""
        numeric = sum(c.kind in ("integer", "number") for c in self.features)
        listed = self.feature_count - (PICTURE_COLUMNS - 1) * len(self.pictures)
        return round(numeric * listed / max(1, len(self.features))) + PICTURE_COLUMNS * len(self.pictures)

    @cached_property
    def has_categories(self) -> bool:
        """Whether a feature is a boolean or a text of few distinct values."""
        texts = [c for c in self.features if c.kind == "text" and not c.picture]
        return any(c.kind == "boolean" for c in self.features) or any(c.distinct <= MOST_CATEGORIES for c in texts)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Features of free text: of several words or not, too many distinct values for a category."""
        texts = [c for c in self.features if c.kind == "text" and not c.picture]
        return tuple(c.name for c in texts if c.distinct > MOST_CATEGORIES)

    @cached_property
    def pictures(self) -> tuple[str, ...]:
        """Features that name image files."""
        return tuple(c.name for c in self.features if c.picture)

    @cached_property
    def has_missing(self) -> bool:
        """Whether a feature has gaps in train or test; so assumed where the profile was shortened."""
        if self.shortened:
            return True
        return any(c.missing for table in (self.train, self.test) for c in table.columns if c.name not in self.targets)

    @cached_property
    def target(self) -> Column | None:
        """The profile of the first label column; None when train.csv was not profiled."""
        return next((c for c in self.train.columns if c.name == self.label_columns[0]), None)

    @property
    def classes(self) -> int:
        """How many classes; 1 for regression."""
        if self.kind == "regression":
            return 1
        return max(2, self.target.distinct if self.target else 2)

    @property
    def positive_target(self) -> bool:
        """Whether a logarithm of every target exists."""
        labels = [column for column in self.train.columns if column.name in self.label_columns]
        return bool(labels) and all(column.low is not None and column.low >= 0 for column in labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """One parent program, as the prompt shows it."""

    source: str
    failure: str
    """Verdict and output together: all that tells how it failed. Holds no source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPrompt:
    """A whole prompt."""

    operator: Operator
    facts: TaskFacts
    parents: tuple[Parent, ...]
    earlier: str
    """The listed earlier attempts; empty where none are listed."""


def read_prompt(messages: Sequence[Message]) -> ReadPrompt:
    """Reads the messages that `openmle_gym.prompts.build_prompt` made.

    Raises:
        ValueError: They were made by something else.
    """
    text = "\n\n".join(message.content for message in messages if message.role == "user")
    operator = re.match(r"# Operator: (\w+)\n", text)
    facts = re.search(r"^# Facts\n\n(?P<facts>(?:- .*\n)+)\n# Data\n\n", text, re.MULTILINE)
    if operator is None or facts is None:
        raise ValueError("not an operator's prompt: it has no '# Operator' or no '# Facts' section")
    data_end = re.compile(
        r"^# (Parent program \d+ of \d+|Earlier attempts|Experience from other tasks|Output)\n\n", re.MULTILINE
    )
    end = data_end.search(text, facts.end())
    tables = _read_tables(text[facts.end() : end.start() if end else len(text)])
    parents, rest = _read_parents(text[end.start() :] if end else "")
    earlier = re.search(r"^# Earlier attempts\n\n(?P<lines>(?:- .*\n)+)", rest, re.MULTILINE)
    return ReadPrompt(
        operator=Operator(operator[1]),
        facts=_read_facts(facts["facts"], tables),
        parents=parents,
        earlier=earlier["lines"] if earlier else "",
    )


def _read_facts(lines: str, tables: dict[str, Table]) -> TaskFacts:
    pairs = dict(line[2:].split(": ", 1) for line in lines.splitlines())
    metric = pairs["metric"].rsplit(" (", 1)[0]
    targets = tuple(pairs["target columns"].split(", "))
    train = tables.get("train.csv", EMPTY_TABLE)
    target = next((c for c in train.columns if c.name == targets[0]), None)
    kind, prediction = pairs["task type"], pairs["predictions"]
    if kind not in ("classification", "regression"):
        a_label = target is None or target.kind in ("text", "boolean") or CLASS_METRICS.search(metric.lower())
        kind = "classification" if prediction != "number" or (a_label and train.columns) else "regression"
    if prediction == "number" and kind == "classification":
        prediction = "probability" if PROBABILITY_METRICS.search(metric.lower()) else "label"
    return TaskFacts(
        metric=metric,
        higher_is_better="higher is better" in pairs["metric"],
        ids=tuple(pairs["id columns"].split(", ")),
        targets=targets,
        kind="classification" if kind == "classification" else "regression",
        output="number" if kind == "regression" else "probability" if prediction == "probability" else "label",
        wall_seconds=float(pairs["time limit"].split()[0]),
        train=train,
        test=tables.get("test.csv", EMPTY_TABLE),
    )


def _read_tables(data: str) -> dict[str, Table]:
    tables = {}
    for block in data.split("\n\n"):
        head, *lines = block.splitlines() or [""]
        if file := _FILE.match(head):
            columns = [_read_column(column) for line in lines if (column := _COLUMN.match(line))]
            tables[file["name"]] = Table(
                rows=int(file["rows"]),
                truncated=file["first"] is not None,
                column_count=int(file["columns"]),
                columns=tuple(columns),
            )
    return tables


def _read_column(match: re.Match[str]) -> Column:
    kind = match["kind"]
    return Column(
        name=match["name"],
        kind="integer"
        if kind == "integer"
        else "number"
        if kind == "number"
        else "text"
        if kind == "text"
        else "boolean",
        distinct=int(match["distinct"]),
        missing=int(match["missing"] or 0),
        low=float(match["low"]) if match["low"] else None,
        high=float(match["high"]) if match["high"] else None,
        picture=".png'" in (match["examples"] or ""),
    )


def _read_parents(text: str) -> tuple[tuple[Parent, ...], str]:
    """The parents, and the text after them; walks from fence to fence, so a program may contain headings."""
    parents = []
    while head := _PARENT.match(text):
        source, text = _until_fence(text[head.end() :], head["fence"])
        failure = head["verdict"]
        if output := _OUTPUT.match(text):
            log, text = _until_fence(text[output.end() :], output["fence"])
            failure += log
        parents.append(Parent(source=source, failure=failure))
    return tuple(parents), text


def _until_fence(text: str, fence: str) -> tuple[str, str]:
    body, _, rest = text.partition(f"\n{fence}\n")
    return body + "\n", rest.lstrip("\n")


def is_summary_prompt(messages: Sequence[Message]) -> bool:
    """Whether the messages ask for a note on an attempt, not for a program."""
    return messages[-1].content.startswith("# Summary\n")


def note_on(messages: Sequence[Message]) -> str:
    """The attempt's plan and scores, as `openmle_gym.prompts.summary_prompt` shows them."""
    text = messages[-1].content
    plan = " ".join(text.rpartition("Its plan:\n\n")[2].split())
    scores = re.findall(r"^- validation score: (\S+)$", text, re.MULTILINE)
    if not scores:
        return f"{plan} It has no score."
    return f"{plan} Scores on the way: {', then '.join(scores)}."
