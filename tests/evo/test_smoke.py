"""The six criteria, each seen to pass and to fail."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from evo.make import card
from evo.synthetic_run import SyntheticRun
from openmle_evo.reading import RunFacts, read_run
from openmle_evo.smoke import check_run, most_at_once
from openmle_gym.chat import Usage

USED = Usage(prompt_tokens=10, completion_tokens=10)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> RunFacts:
    read = read_run(SyntheticRun(attempts=20).build(tmp_path_factory.mktemp("smoke") / "run"))
    settings = {**read.manifest.settings, "workers": 2, "schedule": {"kind": "evolve"}}
    return dataclasses.replace(read, manifest=read.manifest.model_copy(update={"settings": settings}))


def failed(facts: RunFacts, **asked: object) -> list[int]:
    wanted = {"workers": 2, "search": "evolve", "exit_code": 0, **asked}
    return [each.number for each in check_run(facts, **wanted) if not each.passed]  # pyright: ignore


def test_a_good_run_passes(facts: RunFacts) -> None:
    overlapping = dataclasses.replace(facts, cards=(*facts.cards, *facts.cards[:1]))
    assert failed(overlapping) == []


def test_each_criterion_can_fail(facts: RunFacts) -> None:
    facts = dataclasses.replace(facts, cards=(*facts.cards, *facts.cards[:1]))
    assert failed(facts, search="greedy") == [1]
    assert failed(facts, workers=3) == [1]
    none_valid = tuple(each for each in facts.cards if not each.valid) * 2
    assert failed(dataclasses.replace(facts, cards=none_valid)) == [2, 3]
    bare = tuple(each.model_copy(update={"usage": Usage()}) for each in facts.cards)
    assert failed(dataclasses.replace(facts, cards=bare)) == [3]
    assert failed(dataclasses.replace(facts, under_way=1)) == [4]
    assert failed(dataclasses.replace(facts, final=None)) == [5]
    assert failed(facts, exit_code=3) == [6]


def test_attempts_at_once_are_counted_from_their_times() -> None:
    ends = ["2026-01-01T00:00:10Z", "2026-01-01T00:00:12Z", "2026-01-01T00:00:20Z"]
    cards = [
        card(number, 0.5).model_copy(update={"finished_at": end, "sandbox_seconds": 5.0})
        for number, end in enumerate(ends)
    ]
    assert most_at_once(cards) == 2
    assert most_at_once(cards[1:]) == 1
    assert most_at_once([]) == 0


@pytest.mark.slow
def test_the_command_makes_a_real_search_and_passes() -> None:
    command = Path(sys.executable).with_name("openmle-evo")
    done = subprocess.run([command, "smoke"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [each["passed"] for each in json.loads(done.stdout)["criteria"]] == [True] * 6
