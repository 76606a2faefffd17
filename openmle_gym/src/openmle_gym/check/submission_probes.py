"""Probes with submissions: the sample is valid and no giveaway, and what is wrong is refused."""

from collections.abc import Iterator

import pandas as pd

from openmle_gym.check.finding import Finding, error, warning
from openmle_gym.check.leakage import EQUAL_SHARE, equal_share, same_rows
from openmle_gym.check.metric_probes import probed
from openmle_gym.check.subject import Subject
from openmle_gym.grading import hidden_answers
from openmle_gym.submission import validate_submission


def sample_is_valid(subject: Subject) -> Iterator[Finding]:
    """Our validation accepts the sample submission."""
    if subject.probes is not None and subject.probes.sample_code is not None:
        code, message = subject.probes.sample_code, subject.probes.sample_message
        yield error("sample_submission_refused", f"the sample submission is refused ({code}): {message}", code=code)


def sample_is_not_the_answers(subject: Subject) -> Iterator[Finding]:
    """The sample submission does not hold the answers."""
    if subject.columns is None or not {"sample_submission.csv", "test_answer.csv"} <= set(subject.tables):
        return
    sample, answers = (subject.tables[name].sample for name in ("sample_submission.csv", "test_answer.csv"))
    for target in subject.columns.target:
        if target not in sample or target not in answers:
            continue
        pairs = same_rows(sample, target, answers, target)
        if pairs["target"].nunique() > 1 and (share := equal_share(pairs)) > EQUAL_SHARE:
            yield error(
                "sample_equals_answers", f"column {target!r} of the sample submission is the answers", share=share
            )


WRONG = {
    "with_nan": ("metric_accepts_nan", "a missing prediction"),
    "with_duplicate": ("metric_accepts_duplicate_rows", "an id there twice"),
    "with_missing": ("metric_accepts_missing_rows", "a missing row"),
    "with_extra": ("metric_accepts_extra_rows", "a row too many"),
}


def wrong_is_refused(subject: Subject) -> Iterator[Finding]:
    """Our validation, which comes first, and the package's own metric refuse what is wrong."""
    probes = probed(subject)
    if probes is None or subject.package is None:
        return
    ours = _our_verdicts(subject)
    manifest = subject.package.manifest
    gaps = manifest.metric.prediction == "text" or (subject.package.answers[list(manifest.columns.target)] == "").any(
        axis=None
    )
    for probe, (id, what) in WRONG.items():
        if probe == "with_nan" and gaps:
            continue  # here a missing value is a prediction like others
        outcome = probes.runs[0].outcomes[probe]
        evidence = {"package": "accepts" if outcome.score is not None else "refuses", "ours": ours[probe]}
        if ours[probe] == "accepts":
            yield error(id, f"grading accepts a submission with {what}", **evidence)
        elif outcome.score is not None:
            yield warning(
                id, f"the package's own metric accepts a submission with {what}; grading refuses it first", **evidence
            )


def _our_verdicts(subject: Subject) -> dict[str, str]:
    """What our validation says of the answers' first rows, made wrong in each way."""
    assert subject.package is not None
    key, columns = hidden_answers(subject.package).key, subject.package.manifest.columns
    perfect = key.answers[[*columns.id, *columns.target]]
    hollow = perfect.copy()
    hollow.loc[0, columns.target[0]] = "nan"
    stranger = perfect.iloc[:1].assign(**{columns.id[0]: "no such id"})
    wrong = {
        "with_nan": hollow,
        "with_duplicate": pd.concat([perfect.iloc[:1], perfect.iloc[:-1]]),
        "with_missing": perfect.iloc[:-1],
        "with_extra": pd.concat([perfect, stranger]),
    }
    return {
        name: "accepts" if validate_submission(frame.to_csv(index=False).encode(), key=key).accepted else "refuses"
        for name, frame in wrong.items()
    }
