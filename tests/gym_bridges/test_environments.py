"""The faces of one task: Gymnasium, verifiers, OpenEnv. For the latter two see scripts/test_adapters.sh."""

import asyncio
import copy
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from gymnasium.utils.env_checker import check_env
from openmle_gym.bridges.episode import Episode
from openmle_gym.env import TaskEnv
from openmle_gym.errors import ExecutorUnavailable
from openmle_gym.execute import LocalExecutor
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.jobs import Executor, JobRequest, JobResult, Outcome
from openmle_gym.operators import Operator
from openmle_gym.task import TaskPackage
from scripted_server import Asked, Reply, serving
from toy import CRASHES, GOOD, WORSE, reply, write_toy_package


class Judged:
    """An executor that has its verdicts ready: a number is a validation score, text an error."""

    def __init__(self, verdicts: dict[str, float | str]) -> None:
        self.verdicts = verdicts
        self.jobs: list[JobRequest] = []

    async def run(self, job: JobRequest) -> JobResult:
        self.jobs.append(job)
        verdict = self.verdicts.get(job.code.strip(), "unknown program")
        if isinstance(verdict, str):
            return JobResult(outcome=Outcome.CODE_EXECUTION_ERROR, error_signature=verdict, message=verdict)
        return JobResult(outcome=Outcome.SUCCESS, validation_score=verdict, higher_is_better=False)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> TaskPackage:
    return write_toy_package(tmp_path_factory.mktemp("tasks") / "toy")


def executor(package: TaskPackage) -> Executor:
    return LocalExecutor(task_root=package.root.parent, runner=ProcessRunner(allow_no_isolation=True))


async def test_an_episode_drafts_then_mends_then_improves(package: TaskPackage) -> None:
    episode = Episode(package, executor=Judged({"bad = 1": "E", "good = 1": 3.0, "best = 1": 1.0}), attempts=3)
    assert episode.operator is Operator.DRAFT
    crashed = await episode.step("```python\nbad = 1\n```")
    assert (crashed.reward, crashed.done, episode.operator) == (0.0, False, Operator.DEBUG)
    assert "bad = 1" in episode.prompt()[1].content
    # the board has the scores 0.5, 1.0, ... 10.0, lower is better: 3.0 beats the 14 above it
    scored = await episode.step("```python\ngood = 1\n```")
    assert (scored.reward, episode.operator) == (14 / 20, Operator.IMPROVE)
    assert scored.card.parents == (0,)
    last = await episode.step("```python\nbest = 1\n```")
    assert (last.reward, last.done) == (18 / 20, True)
    assert episode.best is not None
    assert episode.best.attempt == 2
    with pytest.raises(ValueError, match="over after 3"):
        await episode.step("x = 1")


async def test_after_two_mendings_the_operator_changes(package: TaskPackage) -> None:
    episode = Episode(package, executor=Judged({}), attempts=9)
    asked = []
    for n in range(4):
        asked.append(episode.operator)
        await episode.step(f"```python\nx = {n}\n```")
    assert asked == [Operator.DRAFT, Operator.DEBUG, Operator.DEBUG, Operator.DRAFT]


def test_gymnasium_s_own_check_passes(package: TaskPackage) -> None:
    env = TaskEnv(package, executor=Judged({}), attempts=50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*(spec|bounds|infinity|not used the environment|WARN).*")
        check_env(env, skip_render_check=True)
    env.close()


def test_a_program_is_an_action_and_ends_in_five_facts(package: TaskPackage) -> None:
    env = TaskEnv(package, executor=executor(package), attempts=2)
    first, info = env.reset(seed=1)
    assert info == {}
    assert "Predict y from x." in first["prompt"]
    assert (int(first["outcome"]), int(first["scored"])) == (0, 0)
    observation, reward, terminated, truncated, info = env.step(reply(WORSE))
    assert (int(observation["scored"]), float(observation["score"])) == (1, 3.0)
    assert (reward, terminated, truncated) == (14 / 20, False, False)
    assert list(Operator)[int(observation["operator"])] is Operator.IMPROVE
    observation, reward, terminated, truncated, info = env.step(CRASHES)
    assert (reward, terminated, truncated, int(observation["scored"])) == (0.0, False, True, 0)
    assert "KeyError" in observation["message"]
    assert observation in env.observation_space
    again, _ = env.reset()
    assert again == first
    env.close()


def test_text_beyond_the_space_is_shown_as_question_marks(package: TaskPackage) -> None:
    env = TaskEnv(package, executor=Judged({"x = 1": "caf\u00e9"}), attempts=2)
    with pytest.raises(ValueError, match="reset the environment first"):
        env.step("x = 1")
    env.reset()
    observation, *_ = env.step("x = 1")
    assert observation["message"] == "caf?"
    env.close()


def streamed(text: str) -> Reply:
    """A completion as an OpenAI-compatible endpoint streams it, which is how verifiers asks for it."""

    def event(delta: dict[str, str], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        body = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "scripted", "choices": [choice]}
        return f"data: {json.dumps(body)}\n\n"

    body = event({"role": "assistant", "content": text}) + event({}, "stop") + "data: [DONE]\n\n"
    return Reply(200, body.encode(), {"Content-Type": "text/event-stream"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "earned", "scored"), [(WORSE, 14 / 20, 1.0), (GOOD, 1.0, 1.0), (CRASHES, 0.0, 0.0)]
)
async def test_verifiers_own_rollout_against_an_endpoint_ends_in_a_reward(
    package: TaskPackage, program: str, earned: float, scored: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    vf = pytest.importorskip("verifiers.v1")
    if shutil.which("uv") is None:
        pytest.skip("no uv, with which verifiers starts its chat program")
    from openmle_gym.bridges.verifiers_taskset import MLETaskset, MLETasksetConfig

    asked: list[str] = []

    def answer(question: Asked) -> Reply:
        asked.append(question.body.decode())
        return streamed(reply(program))

    monkeypatch.setenv("ENDPOINT_KEY", "none")
    config = MLETasksetConfig(packages=[package.root], runner="process", allow_process=True)
    (task,) = MLETaskset(config)
    with serving(answer) as base_url:
        client = vf.EvalClientConfig(base_url=f"{base_url}/v1", api_key_var="ENDPOINT_KEY")
        seat = vf.AgentConfig(model="scripted", client=client, harness={"id": "null"}, runtime={"type": "subprocess"})
        async with vf.make_agent(seat) as agent:
            trace = await agent.run(copy.deepcopy(task))
    assert trace.ok, trace.errors
    assert (trace.reward, trace.metrics) == (earned, {"scored": scored})
    assert len(asked) == 1
    assert "Predict y from x." in asked[0]


@pytest.mark.slow
def test_the_command_of_verifiers_finds_the_taskset_by_its_name(package: TaskPackage, tmp_path: Path) -> None:
    """As docs/bridges.md shows it."""
    pytest.importorskip("verifiers.v1")
    if shutil.which("uv") is None:
        pytest.skip("no uv, with which verifiers starts its chat program")
    (tmp_path / "mle_tasks.py").write_text(
        'from openmle_gym.bridges.verifiers_taskset import MLETaskset\n\n__all__ = ["MLETaskset"]\n'
    )
    with serving(lambda _: streamed(reply(WORSE))) as base_url:
        (tmp_path / "run.toml").write_text(
            f"""
model = "scripted"
num_rollouts = 1
push = false
output_dir = "out"

[client]
base_url = "{base_url}/v1"
api_key_var = "ENDPOINT_KEY"

[env.taskset]
id = "mle_tasks"
packages = ["{package.root}"]
runner = "process"
allow_process = true

[env.agent]
harness.id = "null"
runtime.type = "subprocess"
"""
        )
        modules = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": modules, "ENDPOINT_KEY": "none"}
        command = [str(Path(sys.executable).with_name("vf-eval")), "@", "run.toml"]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (line,) = next((tmp_path / "out").rglob("traces.jsonl")).read_text().splitlines()
    assert '"rewards":{"standing":{"score":0.7,"weight":1.0}},"metrics":{"scored":1.0}' in line, line


async def test_in_verifiers_trouble_of_the_machinery_is_no_reward(package: TaskPackage) -> None:
    pytest.importorskip("verifiers.v1")
    from openmle_gym.bridges.verifiers_taskset import MLETaskset, MLETasksetConfig

    class Down:
        async def run(self, job: JobRequest) -> JobResult:
            raise ExecutorUnavailable("no worker answers")

    class Trace:
        id = "one"
        last_reply = reply(GOOD)

    (task,) = MLETaskset(MLETasksetConfig(packages=[package.root]), executor=Down())
    with pytest.raises(ExecutorUnavailable):
        await task.standing(Trace())


def test_openenv_steps_through_a_task(package: TaskPackage) -> None:
    pytest.importorskip("openenv")
    from openmle_gym.bridges.openenv_server import MLEEnvironment, ProgramAction

    environment = MLEEnvironment(package.root, executor=executor(package), attempts=2)
    first = environment.reset(episode_id="one")
    assert (first.operator, first.outcome, first.done) == ("draft", None, False)
    worse = environment.step(ProgramAction(program=reply(WORSE)))
    assert (worse.score, worse.reward, worse.operator) == (3.0, 14 / 20, "improve")
    last = asyncio.run(environment.step_async(ProgramAction(program=CRASHES)))
    assert (last.done, last.reward, last.score) == (True, 0.0, None)
    assert (environment.state.step_count, environment.state.episode_id) == (2, "one")
