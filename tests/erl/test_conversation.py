"""Templates, thinking and truncation, on a tokenizer of characters."""

from collections.abc import Sequence

import numpy as np
import pytest
from openmle_erl.engines.protocols import Finish, Generation
from openmle_erl.rl.conversation import (
    Budget,
    Prompt,
    TooLong,
    completion_of,
    encode_prompt,
    end_ids,
    read_reply,
    room_for_reply,
)
from openmle_gym.chat import Message

END = 0


class Characters:
    """A character is a token, `$` the end of a turn; the template may open the thinking."""

    def __init__(self, opening: str = "") -> None:
        self.opening = opening

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = False) -> str:
        turns = "".join(f"{message.role[0]}:{message.content}$\n" for message in messages)
        return turns + (f"a:{self.opening}" if generation_prompt else "")

    def encode(self, text: str) -> list[int]:
        return [END if letter == "$" else ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("$" if token == END else chr(token) for token in ids)


PLAIN, OPENED = Characters(), Characters("<think>\n")
QUESTION = [Message(role="user", content="hi")]


def read(text: str, finish: Finish = Finish.STOP, *, opens: bool = False):
    return read_reply(PLAIN, PLAIN.encode(text), finish=finish, ends=(END,), opens_thinking=opens)


def test_a_prompt_ends_where_the_reply_begins():
    prompt = encode_prompt(PLAIN, QUESTION)
    assert PLAIN.decode(prompt.ids) == "u:hi$\na:"
    assert not prompt.opens_thinking
    assert encode_prompt(OPENED, QUESTION).opens_thinking


def test_the_end_of_a_turn_is_found_in_the_template():
    assert end_ids(PLAIN) == (END,)


def test_the_end_token_is_no_text_and_a_reply_without_it_is_truncated():
    assert read("x = 1$") == ("x = 1", "", "x = 1", False)
    assert read("x = ", Finish.LENGTH) == ("x = ", "", "x = ", True)
    assert read("x = ", Finish.ABORT).truncated


def test_only_an_end_token_is_taken_off():
    assert read("ab").text == "ab"  # it stopped at another id, which is text


@pytest.mark.parametrize("opens", [True, False])
def test_thinking_is_told_from_the_answer(opens):
    opening = "" if opens else "<think>\n"
    reply = read(f"{opening}let me see\n</think>\n\nx = 1$", opens=opens)
    assert (reply.thinking, reply.answer) == ("let me see", "x = 1")


@pytest.mark.parametrize("opens", [True, False])
def test_a_reply_cut_while_thinking_has_no_answer(opens):
    opening = "" if opens else "<think>\n"
    reply = read(f"{opening}```python\nx = 1\n```\nno, wait", Finish.LENGTH, opens=opens)
    assert reply.answer == ""
    assert reply.thinking.endswith("no, wait")
    assert reply.truncated


def test_a_reply_gets_what_it_wants_or_what_the_context_leaves():
    prompt = Prompt(tuple(range(60)), False)
    assert room_for_reply(prompt, Budget(100, 30)) == 30
    assert room_for_reply(prompt, Budget(100, 50)) == 40
    assert room_for_reply(prompt, Budget(100, 50, least_reply_tokens=40)) == 40


def test_a_prompt_that_leaves_too_little_says_by_how_much():
    prompt = Prompt(tuple(range(60)), False)
    assert room_for_reply(prompt, Budget(100, 50, least_reply_tokens=41)) == TooLong(60, 59)
    assert room_for_reply(prompt, Budget(60, 50)) == TooLong(60, 59)


def test_a_completion_counts_all_tokens_and_keeps_thinking_apart():
    ids = tuple(OPENED.encode("hm\n</think>\nx$"))
    generation = Generation(
        request_id="r", token_ids=ids, logprobs_T=np.zeros(len(ids), np.float32), finish=Finish.STOP, spans=()
    )
    prompt = encode_prompt(OPENED, QUESTION)
    completion = completion_of(OPENED, prompt, generation, ends=(END,), model="m")
    assert (completion.text, completion.reasoning, completion.finish_reason) == ("x", "hm", "stop")
    assert completion.usage.prompt_tokens == len(prompt.ids)
    assert completion.usage.completion_tokens == len(ids)
