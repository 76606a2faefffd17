"""Scores, jobs, cards and their store."""

import math
import sqlite3
from pathlib import Path

import pytest
from evo.make import card
from openmle_gym.contracts import one_line
from openmle_gym.errors import StoreError
from openmle_gym.features import best_card, by_operator, by_outcome, gain, method_family, new_bests
from openmle_gym.jobs import JobRequest, JobResult, JobView, Outcome
from openmle_gym.operators import Operator
from openmle_gym.scores import SelfReportedScore, TestScore, ValidationScore
from openmle_gym.store import CardStore
from pydantic import ValidationError


@pytest.mark.parametrize("kind", [SelfReportedScore, ValidationScore, TestScore])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_is_finite(kind: type, value: float) -> None:
    with pytest.raises(ValidationError, match="must be finite"):
        kind(value=value, higher_is_better=True)


def test_a_card_refuses_a_test_score_where_a_validation_score_belongs() -> None:
    fields = card(0, 0.5).model_dump() | {"validation": TestScore(value=0.5, higher_is_better=True)}
    with pytest.raises(ValidationError):
        type(card(0)).model_validate(fields)


def test_utility_is_larger_when_the_score_is_better() -> None:
    assert (
        ValidationScore(value=1.0, higher_is_better=False).utility
        > ValidationScore(value=2.0, higher_is_better=False).utility
    )


def test_a_published_request_reads_and_unknown_fields_do_not_matter() -> None:
    job = JobRequest.model_validate(
        {"name": "t", "code": "x", "data_dir": "d", "timeout": 7200, "priority": 9, "resource_type": "gpu", "new": 1}
    )
    assert (job.timeout_seconds, job.priority, job.eval_split) == (7200.0, 9, "validation")
    assert JobRequest.model_validate_json(job.model_dump_json(by_alias=True)) == job


def test_a_result_has_the_published_fields_on_the_wire() -> None:
    result = JobResult(outcome=Outcome.SUCCESS, score=0.5, validation_score=0.5, higher_is_better=True)
    wire = JobView(job_id="j", status="completed", created_at="2026-01-01T00:00:00+00:00", result=result).model_dump(
        mode="json", by_alias=True
    )
    assert wire["created_at"] == "2026-01-01T00:00:00Z"
    inner = wire["result"]
    assert (inner["result"], inner["score"], inner["valid_score"]) == ("success", 0.5, 0.5)
    assert inner["scores_by_split"] == {"validation": 0.5}
    assert JobView.model_validate(wire).result == result


def test_a_missing_score_is_none_and_not_a_number() -> None:
    result = JobResult(outcome=Outcome.TIMEOUT, higher_is_better=False)
    assert (result.validation(), result.test(), result.self_reported()) == (None, None, None)


def test_a_store_gives_back_what_it_was_given_in_order(tmp_path: Path) -> None:
    store = CardStore(tmp_path / "cards.sqlite")
    cards = [card(1, 0.5), card(0), card(2, 0.7)]
    for each in cards:
        store.append(each)
    assert store.cards(run_id="run") == cards
    assert store.cards(task="toy") == cards
    assert store.cards(task="other") == []
    store.close()
    assert CardStore(tmp_path / "cards.sqlite").cards() == cards


def test_a_store_takes_an_attempt_once(tmp_path: Path) -> None:
    store = CardStore(tmp_path / "cards.sqlite")
    store.append(card(0, 0.5))
    with pytest.raises(StoreError, match="already has attempt 0"):
        store.append(card(0, 0.9))


def test_a_stored_card_cannot_be_changed_or_removed(tmp_path: Path) -> None:
    store = CardStore(tmp_path / "cards.sqlite")
    store.append(card(0, 0.5))
    other = sqlite3.connect(tmp_path / "cards.sqlite")
    for statement in ("UPDATE cards SET task = 'x'", "DELETE FROM cards"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            other.execute(statement)


def test_a_store_exports_one_line_a_card(tmp_path: Path) -> None:
    store = CardStore(tmp_path / "cards.sqlite")
    for attempt in range(3):
        store.append(card(attempt, 0.5))
    assert store.export_jsonl(tmp_path / "cards.jsonl") == 3
    lines = (tmp_path / "cards.jsonl").read_text().splitlines()
    assert [type(card(0)).model_validate_json(line).attempt for line in lines] == [0, 1, 2]


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("not a database, " * 100)
    with pytest.raises(StoreError, match="not a card store"):
        CardStore(tmp_path / "x")


@pytest.mark.parametrize(
    ("source", "family"),
    [
        ("m = RandomForestClassifier()", "forest"),
        ("m = sklearn.ensemble.ExtraTreesRegressor()", "forest"),
        ("# blend of RandomForest\nm = Ridge()", "linear"),
        ("from sklearn.ensemble import RandomForestClassifier\nm = LogisticRegression()", "linear"),
        ("m = StackingClassifier([SVC(), HistGradientBoostingClassifier()])", "boosting+kernel"),
        ("import lightgbm as lgb\nlgb.train({})", "boosting"),
        ("print('GaussianNB')", "unknown"),
        ("def broken(:", "unknown"),
    ],
)
def test_the_method_family_is_what_the_program_builds(source: str, family: str) -> None:
    assert method_family(source) == family


@pytest.mark.parametrize("higher", [True, False])
def test_best_and_new_bests_follow_the_direction(higher: bool) -> None:
    values = [0.5, 0.7, None, 0.7, 0.9] if higher else [0.5, 0.3, None, 0.3, 0.1]
    cards = [card(index, value, higher_is_better=higher) for index, value in enumerate(values)]
    assert [each.attempt for each in new_bests(cards)] == [0, 1, 4]
    best = best_card(cards)
    assert best is not None
    assert best.attempt == 4
    assert best_card(cards[:4]) == cards[1]  # the earlier of two equals
    assert best_card([cards[2]]) is None


def test_gain_is_over_the_better_parent() -> None:
    parents = {0: card(0, 0.5), 1: card(1, 0.6), 2: card(2)}
    child = card(3, 0.75, operator=Operator.CROSSOVER, parents=(0, 1))
    assert gain(child, parents) == pytest.approx(0.15)
    assert gain(card(4, 0.5), parents) is None
    assert gain(card(4, 0.5, operator=Operator.DEBUG, parents=(2,)), parents) is None


def test_operator_and_outcome_counts_add_up() -> None:
    cards = [card(0, 0.5), card(1), card(2, 0.7, operator=Operator.IMPROVE, parents=(0,))]
    operators = by_operator(cards)
    assert operators[Operator.DRAFT].attempts == 2
    assert operators[Operator.DRAFT].valid == 1
    assert operators[Operator.IMPROVE].new_bests == 1
    assert operators[Operator.CROSSOVER].attempts == 0
    assert sum(by_outcome(cards).values()) == 3


def test_what_is_wrong_with_a_record_is_one_line_field_by_field() -> None:
    with pytest.raises(ValidationError) as refused:
        TestScore.model_validate({"value": "much", "more": 1})
    said = one_line(refused.value)
    assert "value: Input should be a valid number" in said
    assert "more: Extra inputs are not permitted" in said
    assert "\n" not in said
    assert "http" not in said
    assert one_line(ValueError("two\n  lines")) == "two lines"
