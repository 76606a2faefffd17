"""What is known of the competitions of MLE-Bench, as data: `competitions.toml` for all 75, `lite.toml` for Lite's 22."""

import tomllib
from functools import cache
from importlib import resources
from typing import Literal

from pydantic import Field

from openmle_gym.contracts import Contract
from openmle_gym.errors import ConfigError
from openmle_gym.manifest import TaskType

Group = Literal["low", "medium", "high"]
BAD = "!"
"""A known issue that starts with it makes a task known to be bad."""


class Split(Contract):
    """Which rows of the public train data become the hidden rows of a search package."""

    kind: Literal["labels", "largest", "several_labels", "quantiles", "groups", "modulo", "digest", "draw"]
    """`labels`, `largest`, `several_labels` and `quantiles` are strata of which each gives its share; `groups` takes
    whole groups; `modulo` and `digest` take every `bins`-th number or MD5 of a name; `draw` draws without strata."""
    by: tuple[str, ...] = ()
    """Columns that the strata or groups follow from."""
    fraction: float = Field(default=0.2, gt=0, lt=1)
    seed: int = 42
    bins: int = Field(default=5, ge=2)


class Media(Contract):
    """Files beside a table: one for each row, or, for competitions whose labels are in file names, the rows themselves."""

    train: str
    test: str
    name: str
    """With `{id}` for the row's id; a pattern where names are the rows."""


class Carving(Contract):
    """How a search package is carved out of a competition's public train data."""

    form: Literal["table", "names", "pixels", "recordings"] = "table"
    table: str = "train.csv"
    """The train rows, a CSV file or a JSON list."""
    test: str = ""
    """The test rows, whose columns are those that test rows have; empty where there are only files."""
    label: str = ""
    """A column whose values are the target columns, one each; empty where targets are columns."""
    row: str = ""
    """How a row's id is made; empty where it is a column."""
    positive: str = ""
    """A pattern that the names of positive files match."""
    before: str = ""
    """A pattern whose first group is `{before}` in the new name of a file."""
    renamed: str = ""
    """The new name of a file, which must not tell its label."""
    media: tuple[Media, ...] = ()
    side: tuple[str, ...] = ()
    """Files with more on the train rows, by the same ids; of hidden rows they are left out."""
    dropped: tuple[str, ...] = ()
    """What cannot be divided and is left out."""
    split: Split


class Details(Contract):
    """A section of `lite.toml`."""

    id: tuple[str, ...]
    prediction: Literal["number", "probability", "label", "text"] = "number"
    modality: tuple[str, ...] = ("tabular",)
    task_type: TaskType = "classification"
    sample: str = "sample_submission.csv"
    """The sample submission's name among the public files."""
    answers: str = "test.csv"
    """The answers' name among the private files."""
    sample_score: float | None = None
    """What the sample submission scores officially."""
    carving: Carving


class CompetitionFacts(Contract):
    """A competition of MLE-Bench."""

    id: str
    group: Group
    metric: str
    higher_is_better: bool
    known_issues: tuple[str, ...] = ()
    known_bad: bool = False
    """Its score says little about a program: answers leak, or its data are broken."""
    details: Details | None = None
    """None beyond Lite."""


@cache
def competitions() -> dict[str, CompetitionFacts]:
    """All 75, by id."""
    lite = {name: Details.model_validate(section) for name, section in _read("lite.toml").items()}
    found: dict[str, CompetitionFacts] = {}
    for group, members in _read("competitions.toml").items():
        for name, said in members.items():
            issues = tuple(said.pop("known_issues", ()))
            found[name] = CompetitionFacts.model_validate(
                {
                    "id": name,
                    "group": group,
                    "known_issues": tuple(issue.removeprefix(BAD) for issue in issues),
                    "known_bad": any(issue.startswith(BAD) for issue in issues),
                    "details": lite.get(name),
                    **said,
                }
            )
    return found


def lite_ids() -> tuple[str, ...]:
    """The 22 competitions of MLE-Bench Lite."""
    return tuple(name for name, facts in competitions().items() if facts.group == "low")


def facts_of(competition: str) -> CompetitionFacts:
    """The facts of one competition.

    Raises:
        ConfigError: It is none of the 75.
    """
    try:
        return competitions()[competition]
    except KeyError:
        raise ConfigError(f"{competition!r} is none of MLE-Bench's {len(competitions())} competitions") from None


def _read(name: str) -> dict[str, dict]:
    text = resources.files("openmle_gym.bridges.mle_bench").joinpath(name).read_text(encoding="utf-8")
    return tomllib.loads(text)
