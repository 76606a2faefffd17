"""Equal examples: by their messages, up to what no reader sees. Pure."""

import hashlib
import json
import unicodedata
from collections.abc import Sequence

from openmle_gym.chat import Message


def message_hash(messages: Sequence[Message]) -> str:
    """SHA-256 of the normalised messages: roles and texts, without the Unicode form, line ends, trailing blanks and
    outer blank lines. Case and indentation count: they matter in programs."""
    plain = [[message.role, _normalised(message.content)] for message in messages]
    return hashlib.sha256(json.dumps(plain, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()


def _normalised(text: str) -> str:
    lines = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n")
