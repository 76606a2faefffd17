"""Acceptance policies and baseline filters."""

from pathlib import Path

import pytest
from erl.sft.sft_make import AUC, RMSE, card, facts
from openmle_erl.sft.acceptance import accept, check_reachable, read_references, static_reward
from openmle_erl.sft.config import AcceptanceConfig, FilterConfig
from openmle_erl.sft.filters import baseline_drop
from openmle_erl.sft.gap import MetricClass, metric_class, score_gap, task_scale
from openmle_erl.sft.reasons import Drop
from openmle_gym.errors import ConfigError
from openmle_gym.jobs import Outcome
from openmle_gym.leaderboard import Leaderboard
from openmle_gym.manifest import Metric
from openmle_gym.metrics import METRICS
from openmle_gym.scores import ValidationScore

TEN_TEAMS = Leaderboard(scores=tuple(float(n) for n in range(1, 11)), higher_is_better=False)


def drop_of(value: float | None, config: AcceptanceConfig, **more) -> Drop | None:
    higher = more.get("metric", RMSE).higher_is_better
    return accept(card(0, value, higher_is_better=higher), facts(**more), config).drop


def test_scored_takes_a_perfect_loss_of_zero_and_negative_metrics() -> None:
    """The release asked Drafts for a score above 0: a perfect log-loss and every negative metric were thrown away."""
    assert drop_of(0.0, AcceptanceConfig()) is None
    r2 = Metric(name="r2", higher_is_better=True)
    assert drop_of(-3.5, AcceptanceConfig(), metric=r2) is None
    assert drop_of(None, AcceptanceConfig()) is Drop.NOT_SCORED


def test_a_program_that_crashed_is_not_taken_for_a_success_because_its_job_ended() -> None:
    """The release read HTTP 200 as success; ours needs a finite validation score."""
    for outcome in Outcome:
        decision = accept(card(0, None, outcome=outcome), facts(), AcceptanceConfig())
        assert not decision.accepted


def test_all_takes_failures_but_not_replies_without_a_program_or_refused_ones() -> None:
    every = AcceptanceConfig(policy="all")
    assert drop_of(None, every) is None
    assert accept(card(0, source=""), facts(), every).drop is Drop.NO_PROGRAM
    assert accept(card(0, outcome=Outcome.REJECTED), facts(), every).drop is Drop.REJECTED_PROGRAM


@pytest.mark.parametrize(("value", "medals", "accepted"), [
    (1.0, ["gold"], True), (2.0, ["gold"], False), (2.0, ["silver"], True), (4.0, ["gold", "silver", "bronze"], True),
    (4.1, ["gold", "silver", "bronze"], False),
])  # fmt: skip
def test_medal_counts_the_medals_that_are_asked_for(value: float, medals: list[str], accepted: bool) -> None:
    drop = drop_of(value, AcceptanceConfig(policy="medal", medals=medals), leaderboard=TEN_TEAMS)
    assert drop is (None if accepted else Drop.NO_MEDAL)


@pytest.mark.parametrize(("metric", "good", "bad"), [(RMSE, 0.4, 0.6), (AUC, 0.6, 0.4)])
def test_thresholds_and_references_heed_the_direction(metric: Metric, good: float, bad: float) -> None:
    threshold = AcceptanceConfig(policy="score_threshold", score_threshold=0.5)
    assert drop_of(good, threshold, metric=metric) is None
    assert drop_of(0.5, threshold, metric=metric) is None
    assert drop_of(bad, threshold, metric=metric) is Drop.BELOW_SCORE_THRESHOLD
    reference = AcceptanceConfig(policy="better_than_reference")
    assert drop_of(good, reference, metric=metric, reference=0.5) is None
    assert drop_of(0.5, reference, metric=metric, reference=0.5) is Drop.NOT_BETTER_THAN_REFERENCE
    assert drop_of(bad, reference, metric=metric, reference=0.5) is Drop.NOT_BETTER_THAN_REFERENCE
    assert drop_of(good, reference, metric=metric) is Drop.NOT_BETTER_THAN_REFERENCE


def test_the_static_reward_is_the_published_sft_mapping() -> None:
    def reward(value: float) -> float:
        return static_reward(ValidationScore(value=value, higher_is_better=True), facts(AUC))

    assert (round(reward(0), 4), round(reward(0.5), 4), round(reward(1), 4)) == (0.0723, 0.25, 0.5344)
    least = AcceptanceConfig(policy="reward_threshold", reward_threshold=0.25)
    assert drop_of(0.5, least, metric=AUC) is None
    assert drop_of(0.49, least, metric=AUC) is Drop.BELOW_REWARD_THRESHOLD


def test_the_static_reward_of_a_lower_is_better_task_uses_the_outermost_limits() -> None:
    task = facts(leaderboard=TEN_TEAMS)  # limits 0, 1 and 10; 5 is in the middle
    assert static_reward(ValidationScore(value=5.0, higher_is_better=False), task) == pytest.approx(0.25)


def test_mixed_asks_for_a_medal_where_there_is_a_leaderboard_else_for_the_reference() -> None:
    mixed = AcceptanceConfig(policy="mixed")
    assert drop_of(9.0, mixed, leaderboard=TEN_TEAMS, reference=100.0) is Drop.NO_MEDAL
    assert drop_of(9.0, mixed, reference=100.0) is None
    assert drop_of(101.0, mixed, reference=100.0) is Drop.NOT_BETTER_THAN_REFERENCE


@pytest.mark.parametrize("policy", ["medal", "mixed", "better_than_reference"])
def test_a_policy_that_can_never_accept_a_task_is_refused_before_any_work(policy: str) -> None:
    """The release shipped `mixed` without a reference file: tasks without a leaderboard burnt their whole budget."""
    with pytest.raises(ConfigError, match=f"{policy} can never accept tasks .*toy"):
        check_reachable([facts()], AcceptanceConfig(policy=policy))
    check_reachable([facts(leaderboard=TEN_TEAMS, reference=1.0)], AcceptanceConfig(policy=policy))


def test_references_are_read_from_json_and_from_json_lines(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text('{"toy": 0.5, "other": 1}')
    (tmp_path / "lines.jsonl").write_text('{"task": "toy", "score": 0.5}\n\n{"task": "other", "score": 1}\n')
    (tmp_path / "one.jsonl").write_text('{"task": "toy", "score": 0.5}\n')
    assert read_references(tmp_path / "map.json") == {"toy": 0.5, "other": 1.0}
    assert read_references(tmp_path / "lines.jsonl") == {"toy": 0.5, "other": 1.0}
    assert read_references(tmp_path / "one.jsonl") == {"toy": 0.5}
    (tmp_path / "bad.jsonl").write_text('{"task": "toy", "score": 0.5}\n{"task": "toy"}\n')
    with pytest.raises(ConfigError, match=r"bad\.jsonl:2"):
        read_references(tmp_path / "bad.jsonl")
    with pytest.raises(ConfigError, match=r"none\.json"):
        read_references(tmp_path / "none.json")


@pytest.mark.parametrize("score", ["NaN", "Infinity", "null", "true", '"0.5"', "1" + "0" * 400])
def test_a_reference_that_nothing_could_beat_is_refused_by_task_or_line(score: str, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(f'{{"toy": {score}}}')
    (tmp_path / "lines.jsonl").write_text(f'{{"task": "toy", "score": {score}}}\n')
    with pytest.raises(ConfigError, match=r"map\.json: toy: must be a finite number"):
        read_references(tmp_path / "map.json")
    with pytest.raises(ConfigError, match=r"lines\.jsonl:1: must be a finite number"):
        read_references(tmp_path / "lines.jsonl")


def test_references_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b'{"caf\xe9": 1}')
    with pytest.raises(ConfigError, match=r"latin\.json: 'utf-8'"):
        read_references(tmp_path / "latin.json")


def test_without_a_tokenizer_the_token_filter_is_off_and_rejects_nothing() -> None:
    """The release's shipped profile had the filter on and no tokenizer: every sample was rejected, 32 of 32."""
    assert baseline_drop(card(0, 0.9), facts(), FilterConfig(), tokens=None) is None
    with pytest.raises(ConfigError, match=r"filters\.tokenizer: missing"):
        FilterConfig(max_tokens=32768)


def test_a_conversation_of_exactly_the_limit_is_kept() -> None:
    config = FilterConfig(tokenizer="there", max_tokens=100)
    assert baseline_drop(card(0, 0.9), facts(), config, tokens=100) is None
    assert baseline_drop(card(0, 0.9), facts(), config, tokens=101) is Drop.TOO_MANY_TOKENS


def test_the_gap_filter_compares_the_programs_own_score_with_the_validation_score() -> None:
    config = FilterConfig(max_gap=0.12)
    auc = facts(AUC)
    near = card(0, 0.80, claimed=0.90, higher_is_better=True)
    far = card(0, 0.80, claimed=0.93, higher_is_better=True)
    silent = card(0, 0.80, higher_is_better=True)
    assert baseline_drop(near, auc, config, tokens=None) is None
    assert baseline_drop(far, auc, config, tokens=None) is Drop.SCORE_GAP
    assert baseline_drop(silent, auc, config, tokens=None) is Drop.NO_COMPARABLE_SCORES
    lenient = FilterConfig(max_gap=0.12, require_own_score=False)
    assert baseline_drop(silent, auc, lenient, tokens=None) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("accuracy", MetricClass.BOUNDED), ("balanced_accuracy", MetricClass.BOUNDED), ("f1", MetricClass.BOUNDED),
        ("Macro F1 score", MetricClass.BOUNDED), ("auc", MetricClass.BOUNDED), ("AUROC", MetricClass.BOUNDED),
        ("MAP@5", MetricClass.BOUNDED), ("SMAPE", MetricClass.BOUNDED), ("mape", MetricClass.BOUNDED),
        ("mcc", MetricClass.AGREEMENT), ("qwk", MetricClass.AGREEMENT), ("Quadratic weighted kappa", MetricClass.AGREEMENT),
        ("r2", MetricClass.AGREEMENT), ("Spearman", MetricClass.AGREEMENT),
        ("rmsle", MetricClass.LOG_LOSS), ("log_loss", MetricClass.LOG_LOSS), ("LogLoss", MetricClass.LOG_LOSS),
        ("RootMeanSquaredLogError", MetricClass.LOG_LOSS), ("cross-entropy", MetricClass.LOG_LOSS),
        ("rmse", MetricClass.TARGET_SCALE), ("mae", MetricClass.TARGET_SCALE), ("MeanSquaredError", MetricClass.TARGET_SCALE),
        ("pinball loss", MetricClass.TARGET_SCALE), ("widgets", MetricClass.UNKNOWN), ("unknown", MetricClass.UNKNOWN),
    ],
)  # fmt: skip
def test_metrics_are_classed_by_name(name: str, kind: MetricClass) -> None:
    assert metric_class(name) is kind


def test_every_metric_of_the_library_has_a_class() -> None:
    assert not [name for name in METRICS if metric_class(name) is MetricClass.UNKNOWN]


def relative(claimed: float, measured: float, name: str, **more) -> float:
    low, high = more.pop("low", None), more.pop("high", None)
    metric = Metric(name=name, higher_is_better=True, theoretical_min=low, theoretical_max=high)
    gap = score_gap(claimed, measured, metric, **more)
    assert gap is not None
    return gap.relative


def test_denominators_follow_the_metric() -> None:
    assert relative(0.9, 0.8, "accuracy") == pytest.approx(0.1)  # of 1
    assert relative(90.0, 80.0, "accuracy") == pytest.approx(0.1)  # percent: of 100
    assert relative(0.9, 0.8, "kappa") == pytest.approx(0.05)  # of 2
    assert relative(0.5, 0.4, "log_loss") == pytest.approx(0.1)  # of max(0.5, 1)
    assert relative(4.0, 3.0, "log_loss") == pytest.approx(0.25)  # of max(4, 1)
    assert relative(20.0, 15.0, "rmse") == pytest.approx(0.25)  # of the larger one
    assert relative(20.0, 15.0, "rmse", task_scale=50.0) == pytest.approx(0.1)
    assert relative(20.0, 15.0, "rmse", low=0.0, high=40.0) == pytest.approx(0.125)
    assert relative(20.0, 15.0, "rmse", low=0.0, high=1e6) == pytest.approx(0.25)  # an unusable range
    board = Leaderboard(scores=(1.0, 51.0), higher_is_better=False)
    assert relative(20.0, 15.0, "rmse", leaderboard=board, low=0.0, high=90.0) == pytest.approx(0.1)
    assert relative(1.2, 1.0, "widgets", low=0.0, high=2.0, leaderboard=board) == pytest.approx(0.1)


def test_agreement_metrics_are_held_to_half_the_threshold() -> None:
    kappa = score_gap(0.9, 0.7, Metric(name="kappa", higher_is_better=True))
    assert kappa is not None
    assert (kappa.threshold, kappa.too_large) == (0.06, True)  # 0.1 of the range


def test_scores_that_are_not_finite_give_no_gap_and_equal_zeros_give_none_to_speak_of() -> None:
    assert score_gap(float("nan"), 1.0, RMSE) is None
    assert score_gap(None, 1.0, RMSE) is None
    assert relative(0.0, 0.0, "rmse") == 0.0


def test_the_task_scale_is_the_75th_percentile_at_the_next_index_up() -> None:
    assert task_scale([4.0, 1.0, 3.0, 2.0]) == 4.0  # index ceil(0.75 * 3) = 3
    assert task_scale([5.0, 4.0, 3.0, 2.0, 1.0]) == 4.0  # index 3
    assert task_scale([0.0, float("nan")]) is None
