"""Loss masks: which tokens of a rendered conversation the model is to produce, and so to learn.

A reply's tokens begin where the prompt of inference ends, generation prompt included (so a template that opens the
thinking itself leaves `<think>` to the prompt), and end with the end-of-turn marker. The newline after the marker is
never produced, so it is not learnt.

The text is cut at these places before it is tokenised, as it is in inference, so no token straddles a border. Nothing
is known of any template: where replies stand is found by rendering the conversation with a mark in a reply's place.
Everything found is checked; a template for which it does not hold is refused, not guessed at.
"""

from collections.abc import Sequence
from typing import NamedTuple

from openmle_gym.chat import Message

from openmle_erl.sft.messages import THINK_CLOSE, THINK_OPEN, split_thinking
from openmle_erl.sft.tokens import ChatTokenizer

MARK = "QzMARKzQ"


class MaskedTokens(NamedTuple):
    """A conversation as training sees it."""

    ids: list[int]
    mask: list[bool]
    """As long as `ids`: True for tokens that are learnt."""


class Turn(NamedTuple):
    """Where a reply stands in the rendered text."""

    start: int
    end: int
    """After the end-of-turn marker."""


def mask_conversation(tokenizer: ChatTokenizer, messages: Sequence[Message]) -> MaskedTokens:
    """Token ids and loss mask of a conversation.

    Raises:
        ValueError: There is no reply, or the template does something to one that the mask could not follow.
    """
    text = tokenizer.render(messages)
    numbers = [number for number, message in enumerate(messages) if message.role == "assistant"]
    if not numbers:
        raise ValueError("the conversation has no assistant message")
    turns = [_find(tokenizer, messages, number, text) for number in numbers]
    ids: list[int] = []
    mask: list[bool] = []
    position = 0
    for turn in [*turns, Turn(len(text), len(text))]:
        for piece, learnt in ((text[position : turn.start], False), (text[turn.start : turn.end], True)):
            own = tokenizer.encode(piece) if piece else []
            if tokenizer.decode(own) != piece:
                raise ValueError(f"the tokenizer does not give back {piece[:80]!r}")
            ids += own
            mask += [learnt] * len(own)
        position = turn.end
    return MaskedTokens(ids, mask)


def learnt_texts(tokenizer: ChatTokenizer, masked: MaskedTokens) -> list[str]:
    """What each run of learnt tokens decodes to."""
    runs: list[list[int]] = []
    before = False
    for token, learnt in zip(masked.ids, masked.mask, strict=True):
        if learnt and not before:
            runs.append([])
        if learnt:
            runs[-1].append(token)
        before = learnt
    return [tokenizer.decode(run) for run in runs]


def _find(tokenizer: ChatTokenizer, messages: Sequence[Message], number: int, text: str) -> Turn:
    """Finds one reply.

    The conversation is rendered twice more, with a mark for this reply: what is equal before and after is not the
    reply. Thinking that the template leaves out of earlier replies is not there, and is not learnt.
    """
    reply = messages[number].content
    marked = [*messages[:number], Message(role="assistant", content=MARK), *messages[number + 1 :]]
    shown = tokenizer.render(marked)
    if shown.count(MARK) != 1:
        raise ValueError(f"message {number}: the template repeats or drops a reply")
    before, after = shown.split(MARK)
    if not text.endswith(after):
        raise ValueError(f"message {number}: what follows the reply depends on it")
    content_end = len(text) - len(after)
    alone = tokenizer.render([*messages[:number], Message(role="assistant", content=MARK)])
    closing = alone.partition(MARK)[2].rstrip()
    if not closing or not after.startswith(closing):
        raise ValueError(f"message {number}: no end-of-turn marker follows the reply")
    asked = tokenizer.render(messages[:number], generation_prompt=True)
    start = len(asked) if text.startswith(asked) else _common(text, before)
    said = text[start:content_end]
    if not _same(said, reply):
        raise ValueError(f"message {number}: the template shows {said[:80]!r} for {reply[:80]!r}")
    return Turn(start, content_end + len(closing))


def _common(text: str, before: str) -> int:
    """The length of the mark's head where it stands in the text too; thinking that a template adds is not part of it."""
    head = before.removesuffix(f"{THINK_OPEN}\n\n{THINK_CLOSE}\n\n")
    if not text.startswith(head):
        raise ValueError(f"the template renders the head of a reply differently: {head[-80:]!r}")
    return len(head)


def _same(said: str, reply: str) -> bool:
    """Whether what is learnt is the reply: all of it, or without the opening tag that the prompt gave, or without the
    thinking, which templates leave out of earlier turns; up to blanks around thinking and answer."""
    thinking, answer = split_thinking(reply)
    shown = split_thinking(said)
    return shown.answer.strip() == answer.strip() and shown.thinking in ("", thinking)
