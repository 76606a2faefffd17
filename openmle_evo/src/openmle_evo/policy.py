"""Who answers in a search: one policy, or a mixture by operator; and what their calls may cost."""

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple, cast

from openmle_gym.chat import ChatModel
from openmle_gym.errors import ConfigError
from openmle_gym.policies.settings import PolicyConfig, open_policy, read_profile, with_fallbacks

from openmle_evo.budget import Purpose, most_dollars
from openmle_evo.config import CONFIGS, SearchConfig

PROFILES = CONFIGS / "policy"

log = logging.getLogger("openmle_evo")


class Policies(NamedTuple):
    """The models of a search."""

    default: ChatModel
    mixture: Mapping[Purpose, ChatModel]


@contextlib.asynccontextmanager
async def open_policies(config: SearchConfig) -> AsyncIterator[Policies]:
    """The models that a search asks; their connections are closed in the end.

    Raises:
        ConfigError: An endpoint has no address, a profile is unknown, or a budget in dollars meets calls without price.
    """
    unpriced = [each for each in _endpoints(config) if each.prices is None]
    if config.budget.dollars is not None and unpriced:
        name = unpriced[0].model or unpriced[0].base_url or "an endpoint"
        raise ConfigError(f"budget.dollars: no prices of {name}; give its prompt_price and completion_price")
    async with contextlib.AsyncExitStack() as stack:
        opened = {
            name: await stack.enter_async_context(open_policy(read_profile(PROFILES, name, "mixture"), PROFILES))
            for name in set(config.mixture.profiles.values())
        }
        default = await stack.enter_async_context(open_policy(config.policy, PROFILES))
        yield Policies(default, {cast(Purpose, key): opened[name] for key, name in config.mixture.profiles.items()})


def _endpoints(config: SearchConfig) -> list[PolicyConfig]:
    """All endpoints that a search may call, the built-in policy left out."""
    heads = [config.policy, *(read_profile(PROFILES, name, "mixture") for name in config.mixture.profiles.values())]
    return [each for head in heads for each in with_fallbacks(head, PROFILES) if each.kind != "recipes"]


def log_estimate(config: SearchConfig) -> None:
    """Says before the first call what the run can cost at most, where prices are known: with the dearest endpoint."""
    prompt_tokens = config.prompt.length if config.tokenizer else config.prompt.length // 3
    costs = {
        most_dollars(
            config.budget, prompt_tokens=prompt_tokens, reply_tokens=each.max_tokens, prices=each.prices
        ): each.prices_of
        for each in _endpoints(config)
        if each.prices is not None
    }
    if costs:
        most = max(costs)
        cap = f"; it stops at ${config.budget.dollars:g}" if config.budget.dollars else ""
        log.info("this run costs at most about $%.2f (prices of %s)%s", most, costs[most] or "unknown date", cap)
