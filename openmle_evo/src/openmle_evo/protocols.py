"""On which scores a run selects, and where its choice is graded in the end.

    holdout       selects on the validation half of the hidden answers; the end is the test half of the same package
    two_package   selects the same way on one package; the end is another package, graded whole
    self_valid    selects on the score that a program prints itself; the end is as with `holdout`
    evaluator     selects on what a benchmark's own evaluator says (NatureBench); that is the result, and there is no other
                  test: what is reported is the best of all that were tried, as that benchmark defines it

Under every protocol the sandbox grades each program on the validation split, and the store keeps that score and the
printed one apart. What selects (schedule, islands, memory, prompts, the final choice) is given cards through `seen`;
only there, and only under `self_valid`, does a printed score take the place of the measured one.

Under `self_valid` a program counts that ran to its end, handed in a submission that could be graded, and printed a
score. One that crashed, timed out or handed in nothing usable is a failure for Debug whatever it printed, as in the
original, whose deterministic failures are never valid; letting a crashed program stand by its printed score was a fault
there. One that printed nothing has no score, as there.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from openmle_gym.contracts import Contract
from openmle_gym.errors import ConfigError
from openmle_gym.evaluate import Attempt
from openmle_gym.experience import ExperienceCard
from openmle_gym.jobs import Outcome
from openmle_gym.scores import Provenance, ValidationScore
from openmle_gym.task import TaskPackage

from openmle_evo.config import SearchConfig
from openmle_evo.islands import Islands
from openmle_evo.schedule import Choice, choose


class TrustedClaim(ValidationScore):
    """A score that a program printed, standing where selection looks because the protocol trusts it.

    Lives in memory alone, on cards made by `seen`; no record of a run holds one.
    """

    provenance = Provenance.SELF_REPORTED


class FinalPackage(Contract):
    """The package that a `two_package` run is graded on."""

    name: str
    package: str
    """Its folder."""
    answers_sha256: str
    search_answers_sha256: str
    """Of the package that was searched on."""


def provenance(protocol: str) -> Provenance:
    """What kind of score decides."""
    return Provenance.SELF_REPORTED if protocol == "self_valid" else Provenance.VALIDATION


def seen(card: ExperienceCard, protocol: str) -> ExperienceCard:
    """A card as selection sees it."""
    if protocol != "self_valid":
        return card
    claim = card.self_reported if card.outcome is Outcome.SUCCESS and card.withheld is None else None
    score = None if claim is None else TrustedClaim(value=claim.value, higher_is_better=claim.higher_is_better)
    return card.model_copy(update={"validation": score})


def all_seen(cards: Iterable[ExperienceCard], protocol: str) -> list[ExperienceCard]:
    """Cards as selection sees them, in the same order."""
    return [seen(card, protocol) for card in cards]


def decide(
    number: int, cards: Sequence[ExperienceCard], under_way: Sequence[Attempt], islands: Islands, config: SearchConfig
) -> Choice:
    """`choose`, with the kind of score that it went by on its record.

    Args:
        cards: As seen under the protocol; the islands are made of the same.
    """
    choice = choose(number, cards, under_way, islands, config)
    selection = choice.selection.model_copy(update={"provenance": provenance(config.protocol)})
    return choice._replace(selection=selection)


def final_package(search: TaskPackage, final: TaskPackage) -> FinalPackage:
    """Checks that a package may be the end of a search on another one, and returns the record of both.

    Raises:
        ConfigError: They are one package, have another metric, or share answers; or the final one is not graded whole.
    """
    where = f"final_task={final.root}"
    if search.root == final.root:
        raise ConfigError(f"{where}: is the package that is searched on")
    for name in ("metric", "columns"):
        if (one := getattr(search.manifest, name)) != (other := getattr(final.manifest, name)):
            raise ConfigError(f"{where}: its {name} are {other}, those of {search.root} are {one}")
    if final.validation_rows.any():
        raise ConfigError(
            f"{where}: {int(final.validation_rows.sum())} of its rows would be left out as a validation half; write "
            f"hidden_split.validation_fraction = 0 into its task.toml, so that it is graded whole"
        )
    digests = [_sha256(each.root / "data" / "private" / "test_answer.csv") for each in (search, final)]
    if digests[0] == digests[1]:
        raise ConfigError(f"{where}: has the same answers as {search.root}")
    if (shared := _shared_rows(search, final)) is not None:
        raise ConfigError(f"{where}: {shared}")
    return FinalPackage(
        name=final.name, package=str(final.root), search_answers_sha256=digests[0], answers_sha256=digests[1]
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _shared_rows(search: TaskPackage, final: TaskPackage) -> str | None:
    """What the search package shows or grades of the final one's hidden rows; None when nothing.

    Rows are compared by all the columns that both tables have, ids included; without a column beside the ids, by ids
    and answers, where being all the same cannot be chance.
    """
    ids = list(final.manifest.columns.id)
    hidden = _table(final, "test.csv")
    for name in ("train.csv", "test.csv"):
        table = _table(search, name)
        if table is None or hidden is None:
            continue
        common = [column for column in hidden.columns if column in table.columns]
        if set(common) - set(ids):
            count = len(hidden[common].drop_duplicates().merge(table[common].drop_duplicates()))
            if count:
                return f"{count} of its hidden rows are in {name} of {search.root}"
    pairs = [set(map(tuple, each.answers.to_numpy())) for each in (search, final)]
    if min(map(len, pairs)) == len(pairs[0] & pairs[1]):
        return f"all answers of one package are answers of the other, {search.root}"
    return None


def _table(package: TaskPackage, name: str) -> pd.DataFrame | None:
    path = package.public_dir / name
    return pd.read_csv(path, dtype=str, keep_default_na=False) if path.is_file() else None
