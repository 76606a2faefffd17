"""The conversation that an example teaches: the operator's prompt, and the reply as it should have been.

The reply is thinking (where there was some), plan and program, in the form that the prompt's contract asks for:

    <think>
    ...
    </think>

    plan

    ```python
    program
    ```
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from openmle_gym.chat import Completion, Message
from openmle_gym.errors import ReplyError
from openmle_gym.experience import ExperienceCard
from openmle_gym.program import parse_reply

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


class Parts(NamedTuple):
    """A reply, taken apart."""

    thinking: str
    """Without its tags; empty when there is none."""
    answer: str


def split_thinking(text: str) -> Parts:
    """The thinking at the head of a reply, with both tags or with the closing one alone, and the rest."""
    head, closing, rest = text.partition(THINK_CLOSE)
    if not closing:
        return Parts("", text)
    return Parts(head.strip().removeprefix(THINK_OPEN).strip(), rest.lstrip("\n"))


def reply_text(*, thinking: str, plan: str, source: str) -> str:
    """The assistant's message."""
    longest = max((len(run) for run in re.findall(r"`+", source)), default=0)
    fence = "`" * max(3, longest + 1)
    head = f"{THINK_OPEN}\n{thinking.strip()}\n{THINK_CLOSE}\n\n" if thinking.strip() else ""
    middle = f"{plan.strip()}\n\n" if plan.strip() else ""
    return f"{head}{middle}{fence}python\n{source.rstrip()}\n{fence}"


def thinking_of(reply: Completion | None) -> str:
    """What the model thought, whether its endpoint returned that apart or within the text."""
    if reply is None:
        return ""
    return reply.reasoning.strip() or split_thinking(reply.text).thinking


def conversation(prompt: Sequence[Message], card: ExperienceCard, reply: Completion | None) -> list[Message]:
    """The example's messages; without thinking where no reply was kept."""
    text = reply_text(thinking=thinking_of(reply), plan=card.plan, source=card.source)
    return [*prompt, Message(role="assistant", content=text)]


def teaches_program(messages: Sequence[Message], card: ExperienceCard) -> bool:
    """Whether `parse_reply` finds exactly the card's program in the last message."""
    try:
        return parse_reply(messages[-1].content).program_id == card.program_id
    except ReplyError:
        return False
