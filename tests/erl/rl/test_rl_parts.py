"""Operators, parents, the breaker, the completion rule and rewards of a group."""

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from erl.rl.rl_fakes import Engine, make_run, task
from hypothesis import given
from hypothesis import strategies as st
from openmle_erl.engines.protocols import Finish, GenerateRequest, Generation, RoutingShape, VersionSpan
from openmle_erl.rewards.batches import ScoreRecord
from openmle_erl.rewards.presets import PAPER, ROBUST
from openmle_erl.rl.breaker import Breaker, BreakerConfig
from openmle_erl.rl.conversation import Prompt
from openmle_erl.rl.groups import (
    Completion,
    Group,
    GroupConfig,
    GroupState,
    batch_of,
    completion,
    outcome_label,
    settle,
)
from openmle_erl.rl.moves import choose_operator
from openmle_erl.rl.parents import Population
from openmle_erl.rl.rollout import joined
from openmle_erl.rl.samples import Fate, Member, Rolled, training_sample, unpacked
from openmle_erl.rl.simulation import VirtualLoop
from openmle_gym.errors import ConfigError
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.jobs import Outcome
from openmle_gym.operators import Operator
from openmle_gym.scores import ValidationScore

SHARES = {Operator.DRAFT: 0.5, Operator.IMPROVE: 0.17, Operator.DEBUG: 0.17, Operator.CROSSOVER: 0.16}


def test_operators_are_drawn_by_their_shares() -> None:
    rng = random.Random(1)
    many = dict.fromkeys(Operator, 9)
    drawn = Counter(choose_operator(SHARES, many, rng) for _ in range(20_000))
    for operator, share in SHARES.items():
        assert drawn[operator] / 20_000 == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(
    ("wanted", "candidates", "applied"),
    [
        (Operator.IMPROVE, {}, Operator.DRAFT),
        (Operator.IMPROVE, {Operator.DEBUG: 1}, Operator.DEBUG),
        (Operator.CROSSOVER, {Operator.CROSSOVER: 1, Operator.IMPROVE: 1, Operator.DEBUG: 1}, Operator.IMPROVE),
        (Operator.CROSSOVER, {Operator.DEBUG: 1}, Operator.DEBUG),
        (Operator.CROSSOVER, {Operator.CROSSOVER: 2, Operator.IMPROVE: 2}, Operator.CROSSOVER),
        (Operator.DEBUG, {Operator.IMPROVE: 1}, Operator.IMPROVE),
        (Operator.DEBUG, {}, Operator.DRAFT),
    ],
)
def test_an_operator_without_parents_gives_way(
    wanted: Operator, candidates: dict[Operator, int], applied: Operator
) -> None:
    assert choose_operator({wanted: 1.0}, candidates, random.Random(0)) is applied


def test_without_shares_crossover_alone_is_left_out() -> None:
    drawn = {
        choose_operator(dict.fromkeys(Operator, 0.0), dict.fromkeys(Operator, 9), random.Random(n)) for n in range(60)
    }
    assert drawn == {Operator.DRAFT, Operator.IMPROVE, Operator.DEBUG}


def test_fitness_is_the_published_vector() -> None:
    population = Population(published=True)
    a, b, child0, child1, grandchild = range(5)
    population.add(a, 1.0, (), group=0)
    population.add(b, 0.5, (), group=0)
    population.add(child0, 0.0, (a,), group=1)
    population.add(child1, 1.0, (a,), group=1)
    population.add(grandchild, 0.2, (b,), group=2)
    expected = [(1, 1, 0), (0.5, 0, 0.5), (0, 0.5, 1), (1, 0.5, 1), (0.2, 0.5, 1)]
    assert population.fitness(range(5)) == [pytest.approx(each) for each in expected]
    assert [each.total for each in population.fitness(range(5))] == pytest.approx([2.0, 1.0, 1.5, 2.5, 1.7])


def test_a_group_is_one_visit_and_one_child_tells_nothing_of_variance() -> None:
    population = Population()
    population.add(0, 1.0, (), group=0)
    population.add(1, 0.5, (), group=0)
    for child in range(2, 6):
        population.add(child, 0.1 * child, (0,), group=1)
    population.add(6, 0.4, (1,), group=2)
    first, second = population.fitness([0, 1])
    assert (first.cool, second.cool) == (0.0, 0.0)  # one visit each
    assert (first.explore, second.explore) == (0.5, 0.5)  # the only known variance, and an unknown one


@st.composite
def lineages(draw: st.DrawFn) -> list[tuple[float, tuple[int, ...], int]]:
    programs: list[tuple[float, tuple[int, ...], int]] = []
    for number in range(draw(st.integers(1, 24))):
        parents = draw(st.lists(st.integers(0, number - 1), max_size=2, unique=True)) if number else []
        programs.append((draw(st.integers(-8, 8)) / 8, tuple(parents), draw(st.integers(0, 5))))
    return programs


@given(lineages(), st.booleans())
def test_incremental_fitness_is_that_of_a_recomputation(
    programs: list[tuple[float, tuple[int, ...], int]], published: bool
) -> None:
    population = Population(published=published)
    for attempt, (reward, parents, group) in enumerate(programs):
        population.add(attempt, reward, parents, group=group)
        found = population.fitness(range(attempt + 1))
        expected = recomputed(programs[: attempt + 1], published=published)
        np.testing.assert_allclose(np.array(found), expected, atol=1e-9)


def recomputed(programs: Sequence[tuple[float, tuple[int, ...], int]], *, published: bool) -> np.ndarray:
    """The definition, written out for all programs at once."""

    def scaled(values: Sequence[float]) -> list[float]:
        low, high = min(values, default=0.0), max(values, default=0.0)
        return [(value - low) / (high - low) if high - low > 1e-9 else 0.5 for value in values]

    children = [[each for each in programs if number in each[1]] for number in range(len(programs))]
    visits = [len(each) if published else len({group for _, _, group in each}) for each in children]
    known = [number for number, each in enumerate(children) if len(each) >= (1 if published else 2)]
    variances = dict(zip(known, scaled([float(np.var([r for r, _, _ in children[n]])) for n in known]), strict=True))
    most = max(visits) or 1
    cool = scaled([1 - count / most for count in visits])
    exploit = scaled([reward for reward, _, _ in programs])
    return np.array([[exploit[n], variances.get(n, 0.5), cool[n]] for n in range(len(programs))])


def test_parents_are_drawn_in_proportion_to_their_fitness_and_never_twice() -> None:
    population = Population(published=True)
    for attempt, reward in enumerate((0.0, 1.0, 0.5)):
        population.add(attempt, reward, (), group=0)
    # exploit 0, 1, .5; explore and cool .5 each: fitness 1, 2, 1.5
    rng = random.Random(3)
    firsts = Counter(population.draw([0, 1, 2], 1, rng)[0] for _ in range(9000))
    assert [firsts[n] / 9000 for n in range(3)] == pytest.approx([1 / 4.5, 2 / 4.5, 1.5 / 4.5], abs=0.02)
    assert all(len(set(population.draw([0, 2], 2, rng))) == 2 for _ in range(50))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def breaker(clock: Clock) -> Breaker:
    return Breaker(
        BreakerConfig(window=8, least=4, failure_share=0.5, pause_seconds=10, longest_pause_seconds=15), clock
    )


async def test_a_breaker_opens_above_its_share_probes_once_and_closes_by_itself() -> None:
    clock = Clock()
    watched = breaker(clock)
    for ok in (False, False, True, True):
        watched.record(ok=ok)
    assert not watched.is_open  # half of them is not more than half
    watched.record(ok=False)
    assert watched.is_open
    assert watched.wait_seconds() == 10.0
    watched.record(ok=True)  # had started before
    assert watched.is_open
    clock.now = 10.0
    assert await watched.enter()
    assert watched.wait_seconds() == 10.0  # nobody else while it probes
    watched.record(ok=False)
    assert watched.wait_seconds() == 15.0  # twice as long, but for the longest
    clock.now = 25.0
    assert await watched.enter()
    watched.record(ok=True)
    assert not watched.is_open
    assert not await watched.enter()
    assert watched.opened == 1


async def test_a_probe_that_is_lost_does_not_keep_the_breaker_open() -> None:
    clock = Clock()
    watched = breaker(clock)
    for _ in range(4):
        watched.record(ok=False)
    clock.now = 10.0
    assert await watched.enter()
    clock.now = 20.0
    assert await watched.enter()


def card(attempt: int, score: float | None, source: str = "", **fields: object) -> ExperienceCard:
    return ExperienceCard.model_validate(
        {
            "run_id": "run",
            "task": "one",
            "attempt": attempt,
            "operator": Operator.DRAFT,
            "selection": Selection(reason="test"),
            "program_id": f"{attempt:016x}",
            "source": source or f"value = {attempt}",
            "plan": "",
            "outcome": Outcome.CODE_EXECUTION_ERROR if score is None else Outcome.SUCCESS,
            "validation": None if score is None else ValidationScore(value=score, higher_is_better=True),
            "finished_at": "2026-01-01T00:00:00Z",
            **fields,
        }
    )


def group_of(*members: Member) -> Group:
    return Group(
        number=0,
        task="one",
        operator=Operator.DRAFT,
        parents=(),
        selection=Selection(reason="test"),
        prompt=Prompt((1,), False),
        version=0,
        members=list(members),
    )


def test_a_group_waits_for_all_until_the_barrier_and_for_none_after_it() -> None:
    config = GroupConfig(least=2, barrier_seconds=30.0)
    group = group_of(
        Member(attempt=0, card=card(0, 0.5)), Member(attempt=1), Member(attempt=2, fate=Fate.INFRASTRUCTURE)
    )
    assert completion(group, enough_since=None, now=1e6, config=config) == Completion(False, None)
    group.members[1].card = card(1, 0.6)
    assert completion(group, enough_since=None, now=0.0, config=config).complete
    group.members.append(Member(attempt=3))
    assert completion(group, enough_since=100.0, now=110.0, config=config) == Completion(False, 20.0)
    assert completion(group, enough_since=100.0, now=130.0, config=config).complete


def test_members_without_a_verdict_are_in_no_statistics() -> None:
    scores = (0.2, 0.4, 0.9)
    full = group_of(*(Member(attempt=n, card=card(n, score)) for n, score in enumerate(scores)))
    partial = group_of(*full.members, Member(attempt=8), Member(attempt=9, fate=Fate.INFRASTRUCTURE))
    config = GroupConfig(least=2)
    assert not settle(partial, task("one").scoring, (), (), ROBUST, config)
    with_lost = [member.reward for member in partial.members[:3]]
    for member in full.members:
        member.reward = np.nan
    assert not settle(full, task("one").scoring, (), (), ROBUST, config)
    assert with_lost == [member.reward for member in full.members]
    assert [member.fate for member in partial.members] == [None, None, None, Fate.LATE, Fate.INFRASTRUCTURE]
    assert [member.attempt for member in batch_of([partial]).members] == [0, 1, 2]


def test_a_group_with_too_few_verdicts_is_dropped_and_its_programs_are_rewarded_for_children() -> None:
    group = group_of(Member(attempt=0, card=card(0, 0.5)), Member(attempt=1, fate=Fate.INFRASTRUCTURE))
    history = [ScoreRecord("x", 0.1), ScoreRecord("y", 0.9)]
    assert not settle(group, task("one").scoring, (), history, ROBUST, GroupConfig(least=2))
    assert group.state is GroupState.DROPPED
    assert [member.fate for member in group.members] == [Fate.TOO_FEW, Fate.INFRASTRUCTURE]
    assert 0.0 < group.members[0].base_reward < 1.0


def test_a_program_that_is_its_parent_again_earns_nothing() -> None:
    parent = card(0, 0.9, "value = 1\nprint(value)")
    same = card(1, 0.9, "# the same\nvalue   = 1\nprint(value)")
    assert outcome_label(same, [parent]) == "unchanged"
    assert outcome_label(card(2, 0.9, "value = 2\nprint(value)"), [parent]) == "success"
    group = group_of(Member(attempt=1, card=same), Member(attempt=2, card=card(2, 0.5, "value = 3\nprint(value)")))
    settle(group, task("one").scoring, [parent], [ScoreRecord(None, 0.1)], ROBUST, GroupConfig(least=2))
    assert group.members[0].reward == 0.0 < group.members[1].reward


def test_a_program_that_no_judge_could_see_is_masked() -> None:
    unknown = card(
        0, None, outcome=Outcome.SUCCESS, review="unknown", withheld=ValidationScore(value=0.9, higher_is_better=True)
    )
    refused = card(1, None, outcome=Outcome.REJECTED, review="unknown")
    cheat = card(2, None, outcome=Outcome.REJECTED, review="refused")
    assert [outcome_label(each, ()) for each in (unknown, refused, cheat)] == [
        "infrastructure",
        "infrastructure",
        "rejected",
    ]
    group = group_of(*(Member(attempt=n, card=each) for n, each in enumerate((unknown, refused, cheat, card(3, 0.5)))))
    settle(group, task("one").scoring, (), (), ROBUST, GroupConfig(least=2))
    assert [member.fate for member in group.members] == [Fate.INFRASTRUCTURE, Fate.INFRASTRUCTURE, None, None]
    assert group.members[2].reward == -0.5


def test_the_published_bonus_is_not_in_the_base_reward() -> None:
    group = group_of(Member(attempt=1, card=card(1, 0.9)), Member(attempt=2, card=card(2, 0.3)))
    history = [ScoreRecord(None, 0.2), ScoreRecord(None, 0.4)]
    settle(group, task("one").scoring, [card(0, 0.4)], history, PAPER, GroupConfig(least=2))
    better = group.members[0]
    assert better.reward > better.base_reward == 1.0


def test_a_reply_comes_back_from_disk_as_it_was() -> None:
    rolled = Rolled(
        reply_ids=(5, 151_935, 0),
        logprobs_T=np.array([-0.1, -2.0, 0.0], np.float32),
        spans=(VersionSpan(3, 0, 2), VersionSpan(4, 2, 3)),
        finish=Finish.LENGTH,
        seconds=2.5,
        restarts=1,
    )
    again = unpacked(rolled.packed())
    np.testing.assert_array_equal(again.logprobs_T, rolled.logprobs_T)
    assert (again.reply_ids, again.spans, again.finish, again.seconds, again.restarts) == (
        rolled.reply_ids,
        rolled.spans,
        rolled.finish,
        2.5,
        1,
    )
    assert again.experts_NLK is None


def test_recorded_experts_come_back_from_disk_and_go_to_the_trainer() -> None:
    experts = np.arange(5 * 2 * 3, dtype=np.int16).reshape(5, 2, 3)
    rolled = Rolled(
        reply_ids=(7, 8),
        logprobs_T=np.array([-0.5, -0.25], np.float32),
        spans=(VersionSpan(0, 0, 2),),
        finish=Finish.STOP,
        experts_NLK=experts,
    )
    again = unpacked(rolled.packed())
    np.testing.assert_array_equal(again.experts_NLK, experts)
    np.testing.assert_array_equal(again.logprobs_T, rolled.logprobs_T)
    sample = training_sample(Member(attempt=3, rolled=again), (1, 2, 3, 4), 0.5)
    np.testing.assert_array_equal(sample.experts_NLK, experts)


def test_a_reply_of_a_run_before_experts_were_recorded_is_read() -> None:
    head = b'[1, [[2, 0, 1]], "stop", 1.5, 0]\n'
    body = np.array([9], np.int32).tobytes() + np.array([-0.5], np.float32).tobytes()
    again = unpacked(zlib.compress(head + body))
    assert (again.reply_ids, again.logprobs_T.tolist(), again.spans) == ((9,), [-0.5], ((2, 0, 1),))
    assert again.experts_NLK is None


def test_a_continuation_s_experts_are_those_of_the_whole() -> None:
    def part(ids: tuple[int, ...], experts: int | None) -> Generation:
        return Generation(
            request_id="",
            token_ids=ids,
            logprobs_T=np.zeros(len(ids), np.float32),
            finish=Finish.ABORT,
            spans=(VersionSpan(0, 0, len(ids)),),
            experts_NLK=None if experts is None else np.zeros((experts, 2, 2), np.int16),
        )

    nothing = Rolled(reply_ids=(), logprobs_T=np.zeros(0, np.float32), spans=(), finish=Finish.LENGTH)
    first = joined(nothing, part((1, 2), 4))  # a prompt of three tokens, and one of two
    second = joined(first, part((3, 4, 5), 7))  # its prompt is of five
    assert second.reply_ids == (1, 2, 3, 4, 5)
    assert second.experts_NLK is not None
    assert len(second.experts_NLK) == 3 + 5 - 1
    assert joined(first, part((), None)).experts_NLK is None


@pytest.mark.parametrize("routing", [None, RoutingShape(layers=2, experts=2)])
def test_training_s_requests_ask_for_experts_and_evaluation_s_do_not(
    tmp_path: Path, routing: RoutingShape | None
) -> None:
    asked: list[RoutingShape | None] = []

    def tokens(request: GenerateRequest) -> Sequence[int]:
        asked.append(request.routing)
        return (1, 2, 3)

    async def both() -> None:
        training = make_run(tmp_path / "run", engine=Engine(tokens=tokens))
        road = training.pool.road
        road.routing = routing
        group = group_of(Member(attempt=0))
        for purpose in ("train", "eval"):
            await road.generate(group, group.members[0], purpose=purpose)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(both())
    assert asked == [routing, None]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"least": 9}, "breaker.least"),
        ({"failure_share": 1.0}, "breaker.failure_share"),
        ({"pause_seconds": 0.0}, "breaker.pause_seconds"),
    ],
)
def test_a_breaker_that_cannot_work_is_refused(change: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        BreakerConfig(**{"window": 8, "least": 4, **change})  # pyright: ignore[reportArgumentType]
