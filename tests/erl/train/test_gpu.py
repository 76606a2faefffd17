"""Both trainer engines on one GPU, in bfloat16, against the same on the CPU in float32. `scripts/gpu_checks.sh` runs it.

bfloat16 has 8 bits of mantissa, so the tolerances are of 1 in 100; what is checked exactly is what must be exact.
"""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from erl.train.train_make import samples, trainer_config  # noqa: E402
from openmle_erl.engines.packing import TokenRow  # noqa: E402
from openmle_erl.engines.settings import TorchTrainerConfig  # noqa: E402
from openmle_erl.engines.torch_trainer import TorchTrainerWorker  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU on this machine"),
]
ROWS = [TokenRow(np.arange(3, 3 + size), np.arange(size) > 1) for size in (9, 30, 5)]


def gpu_config(model: Path) -> TorchTrainerConfig:
    config = trainer_config(model)
    config.engine.device = "cuda"
    return config


@pytest.mark.parametrize("model", ["tiny_dense", "tiny_moe"])
def test_torch_steps_in_bfloat16_as_the_cpu_does(model: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(model)
    some = samples()
    host = TorchTrainerWorker(trainer_config(folder))
    device = TorchTrainerWorker(gpu_config(folder))
    try:
        old, found = host.logprobs(some), device.logprobs(some)
        assert max(np.abs(a - b).max() for a, b in zip(old, found, strict=True)) < 0.1
        one, other = host.step(some, old), device.step(some, found)
        assert other.loss == pytest.approx(one.loss, abs=0.02)
        assert other.metrics["entropy"] == pytest.approx(one.metrics["entropy"], rel=0.01)
        assert other.metrics["grad_norm"] == pytest.approx(one.metrics["grad_norm"], rel=0.1)
        assert device.learn(ROWS).loss == pytest.approx(host.learn(ROWS).loss, rel=0.02)
    finally:
        device.close()


def test_torch_goes_on_from_a_checkpoint_on_the_gpu(tiny_dense: Path, tmp_path: Path) -> None:
    worker = TorchTrainerWorker(gpu_config(tiny_dense))
    some = samples()
    old = worker.logprobs(some)
    worker.step(some, old)
    now = worker.logprobs(some)
    worker.save(tmp_path / "checkpoint")
    worker.step(some, old)
    worker.load(tmp_path / "checkpoint")
    for one, other in zip(now, worker.logprobs(some), strict=True):
        np.testing.assert_array_equal(one, other)
    worker.save_weights(tmp_path / "weights")
    worker.close()


@pytest.mark.parametrize("model", ["tiny_dense", "tiny_moe"])
def test_megatron_steps_in_bfloat16_as_torch_on_the_cpu_does(model: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("megatron.core")
    from openmle_erl.engines.megatron.config import MegatronConfig
    from openmle_erl.engines.megatron.worker import MegatronWorker
    from openmle_erl.engines.processes import WorkerProcesses

    folder = request.getfixturevalue(model)
    host = TorchTrainerWorker(trainer_config(folder))
    some = samples()
    old = host.logprobs(some)
    plain = trainer_config(folder)
    config = MegatronConfig(model=str(folder), optimiser=plain.optimiser, objective=plain.objective, device="cuda")
    group = WorkerProcesses(MegatronWorker, (config,), 1)
    try:
        found = group.call("logprobs", some)[0]
        assert max(np.abs(old[place] - found[place]).max() for place in range(len(some))) < 0.1
        part = group.call("step", some, old)[0]
        report = host.step(some, old)
        assert part.loss == pytest.approx(report.loss, abs=0.02)
        assert part.grad_norm == pytest.approx(report.metrics["grad_norm"], rel=0.1)
        assert group.call("learn", ROWS)[0].loss == pytest.approx(host.learn(ROWS).loss, rel=0.02)
    finally:
        group.close()
