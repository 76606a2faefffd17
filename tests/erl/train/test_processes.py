"""Two processes that train together: the same numbers as one."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from erl.train.train_make import Fragile, samples, trainer_config  # noqa: E402
from openmle_erl.engines.packing import TokenRow  # noqa: E402
from openmle_erl.engines.processes import WorkerProcesses  # noqa: E402
from openmle_erl.engines.settings import TorchTrainerConfig  # noqa: E402
from openmle_erl.engines.torch_trainer import TorchTrainerWorker  # noqa: E402
from openmle_gym.errors import ConfigError, InfrastructureError  # noqa: E402


def config(model: Path) -> TorchTrainerConfig:
    return trainer_config(model, engine={"async_save": True}, optimiser={"learning_rate": 1e-3, "epsilon": 1e-4})


@pytest.fixture(scope="module")
def pair(tiny_moe: Path) -> Iterator[WorkerProcesses]:
    group = WorkerProcesses(TorchTrainerWorker, (config(tiny_moe),), 2)
    yield group
    group.kill()


def test_two_processes_do_what_one_does(pair: WorkerProcesses, tiny_moe: Path, tmp_path: Path) -> None:
    alone = TorchTrainerWorker(config(tiny_moe))
    rows = [TokenRow(np.arange(3, 3 + size), np.arange(size) > 1) for size in (9, 30, 5)]
    for seed in range(2):
        some = samples(1 if seed else 7, seed=seed)  # a single sample leaves the second process with nothing to learn
        old = alone.logprobs(some)
        for one, two in zip(old, pair.call("logprobs", some)[1], strict=True):
            np.testing.assert_allclose(one, two, atol=1e-5)
        single, (first, second) = alone.step(some, old), pair.call("step", some, old)
        for name in ("grad_norm", "clip_fraction", "entropy", "effective_sample_size", "log_ratio_max", "tokens"):
            assert first.metrics[name] == second.metrics[name]
            assert first.metrics[name] == pytest.approx(single.metrics[name], rel=1e-4, abs=1e-5)
        assert first.loss == pytest.approx(single.loss, abs=1e-5)
        if seed == 0:
            pair.call("save", tmp_path / "checkpoint")  # in the background, while the next step is done
    assert pair.call("learn", rows)[0].loss == pytest.approx(alone.learn(rows).loss, abs=1e-5)
    after = pair.call("logprobs", samples())[0]
    pair.call("save_weights", tmp_path / "pair")
    alone.save_weights(tmp_path / "alone")
    one, two = (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32).state_dict()
        for name in ("alone", "pair")
    )
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 1e-5

    pair.call("load", tmp_path / "checkpoint")
    some = samples(1, seed=1)
    pair.call("step", some, alone.logprobs(some))
    assert pair.call("learn", rows)
    pair.call("load", tmp_path / "checkpoint")
    alone.load(tmp_path / "checkpoint")  # one process goes on from what two wrote
    for one_process, two_processes in zip(alone.logprobs(some), pair.call("logprobs", some)[0], strict=True):
        np.testing.assert_allclose(one_process, two_processes, atol=1e-6)
    assert len(after) == 6
    with pytest.raises(ValueError, match="sample-0: old_logprobs"):
        pair.call("step", some, [np.zeros(1, dtype=np.float32)])
    with pytest.raises(InfrastructureError, match="gone before logprobs"):
        pair.call("logprobs", some)


def test_a_process_that_dies_or_cannot_begin_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"engine\.model: none"):
        WorkerProcesses(Fragile, (False,), 1)
    group = WorkerProcesses(Fragile, (True,), 1)
    with pytest.raises(InfrastructureError, match="process 0 of the trainer died, exit code 7"):
        group.call("die")
