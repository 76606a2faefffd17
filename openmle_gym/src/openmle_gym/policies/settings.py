"""The settings of a policy, for search and for training alike, and opening what they name.

Profiles are YAML files of these settings in a layer's folder. Keys are read here, from the environment, and stay here.
"""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from openmle_gym.chat import ChatModel, OpenAIChat, Prices
from openmle_gym.configuration import secret_from_environment
from openmle_gym.errors import ConfigError
from openmle_gym.policies.pool import PolicyPool

RECIPE_SETTINGS = {"seed", "slip_rate", "general"}
PATIENCE_SECONDS, POOL_PATIENCE_SECONDS = 600.0, 30.0


@dataclass
class PolicyConfig:
    """Who answers the operators' prompts."""

    kind: str = "recipes"
    """`recipes`: the built-in policy without a model; `openai`: any OpenAI-compatible endpoint; `none`: nobody, where a
    model is optional."""
    base_url: str = ""
    """The endpoint, up to and including /v1; when empty, the environment variable OPENAI_BASE_URL."""
    model: str = ""
    """The model's name at the endpoint; when empty, the environment variable OPENMLE_MODEL."""
    api_key_variable: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; it may be unset for endpoints without one."""
    temperature: float = 0.6
    """Sampling temperature."""
    top_p: float = 0.95
    """Nucleus sampling."""
    max_tokens: int = 32768
    """The most tokens of one reply, thinking included."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Fields of the request beyond the standard, as the server knows them: +policy.extra.top_k=20. With `recipes` its
    settings: seed, slip_rate, general."""
    timeout_seconds: float = 1500.0
    """How long one call may take."""
    patience_seconds: float | None = None
    """How long an endpoint that does not answer is asked again; by default 600, with `fallbacks` 30."""
    fallbacks: list[str] = field(default_factory=list)
    """Policy profiles that answer, in this order, while the endpoint is down."""
    stream: bool = False
    """Ask the endpoint to stream its reply."""
    prompt_price: float | None = None
    """US dollars for a million prompt tokens; None when no price is known."""
    completion_price: float | None = None
    """US dollars for a million completion tokens."""
    prices_of: str = ""
    """The date of the prices."""

    def __post_init__(self) -> None:
        if self.kind not in ("recipes", "openai", "none"):
            raise ConfigError(f"policy.kind: must be recipes, openai or none, got {self.kind!r}")
        for name, least in (("temperature", 0.0), ("max_tokens", 1), ("patience_seconds", 0.0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"policy.{name}: must be at least {least}, got {value}")
        if self.kind == "recipes" and (unknown := set(self.extra) - RECIPE_SETTINGS):
            raise ConfigError(f"policy.extra: kind=recipes has no {', '.join(sorted(map(str, unknown)))}")
        if (self.prompt_price is None) != (self.completion_price is None):
            raise ConfigError("policy.prompt_price and policy.completion_price: give both or neither")

    @property
    def prices(self) -> Prices | None:
        """What its calls cost; None when that is not known."""
        if self.prompt_price is None or self.completion_price is None:
            return None
        return Prices(self.prompt_price, self.completion_price)


def read_profile(folder: Path, name: str, setting: str = "policy") -> PolicyConfig:
    """The profile `<folder>/<name>.yaml`.

    Raises:
        ConfigError: There is no such profile, or a field of it is wrong; names the setting.
    """
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.yaml")))
        raise ConfigError(f"{setting}: no policy profile {name!r}; there are {known}")
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(PolicyConfig), OmegaConf.load(path)))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {error}") from error
    assert isinstance(config, PolicyConfig)
    return config


def with_fallbacks(config: PolicyConfig, profiles: Path) -> list[PolicyConfig]:
    """A policy and its fallbacks; the fallbacks' own fallbacks are not followed."""
    return [config, *(read_profile(profiles, name, "policy.fallbacks") for name in config.fallbacks)]


@contextlib.asynccontextmanager
async def open_policy(config: PolicyConfig, profiles: Path) -> AsyncIterator[ChatModel]:
    """One policy with its fallbacks; connections are closed in the end.

    Args:
        profiles: The folder of the profiles that `fallbacks` names.

    Raises:
        ConfigError: An endpoint has no address, or a fallback is unknown.
    """
    members = with_fallbacks(config, profiles)
    async with contextlib.AsyncExitStack() as stack:
        models = [await stack.enter_async_context(_open_one(each, pooled=len(members) > 1)) for each in members]
        yield models[0] if len(models) == 1 else PolicyPool(models)


@contextlib.asynccontextmanager
async def _open_one(config: PolicyConfig, *, pooled: bool) -> AsyncIterator[ChatModel]:
    if config.kind == "none":
        raise ConfigError("policy.kind: somebody must answer, got 'none'")
    if config.kind == "recipes":
        from openmle_gym.policies.recipes import RecipePolicy

        yield RecipePolicy(**config.extra)
        return
    base_url = config.base_url or os.environ.get("OPENAI_BASE_URL", "")
    model = config.model or os.environ.get("OPENMLE_MODEL", "")
    if not base_url or not model:
        raise ConfigError("policy: set policy.base_url and policy.model, or OPENAI_BASE_URL and OPENMLE_MODEL")
    patience_seconds = config.patience_seconds
    if patience_seconds is None:
        patience_seconds = POOL_PATIENCE_SECONDS if pooled else PATIENCE_SECONDS
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
        prices=config.prices,
    ) as endpoint:
        yield endpoint
