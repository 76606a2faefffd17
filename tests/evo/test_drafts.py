"""Single Drafts: each is graded once, on the test split, and nothing is drawn twice."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from openmle_evo.cli import main
from openmle_evo.evaluation.drafts import OnTest, draft_cards, draft_outcomes
from openmle_gym.jobs import JobRequest, JobResult, Outcome
from scripted_server import Asked, Reply, serving
from toy import CRASHES, GOOD, WORSE, reply, write_toy_package

OWN = ["timeout_seconds=60", "runner=process", "allow_process=true", "workers=1", "memory_mib=1024"]


class Grader:
    """Says what it was asked."""

    def __init__(self) -> None:
        self.jobs: list[JobRequest] = []

    async def run(self, job: JobRequest) -> JobResult:
        self.jobs.append(job)
        return JobResult(outcome=Outcome.SUCCESS, test_score=0.25, higher_is_better=True, eval_split="test")


async def test_a_draft_is_graded_on_the_test_split_and_its_score_is_no_validation_score() -> None:
    grader = Grader()
    on_test = OnTest(grader)
    result = await on_test.run(JobRequest(code="x", data_dir="toy", eval_split="validation"))
    assert [job.eval_split for job in grader.jobs] == ["test"]
    assert result.validation() is None
    assert on_test.score is not None
    assert on_test.score.value == 0.25


def answering(*sources: str) -> tuple[Callable[[Asked], Reply], list[Asked]]:
    """A policy that gives these programs in turn, and the requests that it got."""
    asked: list[Asked] = []

    def answer(request: Asked) -> Reply:
        asked.append(request)
        message = {"role": "assistant", "content": reply(sources[len(asked) - 1])}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        body = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        return Reply(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    return answer, asked


def test_drafts_are_drawn_graded_summed_up_and_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = write_toy_package(tmp_path / "toy")
    suite = tmp_path / "drafts"

    def run(url: str, count: int) -> int:
        policy = ["policy=openai", f"policy.base_url={url}/v1", "policy.model=m", "policy.patience_seconds=1"]
        return main(["drafts", f"tasks=[{package.root}]", f"suite_dir={suite}", f"runs={count}", *policy, *OWN])

    answer, asked = answering(GOOD, CRASHES, WORSE)
    with serving(answer) as url:
        assert run(url, 3) == 0
        printed = json.loads(capsys.readouterr().out)
        assert run(url, 3) == 0  # all are there: nobody is asked, and nothing is run
        assert json.loads(capsys.readouterr().out) == printed
        assert len(asked) == 3
        assert run(url, 4) == 2  # another suite
    assert printed["result"]["valid_rate"]["mean"] == pytest.approx(2 / 3)
    cards = draft_cards(suite)
    assert [card.validation for card in cards] == [None] * 3
    assert sorted(card.test.value for card in cards if card.test) == pytest.approx([0.0, 3.0])
    assert [outcome.run for outcome in sorted(draft_outcomes(suite), key=lambda each: each.run)] == [0, 1, 2]
