"""From messages to the ids that a model continues, and from the ids of its reply to text: templates, thinking, truncation.

Thinking is told from the answer by its closing tag. A template may open it in the prompt (`<think>` is then no part of the
reply); a reply that was cut while it thought has no answer.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from openmle_gym.chat import Completion, Message, Usage

from openmle_erl.engines.protocols import Finish, Generation
from openmle_erl.sft.messages import THINK_CLOSE, THINK_OPEN, split_thinking
from openmle_erl.sft.tokens import ChatTokenizer


class Prompt(NamedTuple):
    """What a model continues."""

    ids: tuple[int, ...]
    opens_thinking: bool
    """The template begins the reply with `<think>`."""


class Budget(NamedTuple):
    """How a prompt and its reply share a context."""

    context_tokens: int
    reply_tokens: int
    """The longest reply."""
    least_reply_tokens: int = 1
    """A prompt that leaves less than this is too long."""


class TooLong(NamedTuple):
    """A prompt that does not fit; the caller shortens what it is made of, or passes the task over, and counts it."""

    tokens: int
    limit: int


class Reply(NamedTuple):
    """A reply as text, its end-of-turn marker taken off."""

    text: str
    """All of it, as it was generated."""
    thinking: str
    """Without its tags; empty when there is none."""
    answer: str
    """What follows the thinking; empty when the reply was cut while it thought."""
    truncated: bool
    """It did not come to its own end."""


def encode_prompt(tokenizer: ChatTokenizer, messages: Sequence[Message]) -> Prompt:
    """The conversation with the beginning of the next reply, as ids."""
    text = tokenizer.render(messages, generation_prompt=True)
    return Prompt(tuple(tokenizer.encode(text)), text.rstrip().endswith(THINK_OPEN))


def room_for_reply(prompt: Prompt, budget: Budget) -> int | TooLong:
    """How many tokens the reply may have: as many as are wanted, or as the context leaves."""
    left = budget.context_tokens - len(prompt.ids)
    if left < budget.least_reply_tokens:
        return TooLong(len(prompt.ids), budget.context_tokens - budget.least_reply_tokens)
    return min(left, budget.reply_tokens)


def end_ids(tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """The token that ends a reply, found where the template puts it; empty when the template ends replies with text of
    several tokens."""
    mark = "QzMARKzQ"
    shown = tokenizer.render([Message(role="user", content="a"), Message(role="assistant", content=mark)])
    marker = tokenizer.encode(shown.rpartition(mark)[2].rstrip())
    return tuple(marker) if len(marker) == 1 else ()


def read_reply(
    tokenizer: ChatTokenizer, ids: Sequence[int], *, finish: Finish, ends: Collection[int], opens_thinking: bool = False
) -> Reply:
    """A reply's text.

    Args:
        ends: The ids that may end a reply; such a last one is no part of the text.
        opens_thinking: See `Prompt`.
    """
    kept = ids[:-1] if ids and finish is Finish.STOP and ids[-1] in ends else ids
    text = tokenizer.decode(kept)
    thinks = opens_thinking or text.lstrip().startswith(THINK_OPEN)
    if thinks and THINK_CLOSE not in text:
        thinking, answer = text.strip().removeprefix(THINK_OPEN).strip(), ""
    else:
        thinking, answer = split_thinking(text)
    return Reply(text, thinking, answer, finish is not Finish.STOP)


def completion_of(
    tokenizer: ChatTokenizer,
    prompt: Prompt,
    generation: Generation,
    *,
    ends: Collection[int],
    model: str,
    seconds: float = 0.0,
) -> Completion:
    """A generation as the rest of OpenMLE reads one: thinking apart from the text."""
    reply = read_reply(
        tokenizer,
        generation.token_ids,
        finish=generation.finish,
        ends=ends,
        opens_thinking=prompt.opens_thinking,
    )
    return Completion(
        text=reply.answer,
        reasoning=reply.thinking,
        finish_reason=generation.finish.value,
        model=model,
        usage=Usage(prompt_tokens=len(prompt.ids), completion_tokens=len(generation.token_ids)),
        seconds=seconds,
    )
