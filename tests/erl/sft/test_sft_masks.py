"""Token counts and loss masks, token by token, without any library: a tokenizer of characters and a Qwen-like template."""

from collections.abc import Sequence

import pytest
from erl.sft.sft_make import CharTokenizer, card
from hypothesis import given
from hypothesis import strategies as st
from openmle_erl.sft.masks import learnt_texts, mask_conversation
from openmle_erl.sft.messages import conversation, reply_text, split_thinking
from openmle_erl.sft.tokens import TransformersTokenizer, check_counts, count_tokens
from openmle_gym.chat import Completion, Message
from openmle_gym.errors import ConfigError
from openmle_gym.program import parse_reply

THOUGHT = "<think>\nIt is a slope.\n</think>\n\nI fit it."


def chat(*texts: str) -> list[Message]:
    """System, then user and assistant in turns."""
    roles = ["system", *(["user", "assistant"] * len(texts))]
    return [Message(role=role, content=text) for role, text in zip(roles, texts, strict=False)]  # pyright: ignore


def learnt(tokenizer: CharTokenizer, *texts: str) -> list[str]:
    messages = chat(*texts)
    masked = mask_conversation(tokenizer, messages)
    assert tokenizer.decode(masked.ids) == tokenizer.render(messages)
    assert len(masked.ids) == len(masked.mask)
    return learnt_texts(tokenizer, masked)


def test_every_token_of_a_small_conversation_is_masked_as_worked_out_by_hand() -> None:
    tokenizer = CharTokenizer(thinks=False)
    masked = mask_conversation(tokenizer, [Message(role="user", content="1+1"), Message(role="assistant", content="2")])
    prompt = ["<|im_start|>", *"user\n1+1", "<|im_end|>", "\n", "<|im_start|>", *"assistant\n"]
    reply = ["2", "<|im_end|>"]
    assert [tokenizer.decode([token]) for token in masked.ids] == [*prompt, *reply, "\n"]
    assert masked.mask == [False] * len(prompt) + [True] * len(reply) + [False]


def test_thinking_is_learnt_where_the_model_opens_it_itself() -> None:
    assert learnt(CharTokenizer(), "s", "q", THOUGHT) == [f"{THOUGHT}<|im_end|>"]


def test_the_opening_tag_belongs_to_the_prompt_where_the_template_opens_the_thinking() -> None:
    (text,) = learnt(CharTokenizer(opens_thinking=True), "s", "q", THOUGHT)
    assert text == "It is a slope.\n</think>\n\nI fit it.<|im_end|>"


def test_a_template_without_thinking_shows_the_reply_as_it_is() -> None:
    assert learnt(CharTokenizer(thinks=False), "s", "q", THOUGHT) == [f"{THOUGHT}<|im_end|>"]


def test_all_replies_are_learnt_and_earlier_ones_as_the_template_shows_them_without_their_thinking() -> None:
    for opens in (False, True):
        texts = learnt(
            CharTokenizer(opens_thinking=opens), "s", "q", THOUGHT, "again?", "<think>\nHm.\n</think>\n\nYes."
        )
        last = "Hm.\n</think>\n\nYes.<|im_end|>"
        assert texts == ["I fit it.<|im_end|>", last if opens else f"<think>\n{last}"]


def test_equal_replies_and_replies_that_stand_in_prompts_are_told_apart() -> None:
    tokenizer = CharTokenizer(thinks=False)
    messages = chat("ok", "ok", "ok", "ok", "ok")
    masked = mask_conversation(tokenizer, messages)
    assert learnt_texts(tokenizer, masked) == ["ok<|im_end|>", "ok<|im_end|>"]
    text = tokenizer.render(messages)
    assert masked.mask.index(True) == len(tokenizer.encode(text[: text.index("assistant\nok") + len("assistant\n")]))


@pytest.mark.parametrize("reply", ["<|im_end|>", "a <|im_end|> b", "\n\nblank lines", "QzMARK zQ", "</think>", "é漢🙂"])
def test_odd_replies_are_learnt_whole(reply: str) -> None:
    assert learnt(CharTokenizer(thinks=False), "s", "q", reply) == [f"{reply}<|im_end|>"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12), min_size=1, max_size=4))
def test_the_masked_text_is_the_replies_for_any_conversation(texts: list[str]) -> None:
    conversation = [each for text in texts for each in (f"q {text}", text)]
    assert learnt(CharTokenizer(thinks=False), "s", *conversation) == [f"{text}<|im_end|>" for text in texts]


def test_a_conversation_without_a_reply_is_refused() -> None:
    with pytest.raises(ValueError, match="no assistant message"):
        mask_conversation(CharTokenizer(), [Message(role="user", content="q")])


class Mutilating(CharTokenizer):
    """A template that shows only the beginning of a reply."""

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = False) -> str:
        cut = [
            Message(role=each.role, content=each.content[:9]) if each.role == "assistant" else each for each in messages
        ]
        return super().render(cut, generation_prompt=generation_prompt)


def test_a_template_that_changes_a_reply_is_refused() -> None:
    with pytest.raises(ValueError, match="the template shows"):
        mask_conversation(Mutilating(thinks=False), chat("s", "q", "a longer reply"))


class Lossy(CharTokenizer):
    """A tokenizer that cannot say everything."""

    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace("é", "e"))


def test_a_tokenizer_that_loses_text_is_refused() -> None:
    with pytest.raises(ValueError, match="does not give back"):
        mask_conversation(Lossy(thinks=False), chat("s", "q", "café"))


def test_tokens_of_a_conversation_are_counted_by_hand() -> None:
    tokenizer = CharTokenizer(thinks=False)
    # two marks, the role, a newline, the text, a newline
    assert count_tokens(tokenizer, [Message(role="user", content="abc")]) == 2 + 4 + 1 + 3 + 1


class MappingTokenizer:
    """As transformers from 5 on: a template that tokenises returns a mapping of two entries, whose length is 2."""

    chat_template = "there"

    def apply_chat_template(self, conversation, *, tokenize: bool = True, add_generation_prompt: bool = False):
        text = "".join(f"[{each['role']}]{each['content']}" for each in conversation)
        return {"input_ids": list(text), "attention_mask": [1] * len(text)} if tokenize else text

    def __call__(self, text: str, *, add_special_tokens: bool):
        return {"input_ids": [ord(each) for each in text], "attention_mask": [1] * len(text)}


def test_a_template_that_returns_a_mapping_does_not_make_every_row_two_tokens_long() -> None:
    """The release counted the mapping: 2 for every row, so its limit of 32,768 let everything pass."""
    tokenizer = TransformersTokenizer(MappingTokenizer())
    assert count_tokens(tokenizer, [Message(role="user", content="abc")]) == len("[user]abc")
    check_counts(tokenizer, place="mapping")


def test_a_counter_whose_counts_do_not_vary_is_refused() -> None:
    class Constant(CharTokenizer):
        def encode(self, text: str) -> list[int]:
            return [1, 2]

    with pytest.raises(ConfigError, match=r"counts \[2, 2, 2\] for texts of 1, 10 and 100 lines; they must grow"):
        check_counts(Constant(), place="constant")


@pytest.mark.parametrize("thinking", ["", "I think.\n\n```python\nimport wrong\n```"])
@pytest.mark.parametrize("source", ["import os\nprint(1)\n", 'import os\ntext = """\n```\nx\n```\n"""\nprint(text)\n'])
def test_the_program_of_a_reply_is_found_again_and_is_never_a_draft_from_its_thinking(
    thinking: str, source: str
) -> None:
    """The release put code from the reasoning before the program, and lost programs with backticks in a string."""
    text = reply_text(thinking=thinking, plan="A plan.", source=source)
    program = parse_reply(text)
    assert (program.source, program.plan) == (source, "A plan.")
    assert split_thinking(text).thinking == thinking


def test_thinking_is_split_off_with_both_tags_or_the_closing_one_alone() -> None:
    assert split_thinking("<think>\na\n</think>\n\nb") == ("a", "b")
    assert split_thinking("a\n</think>\n\nb") == ("a", "b")
    assert split_thinking("b") == ("", "b")


def test_thinking_that_holds_tags_is_learnt_whole_and_not_cut_at_them() -> None:
    reply = Completion(text="", reasoning="One <think> two </think> three")
    messages = conversation([Message(role="user", content="q")], card(1, 1.0), reply)
    assert split_thinking(messages[-1].content).thinking == "One  two  three"
    tokenizer = CharTokenizer()
    learnt = learnt_texts(tokenizer, mask_conversation(tokenizer, messages))
    assert learnt == [messages[-1].content + "<|im_end|>"]
