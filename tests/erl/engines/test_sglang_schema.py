"""What we send and what our server answers, read by SGLang's own schema (`scripts/fetch_sglang_schema.py` fetches it)."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import httpx
import pytest

pytest.importorskip("msgspec")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from erl.engines.serving import API_KEY, client_of, running_server
from openmle_erl.engines.protocols import Finish, GenerateRequest, PauseMode, Sampling
from openmle_erl.engines.sglang_wire import generate_body, read_generation

SCHEMA = Path(__file__).parents[3] / ".cache" / "sglang" / "0.5.23" / "api_types.py"
pytestmark = pytest.mark.skipif(not SCHEMA.exists(), reason="run scripts/fetch_sglang_schema.py first")
REQUEST = GenerateRequest(
    request_id="r1", prompt_ids=(5, 6, 7), sampling=Sampling(max_new_tokens=6, top_p=0.9, stop_token_ids=(4,)), seed=8
)


@pytest.fixture(scope="module")
def schema() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sglang_api_types", SCHEMA)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def replies(tiny_folders):
    """By route, what the local server answers."""

    async def collect() -> dict[str, object]:
        async with running_server(tiny_folders[0]) as local, client_of(local) as engine:
            transport = httpx.ASGITransport(local.app)
            headers = {"Authorization": f"Bearer {API_KEY.get_secret_value()}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as http:
                found = {
                    "generate": (await http.post("/generate", json=generate_body(REQUEST, "r1"))).json(),
                    "model_info": (await http.get("/model_info")).json(),
                }
                await engine.pause(PauseMode.ABORT)
                await engine.load_weights(tiny_folders[1], 3)
                await engine.resume()
                found["later"] = (await http.post("/generate", json=generate_body(REQUEST, "r2"))).json()
                return found

    import asyncio

    return asyncio.run(collect())


def test_a_request_says_to_sglang_what_it_says_to_us(schema):
    read = schema.GenerateRequest.from_json_value(json.loads(json.dumps(generate_body(REQUEST, "r1"))))
    assert (read.rid, read.input_ids, read.return_logprob, read.stream) == ("r1", [5, 6, 7], True, False)
    parameters = read.sampling_params
    assert (parameters.max_new_tokens, parameters.temperature, parameters.top_p, parameters.top_k) == (6, 1.0, 0.9, -1)
    assert (parameters.stop_token_ids, parameters.sampling_seed) == ([4], 8)


def test_the_schema_refuses_what_sglang_refuses(schema):
    body = json.loads(json.dumps(generate_body(REQUEST, "r1")))
    body["sampling_params"]["misspelt"] = 1
    with pytest.raises(schema.JsonContractError, match="misspelt"):
        schema.GenerateRequest.from_json_value(body)


def test_the_local_servers_reply_reads_as_one_of_sglang(schema, replies):
    read = schema.GenerateResponse.from_json_value(replies["generate"])
    meta = read.meta_info
    assert meta.id == "r1"
    assert meta.prompt_tokens == 3
    assert meta.completion_tokens == len(read.output_ids) == meta.output_token_logprobs_length
    assert [entry.token_id for entry in meta.output_token_logprobs] == read.output_ids
    assert isinstance(meta.finish_reason, schema.FinishStop | schema.FinishLength)
    assert [(span.version, span.start, span.end) for span in meta.weight_versions] == [
        ("default", 0, len(read.output_ids))
    ]


def test_versions_are_named_as_sglang_names_them(schema, replies):
    meta = schema.GenerateResponse.from_json_value(replies["later"]).meta_info
    assert meta.weight_version == "3"
    assert {span.version for span in meta.weight_versions} == {"3"}


def test_the_local_servers_facts_read_as_sglangs(schema, replies):
    read = schema.GetModelInfoResponse.from_json_value(replies["model_info"])
    assert read.weight_version == "default"
    assert read.is_generation
    assert read.served_model_name == "tiny"


@pytest.mark.parametrize(
    ("reason", "finish"), [("FinishStop", Finish.STOP), ("FinishLength", Finish.LENGTH), ("FinishAbort", Finish.ABORT)]
)
def test_a_reply_that_sglang_would_write_reads_as_a_generation(schema, reason, finish):
    span, entry = schema.WeightVersionSpan, schema.LogprobEntry
    written = schema.GenerateResponse(
        text="",
        output_ids=[11, 12, 13],
        meta_info=schema.GenerateMetaInfo(
            id="r1",
            finish_reason=getattr(schema, reason)(),
            output_token_logprobs=[entry(logprob=-0.5 * n, token_id=10 + n) for n in (1, 2, 3)],
            weight_version="7",
            weight_versions=[span(version="default", start=0, end=1), span(version="7", start=1, end=3)],
        ),
    ).to_json_value()
    generation = read_generation(json.dumps(written).encode(), REQUEST, place="there")
    assert generation.token_ids == (11, 12, 13)
    assert generation.logprobs_T.tolist() == [-0.5, -1.0, -1.5]
    assert generation.finish is finish
    assert generation.spans == ((0, 0, 1), (7, 1, 3))
