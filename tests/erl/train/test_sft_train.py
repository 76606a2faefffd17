"""Supervised fine-tuning: what is refused, what is learnt, and that a run goes on as if it had never stopped."""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("jinja2")

from erl.train.train_make import TEXTS, trainer_config  # noqa: E402
from openmle_erl.engines.packing import TokenRow, collate, plan  # noqa: E402
from openmle_erl.engines.settings import LoraSettings, TorchEngineConfig  # noqa: E402
from openmle_erl.engines.torch_trainer import TorchTrainerWorker  # noqa: E402
from openmle_erl.sft.batches import batch_of_step, read_conversations, tokenise  # noqa: E402
from openmle_erl.sft.config import CONFIGS  # noqa: E402
from openmle_erl.sft.tokens import load_tokenizer  # noqa: E402
from openmle_erl.sft.train import run_sft  # noqa: E402
from openmle_erl.sft.train_config import ScratchConfig, SftConfig  # noqa: E402
from openmle_erl.tracking import TrackingConfig, read_metrics  # noqa: E402
from openmle_gym.configuration import load_config  # noqa: E402
from openmle_gym.errors import ConfigError  # noqa: E402

QUIET = TrackingConfig(console=False, tensorboard=False)


def conversation(number: int) -> dict[str, object]:
    reply = f"I compute a mean.\n\n```python\n{TEXTS[number % len(TEXTS)]}```"
    return {
        "id": f"run/{number}",
        "messages": [{"role": "user", "content": f"Mean of {number}?"}, {"role": "assistant", "content": reply}],
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps(conversation(number)) + "\n" for number in range(15)))
    return path


def config(corpus: Path, out: Path, **changes) -> SftConfig:
    settings = {
        "scratch": ScratchConfig(layers=1, hidden=64, vocab_size=300),
        "engine": TorchEngineConfig(model="", device="cpu", max_tokens_per_micro_batch=200),
        "global_batch": 4,
        "epochs": 2,
        "holdout": 2,
        "save_every": 2,
        "keep": 9,
        "tracking": QUIET,
    } | changes
    made = SftConfig(corpus=str(corpus), out=str(out), **settings)
    made.optimiser.learning_rate = 3e-3
    return made


def weights(folder: Path) -> dict[str, "torch.Tensor"]:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()


BAD = [
    ("not json", r":2: expected a JSON object"),
    ('{"id": "a"}', r":2: messages: must be a list of messages, got None"),
    ('{"messages": [{"role": "robot", "content": "x"}]}', r":2: messages\.0\.role: .*got 'robot'"),
    ('{"messages": [{"role": "user", "content": "x"}, {"role": "assistant"}]}', r":2: messages\.1\.content: "),
    ('{"messages": [{"role": "user", "content": "x"}]}', r":2: messages\.0\.role: the last must be assistant"),
    ('{"messages": [{"role": "assistant", "content": " "}]}', r":2: messages\.0\.content: the reply is empty"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_bad_row_is_named_by_file_line_and_field(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps(conversation(0)) + "\n" + line + "\n")
    with pytest.raises(ConfigError, match=rf"corpus\.jsonl{message}"):
        read_conversations(path)


def test_a_bad_row_of_parquet_is_named_by_its_number(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "corpus.parquet"
    rows = [conversation(0), {"id": "b", "messages": [{"role": "assistant", "content": ""}]}]
    parquet.write_table(arrow.Table.from_pylist(rows), path)
    with pytest.raises(ConfigError, match=r"corpus\.parquet: row 2: messages\.0\.content"):
        read_conversations(path)


def test_only_replies_are_learnt_and_what_is_too_long_is_counted(tiny_dense: Path, corpus: Path) -> None:
    tokenizer = load_tokenizer(tiny_dense)
    conversations = read_conversations(corpus)
    whole = tokenise(conversations, tokenizer, max_tokens=10_000, path=corpus)
    first = whole.rows[0]
    assert tokenizer.decode(first.ids[first.wanted].tolist()) == conversations[0][1].content + "<|im_end|>"
    longest = max(len(row.ids) for row in whole.rows)
    shorter = tokenise(conversations, tokenizer, max_tokens=longest - 1, path=corpus)
    assert shorter.too_long == sum(len(row.ids) == longest for row in whole.rows)
    assert len(shorter.rows) + shorter.too_long == 15
    with pytest.raises(ConfigError, match="all 15 conversations exceed max_tokens=5"):
        tokenise(conversations, tokenizer, max_tokens=5, path=corpus)


@pytest.mark.parametrize("model", ["tiny_dense", "tiny_moe"])
def test_packed_and_padded_the_loss_is_the_mean_over_all_learnt_tokens(
    model: str, corpus: Path, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(model)
    rows = tokenise(read_conversations(corpus)[:6], load_tokenizer(folder), max_tokens=999, path=corpus).rows
    alone = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total, tokens = torch.zeros(()), 0
    for row in rows:
        ids = torch.from_numpy(row.ids)
        logprobs = alone(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        wanted = torch.from_numpy(row.wanted[1:])
        total, tokens = total - logprobs[wanted].sum(), tokens + int(wanted.sum())
    (total / tokens).backward()
    norm = torch.nn.utils.get_total_norm(
        parameter.grad for parameter in alone.parameters() if parameter.grad is not None
    )
    for packing in (True, False):
        engine = {"packing": packing}
        report = TorchTrainerWorker(trainer_config(folder, engine=engine)).learn(rows)
        assert report.loss == pytest.approx(total.item() / tokens, abs=1e-6)
        assert report.metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)


def test_micro_batches_hold_everything_once_and_keep_to_their_budget() -> None:
    lengths = [50, 3, 9, 9, 9, 31, 8, 8]
    for packing in (True, False):
        for processes in (1, 3):
            dealt = plan(lengths, budget=32, packing=packing, processes=processes)
            assert len({len(bins) for bins in dealt}) == 1
            bins = [places for each in dealt for places in each]
            assert sorted(place for places in bins for place in places) == list(range(8))
            for places in bins:
                cost = sum(lengths[place] for place in places)
                if not packing and places:
                    cost = len(places) * max(lengths[place] for place in places)
                assert cost <= 32 or places == [0]
    assert len(plan([4, 4, 4, 4], budget=8, packing=True)[0]) == 2
    assert plan([5], budget=8, packing=True, processes=2)[1] == [[]]


def test_a_packed_row_begins_every_sequence_at_position_zero() -> None:
    rows = [
        TokenRow(np.array([5, 6, 7]), np.array([False, False, True])),
        TokenRow(np.array([8, 9]), np.array([False, True])),
    ]
    packed = collate(rows, [1, 0], packing=True)
    assert packed.input_ids_RL.tolist() == [[8, 9, 5, 6, 7]]
    assert packed.position_ids_RL.tolist() == [[0, 1, 0, 1, 2]]
    assert packed.columns_K.tolist() == [0, 3]
    assert packed.target_N.tolist() == [9, 7]
    padded = collate(rows, [1, 0], packing=False)
    assert padded.input_ids_RL.tolist() == [[8, 9, 0], [5, 6, 7]]
    assert (padded.row_N.tolist(), padded.columns_K[padded.column_N].tolist()) == ([0, 1], [0, 1])


def test_each_epoch_has_an_order_of_its_own_and_leaves_its_remainder_out() -> None:
    epochs = [[batch_of_step(3 * epoch + step, 10, 3, 42) for step in range(3)] for epoch in range(2)]
    for number, epoch in enumerate(epochs):
        rows = [row for batch in epoch for row in batch]
        assert len(set(rows)) == 9
        assert rows == np.random.default_rng(42 + number).permutation(10)[:9].tolist()
    assert epochs[0] != epochs[1]
    with pytest.raises(ConfigError, match="global_batch: 11"):
        batch_of_step(0, 10, 11, 42)


def test_a_stopped_run_goes_on_to_the_same_bits_and_refuses_other_settings(corpus: Path, tmp_path: Path) -> None:
    result = asyncio.run(run_sft(config(corpus, tmp_path / "straight")))
    assert (result.steps, result.conversations) == (6, 13)  # 13 of 15 rows, batches of 4, 2 epochs
    records = read_metrics(tmp_path / "straight")
    assert [record["step"] for record in records] == list(range(7))
    assert records[0]["evaluation_loss"] > records[6]["evaluation_loss"] == result.evaluation_loss

    stopped = tmp_path / "stopped"
    stopped.mkdir()
    shutil.copy(tmp_path / "straight" / "run.json", stopped)
    (stopped / "metrics.jsonl").touch()
    shutil.copytree(tmp_path / "straight" / "base", stopped / "base")
    shutil.copytree(tmp_path / "straight" / "checkpoints" / "step-0000002", stopped / "checkpoints" / "step-0000002")
    (stopped / "checkpoints" / "step-0000004").mkdir()  # a checkpoint that is not whole counts for nothing
    resumed = asyncio.run(run_sft(config(corpus, stopped)))
    assert [record["step"] for record in read_metrics(stopped)] == [3, 4, 5, 6]
    assert [record["loss"] for record in read_metrics(stopped)] == [record["loss"] for record in records[3:]]
    assert resumed.evaluation_loss == result.evaluation_loss
    one, other = weights(tmp_path / "straight" / "model"), weights(stopped / "model")
    assert all(torch.equal(one[name], other[name]) for name in one)

    with pytest.raises(ConfigError, match="other settings: global_batch"):
        asyncio.run(run_sft(config(corpus, stopped, global_batch=5)))
    shutil.copy(tmp_path / "straight" / "run.json", tmp_path / "unbegun.json")
    (tmp_path / "unbegun").mkdir()
    (tmp_path / "unbegun.json").rename(tmp_path / "unbegun" / "run.json")
    with pytest.raises(ConfigError, match="global_batch: 14, but the corpus has 13"):  # no longer: a run not begun
        asyncio.run(run_sft(config(corpus, tmp_path / "unbegun", global_batch=14)))
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="no run of sft"):
        asyncio.run(run_sft(config(corpus, tmp_path / "else")))


def test_adapters_learn_from_a_model_s_folder(tiny_dense: Path, corpus: Path, tmp_path: Path) -> None:
    engine = TorchEngineConfig(model=str(tiny_dense), device="cpu", lora=LoraSettings(rank=4))
    made = config(corpus, tmp_path / "out", engine=engine, scratch=ScratchConfig(), validation=str(corpus), holdout=0)
    made.optimiser.learning_rate = 1e-2
    asyncio.run(run_sft(made))
    losses = [record["evaluation_loss"] for record in read_metrics(tmp_path / "out") if "evaluation_loss" in record]
    assert len(losses) == 2
    assert losses[1] < losses[0] - 0.02


def test_a_new_model_can_have_a_tokenizer_that_was_kept(corpus: Path, tiny_dense: Path, tmp_path: Path) -> None:
    scratch = ScratchConfig(layers=1, hidden=64, tokenizer=str(tiny_dense))
    asyncio.run(run_sft(config(corpus, tmp_path / "out", scratch=scratch, epochs=1)))
    kept, made = (
        json.loads((folder / "tokenizer.json").read_text()) for folder in (tiny_dense, tmp_path / "out/model")
    )
    assert made["model"]["vocab"] == kept["model"]["vocab"]
    nothing = ScratchConfig(layers=1, hidden=64, tokenizer=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"scratch.tokenizer: .*nothing: holds no tokenizer"):
        asyncio.run(run_sft(config(corpus, tmp_path / "other", scratch=nothing)))


def test_the_published_profiles_hold_the_published_values() -> None:
    given = ["corpus=c.jsonl", "out=o", "engine.model=m"]
    large = load_config(SftConfig, "sft_paper_30b", configs=CONFIGS, overrides=given)
    larger = load_config(SftConfig, "sft_paper_35b", configs=CONFIGS, overrides=given)
    for found in (large, larger):
        assert (found.epochs, found.global_batch, found.max_tokens, found.seed) == (3, 128, 32_768, 42)
        rate = found.optimiser
        assert (rate.learning_rate, rate.schedule, rate.min_learning_rate, rate.warmup_fraction) == (
            3e-5,
            "cosine",
            0.0,
            0.1,
        )
        assert (rate.weight_decay, rate.beta1, rate.beta2, rate.max_grad_norm) == (0.1, 0.9, 0.95, 1.0)
    sizes = large.megatron.parallel
    assert (sizes.tensor, sizes.pipeline, sizes.context, sizes.expert, sizes.expert_tensor) == (4, 1, 1, 8, 1)
    assert (large.engine.max_tokens_per_micro_batch, larger.engine.max_tokens_per_micro_batch) == (32_768, 8_192)
    assert (larger.megatron.parallel.tensor, larger.megatron.dispatcher, larger.megatron.optimiser_offload) == (
        2,
        "flex",
        True,
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.model=m", "scratch.layers=2"], "engine.model"),
        (["trainer=jax"], "trainer"),
        (["trainer=megatron", "processes=2"], "megatron.parallel: 1 ranks"),
        (["holdout=3", "validation=v"], "holdout"),
        (["optimiser.schedule=linear"], "optimiser.schedule"),
        (["engine.lora.rank=-1"], "lora.rank"),
        (["globalbatch=3"], "globalbatch"),
    ],
)
def test_a_wrong_setting_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(SftConfig, "sft_laptop", configs=CONFIGS, overrides=["corpus=c", "out=o", *overrides])
