"""Asking the model, each question once: a reply is on disk before anybody judges it, and is found there again."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from openmle_gym.build.state import write_whole
from openmle_gym.chat import ChatModel, Completion, Message, Usage
from openmle_gym.contracts import Contract, read_record
from openmle_gym.errors import ConfigError


class Call(Contract):
    """One question and its reply."""

    prompt_sha256: str
    messages: tuple[Message, ...]
    completion: Completion


class Desk:
    """One stage's questions, in a folder of its own."""

    def __init__(self, model: ChatModel | None, folder: Path) -> None:
        self._model, self._folder = model, folder

    @property
    def without_model(self) -> bool:
        """Whether there is nobody to ask."""
        return self._model is None

    async def ask(self, name: str, messages: Sequence[Message]) -> Completion:
        """The reply to a question; the one on disk where the same was asked by that name before.

        Raises:
            ModelUnavailable: The endpoint cannot be reached, or refuses.
        """
        path = self._folder / f"{name}.call.json"
        digest = hashlib.sha256("\x1e".join(f"{each.role}\x1f{each.content}" for each in messages).encode()).hexdigest()
        if path.is_file():
            call = read_record(path, Call)
            if call.prompt_sha256 == digest:
                return call.completion
        if self._model is None:
            raise ConfigError("policy.kind: this stage needs a model, got 'none'")
        completion = await self._model.complete(messages)
        call = Call(prompt_sha256=digest, messages=tuple(messages), completion=completion)
        write_whole(path, call.model_dump_json(indent=2).encode())
        return completion

    def calls(self) -> list[Call]:
        """All of the stage's calls, in order."""
        paths = sorted(self._folder.glob("*.call.json"))
        return [read_record(path, Call) for path in paths]


def spent(calls: Sequence[Call]) -> tuple[Usage, float | None]:
    """Tokens and US dollars of some calls; None where one's price is not known."""
    usage, costs = Usage(), [call.completion.cost_usd for call in calls]
    for call in calls:
        usage = usage + call.completion.usage
    known = [cost for cost in costs if cost is not None]
    return usage, sum(known) if known and len(known) == len(costs) else None
