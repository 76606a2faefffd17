"""What public files give away, and whether train and test rows are strangers."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from openmle_gym.check.finding import Finding, error, warning
from openmle_gym.check.subject import TABLES, Subject, file_sha256
from openmle_gym.check.tables import common_range, hash_rows, scan, sketch

EQUAL_SHARE = 0.999
"""From this share of equal cells a column is the target."""
MONOTONE = 0.9999
MANY_SHARED = 0.1
"""From this share of the test rows, shared rows decide scores."""
SOME_SHARED = 0.01
SOME_NEARLY_SHARED = 0.05
FEWEST_PAIRS = 10
GROUPED = 0.2
_GROUP_NAME = re.compile(
    r"(?i)(.*[ _-])?(id|group|user|patient|customer|client|session|ticket|household|subject|speaker|author|store|site)s?([ _-]?id)?|.*[a-z]Id"
)
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}.*|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}.*")


def answers_in_public(subject: Subject) -> Iterator[Finding]:
    """No public file is, or holds, the answers."""
    answers = subject.tables.get("test_answer.csv")
    private = [path for path in (subject.root / "data" / "private").rglob("*") if path.is_file()]
    sizes = {path.stat().st_size for path in private}
    digests = {file_sha256(path) for path in private}
    for path in subject.public_files:
        name = path.relative_to(subject.public).as_posix()
        if path.stat().st_size in sizes and file_sha256(path) in digests:
            yield error("answers_in_public", f"{name} is a copy of a private file", file=name)
        elif answers is not None and subject.columns is not None and path.suffix == ".csv" and name not in TABLES:
            try:
                table = scan(path, subject.columns.id)
            except ValueError:
                continue
            found = [
                column
                for target in subject.columns.target
                for column in table.columns
                if (target in answers.digests and _holds(table.sample, column, answers.sample, target))
                or (table.rows == answers.rows and table.digests[column] == answers.digests.get(target))
            ]
            if found:
                yield error(
                    "answers_in_public", f"column {found[0]!r} of {name} holds the answers", file=name, columns=[*found]
                )


def _holds(sample: pd.DataFrame, column: str, answers: pd.DataFrame, target: str) -> bool:
    pairs = same_rows(sample, column, answers, target)
    if len(pairs) < min(FEWEST_PAIRS, len(answers)) or pairs["target"].nunique() < 2:
        return False
    return equal_share(pairs) >= EQUAL_SHARE


def same_rows(left: pd.DataFrame, column: str, right: pd.DataFrame, target: str) -> pd.DataFrame:
    """Cells of two tables that are about the same rows."""
    first = left[[column]].set_axis(["feature"], axis=1)
    second = right[[target]].set_axis(["target"], axis=1)
    pairs = first.loc[~first.index.duplicated()].join(second.loc[~second.index.duplicated()], how="inner")
    return pairs.apply(lambda cells: cells.str.strip())


def equal_share(pairs: pd.DataFrame) -> float:
    """The share of rows whose two cells are the same text or the same number."""
    numbers = pairs.apply(pd.to_numeric, errors="coerce")
    equal = (pairs["feature"] == pairs["target"]) | np.isclose(numbers["feature"], numbers["target"], rtol=1e-9, atol=0)
    return float(equal.mean())


def columns_that_tell(subject: Subject) -> Iterator[Finding]:
    """No feature equals the target, renames it, or puts the rows in its order."""
    if subject.columns is None or not subject.features or "test_answer.csv" not in subject.tables:
        return
    train, test, answers = (subject.tables[name].sample for name in ("train.csv", "test.csv", "test_answer.csv"))
    for target in subject.columns.target:
        for feature in subject.features:
            for where, pairs in (
                ("test.csv", same_rows(test, feature, answers, target) if target in answers else pd.DataFrame()),
                ("train.csv", same_rows(train, feature, train, target) if target in train else pd.DataFrame()),
            ):
                found = _tells(pairs, where, feature, target)
                if found is not None:
                    yield found
                    break


def _tells(pairs: pd.DataFrame, where: str, feature: str, target: str) -> Finding | None:
    if len(pairs) < FEWEST_PAIRS or pairs["target"].nunique() < 2:
        return None
    evidence = {"file": where, "column": feature, "target": target, "rows": len(pairs)}
    if (share := equal_share(pairs)) >= EQUAL_SHARE:
        return error("column_equals_target", f"column {feature!r} of {where} is the target", share=share, **evidence)
    forms = pairs.drop_duplicates()
    renamed = len(forms) == forms["feature"].nunique() == forms["target"].nunique()
    if renamed and len(forms) <= len(pairs) / 2:
        return error(
            "column_predicts_target", f"column {feature!r} of {where} is the target by other names", **evidence
        )
    numbers = pairs.apply(pd.to_numeric, errors="coerce")
    if numbers.notna().all(axis=None) and numbers["feature"].nunique() > 1:
        monotone = _monotone(numbers["feature"], numbers["target"])
        if monotone >= MONOTONE:
            message = f"column {feature!r} of {where} puts the rows in the target's order"
            return error("column_predicts_target", message, monotone=monotone, **evidence)
    return None


def _monotone(feature: pd.Series, target: pd.Series) -> float:
    """Of pairs of rows with unequal targets, how many the feature orders like the target, or all the other way round.

    Counted by ranks against the target's groups: 1 where the groups do not overlap in the feature.
    """
    spans = (
        pd.DataFrame({"feature": feature, "target": target}).groupby("target")["feature"].agg(["min", "max", "count"])
    )
    rising = spans["min"].to_numpy()[1:] > spans["max"].cummax().to_numpy()[:-1]
    falling = spans["max"].to_numpy()[1:] < spans["min"].cummin().to_numpy()[:-1]
    return float(max(rising.mean(), falling.mean()))


def shared_rows(subject: Subject) -> Iterator[Finding]:
    """Train and test rows are strangers: neither the same, nor the same but for small changes."""
    if subject.columns is None or not subject.features or "test_answer.csv" not in subject.tables:
        return
    if subject.tables["train.csv"].ragged or subject.tables["test.csv"].ragged:
        return
    target = subject.columns.target[0]
    answers = subject.tables["test_answer.csv"].sample
    ids = list(subject.columns.id)
    known = ids if set(ids) <= set(subject.tables["test.csv"].columns) else []
    exact_share = 0.0
    for id, how, normal in (
        ("train_test_duplicates", "the same", False),
        ("train_test_near_duplicates", "nearly the same", True),
    ):

        def hashes(frame: pd.DataFrame, normal: bool = normal) -> np.ndarray:
            cells = frame[subject.features]
            return hash_rows(cells.apply(_rounded) if normal else cells)

        has_target = [target] if target in subject.tables["train.csv"].columns else []
        train, test = common_range(
            sketch(subject.path("train.csv"), hashes, has_target), sketch(subject.path("test.csv"), hashes, known)
        )
        shared = test.index.isin(train.index)
        share = float(shared.mean()) if len(test) else 0.0
        if share - exact_share >= (SOME_NEARLY_SHARED if normal else SOME_SHARED) and len(subject.features) > 1:
            agreement = _agreement(train, test[shared], answers, ids, target) if known and has_target else None
            severe = share >= MANY_SHARED and (agreement is None or agreement >= 0.5)
            yield (error if severe and not normal else warning)(
                id,
                f"{share:.1%} of the test rows are {how} as a row of train, ids and target aside",
                share=share,
                targets_agree=agreement,
            )
        exact_share = share


def _agreement(
    train: pd.DataFrame, shared: pd.DataFrame, answers: pd.DataFrame, ids: Sequence[str], target: str
) -> float | None:
    """How often the shared rows' targets are equal too; None where too few of them are known."""
    keyed = shared.assign(answer=pd.Series(hash_rows(shared[list(ids)]), index=shared.index))
    known = keyed[keyed["answer"].isin(answers.index)]
    if not len(known):
        return None
    told = train.loc[~train.index.duplicated(), target].reindex(known.index).str.strip().to_numpy()
    true = answers.loc[~answers.index.duplicated(), target].reindex(known["answer"]).str.strip().to_numpy()
    return float((told == true).mean())


def _rounded(cells: pd.Series) -> pd.Series:
    """Numbers to four digits, text without case, spaces and punctuation."""
    numbers = pd.to_numeric(cells, errors="coerce")
    text = cells.str.casefold().str.replace(r"[\W_]+", "", regex=True)
    return text.where(numbers.isna(), numbers.map("{:.4g}".format))


def groups(subject: Subject) -> Iterator[Finding]:
    """Rows that belong together are on one side of the split."""
    for feature in subject.features:
        if not _GROUP_NAME.fullmatch(feature):
            continue
        train, test = (
            sketch(subject.path(name), lambda frame, feature=feature: hash_rows(frame[[feature]]), [feature])
            for name in ("train.csv", "test.csv")
        )
        train, test = common_range(train, test)
        train, test = (frame[frame[feature].str.strip() != ""] for frame in (train, test))
        if len(test) < FEWEST_PAIRS or len(train) < FEWEST_PAIRS:
            continue
        distinct = pd.concat([train, test])[feature].nunique()
        size = (len(train) + len(test)) / distinct
        share = float(test.index.isin(train.index).mean())
        if size >= 1.2 and distinct >= 10 and share >= GROUPED:
            yield warning(
                "group_leakage",
                f"{share:.1%} of the test rows share their {feature!r} with rows of train",
                column=feature,
                share=share,
                groups=distinct,
            )


def time(subject: Subject) -> Iterator[Finding]:
    """Where rows have dates, test rows come after train rows."""
    for feature in subject.features:
        train, test = (subject.tables[name].sample[feature].str.strip() for name in ("train.csv", "test.csv"))
        if (
            not len(train)
            or not len(test)
            or not all(cells.str.fullmatch(_DATE).mean() > 0.9 for cells in (train, test))
        ):
            continue
        dates = [pd.to_datetime(cells, errors="coerce", format="mixed", utc=True).dropna() for cells in (train, test)]
        inside = float((dates[1] <= dates[0].max()).mean())
        if inside > 0.05:
            yield warning(
                "time_leakage",
                f"{inside:.1%} of the test rows are no later than the last row of train by {feature!r}",
                column=feature,
                share=inside,
            )


def labels(subject: Subject) -> Iterator[Finding]:
    """The target is spread alike in train and in the answers, and has more than one value."""
    if subject.columns is None or "test_answer.csv" not in subject.tables:
        return
    train = subject.tables.get("train.csv")
    for target in subject.columns.target:
        answers = subject.tables["test_answer.csv"].sample
        if target not in answers or not len(answers):
            continue
        true = answers[target].str.strip()
        if true.nunique() == 1:
            yield error("single_valued_target", f"every answer in {target!r} is the same", column=target)
        if train is None or target not in train.sample or not len(train.sample):
            continue
        told = train.sample[target].str.strip()
        first, second = (pd.to_numeric(cells, errors="coerce") for cells in (told, true))
        if first.notna().all() and second.notna().all() and told.nunique() > 20:
            gap = _gap(first.to_numpy(), second.to_numpy())
        else:
            new = sorted(set(true) - set(told))
            if new:
                yield warning(
                    "labels_not_in_train",
                    f"{len(new)} labels of {target!r} are among the answers and not in train",
                    labels=len(new),
                )
            shares = told.value_counts(normalize=True).sub(true.value_counts(normalize=True), fill_value=0.0)
            gap = float(shares.abs().sum() / 2)
        noise = 1.5 * float(np.sqrt(1 / len(told) + 1 / len(true)))
        if gap > 0.1 + noise:
            yield warning(
                "label_distribution",
                f"{target!r} is spread differently in train and in the answers",
                column=target,
                distance=gap,
            )


def _gap(left: np.ndarray, right: np.ndarray) -> float:
    """The largest distance between two cumulative distributions (Kolmogorov and Smirnov)."""
    points = np.concatenate([left, right])
    shares = [np.searchsorted(np.sort(side), points, side="right") / len(side) for side in (left, right)]
    return float(np.max(np.abs(shares[0] - shares[1])))
