"""NatureBench: a miniature task, an evaluation service and a model, all made here; programs really run, isolated."""

import io
import json
import re
import tarfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from openmle_evo.audit import audit
from openmle_evo.cli import main
from openmle_evo.config import CONFIGS
from openmle_evo.evaluation.cli import EvaluateConfig
from openmle_evo.evaluation.compare import compare
from openmle_evo.evaluation.results import RunOutcome, summarise
from openmle_evo.evaluation.suite import outcomes
from openmle_evo.naturebench.executor import NatureExecutor, best_gap_of
from openmle_evo.naturebench.outputs import OutputsRefused, unpack
from openmle_evo.naturebench.service import EvaluationService
from openmle_evo.naturebench.settings import NatureConfig
from openmle_evo.naturebench.words import CONTRACT, public_nature_task
from openmle_evo.reading import read_exchanges, read_run
from openmle_gym.bridges.naturebench import LITE_V2, NatureTask, read_task
from openmle_gym.configuration import load_config
from openmle_gym.errors import ConfigError, ExecutorUnavailable
from openmle_gym.isolation.runner import Artifact, BoundedLog, Isolation, RunResult, RunSpec
from openmle_gym.jobs import JobRequest, Limits, Outcome
from openmle_gym.operators import Operator
from openmle_gym.prompts import PromptConfig, Surroundings, build_prompt
from scripted_server import Asked, Reply, serving

HIDDEN = [1, 0, 1, 1]
PROGRAM = """\
import csv, json, os, pathlib

print(sorted(name for name in os.environ if "SERVICE" in name or "URL" in name))
rows = list(csv.DictReader(open(os.path.join(os.environ["DATA_DIR"], "train.csv"))))
threshold = sum(float(row["x"]) for row in rows) / len(rows) + SHIFT
test = list(csv.DictReader(open(os.path.join(os.environ["DATA_DIR"], "test.csv"))))
place = pathlib.Path(os.environ["OUTPUT_DIR"]) / "cells"
place.mkdir(parents=True)
(place / "labels.json").write_text(json.dumps([int(float(row["x"]) > threshold) for row in test]))
print("Final Validation Score: 0.5")
"""


def nature_task(root: Path) -> Path:
    """One instance, `cells`: label x above 0.5; the state of the art is an accuracy of 0.8."""
    data = root / "problem" / "data"
    data.mkdir(parents=True)
    (root / "problem" / "README.md").write_text("Label the cells: write cells/labels.json.\n")
    (data / "train.csv").write_text("x,y\n0.1,0\n0.9,1\n0.2,0\n0.8,1\n")
    (data / "test.csv").write_text("x\n0.7\n0.3\n0.6\n0.9\n")
    (root / "evaluation").mkdir()
    (root / "evaluation" / "hidden.json").write_text(json.dumps(HIDDEN))
    metric = {"name": "accuracy", "is_primary": True, "metric_direction": "higher", "sota_score": 0.8}
    entry = {"dataset_name": "cells", "metrics": [metric]}
    (root / "metadata.json").write_text(json.dumps({"performance_entries": [entry]}))
    return root


class Service:
    """Answers as NatureBench's service does, from the hidden labels of the task that was registered."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.tasks: dict[tuple[str, str], Path] = {}

    def __call__(self, asked: Asked) -> Reply:
        self.asked.append(asked.path)
        body = json.loads(asked.body) if asked.body else {}
        key = (body.get("task_name", ""), body.get("batch_name", ""))
        if asked.path == "/register":
            if key in self.tasks:
                return Reply(409, b"{}")
            self.tasks[key] = Path(body["data_dir"])
        if asked.path != "/evaluate":
            return Reply(200, b'{"status": "ok"}')
        try:
            labels = json.loads((Path(body["output_dir"]) / "cells" / "labels.json").read_text())
            hidden = json.loads((self.tasks[key] / "evaluation" / "hidden.json").read_text())
            accuracy = sum(a == b for a, b in zip(labels, hidden, strict=True)) / len(hidden)
        except (OSError, ValueError) as error:
            return Reply(500, json.dumps({"error": str(error)}).encode())
        gap = (accuracy - 0.8) / 0.8
        scores = {"raw_scores": {"cells": accuracy}, "per_instance_improvement": {"cells": gap}}
        return Reply(200, json.dumps({**scores, "attempt": 1, "aggregate_improvement": gap}).encode())


def model(programs: Callable[[int], str]) -> Callable[[Asked], Reply]:
    """An endpoint that answers the n-th request with the n-th program."""
    count = iter(range(1000))

    def answer(asked: Asked) -> Reply:
        text = f"A plan.\n```python\n{programs(next(count))}\n```"
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return Reply(200, json.dumps({"model": "m", "choices": [choice], "usage": usage}).encode())

    return answer


class Writes:
    """A runner that runs nothing and hands back what it was made with."""

    isolation = Isolation.BUBBLEWRAP

    def __init__(self, packed: bytes | None) -> None:
        self.packed = packed
        self.specs: list[RunSpec] = []

    async def check(self) -> None:
        pass

    async def run(self, spec: RunSpec) -> RunResult:
        self.specs.append(spec)
        artifact = Artifact(content=self.packed) if self.packed is not None else Artifact(refusal="missing")
        log = BoundedLog(head="done\n")
        return RunResult(
            exit_code=0, wall_seconds=1.0, log=log, artifacts={"outputs.tar": artifact}, isolation=self.isolation
        )


def packed(files: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as made:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
        for entry in more:
            made.addfile(entry)
    return stream.getvalue()


def executor(
    task: NatureTask, runner: Writes, service: EvaluationService, suite: Path, **nature: object
) -> NatureExecutor:
    return NatureExecutor(
        task,
        runner=runner,
        service=service,
        settings=NatureConfig(**nature),  # pyright: ignore[reportArgumentType]
        folder=suite / "run" / "evaluations",
        suite=suite,
        limits=Limits(),
        clock_seconds=100.0,
    )


def job(key: str | None = "k", code: str = "pass") -> JobRequest:
    return JobRequest(code=code, data_dir="/t", idempotency_key=key, labels={"run": "r"})


LABELS = json.dumps([1, 0, 1, 1]).encode()


async def test_outputs_are_scored_once_and_a_resumed_run_finds_the_verdict(tmp_path: Path) -> None:
    task, service, runner = (
        read_task(nature_task(tmp_path / "cells")),
        Service(),
        Writes(packed({"cells/labels.json": LABELS})),
    )
    with serving(service) as address:
        async with EvaluationService(address, evaluation_seconds=10) as client:
            result = await executor(task, runner, client, tmp_path).run(job())
            again = await executor(task, runner, client, tmp_path).run(job())
            other = await executor(task, runner, client, tmp_path).run(job("another"))
    assert (result.outcome, result.validation_score) == (Outcome.SUCCESS, pytest.approx(0.25))  # (1 - 0.8) / 0.8
    assert again == result
    assert other.validation_score == result.validation_score
    assert len(runner.specs) == 2
    # registered once; in the second life it is known already, and its clock is not started again
    assert service.asked == ["/register", "/start_timer", "/evaluate", "/register", "/evaluate"]
    assert best_gap_of(tmp_path / "run" / "evaluations") == pytest.approx(0.25)
    (spec, _) = runner.specs
    assert dict(spec.inputs) == {"data": task.root / "problem" / "data"}
    assert dict(spec.environment) == {"DATA_DIR": "{inputs}/data"}
    assert address not in repr(spec)


async def test_selection_is_clipped_and_the_report_is_not(tmp_path: Path) -> None:
    task, runner = read_task(nature_task(tmp_path / "cells")), Writes(packed({"cells/labels.json": LABELS}))
    with serving(Service()) as address:
        async with EvaluationService(address, evaluation_seconds=10) as client:
            result = await executor(task, runner, client, tmp_path, clip=0.1).run(job())
    assert result.validation_score == 0.1
    assert best_gap_of(tmp_path / "run" / "evaluations") == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("outputs", "outcome", "signature", "message"),
    [
        (None, Outcome.SUBMISSION_MISSING, "submission_missing", "without writing a file into OUTPUT_DIR"),
        (packed({"x": b""}), Outcome.SCORING_FAILED, "evaluator_failed", "No such file"),
        (packed({"../x": b""}), Outcome.SCORING_FAILED, "outputs_refused", "leads out of it"),
        (b"junk" * 200, Outcome.SCORING_FAILED, "outputs_refused", "cannot be read"),
    ],
)
async def test_outputs_that_cannot_be_scored_are_the_programs_failure(
    tmp_path: Path, outputs: bytes | None, outcome: Outcome, signature: str, message: str
) -> None:
    task, runner = read_task(nature_task(tmp_path / "cells")), Writes(outputs)
    with serving(Service()) as address:
        async with EvaluationService(address, evaluation_seconds=10) as client:
            result = await executor(task, runner, client, tmp_path).run(job())
    assert (result.outcome, result.error_signature, result.validation_score) == (outcome, signature, None)
    assert message in result.message


async def test_a_service_that_is_gone_or_speaks_otherwise_is_no_failure_of_the_program(tmp_path: Path) -> None:
    task, runner = read_task(nature_task(tmp_path / "cells")), Writes(packed({"cells/labels.json": LABELS}))
    for reply in (Reply(503, b"busy"), Reply(422, b"incomplete_metadata"), Reply(200, b"[]")):
        with serving(lambda asked, reply=reply: reply) as address:
            async with EvaluationService(address, evaluation_seconds=1, patience_seconds=0.1) as client:
                with pytest.raises(ExecutorUnavailable, match=re.escape(address)):
                    await executor(task, runner, client, tmp_path).run(job())
    assert not list((tmp_path / "run" / "evaluations").glob("*.json"))


async def test_paths_are_told_as_the_service_sees_them(tmp_path: Path) -> None:
    task, runner = read_task(nature_task(tmp_path / "cells")), Writes(packed({"cells/labels.json": LABELS}))
    bodies = []

    def answer(asked: Asked) -> Reply:
        bodies.append(json.loads(asked.body))
        return Reply(200, b'{"aggregate_improvement": 0.0}')

    with serving(answer) as address:
        async with EvaluationService(address, evaluation_seconds=10) as client:
            await executor(task, runner, client, tmp_path, packages="/nb", outputs="/suite").run(job())
    assert bodies[0]["data_dir"] == "/nb/cells"
    assert bodies[-1]["output_dir"].startswith("/suite/run/evaluations/outputs/")


async def test_a_program_that_nothing_isolates_is_not_run(tmp_path: Path) -> None:
    runner = Writes(None)
    runner.isolation = Isolation.PROCESS
    async with EvaluationService("http://127.0.0.1:9", evaluation_seconds=1) as client:
        with pytest.raises(ConfigError, match="cannot keep a program from the evaluation service"):
            executor(read_task(nature_task(tmp_path / "cells")), runner, client, tmp_path)


def test_only_plain_files_within_the_limit_are_unpacked(tmp_path: Path) -> None:
    unpack(packed({"./a/b": b"12", "c": b"3"}), tmp_path / "out", most_bytes=3)
    assert {path.name: path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()} == {
        "b": "12",
        "c": "3",
    }
    link, pipe = tarfile.TarInfo("link"), tarfile.TarInfo("pipe")
    link.type, link.linkname, pipe.type = tarfile.SYMTYPE, "/etc/passwd", tarfile.FIFOTYPE
    for content, said in (
        (packed({"a": b"1234"}), "more than 0 MiB"),
        (packed({}, link), "no plain file: link"),
        (packed({}, pipe), "no plain file: pipe"),
        (packed({"/etc/x": b""}), "leads out of it"),
        (packed({"a": b"", "./a": b""}), "cannot be read"),
        (packed({"a": b"", "a/b": b""}), "cannot be read"),
        (packed({"a": b"x"})[:200], "cannot be read"),
    ):
        with pytest.raises(OutputsRefused, match=said):
            unpack(content, tmp_path / "out", most_bytes=3)


@pytest.mark.parametrize("columns", [1, 60])
def test_prompts_are_in_the_benchmarks_words(tmp_path: Path, columns: int) -> None:
    task = read_task(nature_task(tmp_path / "cells"))
    public = public_nature_task(task, PromptConfig(columns=columns))
    prompt = build_prompt(Operator.DRAFT, public, (), Surroundings(limits=Limits()))
    text = prompt[-1].content
    assert text.endswith(CONTRACT)
    assert "Label the cells" in text
    assert "- cells: accuracy, higher is better" in text
    assert "`train.csv`: 4 rows, 2 columns" in text
    for absent in ("submission", "id columns", "target columns", "hidden.json"):
        assert absent not in text


def test_the_lite_suite_has_the_published_tasks_and_budgets() -> None:
    own = ["suite=naturebench_lite", "packages=p", "policy=openai", "suite_dir=s", "nature.service=http://h:1"]
    config = load_config(EvaluateConfig, "evaluate", configs=CONFIGS, overrides=own)
    assert tuple(config.names) == LITE_V2
    budget, schedule = config.budget, config.schedule
    assert (budget.attempts, budget.sandbox_seconds, budget.wall_seconds) == (159, 14_400, 21_600)
    assert (schedule.max_debug_depth, schedule.max_debug_seconds, schedule.draft_probability) == (2, 1200, 0.2)
    assert config.nature.clip == 1.0
    for wrong, said in (
        (["policy=recipes"], "needs a model"),
        (["nature.service=''"], "nature.service"),
        (["service=http://h:2"], "service: programs of NatureBench run on this machine"),
        (["benchmark=other"], "benchmark: must be one of"),
        (["nature.clip=-1"], "nature.clip"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_config(EvaluateConfig, "evaluate", configs=CONFIGS, overrides=[*own, *wrong])


def _outcome(task: str, gap: float | None) -> RunOutcome:
    return RunOutcome(
        task=task,
        run=0,
        valid=gap is not None,
        higher_is_better=True,
        has_leaderboard=False,
        against_sota=True,
        gap=gap,
    )


def test_match_surpass_and_gap_by_hand() -> None:
    first = [_outcome("a", 0.2), _outcome("b", 0.1), _outcome("c", 0.0), _outcome("d", None)]
    result = summarise(first)
    rates = (result.match_rate, result.surpass_rate, result.mean_gap)
    means = [rate.mean for rate in rates if rate is not None]
    assert means == [0.75, 0.25, pytest.approx((0.2 + 0.1 + 0.0 - 1.0) / 4)]
    assert (result.medal_average, result.without_leaderboard) == (None, ())
    compared = {each.measure: each for each in compare(first, [_outcome(task, -0.1) for task in "abcd"])}
    assert list(compared) == ["valid_rate", "match_rate", "surpass_rate", "mean_gap"]
    assert compared["match_rate"].difference == 0.75
    assert compared["mean_gap"].difference == pytest.approx(-0.175 + 0.1)


@pytest.mark.slow
def test_a_suite_of_a_miniature_runs_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nature_task(tmp_path / "tasks" / "cells")
    service, suite = Service(), tmp_path / "suite"
    programs = ("raise ValueError(1)", PROGRAM.replace("SHIFT", "0.15"), PROGRAM.replace("SHIFT", "0.0"))
    with ExitStack() as stack:
        evaluator = stack.enter_context(serving(service))
        endpoint = stack.enter_context(serving(model(lambda number: programs[min(number, 2)])))
        monkeypatch.setenv("OPENAI_BASE_URL", f"{endpoint}/v1")
        monkeypatch.setenv("OPENMLE_MODEL", "m")
        command = ["evaluate", "suite=naturebench_lite", "names=[cells]", f"packages={tmp_path / 'tasks'}", "workers=1"]
        command += [f"suite_dir={suite}", f"nature.service={evaluator}", "policy=openai", "budget.attempts=3"]
        command += ["timeout_seconds=60", "memory_mib=1024"]
        assert main(command) == 0
        result = json.loads(capsys.readouterr().out)
        asked = len(service.asked)
        assert main(command) == 0
        assert json.loads(capsys.readouterr().out) == result
        assert len(service.asked) == asked
    run = suite / "cells" / "run-0"
    facts = read_run(run)
    assert facts.manifest.protocol == "evaluator"
    scores = [card.validation.value if card.validation else None for card in facts.cards]
    # 0.65: 0.6 is missed, 3 of 4; 0.5: all; the gaps to 0.8 are -0.0625 and 0.25
    assert scores == [None, pytest.approx(-0.0625), pytest.approx(0.25)]
    assert facts.cards[0].error_signature == "ValueError@<module>"
    assert facts.cards[1].operator is Operator.DEBUG
    assert facts.cards[2].log_head.startswith("[]")  # no variable names the service
    assert all(evaluator not in card.log_head for card in facts.cards)
    prompts = [m.content for exchange in read_exchanges(run).values() for m in exchange.messages if m.role == "user"]
    assert all("OUTPUT_DIR" in prompt and "submission" not in prompt for prompt in prompts)
    assert all(finding.passed for finding in audit(run))
    (outcome,) = outcomes(suite)
    assert outcome.gap == pytest.approx(0.25)
    assert result["result"]["surpass_rate"]["mean"] == 1.0
    assert main(["resume", str(run)]) == 2
