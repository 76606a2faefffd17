"""Who answers: endpoints, pools of them, mixtures by operator, all from settings. Keys are read here, and stay here."""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from openmle_gym.chat import ChatModel, OpenAIChat, Prices
from openmle_gym.configuration import secret_from_environment
from openmle_gym.errors import ConfigError
from openmle_gym.policies.pool import PolicyPool
from openmle_gym.policies.recipes import RecipePolicy

from openmle_evo.budget import Purpose, most_dollars
from openmle_evo.config import CONFIGS, PolicyConfig, SearchConfig

POOL_PATIENCE_SECONDS = 30.0

log = logging.getLogger("openmle_evo")


class Policies(NamedTuple):
    """The models of a search."""

    default: ChatModel
    mixture: Mapping[Purpose, ChatModel]


def policy_profile(name: str, setting: str = "policy") -> PolicyConfig:
    """The profile configs/evo/policy/<name>.yaml.

    Raises:
        ConfigError: There is no such profile, or a field of it is wrong; names the setting.
    """
    path = CONFIGS / "policy" / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in path.parent.glob("*.yaml")))
        raise ConfigError(f"{setting}: no policy profile {name!r}; there are {known}")
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(PolicyConfig), OmegaConf.load(path)))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {error}") from error
    assert isinstance(config, PolicyConfig)
    return config


@contextlib.asynccontextmanager
async def open_policies(config: SearchConfig) -> AsyncIterator[Policies]:
    """The models that a search asks; their connections are closed in the end.

    Raises:
        ConfigError: An endpoint has no address, a profile is unknown, or a budget in dollars meets calls without price.
    """
    if config.budget.dollars is not None and (unpriced := [each for each in _endpoints(config) if not each.priced]):
        raise ConfigError(f"budget.dollars: no prices of {unpriced[0].model or unpriced[0].base_url or 'an endpoint'}")
    async with contextlib.AsyncExitStack() as stack:
        opened = {
            name: await stack.enter_async_context(open_policy(policy_profile(name, "mixture")))
            for name in set(config.mixture.profiles.values())
        }
        default = await stack.enter_async_context(open_policy(config.policy))
        yield Policies(default, {cast(Purpose, key): opened[name] for key, name in config.mixture.profiles.items()})


@contextlib.asynccontextmanager
async def open_policy(config: PolicyConfig) -> AsyncIterator[ChatModel]:
    """One policy with its fallbacks.

    Raises:
        ConfigError: An endpoint has no address, or a fallback is unknown.
    """
    members = _members(config)
    async with contextlib.AsyncExitStack() as stack:
        models = [await stack.enter_async_context(_open_one(each, pooled=len(members) > 1)) for each in members]
        yield models[0] if len(models) == 1 else PolicyPool(models)


def _members(config: PolicyConfig) -> list[PolicyConfig]:
    """A policy and its fallbacks; the fallbacks' own fallbacks are not followed."""
    return [config, *(policy_profile(name, "policy.fallbacks") for name in config.fallbacks)]


@contextlib.asynccontextmanager
async def _open_one(config: PolicyConfig, *, pooled: bool) -> AsyncIterator[ChatModel]:
    if config.kind == "recipes":
        yield RecipePolicy()
        return
    base_url = config.base_url or os.environ.get("OPENAI_BASE_URL", "")
    model = config.model or os.environ.get("OPENMLE_MODEL", "")
    if not base_url or not model:
        raise ConfigError("policy: set policy.base_url and policy.model, or OPENAI_BASE_URL and OPENMLE_MODEL")
    patience_seconds = config.patience_seconds
    if patience_seconds is None:
        patience_seconds = POOL_PATIENCE_SECONDS if pooled else 600.0
    async with OpenAIChat(
        base_url,
        model=model,
        api_key=secret_from_environment(config.api_key_variable),
        temperature=config.temperature,
        top_p=config.top_p,
        max_tokens=config.max_tokens,
        extra=config.extra,
        timeout_seconds=config.timeout_seconds,
        patience_seconds=patience_seconds,
        stream=config.stream,
        prices=_prices(config),
    ) as endpoint:
        yield endpoint


def _endpoints(config: SearchConfig) -> list[PolicyConfig]:
    """All endpoints that a search may call, the built-in policy left out."""
    heads = [config.policy, *(policy_profile(name, "mixture") for name in config.mixture.profiles.values())]
    return [each for head in heads for each in _members(head) if each.kind != "recipes"]


def _prices(config: PolicyConfig) -> Prices | None:
    if config.prompt_price is None or config.completion_price is None:
        return None
    return Prices(config.prompt_price, config.completion_price)


def log_estimate(config: SearchConfig) -> None:
    """Says before the first call what the run can cost at most, where prices are known: with the dearest endpoint."""
    prompt_tokens = config.prompt.length if config.tokenizer else config.prompt.length // 3

    def most(policy: PolicyConfig) -> float:
        prices = _prices(policy)
        tokens = policy.max_tokens
        return (
            most_dollars(config.budget, prompt_tokens=prompt_tokens, reply_tokens=tokens, prices=prices)
            if prices
            else 0.0
        )

    priced = [each for each in _endpoints(config) if each.priced]
    if not priced:
        return
    dearest = max(priced, key=most)
    cap = f"; it stops at ${config.budget.dollars:g}" if config.budget.dollars else ""
    log.info(
        "this run costs at most about $%.2f (prices of %s)%s", most(dearest), dearest.prices_of or "unknown date", cap
    )
