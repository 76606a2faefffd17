"""`openmle-erl sft trainer=megatron` on a CPU: whole runs, which learn step by step what the torch trainer's learn."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("jinja2")
pytest.importorskip("megatron.core")

from openmle_erl.engines.memory import ParallelSizes  # noqa: E402
from openmle_erl.engines.settings import OptimiserConfig, TorchEngineConfig  # noqa: E402
from openmle_erl.sft.train import run_sft  # noqa: E402
from openmle_erl.sft.train_config import MegatronLayout, ScratchConfig, SftConfig  # noqa: E402
from openmle_erl.tracking import TrackingConfig, read_metrics  # noqa: E402

pytestmark = pytest.mark.slow
CASES = {
    "one rank": (0, ParallelSizes()),
    "two ranks that share each layer": (0, ParallelSizes(tensor=2)),
    "two ranks that share the experts": (4, ParallelSizes(data=2, expert=2)),
}


def config(folder: Path, out: str, experts: int, sizes: ParallelSizes, *, trainer: str) -> SftConfig:
    return SftConfig(
        corpus=str(folder / "corpus.jsonl"),
        out=str(folder / out),
        holdout=2,
        trainer=trainer,
        processes=sizes.world,
        engine=TorchEngineConfig(model="", device="cpu", max_tokens_per_micro_batch=120),
        scratch=ScratchConfig(layers=2, hidden=128, vocab_size=300, experts=experts),
        megatron=MegatronLayout(parallel=sizes),
        optimiser=OptimiserConfig(learning_rate=3e-3, schedule="cosine", warmup_fraction=0.2),
        epochs=2,
        global_batch=4,
        save_every=2,
        tracking=TrackingConfig(console=False, tensorboard=False),
    )


def weights(folder: Path) -> dict[str, "torch.Tensor"]:
    return transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).state_dict()


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in read_metrics(folder) if "loss" in record]


@pytest.mark.parametrize("name", CASES)
def test_a_run_learns_what_the_torch_trainer_s_learns_and_goes_on_from_its_checkpoint(
    name: str, tmp_path: Path
) -> None:
    experts, sizes = CASES[name]
    with (tmp_path / "corpus.jsonl").open("w") as corpus:
        for number in range(12):
            reply = f"```python\nimport numpy\nprint(numpy.mean([{number}]))\n```"
            turns = [{"role": "user", "content": f"Mean of {number}?"}, {"role": "assistant", "content": reply}]
            corpus.write(json.dumps({"messages": turns}) + "\n")
    by_torch = asyncio.run(run_sft(config(tmp_path, "torch", experts, ParallelSizes(), trainer="torch")))
    result = asyncio.run(run_sft(config(tmp_path, "megatron", experts, sizes, trainer="megatron")))
    assert (result.steps, result.conversations, result.learnt_tokens) == (4, 10, by_torch.learnt_tokens)
    assert losses(tmp_path / "megatron") == pytest.approx(losses(tmp_path / "torch"), abs=1e-4)
    assert losses(tmp_path / "megatron")[3] < losses(tmp_path / "megatron")[0] - 0.5
    assert result.evaluation_loss == pytest.approx(by_torch.evaluation_loss, abs=1e-4)
    theirs, ours = weights(tmp_path / "torch"), weights(tmp_path / "megatron")
    assert theirs.keys() == ours.keys()
    assert max(float((theirs[key] - ours[key]).abs().max()) for key in theirs) < 1e-3

    first = read_metrics(tmp_path / "megatron")
    shutil.rmtree(tmp_path / "megatron" / "model")  # as if it had been stopped after the step of its checkpoint
    again = asyncio.run(run_sft(config(tmp_path, "megatron", experts, sizes, trainer="megatron")))
    repeated = read_metrics(tmp_path / "megatron")
    assert [record["step"] for record in repeated] == [0, 1, 2, 3, 4]
    changed = [one["step"] for one, other in zip(first, repeated, strict=True) if one["time"] != other["time"]]
    assert changed == [3, 4]  # these were trained anew, from the checkpoint after step 2, to the same bits
    assert [record["loss"] for record in repeated[1:]] == [record["loss"] for record in first[1:]]
    assert again.evaluation_loss == result.evaluation_loss
    after = weights(tmp_path / "megatron")
    assert all(torch.equal(ours[key], after[key]) for key in ours)
