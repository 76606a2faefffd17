"""Token counts and loss masks with the real libraries: a byte-level BPE made here, and templates with thinking."""

from pathlib import Path

import pytest

pytest.importorskip("jinja2")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

from openmle_erl.sft.masks import learnt_texts, mask_conversation  # noqa: E402
from openmle_erl.sft.tokens import ChatTokenizer, TransformersTokenizer, count_tokens, load_tokenizer  # noqa: E402
from openmle_gym.chat import Message  # noqa: E402
from openmle_gym.errors import ConfigError  # noqa: E402

PLAIN = """\
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""

# The last reply shows its thinking, also when there is none; earlier replies never do.
THINKING = """\
{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- set text = m.content -%}
{%- if m.role == 'assistant' -%}
{%- set thought = '' -%}
{%- if '</think>' in text -%}
{%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}
{%- set text = text.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{%- if loop.index0 > ns.last -%}{%- set text = '<think>\\n' + thought + '\\n</think>\\n\\n' + text -%}{%- endif -%}
{%- endif -%}
{{- '<|im_start|>' + m.role + '\\n' + text + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' + OPENING -}}{%- endif -%}"""
TEMPLATES = {
    "plain": PLAIN,
    "thinking": THINKING.replace("OPENING", "''"),
    "thinking only": THINKING.replace("OPENING", "'<think>\\n'"),
    "thinking switched off": THINKING.replace("OPENING", "'<think>\\n\\n</think>\\n\\n'"),
}
TEXTS = [
    "import pandas as pd\n\n\nframe = pd.read_csv('train.csv')\n\n",
    "I fit a model.\n\n```python\nprint(1)\n```\n",
]


@pytest.fixture(scope="module", params=TEMPLATES)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    """Saved, and loaded as a user's is."""
    folder = tmp_path_factory.mktemp("tokenizer")
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>", "<think>", "</think>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(TEXTS * 3, trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=TEMPLATES[request.param])
    fast.save_pretrained(folder)
    loaded = load_tokenizer(folder)
    assert isinstance(loaded, TransformersTokenizer)
    return loaded


def chat(*texts: str) -> list[Message]:
    roles = ["system", *(["user", "assistant"] * len(texts))]
    return [Message(role=role, content=text) for role, text in zip(roles, texts, strict=False)]  # pyright: ignore


THOUGHT = "<think>\nBoosting, I think.\n</think>\n\nI boost.\n\n```python\nimport os\n\nprint(os.name)\n```"
PLAIN_REPLY = THOUGHT.split("</think>\n\n")[1]


@pytest.mark.parametrize("reply", [THOUGHT, PLAIN_REPLY], ids=["with thinking", "without"])
def test_the_learnt_tokens_decode_to_the_reply_and_its_end(tokenizer: ChatTokenizer, reply: str) -> None:
    messages = chat("You write programs.", "Draft.", reply)
    masked = mask_conversation(tokenizer, messages)
    rendered = tokenizer.render(messages)
    assert tokenizer.decode(masked.ids) == rendered
    (text,) = learnt_texts(tokenizer, masked)
    asked = tokenizer.render(messages[:-1], generation_prompt=True)
    if rendered.startswith(asked):
        assert text == rendered[len(asked) :].removesuffix("\n")
    assert text.endswith(f"{PLAIN_REPLY}<|im_end|>")
    assert ("Boosting, I think." in text) == (reply == THOUGHT)
    assert not any(name in text for name in ("Draft.", "<|im_start|>", "assistant"))


def test_each_token_of_the_prompt_is_as_in_inference(tokenizer: ChatTokenizer) -> None:
    messages = chat("You write programs.", "Draft.", PLAIN_REPLY)
    masked = mask_conversation(tokenizer, messages)
    asked = tokenizer.encode(tokenizer.render(messages[:-1], generation_prompt=True))
    assert masked.ids[: masked.mask.index(True)] == asked
    assert not any(masked.mask[: len(asked)])


def test_every_reply_of_several_turns_is_learnt(tokenizer: ChatTokenizer) -> None:
    messages = chat("s", "Draft.", THOUGHT, "Improve.", "<think>\nDeeper.\n</think>\n\nI go deeper.")
    first, second = learnt_texts(tokenizer, mask_conversation(tokenizer, messages))
    assert first.endswith(f"{PLAIN_REPLY}<|im_end|>")
    assert second.endswith("I go deeper.<|im_end|>")
    assert "Deeper." in second
    assert "Improve." not in first + second


def test_counts_vary_with_the_text(tokenizer: ChatTokenizer) -> None:
    counts = [count_tokens(tokenizer, chat("s", "q" * size, "ok")) for size in (1, 50, 500)]
    assert counts[0] < counts[1] < counts[2]
    messages = chat("s", "q", THOUGHT)
    assert count_tokens(tokenizer, messages) == len(tokenizer.encode(tokenizer.render(messages))) > 20


def test_a_bare_tokenizer_file_counts_as_chatml(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(TEXTS, tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    bpe.save(str(tmp_path / "tokenizer.json"))
    plain = load_tokenizer(tmp_path / "tokenizer.json")
    masked = mask_conversation(plain, chat("s", "q", PLAIN_REPLY))
    assert learnt_texts(plain, masked) == [f"{PLAIN_REPLY}<|im_end|>"]


def test_a_folder_without_a_tokenizer_or_a_template_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(ConfigError, match="tokenizer: "):
        load_tokenizer(tmp_path)
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0}, merges=[]))
    transformers.PreTrainedTokenizerFast(tokenizer_object=bpe).save_pretrained(tmp_path / "bare")
    with pytest.raises(ConfigError, match="no chat template"):
        load_tokenizer(tmp_path / "bare")
