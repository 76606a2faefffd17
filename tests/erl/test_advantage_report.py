"""The report on why groups gave no signal and how hard the others pull."""

import math

import numpy as np
import pytest
from openmle_erl.rewards import AdvantageSettings, NoSignal, advantage_report

LOG_2 = math.log(2.0)
REWARDS = [None, math.nan, 0.4, None, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0]
GROUPS = ["lost"] * 2 + ["one"] * 2 + ["equal"] * 3 + ["good"] * 4 + ["ties"] * 4


def test_every_group_without_signal_says_why() -> None:
    report = advantage_report(REWARDS, GROUPS)
    assert list(report.groups) == ["lost", "one", "equal", "good", "ties"]
    assert report.no_signal.tolist() == [NoSignal.NO_REWARD, NoSignal.ONE_MEMBER, NoSignal.EQUAL_REWARDS, "", ""]
    assert report.members.tolist() == [0, 1, 3, 4, 4]
    assert report.masked.tolist() == [2, 1, 0, 0, 0]
    assert report.zero_variance_share == pytest.approx(0.2)


def test_the_divergence_and_the_top_weight_are_those_of_the_weights() -> None:
    report = advantage_report(REWARDS, GROUPS)
    np.testing.assert_array_equal(np.isnan(report.effective_kl), [True, True, True, False, False])
    assert report.effective_kl[3] == pytest.approx(LOG_2, abs=1e-12)
    # From the advantage 11.848729 of the best of four: q = (a + 1) / (3 + a + 1).
    assert report.top_weight[3] == pytest.approx(12.848729 / 15.848729, abs=1e-7)
    # Three of four tie: all the weight is theirs, and log(4 / 3) is all that can be spent.
    assert report.effective_kl[4] == pytest.approx(math.log(4 / 3))
    assert report.top_weight[4] == pytest.approx(1 / 3)
    assert report.budget_missed.tolist() == [False, False, False, False, True]
    assert report.beta[4] == math.inf
    assert report.rows()[4]["beta"] is None


def test_a_group_of_two_misses_the_budget_unless_published() -> None:
    report = advantage_report([1.0, 0.0], [5, 5])
    assert report.budget_missed.tolist() == [True]
    assert report.effective_kl[0] == pytest.approx(0.75 * LOG_2)
    published = advantage_report([1.0, 0.0], [5, 5], AdvantageSettings(published=True))
    assert published.budget_missed.tolist() == [False]
    assert published.beta[0] == 2.0**20


def test_the_summary_counts_add_up() -> None:
    summary = advantage_report(REWARDS, GROUPS).summary()
    assert summary["groups"] == 5
    assert summary["members"] == 12
    assert summary["masked_members"] == 3
    reasons = [summary[f"groups_{reason}"] for reason in NoSignal]
    assert reasons == [1, 1, 1]
    assert summary["groups_with_signal"] == 2
    assert summary["groups_budget_missed"] == 1
    assert summary["mean_effective_kl"] == pytest.approx((LOG_2 + math.log(4 / 3)) / 2)


def test_other_advantages_have_reasons_but_no_divergence() -> None:
    report = advantage_report(REWARDS, GROUPS, AdvantageSettings(kind="group_normalised"))
    assert report.no_signal.tolist()[:4] == ["no_reward", "one_member", "equal_rewards", ""]
    assert np.isnan(report.effective_kl).all()
    assert not report.budget_missed.any()
    assert report.summary()["mean_effective_kl"] is None


def test_rows_hold_none_and_never_nan() -> None:
    rows = advantage_report(REWARDS, GROUPS).rows()
    assert rows[0] == {
        "group": "lost",
        "members": 0,
        "masked": 2,
        "no_signal": "no_reward",
        "effective_kl": None,
        "top_weight": None,
        "beta": None,
        "budget_missed": False,
    }
    assert rows[3]["no_signal"] is None


def test_an_empty_batch_has_an_empty_report() -> None:
    report = advantage_report([], [])
    assert report.rows() == []
    assert report.summary()["zero_variance_share"] is None
