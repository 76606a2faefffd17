"""The road of one program, hand-over by hand-over (design: the road of one program), for six kinds of reply.

operator and parents -> prompt -> policy -> reply parsed -> reviewer -> executor -> isolated run -> submission
-> typed validation -> metric, apart -> result -> card -> what may become a parent
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import toy
from openmle_evo.config import ScheduleConfig, SearchConfig
from openmle_evo.islands import Islands
from openmle_evo.schedule import choose
from openmle_gym.chat import Completion
from openmle_gym.client import JobClient
from openmle_gym.evaluate import Attempt, JobSettings, evaluate_reply
from openmle_gym.execute import LOG_END, LOG_START, LocalExecutor, program_spec
from openmle_gym.experience import ExperienceCard
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.isolation.runner import Runner
from openmle_gym.jobs import Executor, JobRequest, JobResult, Limits, Outcome
from openmle_gym.operators import Operator
from openmle_gym.program import parse_reply
from openmle_gym.prompts import Surroundings, build_prompt, public_task
from openmle_gym.review import review_program
from openmle_gym.store import CardStore
from openmle_gym.task import TaskPackage
from pydantic import SecretStr
from sandbox_service.app import create_app
from sandbox_service.artifact_store import ArtifactStore
from sandbox_service.auth import Keys
from sandbox_service.dispatch.local import LocalDispatcher
from sandbox_service.packages import Packages
from sandbox_service.records import QueuePolicy
from sandbox_service.scheduler import Scheduler
from sandbox_service.slots import Slots
from sandbox_service.store import JobStore

TIMEOUT_SECONDS = 4.0


@pytest.fixture
def package(tmp_path: Path) -> TaskPackage:
    return toy.write_toy_package(tmp_path / "tasks" / "toy")


@pytest.fixture
async def runner() -> Runner:
    return await strongest_runner("auto", docker_image="none/such:image", allow_process=True)


@asynccontextmanager
async def local(package: TaskPackage, runner: Runner, _: Path) -> AsyncIterator[Executor]:
    yield LocalExecutor(task_root=package.root.parent, runner=runner, parallel=2)


@asynccontextmanager
async def service(package: TaskPackage, runner: Runner, state: Path) -> AsyncIterator[Executor]:
    """The real application over its real HTTP interface, without a socket."""
    async with AsyncExitStack() as stack:
        packages = Packages([package.root.parent])
        scheduler = Scheduler(
            store=JobStore(state / "jobs.sqlite", QueuePolicy(max_queued=100)),
            packages=packages,
            dispatcher=LocalDispatcher(runner=runner, packages=packages, limits=Limits(), slots=Slots(cpu=2)),
            artifacts=ArtifactStore(state / "artifacts"),
        )
        await stack.enter_async_context(scheduler)
        app = create_app(scheduler, Keys(SecretStr("submit:walker")), max_body_bytes=1_000_000)
        client = JobClient("http://box", api_key=SecretStr("walker"), transport=httpx.ASGITransport(app))
        yield await stack.enter_async_context(client)


@pytest.fixture(params=[local, service], ids=["local", "service"])
async def executor(
    request: pytest.FixtureRequest, package: TaskPackage, runner: Runner, tmp_path: Path
) -> AsyncIterator[Executor]:
    async with request.param(package, runner, tmp_path) as place:
        yield place


class Watching:
    """Lets a test see what passes between the policy's side and the executor."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.seen: list[tuple[JobRequest, JobResult]] = []

    async def run(self, job: JobRequest) -> JobResult:
        result = await self.inner.run(job)
        self.seen.append((job, result))
        return result


SEARCH = SearchConfig(task="toy", schedule=ScheduleConfig(initial_drafts=100))


async def judge(text: str, package: TaskPackage, executor: Executor, attempt: int = 0) -> ExperienceCard:
    choice = choose(attempt, [], [], Islands(SEARCH.islands, 0), SEARCH)
    assert (choice.operator, choice.parents) == (Operator.DRAFT, ())
    prompt = build_prompt(choice.operator, public_task(package), [], Surroundings(limits=Limits()))
    assert "Predict y from x." in prompt[1].content
    made = Attempt(
        run_id="walk",
        task=package.name,
        attempt=attempt,
        operator=choice.operator,
        parents=choice.parents,
        selection=choice.selection,
    )
    settings = JobSettings(data_dir=str(package.root), timeout_seconds=TIMEOUT_SECONDS)
    return await evaluate_reply(Completion(text=text, model="walk"), made, executor=executor, settings=settings)


async def test_a_good_reply_becomes_a_scored_card_that_may_be_a_parent(
    package: TaskPackage, executor: Executor, tmp_path: Path
) -> None:
    watching = Watching(executor)
    card = await judge(toy.reply(toy.GOOD), package, watching)
    [(job, result)] = watching.seen
    program = parse_reply(toy.reply(toy.GOOD))
    assert job.code == program.source
    assert job.idempotency_key == f"walk-0-{program.program_id}"
    assert job.labels == {"run": "walk", "attempt": "0"}
    assert (result.outcome, result.validation_score, result.test_score) == (Outcome.SUCCESS, 0.0, None)
    assert result.run_log.startswith(LOG_START)
    assert result.run_log.rstrip().endswith(LOG_END)
    assert card.outcome is Outcome.SUCCESS
    assert card.program_id == program.program_id
    assert card.validation is not None
    assert (card.validation.value, card.validation.higher_is_better) == (0.0, False)
    assert card.self_reported is not None
    assert card.self_reported.value == 0.0
    assert card.test is None
    assert card.log_head == "Final Validation Score: 0.0"
    assert card.sandbox_seconds > 0
    assert card.isolation == result.isolation != ""
    assert card.may_parent(Operator.IMPROVE)
    assert not card.may_parent(Operator.DEBUG)
    store = CardStore(tmp_path / "cards.sqlite")
    store.append(card)
    assert store.cards(task="toy") == [card]


async def test_a_worse_reply_scores_worse_and_does_not_join_the_population(
    package: TaskPackage, executor: Executor
) -> None:
    good = await judge(toy.reply(toy.GOOD), package, executor, 0)
    worse = await judge(toy.reply(toy.WORSE), package, executor, 1)
    assert worse.validation is not None
    assert worse.validation.value == pytest.approx(3.0)
    assert [member.attempt for member in Islands(SEARCH.islands, 0, [good, worse]).members[0]] == [0]


async def test_a_submission_of_nan_fails_scoring_and_is_there_to_be_mended(
    package: TaskPackage, executor: Executor
) -> None:
    card = await judge(toy.reply(toy.WRITES_NAN), package, executor)
    assert card.outcome is Outcome.SCORING_FAILED
    assert card.validation is None
    assert card.error_signature == "missing_value"
    assert "'y'" in card.message
    assert card.may_parent(Operator.DEBUG)
    choice = choose(1, [card], [], Islands(SEARCH.islands, 0, [card]), SEARCH)
    assert (choice.operator, choice.parents) == (Operator.DEBUG, (0,))
    prompt = build_prompt(Operator.DEBUG, public_task(package), [card], Surroundings(limits=Limits()))[1].content
    assert card.message in prompt


async def test_prose_never_reaches_the_executor(package: TaskPackage, executor: Executor) -> None:
    watching = Watching(executor)
    card = await judge(toy.PROSE, package, watching)
    assert watching.seen == []
    assert (card.outcome, card.error_signature, card.program_id) == (Outcome.CODE_MISSING, "no_code", None)
    assert not card.may_parent(Operator.DEBUG)


async def test_a_program_that_never_ends_is_stopped_and_its_log_kept(package: TaskPackage, executor: Executor) -> None:
    card = await judge(toy.reply('print("started", flush=True)\n' + toy.NEVER_ENDS), package, executor)
    assert (card.outcome, card.error_signature) == (Outcome.TIMEOUT, "timeout")
    assert card.log_head == "started"
    assert card.sandbox_seconds >= TIMEOUT_SECONDS


async def test_a_program_that_goes_for_the_answers_is_refused_before_it_runs(
    package: TaskPackage, executor: Executor
) -> None:
    watching = Watching(executor)
    card = await judge(toy.reply(toy.READS_ANSWERS), package, watching)
    assert watching.seen == []
    assert (card.outcome, card.error_signature) == (Outcome.REJECTED, "reads_answers")
    assert not any(card.may_parent(operator) for operator in Operator)


async def test_a_crash_names_the_error_and_the_programs_own_function(package: TaskPackage, executor: Executor) -> None:
    card = await judge(toy.reply(toy.CRASHES), package, executor)
    assert (card.outcome, card.error_signature) == (Outcome.CODE_EXECUTION_ERROR, "KeyError@fit")
    assert "KeyError: 'missing'" in card.message


async def test_a_syntax_error_needs_no_sandbox(package: TaskPackage, executor: Executor) -> None:
    watching = Watching(executor)
    card = await judge(toy.reply("import os\ndef f(:\n    pass\n"), package, watching)
    assert watching.seen == []
    assert (card.outcome, card.error_signature) == (Outcome.CODE_EXECUTION_ERROR, "SyntaxError")
    assert card.may_parent(Operator.DEBUG)


def test_a_program_is_given_the_public_folder_and_nothing_else(package: TaskPackage) -> None:
    spec = program_spec(JobRequest(code=toy.GOOD, data_dir="toy"), package, Limits())
    assert spec.inputs == {"data": package.public_dir}
    assert set(spec.files) == {"main.py"}
    assert set(spec.environment) == {"DATA_DIR"}
    assert review_program(parse_reply(toy.reply(toy.GOOD))).accepted
