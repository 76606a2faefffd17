"""Models small enough to learn on a laptop, and tokenizers made from the texts they are to read. Nothing is downloaded.

The tokenizer is a byte-level BPE, so it is lossless, whose merges stay within pieces of a line: text is cut before each
newline with the indent that follows it, before each `(`, and around each digit, so that numbers are spelt and not learnt by
heart. Programs take less than half of the tokens that words cost.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from openmle_gym.errors import ConfigError
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3MoeConfig
from transformers.utils import logging as transformers_logging

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (PAD, TURN_START, TURN_END)
THINKING_TOKENS = ("<think>", "</think>")
LINE_PIECES = r"\n[ \t]*[^\n(0-9]*|\([^\n(0-9]*|[0-9]|[^\n(0-9]+"
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
HEAD_DIM = 32


def train_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """A byte-level BPE of line pieces, with ChatML's special tokens and template; the reply's end is its end of text."""
    bpe = Tokenizer(models.BPE())  # its stubs know the parts below as read-only
    bpe.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(Regex(LINE_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(THINKING_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens([AddedToken(token, normalized=False) for token in THINKING_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=TURN_END,
        additional_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def tiny_qwen3(
    vocab_size: int, *, layers: int = 2, hidden: int = 64, experts: int = 0, context: int = 8192, seed: int = 0
) -> PreTrainedModel:
    """A Qwen3 with random weights, the same for the same seed; a Qwen3-MoE of two experts a token where `experts` is not 0.

    Args:
        hidden: A multiple of 64: heads are 32 wide, and each key is shared by two of them.
    """
    heads = hidden // HEAD_DIM
    size: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        "use_cache": True,
        "pad_token_id": 0,
        "eos_token_id": SPECIAL_TOKENS.index(TURN_END),
    }
    config = (
        Qwen3MoeConfig(
            **size,
            intermediate_size=3 * hidden,
            moe_intermediate_size=hidden,
            num_experts=experts,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            router_aux_loss_coef=0.0,
        )
        if experts
        else Qwen3Config(**size, intermediate_size=3 * hidden)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def save_tiny(
    folder: Path,
    texts: Iterable[str],
    *,
    vocab_size: int = 1024,
    tokenizer: Path | None = None,
    layers: int = 2,
    hidden: int = 64,
    experts: int = 0,
    context: int = 8192,
    seed: int = 0,
) -> Path:
    """Writes a model and its tokenizer as a folder in Hugging Face's layout; returns the folder.

    Args:
        texts: What the tokenizer is made from.
        tokenizer: The folder of one that was made so before, to be used instead.

    Raises:
        ConfigError: That folder holds no tokenizer of ours.
    """
    made = train_tokenizer(texts, vocab_size) if tokenizer is None else read_tokenizer(tokenizer)
    model = tiny_qwen3(len(made), layers=layers, hidden=hidden, experts=experts, context=context, seed=seed)
    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """A tokenizer that `train_tokenizer` made and somebody kept.

    Raises:
        ConfigError: The folder holds none, or one of other special tokens, which `tiny_qwen3` could not go with.
    """
    try:
        found = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"scratch.tokenizer: {folder}: holds no tokenizer: {error}") from error
    if found.convert_tokens_to_ids(list(SPECIAL_TOKENS)) != list(range(len(SPECIAL_TOKENS))):
        raise ConfigError(f"scratch.tokenizer: {folder}: its first tokens must be {', '.join(SPECIAL_TOKENS)}")
    return found
