"""The Megatron trainer on the CPU against Hugging Face's models and plain autograd, over all cases of `cases`.

Two processes run every case once (see `ranks`); what they wrote is judged here.
"""

import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from erl.megatron.cases import (
    CASES,
    LEARNING_RATE,
    VOCABULARY,
    make_config,
    make_model,
    make_old,
    make_rows,
    make_samples,
)
from openmle_erl.engines import routing
from openmle_erl.engines.protocols import TrainingSample
from openmle_erl.rl.gspo import policy_loss
from safetensors import safe_open
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, PreTrainedModel

TESTS = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed")
EVERY_CASE = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ranks left what they found."""
    folder = tmp_path_factory.mktemp("megatron")
    for kind in ("dense", "sparse"):
        make_model(kind).save_pretrained(folder / kind)
    reference = make_model("dense")
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    reference.save_pretrained(folder / "reference")
    sockets = [socket.socket() for _ in CASES]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    run = "from erl.megatron.ranks import main; main()"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", run, str(rank), str(folder), *ports],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-4000:]
    return folder


def found(folder: Path, name: str) -> list[dict[str, Any]]:
    """What each rank of a case found."""
    files = sorted((folder / name).glob("rank*.pt"))
    assert len(files) == CASES[name][1].world
    return [torch.load(file, weights_only=False) for file in files]


def tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder in Hugging Face's layout."""
    gathered: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (it is no mapping)
                assert name not in gathered
                gathered[name] = opened.get_tensor(name)
    return gathered


def logprobs_of(model: PreTrainedModel, sample: TrainingSample) -> tuple[Tensor, Tensor]:
    """[T] log-probabilities and entropies of a reply, the plain way."""
    ids = torch.tensor([[*sample.prompt_ids, *sample.reply_ids]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(sample.prompt_ids) - 1 : -1].float()
    every = logits.log_softmax(-1)
    return every.gather(-1, torch.tensor(sample.reply_ids)[:, None])[:, 0], -(every.exp() * every).sum(-1)


def reference_step(name: str, folder: Path) -> tuple[PreTrainedModel, float]:
    """Hugging Face's model with the gradient of the policy loss, and that loss."""
    kind, _, all_terms = CASES[name]
    objective = make_config(name, folder).objective
    model, samples = make_model(kind), make_samples()
    both = [logprobs_of(model, sample) for sample in samples]
    reference = None
    if all_terms:
        other = AutoModelForCausalLM.from_pretrained(folder / "reference")
        with torch.no_grad():
            reference = [logprobs_of(other, sample)[0] for sample in samples]
    loss, _ = policy_loss(
        pad_sequence([one for one, _ in both], batch_first=True),
        _padded(make_old(samples)),
        _padded([sample.rollout_logprobs_T for sample in samples]),
        _padded([sample.loss_mask_T for sample in samples]),
        torch.tensor([sample.advantage for sample in samples]),
        objective,
        global_batch=len(samples),
        ref_logprobs_BT=None if reference is None else pad_sequence(reference, batch_first=True),
        entropy_BT=pad_sequence([one for _, one in both], batch_first=True),
    )
    loss.backward()
    return model, float(loss.detach())


def _padded(arrays: list[Any]) -> Tensor:
    return pad_sequence([torch.from_numpy(array) for array in arrays], batch_first=True)


def on_disk(model: PreTrainedModel, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Values by the names in memory as values by the names on disk: each expert on its own."""
    named: dict[str, Tensor] = {}
    for name, value in values.items():
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(value):
                gate, up = both.chunk(2)
                at = name.removesuffix("gate_up_proj") + f"{expert}."
                named |= {at + "gate_proj.weight": gate, at + "up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            at = name.removesuffix("down_proj")
            named |= {f"{at}{expert}.down_proj.weight": one for expert, one in enumerate(value)}
        elif name != "lm_head.weight" or not model.config.tie_word_embeddings:
            named[name] = value
    return named


def gradients_of(model: PreTrainedModel) -> dict[str, Tensor]:
    return on_disk(model, {name: each.grad for name, each in model.named_parameters() if each.grad is not None})


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    """Relative to the largest number of each tensor."""
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        difference = (ours[name] - value).abs().max() / value.abs().max().clamp(min=1e-8)
        assert difference < tolerance, f"{name}: {difference}"


@EVERY_CASE
def test_logits_are_those_of_hugging_face(folder: Path, name: str) -> None:
    sample = max(make_rows(make_samples()), key=lambda row: len(row.ids))
    with torch.no_grad():
        theirs = make_model(CASES[name][0])(input_ids=torch.from_numpy(sample.ids[None, :20])).logits[0]
    parts = [rank["logits"] for rank in found(folder, name)]
    ours = torch.cat(parts, dim=-1) if CASES[name][1].tensor > 1 else parts[0]
    difference = float((ours[:, :VOCABULARY] - theirs).abs().max())
    assert difference == 0.0 if name in ("dense", "dense_data") else difference < 1e-6


@EVERY_CASE
def test_a_model_that_was_read_and_written_has_the_same_bits(folder: Path, name: str) -> None:
    ours, theirs = tensors(folder / name / "untouched"), tensors(folder / CASES[name][0])
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_what_was_written_loads_into_hugging_faces_model(folder: Path) -> None:
    for name in ("dense_tensor", "sparse_expert"):
        model = AutoModelForCausalLM.from_pretrained(folder / name / "untouched")
        plain = make_model(CASES[name][0]).state_dict()
        assert all(torch.equal(value, plain[key]) for key, value in model.state_dict().items())


@EVERY_CASE
def test_log_probabilities_are_those_of_hugging_face(folder: Path, name: str) -> None:
    model, samples = make_model(CASES[name][0]), make_samples()
    ours: dict[int, Any] = {}
    for rank in found(folder, name):
        ours |= rank["logprobs"]
    assert sorted(ours) == list(range(len(samples)))
    with torch.no_grad():
        for place, sample in enumerate(samples):
            np.testing.assert_allclose(ours[place], logprobs_of(model, sample)[0], atol=1e-5)


@pytest.mark.parametrize("name", ["sparse", "sparse_expert"])
def test_tokens_go_through_the_experts_that_were_recorded(folder: Path, name: str) -> None:
    model, samples = make_model("sparse"), make_samples(routed=True)
    ours: dict[int, Any] = {}
    for rank in found(folder, name):
        ours |= rank["routed_logprobs"]
    with torch.no_grad():
        for place, sample in enumerate(samples):
            assert sample.experts_NLK is not None
            with routing.replayed(model, torch.from_numpy(sample.experts_NLK).long()):
                theirs = logprobs_of(model, sample)[0]
            np.testing.assert_allclose(ours[place], theirs, atol=1e-5)
            assert np.abs(theirs.numpy() - logprobs_of(model, sample)[0].numpy()).max() > 1e-3


@EVERY_CASE
def test_loss_and_gradient_of_the_policy_are_those_of_plain_autograd(folder: Path, name: str) -> None:
    model, loss = reference_step(name, folder)
    parts = [rank["step"] for rank in found(folder, name) if rank["step"] is not None]
    assert len(parts) == CASES[name][1].data
    assert sum(part["loss"] for part in parts) == pytest.approx(loss, abs=1e-5)
    theirs = gradients_of(model)
    assert_close(tensors(folder / name / "gradients_0"), theirs, 1e-4)
    norm = float(torch.stack([value.double().square().sum() for value in theirs.values()]).sum().sqrt())
    assert [part["grad_norm"] for part in parts] == pytest.approx([norm] * len(parts), rel=1e-5)
    assert norm > 0.01, "the clip must bite for the next test to see it"


@EVERY_CASE
def test_a_step_moves_weights_as_adam_does(folder: Path, name: str) -> None:
    """Each by learning_rate * (g / (|g| + eps) + decay * w), g the clipped gradient; norms do not decay."""
    model = make_model(CASES[name][0])
    before = on_disk(model, {key: value.detach() for key, value in model.named_parameters()})
    gradients, after = tensors(folder / name / "gradients_0"), tensors(folder / name / "stepped")
    norm = float(torch.stack([value.double().square().sum() for value in gradients.values()]).sum().sqrt())
    for key, value in before.items():
        clipped = gradients[key] * (0.01 / (norm + 1e-6))
        decay = 0.1 if value.ndim > 1 else 0.0
        expected = value - LEARNING_RATE * (clipped / (clipped.abs() + 1e-8) + decay * value)
        torch.testing.assert_close(after[key], expected, atol=2e-6, rtol=0.0)


@pytest.mark.parametrize("name", ["dense_data", "sparse_expert"])
def test_replicas_that_see_other_samples_keep_the_same_weights(folder: Path, name: str) -> None:
    first, second = found(folder, name)
    assert set(first["logprobs"]).isdisjoint(second["logprobs"])
    shared = [key for key in first["parameters"] if "experts" not in key]
    assert shared
    assert all(torch.equal(first["went_on"][key], second["went_on"][key]) for key in shared)


@EVERY_CASE
def test_loss_and_gradient_of_fine_tuning_are_those_of_plain_autograd(folder: Path, name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder / name / "stepped")
    samples = make_samples()
    tokens = sum(int(sample.loss_mask_T.sum()) for sample in samples)
    loss = -sum(logprobs_of(model, each)[0][torch.from_numpy(each.loss_mask_T)].sum() for each in samples) / tokens
    assert isinstance(loss, Tensor)
    loss.backward()
    parts = [rank["learn"] for rank in found(folder, name) if rank["learn"] is not None]
    assert sum(part["loss"] for part in parts) == pytest.approx(float(loss.detach()), abs=1e-5)
    assert_close(tensors(folder / name / "gradients_1"), gradients_of(model), 1e-4)


@EVERY_CASE
def test_training_goes_on_from_a_checkpoint_bit_for_bit(folder: Path, name: str) -> None:
    for rank in found(folder, name):
        assert rank["back_steps"] == 2
        assert all(torch.equal(rank["went_on_again"][key], value) for key, value in rank["went_on"].items())
        moved = [key for key, value in rank["went_on"].items() if not torch.equal(value, rank["parameters"][key])]
        assert moved


@EVERY_CASE
def test_the_trainer_puts_together_what_its_ranks_say(folder: Path, name: str) -> None:
    ranks = found(folder, name)
    parts = [rank["third"] for rank in ranks if rank["third"] is not None]
    for rank in ranks:
        report = rank["report"]
        assert report["loss"] == pytest.approx(sum(part["loss"] for part in parts))
        assert report["metrics"]["grad_norm"] == parts[0]["grad_norm"]
        assert report["metrics"]["learning_rate"] == LEARNING_RATE
        assert report["metrics"]["replies"] == len(make_samples())
        assert report["metrics"]["entropy"] == pytest.approx(np.log(VOCABULARY), rel=0.1)
        for place, value in rank["worker_logprobs"].items():
            assert np.array_equal(rank["trainer_logprobs"][place], value)
        assert len(rank["trainer_logprobs"]) == len(make_samples())


def test_a_checkpoint_of_one_rank_is_read_by_two(folder: Path) -> None:
    one, two = (tensors(folder / name / "of_one_rank") for name in ("dense", "dense_tensor"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_checkpoint_with_any_file_damaged_is_named_and_a_whole_one_can_still_be_loaded(folder: Path) -> None:
    (rank,) = found(folder, "dense")
    assert len(rank["refused"]) >= 12
    for damage, said in rank["refused"].items():
        assert said.startswith(f"{folder}/dense/damaged/checkpoint"), (damage, said)
        assert "\n" not in said, damage
    assert all(torch.equal(rank["loaded_again"][key], value) for key, value in rank["loaded"].items())
