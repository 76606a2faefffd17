"""Generated programs behave the same under every runner: what they make, what is refused, and what is said of it."""

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from gym_build.made_up import (
    BAD_METRICS,
    BAD_PREPARES,
    METRIC,
    PREPARE,
    SPEC_FIELDS,
    code_reply,
    draft,
    houses,
    json_reply,
)
from gym_build.scripted_model import serve_model
from openmle_gym.build import BuildRequest, build_package, parse_source
from openmle_gym.build.judge_metric import judge_metric
from openmle_gym.build.judge_prepare import judge_prepare
from openmle_gym.build.run_prepare import PrepareSettings
from openmle_gym.build.state import tree_hashes
from openmle_gym.chat import OpenAIChat
from openmle_gym.check import check_package
from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.bubblewrap import BubblewrapRunner
from openmle_gym.isolation.docker import DockerRunner
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.isolation.runner import Isolation, Runner
from openmle_gym.isolation.zygote import ZygoteRunner
from openmle_gym.jobs import Limits
from openmle_gym.task import load_package

MAKE: dict[str, Callable[[], Runner]] = {
    "docker": lambda: DockerRunner(image="openmle/sandbox:cpu"),
    "zygote": lambda: ZygoteRunner(parents=1),
    "bubblewrap": BubblewrapRunner,
    "process": lambda: ProcessRunner(allow_no_isolation=True),
}


@functools.cache
def made(name: str) -> Runner | str:
    """The runner, or why this machine has it not."""
    runner = MAKE[name]()
    try:
        asyncio.run(runner.check())
    except RunnerUnavailable as error:
        return str(error)
    return runner


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.docker] * (name == "docker")) for name in MAKE])
def runner(request: pytest.FixtureRequest) -> Runner:
    found = made(request.param)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    (folder / "train.csv").write_text(houses())
    return folder


async def judged(source: str, raw: Path, folder: Path, runner: Runner, seconds: float = 120.0):
    scratch = folder / "runs"
    scratch.mkdir()
    settings = PrepareSettings(limits=Limits(wall_seconds=seconds))
    return await judge_prepare(source, draft(folder), raw=raw, runner=runner, settings=settings, scratch=scratch)


async def test_a_good_prepare_and_metric_are_accepted(runner: Runner, raw: Path, tmp_path: Path) -> None:
    judgement = await judged(PREPARE, raw, tmp_path, runner)
    assert judgement.accepted, judgement.feedback
    assert len(tree_hashes(tmp_path / "data")) == 5
    (tmp_path / "metric").mkdir()
    judgement = await judge_metric(METRIC, draft(tmp_path), runner=runner, scratch=tmp_path / "metric")
    assert judgement.accepted, judgement.feedback
    code = "metric_execution_failed"
    judgement = await judge_metric(BAD_METRICS[code], draft(tmp_path), runner=runner, scratch=tmp_path / "metric")
    assert judgement.code == code
    assert 'both["prediction"]' in judgement.feedback


ELSEWHERE = PREPARE.replace("    table =", '    (raw.parent / "notes.csv").write_text("a")\n    table =')
"""Beside the raw data: an isolating runner does not let it."""


async def test_what_the_isolation_keeps_from_writing_is_told_where_it_may(
    runner: Runner, raw: Path, tmp_path: Path
) -> None:
    if runner.isolation is Isolation.PROCESS:
        pytest.skip("it keeps nobody from writing")
    judgement = await judged(ELSEWHERE, raw, tmp_path, runner)
    assert judgement.code == "wrote_outside", judgement.feedback
    assert "below `public` and `private` only" in judgement.feedback


@pytest.mark.parametrize("code", ["wrote_outside", "raw_modified", "not_deterministic", "links", "KeyError"])
async def test_a_bad_prepare_is_rejected_for_the_same_reason(
    code: str, runner: Runner, raw: Path, tmp_path: Path
) -> None:
    judgement = await judged(BAD_PREPARES[code], raw, tmp_path, runner)
    assert not judgement.accepted
    assert judgement.code == code, judgement.feedback
    assert (raw / "train.csv").read_text() == houses()


@pytest.mark.slow
async def test_a_whole_build_and_its_check_work_though_the_model_errs(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(houses())
    script = {
        "describe": [json_reply(SPEC_FIELDS)],
        "prepare": [code_reply(BAD_PREPARES["KeyError"]), code_reply(PREPARE)],
        "metric": [code_reply(BAD_METRICS["metric_execution_failed"]), code_reply(METRIC)],
    }
    wanted = BuildRequest(
        source=parse_source(str(tmp_path / "train.csv")), work=tmp_path / "work", output=tmp_path / "tasks"
    )
    with serve_model(script) as model:
        async with OpenAIChat(model.base_url, model="scripted", patience_seconds=0.0) as chat:
            report = await build_package(wanted, model=chat, runner=runner)
        assert {name: len(model.asked(name)) for name in script} == {"describe": 1, "prepare": 2, "metric": 2}
        assert "KeyError" in model.asked("prepare")[1]
        assert "KeyError" in model.asked("metric")[1]
    assert report.ok, report
    package = load_package(tmp_path / "tasks" / "train")
    assert (package.root / "raw/train.csv").read_text() == houses()
    checked = await check_package(package.root, runner=runner)
    assert checked.passed, checked.findings
    assert checked.not_checked == {}


async def test_a_prepare_that_does_not_end_is_told_so(runner: Runner, raw: Path, tmp_path: Path) -> None:
    source = "def prepare(raw, public, private):\n    while True:\n        pass\n"
    judgement = await judged(source, raw, tmp_path, runner, seconds=2.0)
    assert (judgement.code, judgement.accepted) == ("timeout", False)
