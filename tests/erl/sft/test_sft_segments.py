"""Segments, their endpoints and gates, and which of their steps are kept."""

import pytest
from erl.sft.sft_make import AUC, card, facts
from hypothesis import given
from hypothesis import strategies as st
from openmle_erl.sft.config import AcceptanceConfig
from openmle_erl.sft.reasons import Drop
from openmle_erl.sft.segments import choose_steps, segment_drop, segments
from openmle_gym.experience import ExperienceCard
from openmle_gym.leaderboard import Leaderboard
from openmle_gym.operators import Operator

DRAFT, IMPROVE, DEBUG, CROSSOVER = Operator.DRAFT, Operator.IMPROVE, Operator.DEBUG, Operator.CROSSOVER


def gate(cards: list[ExperienceCard], root: int, policy: AcceptanceConfig | None = None, **more) -> Drop | None:
    by_attempt = {each.attempt: each for each in cards}
    segment = next(each for each in segments(cards) if each.root.attempt == root)
    return segment_drop(segment, by_attempt, facts(**more), policy or AcceptanceConfig())


def chosen(cards: list[ExperienceCard], root: int = 0, **more) -> tuple[list[int], dict[int, Drop]]:
    segment = next(each for each in segments(cards) if each.root.attempt == root)
    settings = {"least_inherited": 0.5, "keep_failed_steps": True} | more
    kept, dropped = choose_steps(segment, {each.attempt: each for each in cards}, **settings)
    return [step.card.attempt for step in kept], dropped


def test_a_segment_is_a_root_and_the_repairs_that_descend_from_it() -> None:
    cards = [
        card(0),
        card(1, operator=DEBUG, parents=(0,)),
        card(2, 1.0, operator=DEBUG, parents=(1,)),
        card(3, 0.5, operator=IMPROVE, parents=(2,)),
        card(4, operator=DEBUG, parents=(0,)),
        card(5, 0.1, operator=CROSSOVER, parents=(2, 3)),
    ]
    found = {each.root.attempt: [step.attempt for step in each.steps] for each in segments(cards)}
    assert found == {0: [0, 1, 2, 4], 3: [3], 5: [5]}


def test_a_later_failed_repair_does_not_void_a_good_segment() -> None:
    """The release took the latest step for the endpoint: one failed Debug afterwards threw the segment away."""
    cards = [
        card(0),
        card(1, 1.0, operator=DEBUG, parents=(0,)),
        card(2, operator=DEBUG, parents=(0,)),
    ]
    (segment,) = segments(cards)
    assert [step.attempt for step in segment.path] == [0, 1]
    assert gate(cards, 0) is None


@pytest.mark.parametrize(("higher", "best"), [(True, 2), (False, 1)])
def test_the_endpoint_is_the_best_node_by_the_metrics_direction(higher: bool, best: int) -> None:
    cards = [
        card(0),
        card(1, 0.4, operator=DEBUG, parents=(0,), higher_is_better=higher),
        card(2, 0.6, operator=DEBUG, parents=(0,), higher_is_better=higher),
    ]
    (segment,) = segments(cards)
    assert segment.endpoint is not None
    assert segment.endpoint.attempt == best


def test_the_earliest_of_equally_good_nodes_is_the_endpoint() -> None:
    cards = [card(0), card(1, 0.5, operator=DEBUG, parents=(0,)), card(2, 0.5, operator=DEBUG, parents=(0,))]
    (segment,) = segments(cards)
    assert [step.attempt for step in segment.path] == [0, 1]


@pytest.mark.parametrize("value", [0.0, -2.5])
def test_the_gate_of_a_draft_takes_perfect_losses_of_zero_and_negative_scores(value: float) -> None:
    """The release asked a Draft's endpoint for a score above 0."""
    assert gate([card(0, value)], 0) is None


@pytest.mark.parametrize(("higher", "value", "passes"), [
    (True, 0.6, True), (True, 0.5, False), (True, 0.4, False), (False, 0.4, True), (False, 0.5, False), (False, 0.6, False),
])  # fmt: skip
def test_an_improvement_must_strictly_beat_its_best_parent_in_the_metrics_direction(
    higher: bool, value: float, passes: bool
) -> None:
    worse = 0.3 if higher else 0.7
    cards = [
        card(0, 0.5, higher_is_better=higher),
        card(1, worse, higher_is_better=higher),
        card(2, value, operator=CROSSOVER, parents=(0, 1), higher_is_better=higher),
    ]
    assert gate(cards, 2) is (None if passes else Drop.NOT_BETTER_THAN_PARENT)


def test_an_improvement_is_measured_by_what_its_repairs_made_of_it() -> None:
    cards = [card(0, 0.5), card(1, operator=IMPROVE, parents=(0,)), card(2, 0.4, operator=DEBUG, parents=(1,))]
    assert gate(cards, 1) is None


def test_a_segment_without_a_scored_node_is_dropped() -> None:
    assert gate([card(0), card(1, operator=DEBUG, parents=(0,))], 0) is Drop.FAILED_SEGMENT


def test_the_acceptance_policy_is_asked_of_the_endpoint() -> None:
    board = Leaderboard(scores=tuple(float(n) for n in range(1, 11)), higher_is_better=False)
    medal = AcceptanceConfig(policy="medal")
    assert gate([card(0), card(1, 2.0, operator=DEBUG, parents=(0,))], 0, medal, leaderboard=board) is None
    assert gate([card(0, 9.0)], 0, medal, leaderboard=board) is Drop.NO_MEDAL
    assert gate([card(0, 0.5, higher_is_better=True)], 0, metric=AUC) is None


BASE = "import os\nimport pandas as pd\nframe = pd.read_csv(os.path.join('a', 'train.csv'))\nmodel = fit(frame)\n"
WRITES = BASE + "model.predict(frame).to_csv('submission.csv')\n"


def test_only_the_path_from_the_root_to_the_endpoint_is_learnt_from() -> None:
    cards = [
        card(0, source=BASE, signature="submission_missing"),
        card(1, operator=DEBUG, parents=(0,), source=BASE + "1 / 0\n", signature="ZeroDivisionError@<module>"),
        card(2, 1.0, operator=DEBUG, parents=(0,), source=WRITES),
    ]
    assert chosen(cards) == ([0, 2], {1: Drop.OFF_THE_INHERITED_PATH})


def test_a_reverted_repair_on_the_path_is_dropped() -> None:
    slow = BASE.replace("fit(frame)", "fit(frame.dropna())")
    cards = [
        card(0, source=BASE, signature="KeyError@<module>"),
        card(1, operator=DEBUG, parents=(0,), source=slow, signature="ValueError@<module>"),
        card(2, 1.0, operator=DEBUG, parents=(1,), source=WRITES),
    ]
    assert chosen(cards) == ([0, 2], {1: Drop.REVERTED_REPAIR})


def test_a_draft_that_its_repair_replaced_altogether_is_dropped() -> None:
    cards = [
        card(0, source=BASE, signature="KeyError@<module>"),
        card(1, 1.0, operator=DEBUG, parents=(0,), source="open('submission.csv', 'w').write('id,y')\n"),
    ]
    assert chosen(cards) == ([1], {0: Drop.NOT_INHERITED})


def test_failed_steps_can_be_left_out() -> None:
    cards = [
        card(0, source=BASE, signature="submission_missing"),
        card(1, 1.0, operator=DEBUG, parents=(0,), source=WRITES),
    ]
    assert chosen(cards) == ([0, 1], {})
    assert chosen(cards, keep_failed_steps=False) == ([1], {0: Drop.FAILED_STEP})


def test_a_search_of_one_good_step_keeps_it() -> None:
    assert chosen([card(0, 1.0)]) == ([0], {})


@given(st.lists(st.tuples(st.sampled_from(list(Operator)), st.integers(0, 30), st.booleans()), max_size=20))
def test_every_card_is_in_exactly_one_segment(plan: list[tuple[Operator, int, bool]]) -> None:
    cards: list[ExperienceCard] = []
    for number, (operator, where, valid) in enumerate(plan):
        parents = () if operator is DRAFT or not cards else (where % len(cards),) * operator.parent_count
        cards.append(card(number, float(where) if valid else None, operator=operator, parents=parents))
    found = segments(cards)
    assert sorted(step.attempt for each in found for step in each.steps) == [each.attempt for each in cards]
    for segment in found:
        assert segment.path[:1] in ((), (segment.root,))
        assert all(step.operator is DEBUG for step in segment.path[1:])
