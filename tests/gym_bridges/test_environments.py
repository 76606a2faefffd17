"""The faces of one task: Gymnasium, verifiers, OpenEnv. The latter two need packages that tests do not install."""

import asyncio
import warnings

import pytest
from gymnasium.utils.env_checker import check_env
from openmle_gym.bridges.episode import Episode
from openmle_gym.env import TaskEnv
from openmle_gym.execute import LocalExecutor
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.jobs import Executor, JobRequest, JobResult, Outcome
from openmle_gym.operators import Operator
from openmle_gym.task import TaskPackage
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


async def test_verifiers_rewards_a_reply(package: TaskPackage) -> None:
    pytest.importorskip("verifiers")
    from openmle_gym.bridges.verifiers_taskset import MLETaskset, MLETasksetConfig

    taskset = MLETaskset(MLETasksetConfig(packages=[package.root]), executor=executor(package))
    (task,) = list(taskset)
    assert "Predict y from x." in task.data.prompt_text

    class Reply:
        id = "one"
        last_reply = reply(GOOD)
        metrics: dict[str, float] = {}  # noqa: RUF012

        def record_metric(self, name: str, value: float) -> None:
            self.metrics[name] = value

    assert await task.standing(Reply()) == 1.0
    assert Reply.metrics == {"scored": 1.0}


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
