"""Counting tokens with the tokenizer that training will use.

A count is the number of token ids of the rendered conversation, never the length of whatever a library returns: the
release counted 2 for every row once its library returned a mapping. A counter whose counts do not grow with the text
is refused when it is loaded.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from openmle_gym.chat import Message
from openmle_gym.errors import ConfigError


class ChatTokenizer(Protocol):
    """What is used of a tokenizer with a chat template."""

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = False) -> str:
        """The conversation as the model reads it; with the beginning of the next reply, where asked for."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids, with nothing added; special tokens in the text become their own ids."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text, special tokens included."""
        ...


class TransformersTokenizer:
    """A Hugging Face tokenizer."""

    def __init__(self, tokenizer: Any, **template_settings: object) -> None:
        """Args:
        tokenizer: A `PreTrainedTokenizer`, slow or fast, with a chat template.
        template_settings: What the template takes beside messages, such as `enable_thinking=False`.
        """
        self._tokenizer = tokenizer
        self._settings = template_settings

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = False) -> str:
        """See `ChatTokenizer`."""
        conversation = [message.model_dump() for message in messages]
        return self._tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=generation_prompt, **self._settings
        )

    def encode(self, text: str) -> list[int]:
        """See `ChatTokenizer`."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """See `ChatTokenizer`."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


class PlainTokenizer:
    """A bare `tokenizers.Tokenizer`, which has no template: conversations are rendered as ChatML."""

    def __init__(self, tokenizer: Any) -> None:
        """Args:
        tokenizer: A `tokenizers.Tokenizer`.
        """
        self._tokenizer = tokenizer

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = False) -> str:
        """See `ChatTokenizer`."""
        turns = "".join(f"<|im_start|>{each.role}\n{each.content}<|im_end|>\n" for each in messages)
        return turns + ("<|im_start|>assistant\n" if generation_prompt else "")

    def encode(self, text: str) -> list[int]:
        """See `ChatTokenizer`."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """See `ChatTokenizer`."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)


def count_tokens(tokenizer: ChatTokenizer, messages: Sequence[Message]) -> int:
    """The tokens of a whole conversation."""
    return len(tokenizer.encode(tokenizer.render(messages)))


def load_tokenizer(path: Path) -> ChatTokenizer:
    """Loads a tokenizer from this machine: a folder by `transformers`, a `tokenizer.json` by `tokenizers`.

    Raises:
        ConfigError: There is none, its library is not installed, it has no chat template, or its counts do not vary.
    """
    if not path.exists():
        raise ConfigError(f"tokenizer: {path}: no such file or folder")
    tokenizer = _load_folder(path) if path.is_dir() else _load_file(path)
    check_counts(tokenizer, place=str(path))
    return tokenizer


def _load_folder(path: Path) -> ChatTokenizer:
    try:
        from transformers import AutoTokenizer  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(f"tokenizer: {path} needs transformers: pip install transformers jinja2") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"tokenizer: {path}: {error}") from error
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(f"tokenizer: {path}: has no chat template; give its tokenizer.json to count as ChatML")
    return TransformersTokenizer(tokenizer)


def _load_file(path: Path) -> ChatTokenizer:
    try:
        from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(f"tokenizer: {path} needs tokenizers: pip install tokenizers") from error
    try:
        return PlainTokenizer(Tokenizer.from_file(str(path)))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ConfigError(f"tokenizer: {path}: {error}") from error


def check_counts(tokenizer: ChatTokenizer, *, place: str) -> None:
    """Sees that counts grow with the text.

    Raises:
        ConfigError: They do not: the tokenizer, or how it is called, is broken.
    """
    word = "value = frame['column'].mean() + 1\n"
    counts = [
        count_tokens(
            tokenizer, [Message(role="user", content=word * size), Message(role="assistant", content=word * size)]
        )
        for size in (1, 10, 100)
    ]
    if not counts[0] < counts[1] < counts[2]:
        raise ConfigError(f"tokenizer: {place}: counts {counts} for texts of 1, 10 and 100 lines; they must grow")
