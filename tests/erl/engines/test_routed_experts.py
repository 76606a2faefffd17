"""The experts that the local server's replies went through, from the generator to the trainer that replays them."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from erl.engines.conftest import TEXTS  # noqa: E402
from erl.engines.serving import client_of, running_server  # noqa: E402
from openmle_erl.engines.generator import Generator, load_model  # noqa: E402
from openmle_erl.engines.protocols import (  # noqa: E402
    Finish,
    GenerateRequest,
    Generation,
    PauseMode,
    RoutingShape,
    Sampling,
    TrainingSample,
)
from openmle_erl.engines.routing import recorded  # noqa: E402
from openmle_erl.engines.routing_wire import routing_shape  # noqa: E402
from openmle_erl.engines.settings import OptimiserConfig, TorchEngineConfig, TorchTrainerConfig  # noqa: E402
from openmle_erl.engines.torch_trainer import TorchTrainerWorker  # noqa: E402
from openmle_gym.errors import ConfigError  # noqa: E402

SHAPE = RoutingShape(layers=2, experts=2)
PROMPTS = {"a": (5, 6, 7, 8, 9), "b": (5, 6, 7, 8, 9), "c": tuple(range(20, 90)), "d": (11, 12)}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from openmle_erl.engines.tiny import save_tiny

    folder = tmp_path_factory.mktemp("mixture") / "one"
    return save_tiny(folder, TEXTS, vocab_size=300, context=1024, experts=4)


def ask(name: str, *, new_tokens: int = 12, routing: RoutingShape | None = SHAPE) -> GenerateRequest:
    sampling = Sampling(max_new_tokens=new_tokens)
    return GenerateRequest(request_id=name, prompt_ids=PROMPTS[name], sampling=sampling, seed=3, routing=routing)


def experts_of(folder: Path, request: GenerateRequest, generation: Generation) -> np.ndarray:
    """[N, L, K] by one pass of the model over the whole but the last token."""
    model = load_model(folder)
    ids = torch.tensor([[*request.prompt_ids, *generation.token_ids[:-1]]])
    with torch.no_grad(), recorded(model) as seen:
        model(input_ids=ids)
    return torch.stack(seen, dim=1).numpy()


async def answers(folder: Path, *requests: GenerateRequest) -> list[Generation]:
    async with running_server(folder) as local, client_of(local) as engine:
        return list(await asyncio.gather(*(engine.generate(request) for request in requests)))


async def test_replies_carry_the_experts_that_their_tokens_went_through_whoever_shares_the_batch(mixture: Path):
    requests = [ask("a"), ask("b", new_tokens=20), ask("c", new_tokens=3), ask("d", routing=None)]
    generations = await answers(mixture, *requests)
    for request, generation in zip(requests[:3], generations, strict=False):
        assert generation.experts_NLK is not None
        assert generation.experts_NLK.shape == (len(request.prompt_ids) + len(generation.token_ids) - 1, 2, 2)
        np.testing.assert_array_equal(generation.experts_NLK, experts_of(mixture, request, generation))
    assert generations[3].experts_NLK is None


async def test_a_trainer_that_replays_them_has_the_engine_s_log_probabilities(mixture: Path):
    request = ask("c", new_tokens=30)
    (generation,) = await answers(mixture, request)
    assert generation.experts_NLK is not None
    engine = TorchEngineConfig(model=str(mixture), device="cpu", max_tokens_per_micro_batch=500)
    worker = TorchTrainerWorker(
        TorchTrainerConfig(engine=engine, optimiser=OptimiserConfig(learning_rate=1.0), replay_routing=True)
    )
    sample = TrainingSample(
        sample_id="c",
        prompt_ids=request.prompt_ids,
        reply_ids=generation.token_ids,
        loss_mask_T=np.ones(len(generation.token_ids), np.bool_),
        rollout_logprobs_T=generation.logprobs_T,
        advantage=1.0,
        experts_NLK=generation.experts_NLK,
    )
    others = replace(sample, experts_NLK=(generation.experts_NLK + 1) % 4)
    found, forged = worker.logprobs([sample, others])
    np.testing.assert_allclose(found, generation.logprobs_T, atol=1e-5)
    assert np.abs(forged - generation.logprobs_T).max() > 1e-3


@pytest.mark.parametrize("mode", [PauseMode.RETRACT, PauseMode.IN_PLACE])
def test_every_token_has_its_experts_through_a_pause(mixture: Path, mode: PauseMode):
    done: list[Generation] = []
    generator = Generator(load_model(mixture))
    generator.add(ask("a", new_tokens=9), done.append, stop_ids=())
    for _ in range(4):
        generator.step()
    generator.pause(mode)
    generator.resume()
    while not generator.idle:
        generator.step()
    assert done[0].experts_NLK is not None
    assert done[0].finish is Finish.LENGTH
    np.testing.assert_array_equal(done[0].experts_NLK, experts_of(mixture, ask("a"), done[0]))


async def test_a_dense_model_refuses_to_record_them(tiny_folders: tuple[Path, Path]):
    with pytest.raises(ConfigError, match="return_routed_experts"):
        await answers(tiny_folders[0], ask("a"))
    with pytest.raises(ConfigError, match="num_experts_per_tok is None"):
        routing_shape(tiny_folders[0])


def test_the_shape_is_in_the_model_s_config_and_layers_without_experts_are_refused(mixture: Path, tmp_path: Path):
    assert routing_shape(mixture) == SHAPE
    facts = '{"num_hidden_layers": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 2}'
    (tmp_path / "config.json").write_text(facts)
    with pytest.raises(ConfigError, match="not every layer"):
        routing_shape(tmp_path)
    with pytest.raises(ConfigError, match=r"none/config\.json"):
        routing_shape(tmp_path / "none")
