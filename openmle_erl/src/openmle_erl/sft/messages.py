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

import io
import re
import tokenize
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
    """What the model thought, whether its endpoint returned that apart or within the text; without further tags in it,
    at which a template would cut it short."""
    if reply is None:
        return ""
    thinking = reply.reasoning.strip() or split_thinking(reply.text).thinking
    return thinking.replace(THINK_OPEN, "").replace(THINK_CLOSE, "").strip()


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


def without_comments(messages: Sequence[Message], programs: Sequence[str]) -> list[Message]:
    """The messages, with the programs in them as they are without comments."""
    plain = {source.rstrip(): strip_comments(source).rstrip() for source in programs}
    changed: list[Message] = []
    for message in messages:
        content = message.content
        for source in sorted(plain, key=len, reverse=True):
            content = content.replace(source, plain[source])
        changed.append(message.model_copy(update={"content": content}))
    return changed


def strip_comments(source: str) -> str:
    """A program without its comments; lines of comments alone are gone. One that cannot be cut into tokens loses only these."""
    lines = source.splitlines(keepends=True)
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return "".join(line for line in lines if not line.lstrip().startswith("#"))
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row, column = token.start
            before = lines[row - 1][:column].rstrip()
            lines[row - 1] = f"{before}\n" if before else ""
    return "".join(lines)
