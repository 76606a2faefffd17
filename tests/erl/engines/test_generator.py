"""Continuous batching gives what the model gives, whoever shares the batch."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from openmle_erl.engines.generator import Generator, load_model  # noqa: E402
from openmle_erl.engines.protocols import Finish, GenerateRequest, Generation, PauseMode, Sampling  # noqa: E402
from openmle_erl.engines.sampling import Choice, choose_tokens  # noqa: E402
from openmle_gym.errors import ConfigError  # noqa: E402

NO_STOPS: tuple[int, ...] = ()


@pytest.fixture(scope="module")
def model(tiny_folders):
    return load_model(tiny_folders[0])


@pytest.fixture(scope="module")
def other_model(tiny_folders):
    return load_model(tiny_folders[1])


def ask(number: int, *, prompt_tokens: int, new_tokens: int, **sampling: float) -> GenerateRequest:
    numbers = random.Random(number)
    prompt = tuple(numbers.randrange(3, 290) for _ in range(prompt_tokens))
    settings = Sampling(max_new_tokens=new_tokens, **sampling)  # pyright: ignore[reportArgumentType]
    return GenerateRequest(request_id=str(number), prompt_ids=prompt, sampling=settings, seed=number)


def model_logprobs(model, request: GenerateRequest, generation: Generation, *, temperature: float = 1.0):
    """[T]: by one pass of the model over the whole."""
    ids = torch.tensor([[*request.prompt_ids, *generation.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1].float() / temperature
    return torch.log_softmax(logits, -1).gather(-1, ids[0, len(request.prompt_ids) :, None])[:, 0].numpy()


def run(generator: Generator, requests, *, stop_ids=NO_STOPS) -> dict[str, Generation]:
    """All generations, by request id."""
    done: dict[str, Generation] = {}
    for request in requests:
        generator.add(request, lambda one: done.__setitem__(one.request_id, one), stop_ids=stop_ids)
    while not generator.idle:
        generator.step()
    return done


def test_logprobs_are_the_models_own_though_requests_join_and_leave(model):
    requests = [ask(n, prompt_tokens=3 + 7 * n % 90, new_tokens=5 + 11 * n % 40) for n in range(12)]
    generator = Generator(model, max_running=5)
    done: dict[str, Generation] = {}
    for request in requests:  # each joins while others run, and five run at most
        generator.add(request, lambda one: done.__setitem__(one.request_id, one), stop_ids=NO_STOPS)
        generator.step()
        generator.step()
        assert generator.running <= 5
    while not generator.idle:
        generator.step()
    for request in requests:
        generation = done[request.request_id]
        assert len(generation.token_ids) == request.sampling.max_new_tokens
        assert generation.finish is Finish.LENGTH
        np.testing.assert_allclose(generation.logprobs_T, model_logprobs(model, request, generation), atol=1e-4)


def test_a_mixture_of_experts_is_batched_alike():
    from openmle_erl.engines.tiny import tiny_qwen3

    moe: Any = tiny_qwen3(300, experts=4).eval()
    requests = [ask(n, prompt_tokens=5 + n, new_tokens=6) for n in range(4)]
    for number, generation in run(Generator(moe), requests).items():
        np.testing.assert_allclose(
            generation.logprobs_T, model_logprobs(moe, requests[int(number)], generation), atol=1e-4
        )


def test_a_request_gets_the_same_tokens_alone_and_in_company(model):
    request = ask(7, prompt_tokens=20, new_tokens=30)
    alone = run(Generator(model), [request])["7"]
    company = [ask(n, prompt_tokens=4 + n, new_tokens=9 + n) for n in range(20, 32)]
    assert run(Generator(model), [*company, request])["7"].token_ids == alone.token_ids


def test_equal_prompts_are_read_once_and_drawn_apart(model):
    group = [
        GenerateRequest(request_id=str(n), prompt_ids=(5, 6, 7, 8), sampling=Sampling(max_new_tokens=12), seed=n)
        for n in range(20)
    ]
    reads: list[int] = []
    generator = Generator(model)
    forward = generator._forward
    generator._forward = lambda ids, mask, positions, keep, *, record: (
        reads.append(len(ids)),
        forward(ids, mask, positions, keep, record=record),
    )[1]
    done = run(generator, group)
    assert reads[0] == 1  # one row for the twenty of them
    assert len({one.token_ids for one in done.values()}) > 10
    for request in group:
        one = done[request.request_id]
        np.testing.assert_allclose(one.logprobs_T, model_logprobs(model, request, one), atol=1e-4)


def test_greedy_takes_the_largest_logit(model: Any):
    request = ask(1, prompt_tokens=9, new_tokens=8, temperature=0.0)
    generation = run(Generator(model), [request])["1"]
    ids = torch.tensor([request.prompt_ids])
    for token in generation.token_ids:
        best = int(model(input_ids=ids).logits[0, -1].argmax())
        assert token == best
        ids = torch.cat([ids, torch.tensor([[best]])], dim=1)
    np.testing.assert_allclose(generation.logprobs_T, model_logprobs(model, request, generation), atol=1e-4)


def test_logprobs_are_of_the_tempered_distribution(model):
    request = ask(2, prompt_tokens=9, new_tokens=16, temperature=0.5)
    generation = run(Generator(model), [request])["2"]
    expected = model_logprobs(model, request, generation, temperature=0.5)
    np.testing.assert_allclose(generation.logprobs_T, expected, atol=1e-4)


def test_a_stop_id_ends_the_reply_and_is_its_last_token(model):
    request = ask(3, prompt_tokens=9, new_tokens=40)
    free = run(Generator(model), [request])["3"].token_ids
    stop = free[10]
    stopped = run(Generator(model), [request], stop_ids=[stop])["3"]
    assert stopped.finish is Finish.STOP
    assert stopped.token_ids == free[: free.index(stop) + 1]


def pause_midway(model, other_model, mode: PauseMode) -> tuple[GenerateRequest, Generation]:
    request = ask(4, prompt_tokens=10, new_tokens=12)
    done: list[Generation] = []
    generator = Generator(model)
    generator.add(request, done.append, stop_ids=NO_STOPS)
    for _ in range(5):
        generator.step()
    generator.pause(mode)
    assert generator.idle
    generator.step()
    generator.replace_model(other_model, 3)
    generator.resume()
    while not generator.idle:
        generator.step()
    return request, done[0]


def test_a_pause_that_aborts_answers_with_what_there_is(model, other_model):
    request, generation = pause_midway(model, other_model, PauseMode.ABORT)
    assert generation.finish is Finish.ABORT
    assert len(generation.token_ids) == 5
    assert generation.spans == ((0, 0, 5),)
    np.testing.assert_allclose(generation.logprobs_T, model_logprobs(model, request, generation), atol=1e-4)


def test_a_pause_that_retracts_goes_on_as_the_new_weights_would(model, other_model):
    request, generation = pause_midway(model, other_model, PauseMode.RETRACT)
    assert generation.spans == ((0, 0, 5), (3, 5, 12))
    old, new = (model_logprobs(each, request, generation) for each in (model, other_model))
    np.testing.assert_allclose(generation.logprobs_T, np.concatenate([old[:5], new[5:]]), atol=1e-4)


def test_a_pause_in_place_goes_on_with_the_old_attention_cache(model, other_model):
    request, generation = pause_midway(model, other_model, PauseMode.IN_PLACE)
    assert generation.spans == ((0, 0, 5), (3, 5, 12))
    old, new = (model_logprobs(each, request, generation) for each in (model, other_model))
    np.testing.assert_allclose(generation.logprobs_T[:5], old[:5], atol=1e-4)
    assert np.abs(generation.logprobs_T[5:] - new[5:]).max() > 1e-3  # neither the new weights' own
    assert np.abs(generation.logprobs_T[5:] - old[5:]).max() > 1e-3  # nor the old ones'


def test_an_aborted_request_leaves_the_others_alone(model):
    requests = [ask(n, prompt_tokens=6, new_tokens=20) for n in (50, 51, 52)]
    expected = run(Generator(model), requests)
    generator = Generator(model)
    done: dict[str, Generation] = {}
    for request in requests:
        generator.add(request, lambda one: done.__setitem__(one.request_id, one), stop_ids=NO_STOPS)
    for _ in range(4):
        generator.step()
    generator.abort("50")
    assert done["50"].finish is Finish.ABORT
    assert done["50"].token_ids == expected["50"].token_ids[:4]
    while not generator.idle:
        generator.step()
    assert done["51"].token_ids == expected["51"].token_ids
    assert done["52"].token_ids == expected["52"].token_ids


def test_tensors_are_replaced_all_or_none(model, tiny_folders):
    own: Any = load_model(tiny_folders[0])
    generator = Generator(own)
    before = own.get_input_embeddings().weight.detach().clone()
    name = "model.embed_tokens.weight"
    with pytest.raises(ValueError, match=r"no\.such"):
        generator.replace_tensors({name: before + 1, "no.such": before}, 1)
    assert torch.equal(own.get_input_embeddings().weight, before)
    assert generator.version == 0
    generator.replace_tensors({name: before + 1}, 1)
    assert torch.equal(own.get_input_embeddings().weight, before + 1)


def test_a_model_of_other_shapes_is_refused(model):
    from openmle_erl.engines.tiny import tiny_qwen3

    generator = Generator(model)
    with pytest.raises(ValueError, match="other weights"):
        generator.replace_model(tiny_qwen3(300, layers=1), 1)
    assert generator.version == 0


def test_a_folder_without_a_model_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_model(tmp_path)


def draws(logits: list[float], sampling: Sampling, uniforms: list[float]) -> list[int]:
    rows = torch.tensor([logits] * len(uniforms))
    return choose_tokens(rows, [Choice(sampling, uniform) for uniform in uniforms]).ids


# softmax of these logits: 0.1, 0.2, 0.4, 0.3
LOGITS = [float(np.log(p)) for p in (0.1, 0.2, 0.4, 0.3)]


def test_a_token_is_where_the_number_lies_in_the_cumulative_distribution():
    assert draws(LOGITS, Sampling(), [0.05, 0.15, 0.29, 0.31, 0.69, 0.71, 0.999]) == [0, 1, 1, 2, 2, 3, 3]


def test_top_k_keeps_the_most_probable_and_renormalises():
    # tokens 2 and 3 remain, with 4/7 and 3/7
    assert draws(LOGITS, Sampling(top_k=2), [0.0, 0.56, 0.58, 0.99]) == [2, 2, 3, 3]


def test_the_nucleus_is_the_fewest_tokens_that_reach_top_p():
    # 0.4 + 0.3 reach 0.65; with 0.75 token 1 joins: 0.2/0.9, 0.4/0.9, 0.3/0.9
    assert draws(LOGITS, Sampling(top_p=0.65), [0.0, 0.56, 0.58]) == [2, 2, 3]
    assert draws(LOGITS, Sampling(top_p=0.75), [0.0, 0.21, 0.23, 0.66, 0.67]) == [1, 1, 2, 2, 3]
    assert draws(LOGITS, Sampling(top_p=0.01), [0.0, 0.99]) == [2, 2]


def test_rows_are_drawn_each_by_its_own_settings():
    rows = torch.tensor([LOGITS] * 3)
    settings = [Choice(Sampling(), 0.05), Choice(Sampling(top_k=1), 0.99), Choice(Sampling(temperature=0.0), 0.05)]
    chosen = choose_tokens(rows, settings)
    assert chosen.ids == [0, 2, 2]
    np.testing.assert_allclose(np.exp(chosen.logprobs), [0.1, 0.4, 0.4], rtol=1e-6)
