"""A history equals what follows from its cards when it is derived anew."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openmle_gym.chat import Usage
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.features import best_card, gain, method_family, new_bests, ranked
from openmle_gym.history import History
from openmle_gym.jobs import Outcome
from openmle_gym.operators import Operator
from openmle_gym.scores import ValidationScore

SOURCES = ("x = Ridge()\n", "x = SVC()\n", "x = RandomForestClassifier()\n", "x = 1\n", "x =\n")


def _card(attempt: int, value: float | None, parents: tuple[int, ...], source: str, signature: str) -> ExperienceCard:
    operator = {0: Operator.DRAFT, 1: Operator.IMPROVE, 2: Operator.CROSSOVER}[len(parents)]
    return ExperienceCard(
        run_id="run",
        task="toy",
        attempt=attempt,
        operator=operator,
        parents=parents,
        selection=Selection(reason="test"),
        program_id=source or None,
        source=source,
        plan="",
        outcome=Outcome.SUCCESS if value is not None else Outcome.TIMEOUT,
        validation=None if value is None else ValidationScore(value=value, higher_is_better=False),
        error_signature=None if value is not None else signature,
        usage=Usage(),
        finished_at="2026-01-01T00:00:00Z",
    )


@st.composite
def runs(draw: st.DrawFn) -> list[ExperienceCard]:
    cards: list[ExperienceCard] = []
    for attempt in range(draw(st.integers(0, 25))):
        parents = draw(st.lists(st.integers(0, attempt - 1), max_size=2, unique=True)) if attempt else []
        value = draw(st.none() | st.sampled_from([0.5, 1.0, 2.0, 3.0]))
        source = draw(st.sampled_from((*SOURCES, ""))) if value is None else draw(st.sampled_from(SOURCES))
        cards.append(_card(attempt, value, tuple(parents), source, draw(st.sampled_from(["KeyError@f", "oom"]))))
    return cards


@given(runs())
def test_what_is_kept_up_to_date_equals_what_is_derived_anew(cards: list[ExperienceCard]) -> None:
    history = History(cards)
    assert list(history) == cards
    assert history.ranked == ranked(cards)
    assert history.best is best_card(cards)
    assert history.new_bests == new_bests(cards)
    assert history.failures == [card for card in cards if card.may_parent(Operator.DEBUG)]
    assert history.errors == Counter(card.error_signature for card in cards if card.error_signature)
    assert history.visits == Counter(parent for card in cards for parent in card.parents)
    gains = {card.attempt: gain(card, {each.attempt: each for each in cards}) for card in cards}
    assert history.gains == {attempt: won for attempt, won in gains.items() if won is not None}
    for family, facts in history.families.items():
        own = [card for card in cards if card.program_id is not None and method_family(card.source) == family]
        assert (facts.attempts, facts.valid, facts.best) == (len(own), sum(c.valid for c in own), best_card(own))
    for card in cards:
        assert list(history.children(card.attempt)) == [each for each in cards if card.attempt in each.parents]
        kin = [
            each.attempt
            for each in cards
            if each is not card and (set(each.parents) & set(card.parents) or not (each.parents or card.parents))
        ]
        assert sorted(each.attempt for each in history.siblings(card)) == kin


def test_the_recent_gain_is_the_mean_of_the_last_gains() -> None:
    values = [3.0, 2.0, None, 2.5, 1.0]
    parents = [(), (0,), (0,), (1,), (3,)]
    history = History(_card(n, v, p, "x = 1\n", "oom") for n, (v, p) in enumerate(zip(values, parents, strict=True)))
    assert history.recent_gain() == pytest.approx((1.0 - 0.5 + 1.5) / 3)
    assert history.recent_gain(last=1) == 1.5
    assert History().recent_gain() is None
