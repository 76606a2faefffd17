"""Settings come from defaults, profiles and overrides, and a wrong one stops the run by name."""

import dataclasses

import pytest
from openmle_evo.cli import main
from openmle_evo.config import (
    CONFIGS,
    BudgetConfig,
    IslandsConfig,
    MixtureConfig,
    ScheduleConfig,
    SearchConfig,
    SelectionConfig,
)
from openmle_gym.configuration import field_docs, load_config
from openmle_gym.errors import ConfigError
from openmle_gym.memory import MemoryConfig
from openmle_gym.policies.settings import PolicyConfig
from openmle_gym.prompts import PromptConfig

SCHEMAS = [
    SearchConfig,
    PolicyConfig,
    SelectionConfig,
    ScheduleConfig,
    IslandsConfig,
    BudgetConfig,
    MemoryConfig,
    PromptConfig,
    MixtureConfig,
]


def load(*overrides: str) -> SearchConfig:
    return load_config(SearchConfig, "search", configs=CONFIGS, overrides=["task=x", *overrides])


def test_overrides_reach_nested_settings() -> None:
    config = load("budget.attempts=7", "selection.temperature=0.5", "schedule.initial_drafts=3", "policy=sglang")
    assert (config.budget.attempts, config.selection.temperature, config.schedule.initial_drafts) == (7, 0.5, 3)
    assert (config.policy.kind, config.policy.base_url) == ("openai", "http://127.0.0.1:30000/v1")


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("stepz=7", "stepz"),
        ("budget.attempts=many", "budget.attempts"),
        ("budget.attempts=0", "budget.attempts: must be at least 1, got 0"),
        ("selection.temperature=0", "selection.temperature: must be more than 0"),
        ("schedule.crossover_probability=1.5", "schedule.crossover_probability"),
        ("policy.kind=magic", "policy.kind"),
        ("policy=nobody", "nobody"),
        ("steps", "steps"),
        ("islands.admission=nobody", "islands.admission"),
        ("policy.kind=none", "policy.kind: somebody must answer"),
        ("policy.prompt_price=1", "give both or neither"),
        ("memory.kind=deep", "memory.kind"),
        ("prompt.length=10", "prompt.length: must be at least 1000"),
    ],
)
def test_a_wrong_setting_is_named(override: str, named: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(override)
    assert named in str(error.value)


def test_every_policy_profile_loads() -> None:
    profiles = sorted(path.stem for path in (CONFIGS / "policy").glob("*.yaml"))
    assert {"recipes", "openai", "sglang", "vllm", "llamacpp"} <= set(profiles)
    for profile in profiles:
        assert load(f"policy={profile}").policy.kind in ("recipes", "openai")


def test_every_search_profile_loads_and_differs_in_what_its_name_says() -> None:
    profiles = {path.stem: load(f"search={path.stem}") for path in (CONFIGS / "search").glob("*.yaml")}
    assert set(profiles) == {"openmle", "openmle_max", "aira", "greedy", "best_of_n"}
    assert load() == profiles["openmle"]
    assert (profiles["aira"].selection.gain, profiles["aira"].memory.notes) == (0.0, "eager")
    assert (profiles["greedy"].schedule.kind, profiles["best_of_n"].schedule.kind) == ("greedy", "best_of_n")
    assert load("search=aira", "memory.notes=model").memory.notes == "model"


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_setting_has_a_doc(schema: type) -> None:
    docs = field_docs(schema)
    assert [field.name for field in dataclasses.fields(schema) if not docs.get(field.name)] == []


def test_usage_errors_exit_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search"]) == 2
    assert "task: missing" in capsys.readouterr().err
    assert main(["search", "task=x", "stepz=1"]) == 2
    assert "stepz" in capsys.readouterr().err


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["search", "--help"])
    assert done.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"  {field.name}=" in shown for schema in SCHEMAS for field in dataclasses.fields(schema))
