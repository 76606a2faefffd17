"""The trainer `torch` against the plain model and the plain loop."""

import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from erl.train.train_make import samples, trainer_config  # noqa: E402
from openmle_erl.engines.protocols import TrainingSample  # noqa: E402
from openmle_erl.engines.settings import OptimiserConfig, learning_rate_at  # noqa: E402
from openmle_erl.engines.torch_trainer import TorchTrainer, TorchTrainerWorker  # noqa: E402
from openmle_erl.rl.gspo import policy_loss  # noqa: E402
from openmle_erl.rl.objective import ObjectiveConfig  # noqa: E402
from openmle_gym.errors import ConfigError, OpenMLEError  # noqa: E402


def load(folder: Path) -> "transformers.PreTrainedModel":
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def weights(folder: Path) -> dict[str, "torch.Tensor"]:
    return {name: value.clone() for name, value in load(folder).state_dict().items()}


def largest_change(one: dict[str, "torch.Tensor"], other: dict[str, "torch.Tensor"]) -> float:
    assert one.keys() == other.keys()
    return max((one[name].float() - other[name].float()).abs().max().item() for name in one)


def plain_logprobs(model: "torch.nn.Module", sample: TrainingSample) -> "torch.Tensor":
    ids = torch.tensor([[*sample.prompt_ids, *sample.reply_ids]])
    logprobs = model(ids).logits[0].log_softmax(-1)
    start = len(sample.prompt_ids)
    return logprobs[torch.arange(start - 1, ids.shape[1] - 1), ids[0, start:]]


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("model", ["tiny_dense", "tiny_moe"])
def test_log_probabilities_are_those_of_each_sequence_alone(
    model: str, packing: bool, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(model)
    some = samples(9)
    found = TorchTrainerWorker(trainer_config(folder, engine={"packing": packing})).logprobs(some)
    alone = load(folder)
    for sample, ours in zip(some, found, strict=True):
        np.testing.assert_allclose(ours, plain_logprobs(alone, sample).detach().numpy(), atol=2e-6)


def test_log_probabilities_are_those_at_the_rollout_s_temperature(tiny_dense: Path) -> None:
    sample = samples(1)[0]
    found = TorchTrainerWorker(trainer_config(tiny_dense, engine={"temperature": 0.5})).logprobs([sample])[0]
    ids = torch.tensor([[*sample.prompt_ids, *sample.reply_ids]])
    logprobs = (load(tiny_dense)(ids).logits[0] / 0.5).log_softmax(-1)
    place = len(sample.prompt_ids)
    assert found[0] == pytest.approx(logprobs[place - 1, ids[0, place]].item(), abs=1e-5)


@pytest.mark.parametrize("packing", [True, False])
def test_a_step_is_the_plain_loop_s_step(tiny_dense: Path, tmp_path: Path, packing: bool) -> None:
    some = samples()
    objective = ObjectiveConfig(clip_low=0.2, clip_high=0.2, entropy_coefficient=0.01, kl_coefficient=0.05)
    config = trainer_config(tiny_dense, engine={"packing": packing}, objective=objective)
    config.optimiser.max_grad_norm = 0.05
    config.optimiser.epsilon = 1e-4  # or rounding decides where a gradient is all but zero
    worker = TorchTrainerWorker(config)
    old = worker.logprobs(some)
    for values in old:
        values += 0.01
    report = worker.step(some, old)
    worker.save_weights(tmp_path / "after")

    model = load(tiny_dense)
    decaying = [each for each in model.parameters() if each.ndim > 1]
    rest = [each for each in model.parameters() if each.ndim == 1]
    optimiser = torch.optim.AdamW(
        [{"params": decaying, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.98),
        eps=1e-4,
    )
    loss = torch.zeros(())
    for sample, before in zip(some, old, strict=True):
        new = plain_logprobs(model, sample)
        ids = torch.tensor([[*sample.prompt_ids, *sample.reply_ids]])
        spread = model(ids).logits[0, len(sample.prompt_ids) - 1 : -1].log_softmax(-1)
        entropy = -(spread.exp() * spread).sum(-1)
        loss = (
            loss
            + policy_loss(
                new[None],
                torch.from_numpy(before)[None],
                torch.from_numpy(sample.rollout_logprobs_T)[None],
                torch.from_numpy(sample.loss_mask_T)[None],
                torch.tensor([sample.advantage]),
                objective,
                global_batch=len(some),
                ref_logprobs_BT=new.detach()[None],
                entropy_BT=entropy[None],
            ).loss
        )
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimiser.step()
    assert report.loss == pytest.approx(loss.item(), abs=1e-6)
    assert report.metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert norm > 0.05
    assert largest_change(weights(tmp_path / "after"), model.state_dict()) < 1e-5
    assert largest_change(weights(tmp_path / "after"), weights(tiny_dense)) > 5e-3


def test_checkpointing_activations_changes_nothing(tiny_moe: Path) -> None:
    some = samples()
    reports = []
    for kept in (False, True):
        worker = TorchTrainerWorker(trainer_config(tiny_moe, engine={"gradient_checkpointing": kept}))
        reports.append(worker.step(some, worker.logprobs(some)))
    assert reports[0].metrics["grad_norm"] == pytest.approx(reports[1].metrics["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("lora", [False, True])
def test_two_steps_and_two_more_after_a_restart_are_four_steps(tiny_dense: Path, tmp_path: Path, lora: bool) -> None:
    from openmle_erl.engines.settings import LoraSettings

    adapters = LoraSettings(rank=4, dropout=0.2) if lora else LoraSettings()
    schedule = {"schedule": "cosine", "warmup_fraction": 0.25, "total_steps": 5}
    config = trainer_config(tiny_dense, engine={"lora": adapters}, optimiser=schedule)
    batches = [samples(seed=seed) for seed in range(4)]

    def steps(worker: TorchTrainerWorker, chosen: list[list[TrainingSample]]) -> list[float]:
        return [worker.step(batch, worker.logprobs(batch)).loss for batch in chosen]

    straight = TorchTrainerWorker(config)
    losses = steps(straight, batches)
    straight.save_weights(tmp_path / "straight")

    first = TorchTrainerWorker(config)
    first.save(tmp_path / "before")  # a checkpoint of the beginning disturbs nothing
    before = steps(first, batches[:2])
    first.save(tmp_path / "half")
    torch.rand(7)
    second = TorchTrainerWorker(config)
    second.load(tmp_path / "half")
    assert before + steps(second, batches[2:]) == losses
    second.save_weights(tmp_path / "resumed")
    assert largest_change(weights(tmp_path / "straight"), weights(tmp_path / "resumed")) == 0.0

    second.load(tmp_path / "before")
    assert steps(second, batches) == losses


def test_a_checkpoint_in_the_background_is_of_the_moment_it_was_asked_for(tiny_dense: Path, tmp_path: Path) -> None:
    worker = TorchTrainerWorker(trainer_config(tiny_dense, engine={"async_save": True}))
    some = samples()
    old = worker.logprobs(some)
    worker.step(some, old)
    now = worker.logprobs(some)
    worker.save(tmp_path / "checkpoint")
    worker.step(some, old)
    worker.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]
    again = TorchTrainerWorker(trainer_config(tiny_dense))
    again.load(tmp_path / "checkpoint")
    for one, other in zip(again.logprobs(some), now, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_folder_without_a_whole_checkpoint_is_refused(tiny_dense: Path, tmp_path: Path) -> None:
    worker = TorchTrainerWorker(trainer_config(tiny_dense))
    worker.save(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "trainer.json").unlink()
    with pytest.raises(ConfigError, match=r"no trainer\.json"):
        worker.load(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("file", "left"),
    [(".metadata", 0), (".metadata", 20), ("__0_0.distcp", 0), ("__0_0.distcp", 1000), ("random_0.pt", 30)],
)
def test_a_damaged_checkpoint_is_named(tiny_dense: Path, tmp_path: Path, file: str, left: int) -> None:
    worker = TorchTrainerWorker(trainer_config(tiny_dense))
    worker.save(tmp_path / "checkpoint")
    os.truncate(tmp_path / "checkpoint" / file, left)
    with pytest.raises(ConfigError, match=f"{tmp_path}/checkpoint: a damaged checkpoint"):
        worker.load(tmp_path / "checkpoint")


def test_a_checkpoint_that_lost_a_file_is_named(tiny_dense: Path, tmp_path: Path) -> None:
    worker = TorchTrainerWorker(trainer_config(tiny_dense))
    worker.save(tmp_path / "checkpoint")
    for file in (tmp_path / "checkpoint").glob("*.distcp"):
        file.unlink()
    with pytest.raises(ConfigError, match=f"{tmp_path}/checkpoint: a damaged checkpoint.*distcp"):
        worker.load(tmp_path / "checkpoint")


def test_log_probabilities_are_without_dropout_and_draw_nothing(tiny_dense: Path) -> None:
    from openmle_erl.engines.settings import LoraSettings

    worker = TorchTrainerWorker(trainer_config(tiny_dense, engine={"lora": LoraSettings(rank=4, dropout=0.5)}))
    some = samples()
    worker.step(some, worker.logprobs(some))  # fresh adapters change nothing, and drop nothing that counts
    drawn = torch.get_rng_state()
    for one, other in zip(worker.logprobs(some), worker.logprobs(some), strict=True):
        np.testing.assert_array_equal(one, other)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_saved_weights_hold_the_adapters_merged_and_the_tokenizer(tiny_dense: Path, tmp_path: Path) -> None:
    from openmle_erl.engines.settings import LoraSettings

    worker = TorchTrainerWorker(trainer_config(tiny_dense, engine={"lora": LoraSettings(rank=4, alpha=3.0)}))
    some = samples()
    for _ in range(2):
        worker.step(some, worker.logprobs(some))
    worker.save_weights(tmp_path / "merged")
    saved = load(tmp_path / "merged")
    for sample, ours in zip(some, worker.logprobs(some), strict=True):
        np.testing.assert_allclose(plain_logprobs(saved, sample).detach().numpy(), ours, atol=1e-5)
    base = weights(tiny_dense)
    changed = {name for name, value in weights(tmp_path / "merged").items() if not torch.equal(value, base[name])}
    assert {name.split(".")[-2] for name in changed} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }
    transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")


def test_a_mixture_s_weights_are_written_expert_by_expert(tiny_moe: Path, tmp_path: Path) -> None:
    worker = TorchTrainerWorker(trainer_config(tiny_moe))
    worker.save_weights(tmp_path / "moe")
    assert largest_change(weights(tmp_path / "moe"), weights(tiny_moe)) == 0.0


def test_no_reference_model_is_loaded_while_its_coefficient_is_zero(tiny_dense: Path, tmp_path: Path) -> None:
    TorchTrainerWorker(trainer_config(tiny_dense, reference=str(tmp_path / "none")))
    objective = ObjectiveConfig(kl_coefficient=0.1)
    with pytest.raises(ConfigError, match="none"):
        TorchTrainerWorker(trainer_config(tiny_dense, reference=str(tmp_path / "none"), objective=objective))


def test_recorded_experts_are_used_and_the_router_goes_on_learning(tiny_moe: Path) -> None:
    from openmle_erl.engines.routing import recorded

    some = samples(3)
    model = load(tiny_moe)
    with torch.no_grad():  # another router, as if the rollout engine's arithmetic differed
        for name, parameter in model.named_parameters():
            if "gate.weight" in name:
                parameter.neg_()
    replayed = []
    for sample in some:
        ids = torch.tensor([[*sample.prompt_ids, *sample.reply_ids]])
        with recorded(model) as seen:
            model(ids)
        experts = torch.stack(seen, dim=1).numpy().astype(np.int16)  # [tokens, layers, 2]
        replayed.append(
            TrainingSample(
                sample_id=sample.sample_id,
                prompt_ids=sample.prompt_ids,
                reply_ids=sample.reply_ids,
                loss_mask_T=sample.loss_mask_T,
                rollout_logprobs_T=sample.rollout_logprobs_T,
                advantage=sample.advantage,
                experts_NLK=experts[:-1],
            )
        )
    plain = TorchTrainerWorker(trainer_config(tiny_moe))
    own = plain.logprobs(some)
    worker = TorchTrainerWorker(trainer_config(tiny_moe, replay_routing=True))
    forced = worker.logprobs(replayed)
    for first, second in zip(own, forced, strict=True):
        assert np.abs(first - second).max() > 1e-4
    same = []
    alone = load(tiny_moe)
    for sample in some:
        with recorded(alone) as seen:
            alone(torch.tensor([[*sample.prompt_ids, *sample.reply_ids]]))
        same.append(torch.stack(seen, dim=1).numpy().astype(np.int16))
    again = worker.logprobs(
        [
            TrainingSample(
                sample_id=each.sample_id,
                prompt_ids=each.prompt_ids,
                reply_ids=each.reply_ids,
                loss_mask_T=each.loss_mask_T,
                rollout_logprobs_T=each.rollout_logprobs_T,
                advantage=each.advantage,
                experts_NLK=experts,
            )
            for each, experts in zip(some, same, strict=True)
        ]
    )
    for first, second in zip(own, again, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-6)
    before = worker._engine.model.state_dict()["model.layers.0.mlp.gate.weight"].clone()
    worker.step(replayed, forced)
    assert not torch.equal(before, worker._engine.model.state_dict()["model.layers.0.mlp.gate.weight"])


def test_bfloat16_keeps_float32_weights_and_comes_near_the_float32_result(tiny_dense: Path) -> None:
    some = samples()
    exact, coarse = (
        TorchTrainerWorker(trainer_config(tiny_dense, engine={"precision": precision}))
        for precision in ("float32", "bfloat16")
    )
    old = exact.logprobs(some)
    found = coarse.logprobs(some)
    assert 0.0 < max(np.abs(a - b).max() for a, b in zip(old, found, strict=True)) < 0.05
    one, other = exact.step(some, old), coarse.step(some, found)
    assert one.metrics["grad_norm"] == pytest.approx(other.metrics["grad_norm"], rel=0.05)
    assert {parameter.dtype for parameter in coarse._engine.model.parameters()} == {torch.float32}
    coarse.close()


def test_what_does_not_fit_is_refused_by_the_sample_s_name(tiny_dense: Path) -> None:
    worker = TorchTrainerWorker(trainer_config(tiny_dense))
    some = samples()
    old = worker.logprobs(some)
    with pytest.raises(ValueError, match="sample-2: old_logprobs has 1 entries"):
        worker.step(some, [*old[:2], old[2][:1], *old[3:]])
    some[4].rollout_logprobs_T[1] = -np.inf
    with pytest.raises(OpenMLEError, match="sample-4: rollout_logprobs_T is -inf at token 1"):
        worker.step(some, old)
    some[3].loss_mask_T[:] = False
    with pytest.raises(ValueError, match="sample-3: no token is learnt"):
        worker.step(some, old)


async def test_the_protocol_s_trainer_answers_as_its_worker(tiny_dense: Path, tmp_path: Path) -> None:
    some = samples()
    worker = TorchTrainerWorker(trainer_config(tiny_dense))
    trainer = await TorchTrainer.start(trainer_config(tiny_dense))
    old = worker.logprobs(some)
    for one, other in zip(old, await trainer.logprobs(some), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (await trainer.step(some, old)).loss == worker.step(some, old).loss
    await trainer.save(tmp_path / "checkpoint")
    await trainer.load(tmp_path / "checkpoint")
    await trainer.save_weights(tmp_path / "weights")
    await trainer.close()
    worker.save_weights(tmp_path / "worker")
    assert largest_change(weights(tmp_path / "weights"), weights(tmp_path / "worker")) == 0.0


def test_the_schedule_warms_up_and_comes_down() -> None:
    cosine = OptimiserConfig(learning_rate=1.0, schedule="cosine", warmup_fraction=0.2, total_steps=10)
    rates = [learning_rate_at(step, cosine) for step in range(12)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    # 8 steps after the warm-up, number 0 to 7: cos(pi * 3.5 / 7) would be the middle, between numbers 3 and 4
    assert (rates[5] + rates[6]) / 2 == pytest.approx(0.5)
    assert rates[9:] == [0.0, 0.0, 0.0]
    with pytest.raises(ConfigError, match="total_steps"):
        learning_rate_at(0, OptimiserConfig(schedule="cosine"))
    assert learning_rate_at(10**6, OptimiserConfig(learning_rate=2e-6)) == 2e-6
