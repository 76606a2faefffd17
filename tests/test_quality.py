"""The semantic judge, asked over HTTP on loopback."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from check_fixtures import write_healthy
from openmle_gym.chat import OpenAIChat, Prices
from openmle_gym.check.finding import Report
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.quality import DIMENSIONS, Assessment, assess_package, legacy, strict
from openmle_gym.quality.evidence import collect_evidence, is_quoted
from openmle_gym.quality.judge import PROMPT_HASH, BadAnswer, judge_prompt, read_judgement
from openmle_gym.quality.rules import Issue, Judgement
from openmle_gym.task import load_package
from scripted_server import Asked, Reply, serving

REASON = "as it should be"


def judgement(*scores: float, issues: tuple[Issue, ...] = ()) -> Judgement:
    return Judgement(
        scores=dict(zip(DIMENSIONS, scores, strict=True)), reasons=dict.fromkeys(DIMENSIONS, REASON), issues=issues
    )


def issue(severity: str = "high", *, confirmed: bool = True) -> Issue:
    return Issue.model_validate(
        {
            "severity": severity,
            "category": "leak",
            "message": "the answers are there",
            "evidence_source": "prepare.py",
            "evidence": "copies the target",
            "confirmed": confirmed,
        }
    )


def test_the_published_rule_rounds_a_mean_and_knows_no_issue() -> None:
    assert legacy([judgement(0, 5, 5, 5, 5)]).recommendation == "recommended"
    assert legacy([judgement(3.98, 4, 4, 4, 4)]).overall == 4.0
    assert legacy([judgement(3.99, 3.99, 4, 4, 3.99)]).overall == 3.99
    assert legacy([judgement(3.99, 3.99, 4, 4, 3.99)]).recommendation == "conditional"
    assert legacy([judgement(2.5, 2.5, 2.5, 2.5, 2.5)]).recommendation == "conditional"
    assert legacy([judgement(2.4, 2.5, 2.5, 2.5, 2.5)]).recommendation == "not_recommended"
    assert legacy([judgement(5, 5, 5, 5, 5, issues=(issue(),))]).recommendation == "recommended"
    assert legacy([judgement(5, 5, 5, 5, 5), judgement(0, 0, 0, 0, 0)]).overall == 5.0
    assert legacy([]).recommendation == "unjudged"


def test_the_strict_rule_has_a_floor_and_does_not_round() -> None:
    hidden = strict([judgement(0, 5, 5, 5, 5)], asked=1)
    assert (hidden.recommendation, hidden.below_floor) == ("not_recommended", ("task_validity",))
    assert strict([judgement(1.9, 5, 5, 5, 5)], asked=1).below_floor == ("task_validity",)
    assert strict([judgement(2, 5, 5, 5, 5)], asked=1).recommendation == "recommended"
    assert strict([judgement(2, 5, 5, 5, 5)], asked=1, floor=3).recommendation == "not_recommended"
    assert strict([judgement(3.98, 4, 4, 4, 4)], asked=1).recommendation == "conditional"


def test_an_issue_vetoes_only_when_it_is_grave_and_proven() -> None:
    for severity, confirmed, recommendation in (
        ("high", True, "not_recommended"),
        ("high", False, "recommended"),
        ("medium", True, "recommended"),
    ):
        said = judgement(5, 5, 5, 5, 5, issues=(issue(severity, confirmed=confirmed),))
        assert strict([said, judgement(5, 5, 5, 5, 5)], asked=2).recommendation == recommendation


def test_judges_meet_at_the_median_of_each_dimension() -> None:
    said = [judgement(5, 1, 4, 4, 4), judgement(4, 5, 4, 4, 4), judgement(0, 4, 4, 4, 4)]
    verdict = strict(said, asked=3)
    assert verdict.scores == {**dict.fromkeys(DIMENSIONS, 4.0)}
    assert verdict.spread["task_validity"] == 5.0
    assert verdict.spread["data_quality"] == 0.0
    assert verdict.recommendation == "recommended"
    assert strict(said[:2], asked=3).recommendation != "unjudged"
    assert strict(said[:1], asked=3).recommendation == "unjudged"


def answer(score: float = 4.0, **changes: object) -> dict[str, object]:
    said: dict[str, object] = {name: {"score": score, "reason": REASON} for name in DIMENSIONS}
    return {**said, "issues": [], **changes}


@pytest.mark.parametrize(
    "text",
    [
        "{answer}",
        "Here it is:\n```json\n{answer}\n```\nThat is all.",
        'First {{not json}}, an example: {{"task_validity": 1}}\n{answer}',
    ],
)
def test_an_answer_is_found_bare_fenced_or_after_talk(text: str) -> None:
    said = read_judgement(text.format(answer=json.dumps(answer())), {})
    assert said.scores == dict.fromkeys(DIMENSIONS, 4.0)


def test_the_published_form_of_an_answer_reads_too() -> None:
    flat: dict[str, object] = dict.fromkeys(DIMENSIONS, 3) | {f"{name}_reason": REASON for name in DIMENSIONS}
    found = {**issue("medium").model_dump(exclude={"confirmed"})}
    said = read_judgement(
        json.dumps({**flat, "overall_score": 5, "major_issues": [found]}), {"prepare.py": "copies the target"}
    )
    assert (said.scores["data_quality"], said.issues[0].confirmed) == (3.0, True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task_validity": {"score": 6, "reason": REASON}}, "task_validity.score"),
        ({"task_validity": {"score": True, "reason": REASON}}, "is no number"),
        ({"task_validity": {"score": "4", "reason": REASON}}, "is no number"),
        ({"task_validity": {"score": 4, "reason": ""}}, "task_validity.reason"),
        ({"issues": [{"severity": "fatal"}]}, "issues"),
    ],
)
def test_an_answer_outside_of_the_form_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(BadAnswer, match=words):
        read_judgement(json.dumps(answer(**changes)), {})


def test_a_quotation_is_looked_up_in_the_part_that_it_names() -> None:
    evidence = {"prepare.py": "train['copy'] = train['Price']", "processed_csv_evidence": {"train.csv": {"rows": 200}}}
    assert is_quoted(evidence, "prepare.py", "train[ 'COPY' ] = train['price']")
    assert not is_quoted(evidence, "metric.py", "train['copy']")
    assert is_quoted(evidence, "processed_csv_evidence", '"rows": 200')
    assert not is_quoted(evidence, "processed_csv_evidence", "200")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_healthy(tmp_path_factory.mktemp("quality") / "houses")


def test_evidence_is_bounded_and_leaves_out_what_was_not_looked_at(healthy: Path) -> None:
    package = load_package(healthy)
    evidence = collect_evidence(package, Report(package="houses", findings=(), checked=()))
    tables = evidence["processed_csv_evidence"]
    assert isinstance(tables, dict)
    train = tables["train.csv"]
    assert isinstance(train, dict)
    assert (train["rows"], train["columns"]) == (200, 5)
    assert isinstance(train["first_rows"], list)
    assert len(train["first_rows"]) == 5
    assert "raw_usage_evidence" not in evidence
    assert "raw_csv_evidence" not in evidence
    assert len(judge_prompt(evidence)[1].content) < 60_000


def test_raw_rows_are_counted_without_blank_lines_and_whatever_their_encoding(tmp_path: Path) -> None:
    root = write_healthy(tmp_path / "houses")
    (root / "raw").mkdir()
    rows = [f"{number},caf\u00e9,1" for number in range(300)]
    raw = "\n".join(["id,area,price", *rows[:200], "", *rows[200:], " , ", ""])
    (root / "raw" / "train.csv").write_bytes(raw.encode("latin-1"))
    evidence = collect_evidence(load_package(root), Report(package="houses", findings=(), checked=()))
    usage = evidence["raw_usage_evidence"]
    assert isinstance(usage, dict)
    assert (usage["raw_train_rows"], usage["train_rows"], usage["test_rows"]) == (300, 200, 100)
    assert (usage["rows_are_conserved"], usage["raw_train_has_targets"]) == (True, ["price"])


Script = Callable[[int], Reply]


async def assess(root: Path, script: Script, judges: int = 3) -> tuple[Assessment, list[Asked]]:
    asked: list[Asked] = []

    def reply(request: Asked) -> Reply:
        asked.append(request)
        return script(json.loads(request.body)["seed"])

    with serving(reply) as base:
        async with OpenAIChat(f"{base}/v1", model="judge", patience_seconds=0.0, prices=Prices(1.0, 2.0)) as chat:
            assessed = await assess_package(
                root,
                runner=ProcessRunner(allow_no_isolation=True),
                chat=chat,
                provider=base,
                judges=judges,
            )
    return assessed, asked


def said(content: object) -> Reply:
    text = content if isinstance(content, str) else json.dumps(content)
    usage = {"prompt_tokens": 100, "completion_tokens": 50}
    body = {"model": "judge-7", "choices": [{"message": {"content": text}}], "usage": usage}
    return Reply(200, json.dumps(body).encode())


async def test_a_judged_package_keeps_who_judged_it_how_and_for_how_much(healthy: Path) -> None:
    def script(seed: int) -> Reply:
        return said(answer({0: 5.0, 1: 4.0, 2: 1.0}[seed]))

    assessed, asked = await assess(healthy, script)
    assert assessed.status == "judged"
    assert (assessed.legacy.overall, assessed.strict.overall) == (5.0, 4.0)
    assert assessed.strict.recommendation == "recommended"
    assert [call.seed for call in assessed.calls] == [0, 1, 2]
    assert {call.model for call in assessed.calls} == {"judge-7"}
    assert (assessed.usage.prompt_tokens, assessed.usage.completion_tokens) == (300, 150)
    assert assessed.cost_usd == pytest.approx(3 * (100 * 1 + 50 * 2) / 1e6)
    assert assessed.prompt_sha256 == PROMPT_HASH
    assert assessed.provider.startswith("http://127.0.0.1")
    assert len(asked) == 3


async def test_an_answer_that_cannot_be_read_is_asked_for_once_more(healthy: Path) -> None:
    def script(seed: int) -> Reply:
        return said(answer(5.0) if seed >= 1000 else "I would say it is fine.")

    assessed, asked = await assess(healthy, script, judges=1)
    assert (assessed.status, len(asked)) == ("judged", 2)
    assert assessed.usage.prompt_tokens == 200


async def test_a_provider_that_fails_leaves_the_package_unjudged_never_rejected(healthy: Path) -> None:
    def script(seed: int) -> Reply:
        return said(answer(5.0)) if seed == 0 else Reply(503 if seed == 1 else 200, b"busy")

    assessed, _ = await assess(healthy, script)
    assert assessed.status == "unjudged"
    assert assessed.strict.recommendation == "unjudged"
    assert assessed.strict.overall is None
    assert [bool(call.failure) for call in assessed.calls] == [False, True, True]


async def test_a_package_that_fails_the_checks_is_shown_to_no_judge(healthy: Path, tmp_path: Path) -> None:
    ill = write_healthy(tmp_path / "ill")
    answers = (ill / "data/private/test_answer.csv").read_bytes()
    (ill / "data/public/extra.csv").write_bytes(answers)
    assessed, asked = await assess(ill, lambda seed: said(answer()))
    assert (assessed.status, asked) == ("failed_checks", [])
    assert "answers_in_public" in assessed.errors
    assert assessed.strict.recommendation == "not_recommended"
    assert assessed.legacy.overall == 0.0
