"""A policy for tests that says what it was told to say."""

import math
from collections.abc import Callable, Sequence

from openmle_gym.chat import Completion, Message, Usage
from openmle_gym.errors import ModelUnavailable


class ScriptedPolicy:
    """A `ChatModel` that gives its replies in order, or makes each from the messages."""

    def __init__(self, replies: Sequence[str] | Callable[[Sequence[Message]], str]) -> None:
        """
        Args:
            replies: The replies in order, or a function of the messages.
        """
        self._replies = replies
        self.calls: list[tuple[Message, ...]] = []
        """The messages of each call so far."""

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        """The next reply.

        Raises:
            ModelUnavailable: The script is at its end.
        """
        self.calls.append(tuple(messages))
        if callable(self._replies):
            text = self._replies(messages)
        elif len(self.calls) <= len(self._replies):
            text = self._replies[len(self.calls) - 1]
        else:
            raise ModelUnavailable(f"the script has {len(self._replies)} replies; this is call {len(self.calls)}")
        prompt_tokens = sum(math.ceil(len(message.content) / 4) for message in messages)
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=math.ceil(len(text) / 4), estimated=True)
        return Completion(text=text, model="scripted", usage=usage)
