"""The client and the local server, over HTTP without sockets."""

import ast
import asyncio
import sys
from asyncio.subprocess import PIPE

import httpx
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from erl.engines.serving import ADMIN_KEY, API_KEY, client_of, running_server  # noqa: E402
from openmle_erl.engines.generator import load_model  # noqa: E402
from openmle_erl.engines.protocols import Finish, GenerateRequest, PauseMode, Sampling  # noqa: E402
from openmle_erl.engines.router import synchronise_weights  # noqa: E402
from openmle_gym.chat import Message, OpenAIChat  # noqa: E402
from openmle_gym.errors import ConfigError, ModelUnavailable  # noqa: E402
from pydantic import SecretStr  # noqa: E402


def ask(name: str = "a", *, new_tokens: int = 12, **sampling: object) -> GenerateRequest:
    settings = Sampling(max_new_tokens=new_tokens, **sampling)  # pyright: ignore[reportArgumentType]
    return GenerateRequest(request_id=name, prompt_ids=(5, 6, 7, 8, 9), sampling=settings, seed=3)


def own_logprobs(model, request: GenerateRequest, token_ids) -> np.ndarray:
    ids = torch.tensor([[*request.prompt_ids, *token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(-1, ids[0, len(request.prompt_ids) :, None])[:, 0].numpy()


async def until_running(local, count: int) -> None:
    async with asyncio.timeout(30):
        while await local._thread.ask(lambda generator: generator.running) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.fixture
async def local(tiny_folders):
    async with running_server(tiny_folders[0]) as server:
        yield server


@pytest.fixture
async def engine(local):
    async with client_of(local) as client:
        yield client


async def test_a_generation_has_the_models_logprobs_and_the_first_version(engine, tiny_folders):
    generation = await engine.generate(ask())
    assert len(generation.token_ids) == 12 or generation.finish is Finish.STOP
    assert generation.spans == ((0, 0, len(generation.token_ids)),)
    expected = own_logprobs(load_model(tiny_folders[0]), ask(), generation.token_ids)
    np.testing.assert_allclose(generation.logprobs_T, expected, atol=1e-4)


async def test_the_same_seed_gives_the_same_reply(engine):
    first, second = await engine.generate(ask("a")), await engine.generate(ask("b"))
    assert first.token_ids == second.token_ids


async def test_a_stop_id_of_the_request_ends_it(engine):
    third = (await engine.generate(ask())).token_ids[2]
    stopped = await engine.generate(ask(stop_token_ids=(third,)))
    assert stopped.finish is Finish.STOP
    assert stopped.token_ids[-1] == third
    assert third not in stopped.token_ids[:-1]


async def test_a_request_over_the_context_is_refused_and_not_repeated(engine):
    with pytest.raises(ConfigError, match="context of 1024"):
        await engine.generate(ask(new_tokens=1020))


async def test_new_weights_are_generated_with_under_their_version(engine, tiny_folders):
    report = await synchronise_weights([engine], tiny_folders[1], 4, PauseMode.ABORT)
    assert report.failed == {}
    assert await engine.version() == 4
    generation = await engine.generate(ask())
    assert {span.version for span in generation.spans} == {4}
    expected = own_logprobs(load_model(tiny_folders[1]), ask(), generation.token_ids)
    np.testing.assert_allclose(generation.logprobs_T, expected, atol=1e-4)


@pytest.mark.parametrize("mode", [PauseMode.RETRACT, PauseMode.IN_PLACE])
async def test_a_request_that_outlives_new_weights_says_which_made_which_token(local, engine, tiny_folders, mode):
    request = ask(new_tokens=900, stop_token_ids=())
    body_free = asyncio.create_task(engine.generate(request))
    await until_running(local, 1)
    await synchronise_weights([engine], tiny_folders[1], 1, mode)
    generation = await body_free
    if generation.finish is Finish.LENGTH:
        assert [span.version for span in generation.spans] == [0, 1]
    assert generation.spans[0].start == 0
    assert generation.spans[-1].end == len(generation.token_ids)


async def test_a_pause_that_aborts_answers_and_holds_new_requests(local, engine):
    open_one = asyncio.create_task(engine.generate(ask("open", new_tokens=1000)))
    await until_running(local, 1)
    await engine.pause(PauseMode.ABORT)
    assert (await open_one).finish in (Finish.ABORT, Finish.STOP)
    held = asyncio.create_task(engine.generate(ask("held")))
    done, _ = await asyncio.wait({held}, timeout=0.1)
    assert not done
    await engine.resume()
    assert (await held).token_ids


async def test_abort_ends_the_one_request(local, engine):
    open_one = asyncio.create_task(engine.generate(ask("open", new_tokens=1000)))
    await until_running(local, 1)
    await engine.abort("open")
    assert (await open_one).finish in (Finish.ABORT, Finish.STOP)


async def test_a_cancelled_call_aborts_its_request(local, engine):
    call = asyncio.create_task(engine.generate(ask("open", new_tokens=1000)))
    await until_running(local, 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(30):
        while await local._thread.ask(lambda generator: generator.open_requests):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_flush_is_refused_while_a_request_runs(local, engine):
    call = asyncio.create_task(engine.generate(ask("open", new_tokens=1000)))
    await until_running(local, 1)
    await engine.pause(PauseMode.IN_PLACE)
    if not call.done():
        with pytest.raises(ModelUnavailable, match="1 requests are running"):
            await engine.flush_cache()
    await engine.resume()
    await engine.abort("open")
    await call
    await engine.flush_cache()


async def test_a_broken_folder_changes_nothing(engine, tiny_folders, tmp_path):
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((tiny_folders[1] / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes((tiny_folders[1] / "model.safetensors").read_bytes()[:-1000])
    before = await engine.generate(ask())
    with pytest.raises(ModelUnavailable, match="update_weights_from_disk"):
        await engine.load_weights(tmp_path, 9)
    assert await engine.version() == 0
    assert (await engine.generate(ask())).token_ids == before.token_ids


async def test_a_folder_that_lacks_a_weight_changes_nothing(engine, tiny_folders, tmp_path):
    from safetensors.torch import load_file, save_file

    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((tiny_folders[1] / name).read_bytes())
    weights = load_file(tiny_folders[1] / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnavailable, match=r"model\.norm\.weight"):
        await engine.load_weights(tmp_path, 9)
    assert await engine.version() == 0


async def test_an_engine_that_fails_is_reported_and_the_others_go_on(local, engine, tiny_folders):
    dead = client_of(local, admin_key=SecretStr("wrong"))
    report = await synchronise_weights([dead, engine], tiny_folders[1], 2, PauseMode.ABORT)
    assert list(report.failed) == [0]
    assert await engine.version() == 2
    assert (await engine.generate(ask())).token_ids  # it was resumed


SENDER = """
import sys
from safetensors.torch import load_file
from openmle_erl.engines.weight_group import describe, open_weight_group, send_weights
tensors = load_file(sys.argv[1])
print(*describe(tensors.items()), sep="|", flush=True)
group = open_weight_group(
    address="127.0.0.1", port=int(sys.argv[2]), rank=0, world_size=2, backend="gloo", group="weights"
)
send_weights(group, tensors.values())
sys.stdin.read()
"""


async def test_weights_come_through_a_process_group(engine, tiny_folders, unused_tcp_port):
    file = str(tiny_folders[1] / "model.safetensors")
    trainer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SENDER, file, str(unused_tcp_port), stdin=PIPE, stdout=PIPE
    )
    assert trainer.stdin
    assert trainer.stdout
    names, dtypes, shapes = map(ast.literal_eval, (await trainer.stdout.readline()).decode().split("|"))
    place = {"address": "127.0.0.1", "port": unused_tcp_port, "world_size": 2, "rank": 1}
    await engine.join_weight_group(backend="gloo", group="weights", **place)
    await engine.pause(PauseMode.ABORT)
    await engine.receive_weights(names=names, dtypes=dtypes, shapes=shapes, version=5, group="weights")
    await engine.resume()
    trainer.stdin.close()
    assert await trainer.wait() == 0
    await engine.leave_weight_group("weights")
    assert await engine.version() == 5
    generation = await engine.generate(ask())
    expected = own_logprobs(load_model(tiny_folders[1]), ask(), generation.token_ids)
    np.testing.assert_allclose(generation.logprobs_T, expected, atol=1e-4)


@pytest.mark.parametrize(
    "path",
    [
        "/pause_generation",
        "/continue_generation",
        "/abort_request",
        "/flush_cache",
        "/update_weights_from_disk",
        "/init_weights_update_group",
        "/destroy_weights_update_group",
        "/update_weights_from_distributed",
    ],
)
async def test_routes_that_steer_need_the_admin_key(local, path):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(local.app), base_url="http://local") as http:
        for headers in ({}, {"Authorization": f"Bearer {API_KEY.get_secret_value()}"}):
            assert (await http.post(path, json={}, headers=headers)).status_code == 401


@pytest.mark.parametrize(("method", "path"), [("POST", "/generate"), ("GET", "/model_info"), ("GET", "/v1/models")])
async def test_the_other_routes_need_the_api_key(local, method, path):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(local.app), base_url="http://local") as http:
        for headers in ({}, {"Authorization": f"Bearer {ADMIN_KEY.get_secret_value()}"}):
            assert (await http.request(method, path, json={}, headers=headers)).status_code == 401


async def test_without_an_admin_key_nobody_steers(tiny_folders):
    async with running_server(tiny_folders[0], admin_key=None) as local, client_of(local) as engine:
        with pytest.raises(ModelUnavailable, match="403"):
            await engine.pause(PauseMode.ABORT)


async def test_what_this_server_does_not_do_is_refused_by_name(local):
    headers = {"Authorization": f"Bearer {API_KEY.get_secret_value()}"}
    body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 2, "min_p": 0.1}}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(local.app), base_url="http://local") as http:
        reply = await http.post("/generate", json=body, headers=headers)
    assert reply.status_code == 400
    assert "min_p" in reply.text


async def test_a_generator_that_failed_is_no_sample(local, engine):
    def fail(generator):
        generator._forward = None  # the next step raises

    await local._thread.ask(fail)
    with pytest.raises(ModelUnavailable, match="500"):
        await engine.generate(ask())
    with pytest.raises(ModelUnavailable, match="503"):
        await engine.version()


def chat_of(local, **settings):
    transport = httpx.ASGITransport(local.app)
    return OpenAIChat(
        "http://local/v1", model="tiny", api_key=API_KEY, transport=transport, patience_seconds=0.0, **settings
    )


async def test_a_checkpoint_answers_as_a_policy(local, engine):
    question = [Message(role="user", content="print")]
    async with chat_of(local, max_tokens=6, temperature=1.0) as chat:
        completion = await chat.complete(question, seed=11)
        again = await chat.complete(question, seed=11)
    tokenizer = local._tokenizer
    prompt = tokenizer.encode(tokenizer.render(question, generation_prompt=True))
    request = GenerateRequest(request_id="x", prompt_ids=tuple(prompt), sampling=Sampling(max_new_tokens=6), seed=11)
    generation = await engine.generate(request)
    assert completion.usage.prompt_tokens == len(prompt)
    assert completion.usage.completion_tokens == len(generation.token_ids)
    assert completion.finish_reason == generation.finish.value
    assert completion.text == again.text
    assert completion.model == "tiny"


async def test_a_chat_that_is_too_long_is_refused_with_its_length(local):
    async with chat_of(local) as chat:
        with pytest.raises(ModelUnavailable, match=r"at most 1023 leave room"):
            await chat.complete([Message(role="user", content="xyz " * 1000)])
