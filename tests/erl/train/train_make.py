"""What the tests of training share: tiny models, samples, and a config that learns fast enough to see it."""

from pathlib import Path

import numpy as np
from openmle_erl.engines.protocols import TrainingSample
from openmle_erl.engines.settings import OptimiserConfig, TorchEngineConfig, TorchTrainerConfig
from openmle_erl.rl.objective import ObjectiveConfig
from openmle_gym.errors import ConfigError

TEXTS = [f"import numpy\nvalue{number} = numpy.mean([{number}])\nprint(value{number})\n" for number in range(50)]
VOCABULARY = 300


def samples(count: int = 6, *, seed: int = 0, longest: int = 12) -> list[TrainingSample]:
    """Random prompts and replies of different lengths; the second reply has a token in the middle that is not learnt."""
    generator = np.random.default_rng(seed)
    made = []
    for number in range(count):
        length = int(generator.integers(3, longest))
        mask = np.ones(length, dtype=np.bool_)
        if number == 1:
            mask[1] = False
        made.append(
            TrainingSample(
                sample_id=f"sample-{number}",
                prompt_ids=tuple(generator.integers(3, 250, size=int(generator.integers(1, longest))).tolist()),
                reply_ids=tuple(generator.integers(3, 250, size=length).tolist()),
                loss_mask_T=mask,
                rollout_logprobs_T=generator.normal(-5.5, 0.2, size=length).astype(np.float32),
                advantage=float(generator.normal()),
            )
        )
    return made


def trainer_config(
    model: Path, *, engine: dict | None = None, optimiser: dict | None = None, **more
) -> TorchTrainerConfig:
    objective = more.pop("objective", ObjectiveConfig(clip_low=0.2, clip_high=0.2))
    defaults = {"learning_rate": 1e-2, "weight_decay": 0.1}
    return TorchTrainerConfig(
        engine=TorchEngineConfig(model=str(model), device="cpu", max_tokens_per_micro_batch=40, **(engine or {})),
        optimiser=OptimiserConfig(**(defaults | (optimiser or {}))),
        objective=objective,
        **more,
    )


class Fragile:
    """Dies, or fails to begin, in its second process."""

    def __init__(self, begins: bool, place: object) -> None:
        if not begins:
            raise ConfigError("engine.model: none")

    def die(self) -> None:
        raise SystemExit(7)
