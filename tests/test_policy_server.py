"""The loopback endpoint over a policy, and the scripted policy."""

import asyncio
import json

import httpx
import pytest
from openmle_gym.chat import Completion, Message, OpenAIChat, Usage
from openmle_gym.errors import ModelUnavailable
from openmle_gym.policies.scripted import ScriptedPolicy
from openmle_gym.policies.serve import LARGEST_BODY_BYTES, serve_policy
from pydantic import SecretStr

QUESTION = [Message(role="system", content="Be brief."), Message(role="user", content="Which day is it?")]


def body(**changes: object) -> dict[str, object]:
    return {"model": "recipes", "messages": [m.model_dump() for m in QUESTION], **changes}


class SeedEcho:
    """Answers with the seed that it was given."""

    async def complete(self, messages, *, seed=None):
        usage = Usage(prompt_tokens=5, completion_tokens=2)
        return Completion(text=f"seed {seed}", reasoning="hm", finish_reason="length", usage=usage)


async def test_the_real_client_gets_what_the_policy_said():
    policy = ScriptedPolicy(["Tuesday."])
    async with (
        serve_policy(policy, api_key="secret") as url,
        OpenAIChat(url, model="recipes", api_key=SecretStr("secret")) as client,
    ):
        completion = await client.complete(QUESTION, seed=3)
    assert completion.text == "Tuesday."
    assert completion.finish_reason == "stop"
    assert completion.usage.prompt_tokens == 3 + 4  # 9 and 16 characters, four to a token
    assert completion.usage.completion_tokens == 2
    assert policy.calls == [tuple(QUESTION)]


async def test_seed_usage_reasoning_and_finish_reason_travel():
    async with serve_policy(SeedEcho()) as url, httpx.AsyncClient() as http:
        reply = (await http.post(f"{url}/chat/completions", json=body(seed=41, temperature=0.5))).json()
    choice = reply["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "seed 41", "reasoning_content": "hm"}
    assert choice["finish_reason"] == "length"
    assert reply["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    assert (reply["object"], reply["model"]) == ("chat.completion", "recipes")


async def test_parts_and_the_developer_role_are_read_as_plain_messages():
    policy = ScriptedPolicy(lambda messages: " | ".join(f"{m.role}: {m.content}" for m in messages))
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Which "}, {"type": "text", "text": "day?"}]},
    ]
    async with serve_policy(policy) as url, httpx.AsyncClient() as http:
        reply = (await http.post(f"{url}/chat/completions", json=body(messages=messages))).json()
    assert reply["choices"][0]["message"]["content"] == "system: Be brief. | user: Which day?"


async def test_the_models_are_listed():
    async with serve_policy(ScriptedPolicy([]), model="toy") as url, httpx.AsyncClient() as http:
        reply = (await http.get(f"{url}/models")).json()
    assert [model["id"] for model in reply["data"]] == ["toy"]


@pytest.mark.parametrize(
    ("changes", "status", "code", "param"),
    [
        ({"model": "gpt"}, 404, "model_not_found", "model"),
        ({"stream": True}, 400, None, "stream"),
        ({"n": 2}, 400, None, "n"),
        ({"messages": [{"role": "wizard", "content": ""}]}, 400, None, "messages.0.role"),
        ({"seed": "one"}, 400, None, "seed"),
    ],
)
async def test_a_bad_request_is_refused_in_the_protocols_words(changes, status, code, param):
    async with serve_policy(ScriptedPolicy(["never said"])) as url, httpx.AsyncClient() as http:
        response = await http.post(f"{url}/chat/completions", json=body(**changes))
    error = response.json()["error"]
    assert response.status_code == status
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert error["message"]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret2"}])
async def test_without_the_right_key_nothing_is_answered(headers):
    policy = ScriptedPolicy(["never said"])
    async with serve_policy(policy, api_key="secret") as url, httpx.AsyncClient(headers=headers) as http:
        responses = [await http.post(f"{url}/chat/completions", json=body()), await http.get(f"{url}/models")]
    assert [response.status_code for response in responses] == [401, 401]
    assert responses[0].json()["error"]["code"] == "invalid_api_key"
    assert policy.calls == []


async def test_a_policy_that_is_unavailable_is_503_and_one_that_breaks_is_500(caplog):
    class Broken:
        async def complete(self, messages, *, seed=None):
            raise RuntimeError("a secret of the policy")

    async with serve_policy(ScriptedPolicy([])) as url, httpx.AsyncClient() as http:
        gone = await http.post(f"{url}/chat/completions", json=body())
    async with serve_policy(Broken()) as url, httpx.AsyncClient() as http:
        broken = await http.post(f"{url}/chat/completions", json=body())
    assert (gone.status_code, broken.status_code) == (503, 500)
    assert "script" in gone.json()["error"]["message"]
    assert "secret" not in broken.text
    assert "a secret of the policy" in caplog.text


async def test_an_unknown_path_is_404_and_the_connection_lives_on():
    async with serve_policy(ScriptedPolicy([])) as url, httpx.AsyncClient() as http:
        missing = await http.get(f"{url}/embeddings")
        wrong_method = await http.get(f"{url}/chat/completions")
        listed = await http.get(f"{url}/models")
    assert [r.status_code for r in (missing, wrong_method, listed)] == [404, 404, 200]


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("nonsense\r\n\r\n", b"400"),
        ("POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        ("POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (f"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {LARGEST_BODY_BYTES + 1}\r\n\r\n", b"413"),
    ],
)
async def test_what_is_no_request_is_refused(request_text, status):
    async with serve_policy(ScriptedPolicy([])) as url:
        host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_text.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert head.split(b" ")[1] == status


async def test_calls_of_one_server_run_side_by_side():
    arrived = asyncio.Event()

    class Pair:
        """Answers nobody before the second caller is there."""

        waiting = 0

        async def complete(self, messages, *, seed=None):
            self.waiting += 1
            if self.waiting == 2:
                arrived.set()
            await arrived.wait()
            return Completion(text="both are here")

    async with serve_policy(Pair()) as url, httpx.AsyncClient() as http:
        calls = [http.post(f"{url}/chat/completions", content=json.dumps(body())) for _ in range(2)]
        responses = await asyncio.wait_for(asyncio.gather(*calls), timeout=30)
    assert [response.status_code for response in responses] == [200, 200]


async def test_leaving_the_context_ends_calls_that_are_under_way():
    started = asyncio.Event()

    class Sleeper:
        async def complete(self, messages, *, seed=None):
            started.set()
            await asyncio.Event().wait()

    async with httpx.AsyncClient() as http:
        async with serve_policy(Sleeper()) as url:
            call = asyncio.ensure_future(http.post(f"{url}/chat/completions", json=body()))
            await started.wait()
        with pytest.raises(httpx.RemoteProtocolError):
            await call


async def test_a_script_gives_its_replies_in_order_and_then_is_at_its_end():
    policy = ScriptedPolicy(["one", "two"])
    assert [(await policy.complete(QUESTION)).text for _ in range(2)] == ["one", "two"]
    with pytest.raises(ModelUnavailable, match="2 replies; this is call 3"):
        await policy.complete(QUESTION)
