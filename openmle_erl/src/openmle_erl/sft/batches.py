"""From a corpus to the batches of an epoch: every row is read, checked, rendered and masked before training begins."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from openmle_gym.chat import Message
from openmle_gym.errors import ConfigError
from pydantic import TypeAdapter, ValidationError

from openmle_erl.engines.packing import TokenRow
from openmle_erl.sft.audit import Row, read_rows
from openmle_erl.sft.masks import mask_conversation
from openmle_erl.sft.tokens import ChatTokenizer

log = logging.getLogger(__name__)
_MESSAGES = TypeAdapter(list[Message])


class Corpus(NamedTuple):
    """A corpus as training sees it."""

    rows: list[TokenRow]
    too_long: int
    """Conversations that were left out."""

    @property
    def learnt(self) -> int:
        """Tokens that are learnt."""
        return sum(int(row.wanted.sum()) for row in self.rows)


def read_conversations(path: Path) -> list[list[Message]]:
    """All conversations of a corpus.

    Raises:
        ConfigError: The file cannot be read, is empty, or a row is not a conversation that ends with a reply; names file,
            line (or row, of Parquet) and field.
    """
    found = [_conversation(row, _place(path, row)) for row in read_rows(path)]
    if not found:
        raise ConfigError(f"{path}: no conversation in it")
    return found


def tokenise(
    conversations: Sequence[Sequence[Message]], tokenizer: ChatTokenizer, *, max_tokens: int, path: Path
) -> Corpus:
    """Renders and masks conversations.

    Raises:
        ConfigError: The template does something to a conversation that the mask cannot follow, or all are too long.
    """
    rows: list[TokenRow] = []
    too_long = 0
    for number, messages in enumerate(conversations, start=1):
        try:
            masked = mask_conversation(tokenizer, messages)
        except ValueError as error:
            raise ConfigError(f"{path}: conversation {number}: messages: {error}") from error
        if len(masked.ids) > max_tokens:
            too_long += 1
            continue
        wanted = np.array(masked.mask, dtype=np.bool_)
        wanted[0] = False
        rows.append(TokenRow(ids=np.array(masked.ids, dtype=np.int64), wanted=wanted))
    if too_long:
        log.warning("%s: %d of %d conversations exceed %d tokens", path, too_long, len(conversations), max_tokens)
    if not rows:
        raise ConfigError(f"{path}: all {too_long} conversations exceed max_tokens={max_tokens}")
    return Corpus(rows, too_long)


def steps_of_epoch(rows: int, global_batch: int) -> int:
    """Optimiser steps of an epoch.

    Raises:
        ConfigError: The rows do not fill one batch.
    """
    if rows < global_batch:
        raise ConfigError(f"global_batch: {global_batch}, but the corpus has {rows} conversations to train on")
    return rows // global_batch


def batch_of_step(step: int, rows: int, global_batch: int, seed: int) -> list[int]:
    """The rows of optimiser step number `step`, from 0: each epoch in an order of its own, its remainder dropped."""
    epoch, within = divmod(step, steps_of_epoch(rows, global_batch))
    order = np.random.default_rng(seed + epoch).permutation(rows)
    return order[within * global_batch : (within + 1) * global_batch].tolist()


def _place(path: Path, row: Row) -> str:
    return f"{path}: row {row.number}" if path.suffix.lower() == ".parquet" else f"{path}:{row.number}"


def _conversation(row: Row, place: str) -> list[Message]:
    if not isinstance(row.raw, dict):
        raise ConfigError(f"{place}: expected a JSON object with messages")
    raw = row.raw.get("messages")
    if not isinstance(raw, list) or not raw:
        raise ConfigError(f"{place}: messages: must be a list of messages, got {raw!r:.80}")
    kept = [{key: each.get(key) for key in ("role", "content")} if isinstance(each, dict) else each for each in raw]
    try:
        messages = _MESSAGES.validate_python(kept)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{place}: messages.{field}: {first['msg']}, got {first['input']!r:.80}") from error
    if messages[-1].role != "assistant":
        raise ConfigError(f"{place}: messages.{len(raw) - 1}.role: the last must be assistant, got {messages[-1].role}")
    if not messages[-1].content.strip():
        raise ConfigError(f"{place}: messages.{len(raw) - 1}.content: the reply is empty")
    return messages
