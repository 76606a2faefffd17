"""Who answers: one policy for each operator, pools from settings, prices; and many workers under one budget."""

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from evo.make import HashExecutor
from evo.make_package import make_package
from evo.test_search import MANIFEST, search
from openmle_evo.cli import main
from openmle_evo.config import CONFIGS, BudgetConfig, MixtureConfig, SearchConfig
from openmle_evo.policy import PROFILES, log_estimate, open_policies
from openmle_evo.run import RunDirectory
from openmle_gym.chat import Completion, Message, OpenAIChat
from openmle_gym.configuration import load_config
from openmle_gym.errors import ConfigError
from openmle_gym.jobs import JobRequest, JobResult
from openmle_gym.memory import MemoryConfig
from openmle_gym.operators import Operator
from openmle_gym.policies.pool import PolicyPool
from openmle_gym.policies.recipes import RecipePolicy
from openmle_gym.policies.settings import PolicyConfig, open_policy, read_profile


class Named:
    """Answers with a program, under its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        return Completion(text=f"plan\n```python\nprint({seed})\n```", model=self.name)


def load(*overrides: str) -> SearchConfig:
    return load_config(SearchConfig, "search", configs=CONFIGS, overrides=["task=x", *overrides])


async def test_each_operator_is_answered_by_its_own_policy_and_the_cards_tell(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, MANIFEST)
    mixed = search(run, steps=30, memory=MemoryConfig(notes="model"))
    mixed.policy = Named("default")
    mixed.mixture = {Operator.IMPROVE: Named("strong"), Operator.DEBUG: Named("cheap"), "note": Named("scribe")}
    await mixed.run_to_end()
    models = {Operator.DRAFT: "default", Operator.CROSSOVER: "default", Operator.IMPROVE: "strong"}
    assert {(card.operator, card.model) for card in run.cards()} == {*models.items(), (Operator.DEBUG, "cheap")}
    assert {call.model for call in run.calls() if call.purpose == "note"} == {"scribe"}


def test_a_mixture_is_one_setting() -> None:
    assert load("mixture={improve: sglang, draft: recipes}").mixture.profiles == {
        "improve": "sglang",
        "draft": "recipes",
    }
    assert load("mixture.note=vllm").mixture.profiles == {"note": "vllm"}
    with pytest.raises(ConfigError, match="fly"):
        load("mixture={fly: sglang}")


async def test_a_mixture_opens_the_profiles_that_it_names() -> None:
    mixture = MixtureConfig(improve="frontis_30b", debug="frontis_30b", draft="recipes")
    async with open_policies(SearchConfig(task="x", mixture=mixture)) as policies:
        assert isinstance(policies.default, RecipePolicy)
        improve = policies.mixture[Operator.IMPROVE]
        assert isinstance(improve, OpenAIChat)
        assert improve.model == "Frontis-MA1-30B"
        assert policies.mixture[Operator.DEBUG] is improve
        assert isinstance(policies.mixture[Operator.DRAFT], RecipePolicy)
        assert Operator.CROSSOVER not in policies.mixture


async def test_fallbacks_make_a_pool_and_an_unreachable_endpoint_is_passed_over() -> None:
    config = PolicyConfig(
        kind="openai", base_url="http://127.0.0.1:9/v1", model="m", patience_seconds=0.0, fallbacks=["recipes"]
    )
    prompt = [Message(role="user", content="# Summary\n\nIts plan:\n\nRidge.")]
    async with open_policy(config, PROFILES) as policy:
        assert isinstance(policy, PolicyPool)
        assert (await policy.complete(prompt, seed=0)).model == "recipes"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (SearchConfig(task="x", policy=PolicyConfig(fallbacks=["nobody"])), "policy.fallbacks: no policy profile 'nobody'"),
        (SearchConfig(task="x", mixture=MixtureConfig(debug="nobody")), "mixture: no policy profile 'nobody'"),
        (
            SearchConfig(
                task="x",
                policy=PolicyConfig(prompt_price=1.0, completion_price=1.0),
                budget=BudgetConfig(dollars=5.0),
                mixture=MixtureConfig(improve="frontis_30b"),
            ),
            "budget.dollars: no prices of Frontis-MA1-30B",
        ),
    ],
)  # fmt: skip
async def test_a_wrong_mixture_is_named_before_anything_is_asked(config: SearchConfig, named: str) -> None:
    with pytest.raises(ConfigError) as error:
        async with open_policies(config):
            pass
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (["policy=hosted_openai", "policy.model=gpt", "budget.dollars=1"], "budget.dollars: no prices of gpt"),
        (["policy=openai"], "policy: set policy.base_url and policy.model"),
        (["tokenizer=/nowhere/tokenizer.json"], "tokenizer=/nowhere/tokenizer.json: no such file"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_before_a_run_is_made(
    setting: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    package = make_package(tmp_path / "tasks")
    assert main(["search", f"task={package.root}", f"run_dir={tmp_path / 'run'}", *setting]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["frontis_30b", "frontis_35b", "qwen3_30b", "qwen36_35b"])
def test_the_released_models_sample_as_published(name: str) -> None:
    profile = read_profile(PROFILES, name)
    assert (profile.temperature, profile.top_p, profile.max_tokens) == (0.6, 0.95, 32768)
    assert profile.extra == {"top_k": 20, "min_p": 0, "chat_template_kwargs": {"enable_thinking": True}}
    assert profile.model


@pytest.mark.parametrize("path", sorted((CONFIGS / "policy").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_profile_stands_alone_as_in_the_search(path: Path) -> None:
    assert read_profile(PROFILES, path.stem) == load(f"policy={path.stem}").policy


def test_the_estimate_goes_by_the_dearest_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    cheap = PolicyConfig(kind="openai", prompt_price=0.0, completion_price=1.0, max_tokens=1000, prices_of="2026-11-01")
    with caplog.at_level(logging.INFO, logger="openmle_evo"):
        log_estimate(SearchConfig(task="x", budget=BudgetConfig(attempts=1000), policy=cheap))
    assert "at most about $1.00 (prices of 2026-11-01)" in caplog.text  # 1000 x 1000 tokens at 1 for a million
    caplog.clear()
    log_estimate(SearchConfig(task="x"))
    assert caplog.text == ""


async def test_eight_workers_share_the_sandbox_budget_of_one(tmp_path: Path) -> None:
    package = make_package(tmp_path / "tasks")
    config = load("search=openmle_max", f"task={package.root}", "budget.sandbox_seconds=20", "budget.attempts=200")
    assert config.workers == 8
    spent = []
    for workers in (1, config.workers):
        run = RunDirectory.create(tmp_path / str(workers), MANIFEST)
        await search(run, executor=HashExecutor(), steps=200, workers=workers, sandbox_seconds=20.0).run_to_end()
        spent.append(sum(card.sandbox_seconds for card in run.cards()))
    assert spent[0] == 20.0
    assert 20.0 <= spent[1] <= 20.0 + config.workers - 1  # those under way when it is spent come to their end


async def test_no_program_gets_more_time_than_the_shared_budget_has_left(tmp_path: Path) -> None:
    class Watching(HashExecutor):
        def __init__(self) -> None:
            super().__init__()
            self.given: list[float] = []

        async def run(self, job: JobRequest) -> JobResult:
            self.given.append(job.timeout_seconds)
            return await super().run(job)

    executor, run = Watching(), RunDirectory.create(tmp_path, MANIFEST)
    await search(run, executor=executor, steps=200, workers=8, sandbox_seconds=20.0).run_to_end()
    assert max(executor.given) <= 20.0
    assert min(executor.given) < 5.0
