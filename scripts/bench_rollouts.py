"""How long new weights take from a trainer's folder into the local rollout server, over HTTP, and how fast the server's
generator is, against transformers' own `generate`. Each figure is printed when it is there, the new weights' first.

One tiny model, one machine, one run:

    python scripts/bench_rollouts.py                                        # batches of 64
    python scripts/bench_rollouts.py --requests 8 --tokens 16 --layers 2    # seconds, also on a busy machine
"""

import argparse
import asyncio
import random
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
import uvicorn
from openmle_erl.engines.generator import Generator, load_model
from openmle_erl.engines.local_server import LocalServer
from openmle_erl.engines.protocols import GenerateRequest, PauseMode, Sampling
from openmle_erl.engines.router import synchronise_weights
from openmle_erl.engines.sglang import SGLangEngine
from openmle_erl.engines.tiny import save_tiny
from openmle_erl.sft.tokens import load_tokenizer
from pydantic import SecretStr

KEY = SecretStr("bench")


def batched(model: transformers.PreTrainedModel, requests: list[GenerateRequest]) -> float:
    """Seconds for all requests in continuous batches."""
    generator = Generator(model, max_running=64)
    started = time.perf_counter()
    for request in requests:
        generator.add(request, lambda _: None, stop_ids=())
    while not generator.idle:
        generator.step()
    return time.perf_counter() - started


def by_transformers(model: Any, requests: list[GenerateRequest], tokens: int) -> float:
    """Seconds for these requests in one call of `generate`."""
    started = time.perf_counter()
    prompts = torch.tensor([request.prompt_ids for request in requests])
    model.generate(prompts, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True)
    return time.perf_counter() - started


async def synchronised(folder: Path, times: int) -> float:
    """Median seconds from the pause to going on, over a socket of this machine, while a request is being answered."""
    local = LocalServer(folder, tokenizer=load_tokenizer(folder), api_key=KEY, admin_key=KEY)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(local.app, log_level="warning", access_log=False))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with SGLangEngine(url, api_key=KEY, admin_key=KEY) as engine:
            await engine.version()
            seconds: list[float] = []
            for version in range(1, times + 1):
                request = GenerateRequest(
                    request_id=str(version), prompt_ids=(5, 6, 7), sampling=Sampling(max_new_tokens=4096)
                )
                busy = asyncio.create_task(engine.generate(request))
                await asyncio.sleep(0.05)
                report = await synchronise_weights([engine], folder, version, PauseMode.ABORT)
                if report.failed or await engine.version() != version:
                    raise SystemExit(f"version {version} did not arrive: {report.failed}")
                seconds.append(report.seconds)
                await busy
        server.should_exit = True
        await serving
    return statistics.median(seconds)


def show(name: str, value: float) -> None:
    print(f"{name:44} {value:,}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    source = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py")]
    with tempfile.TemporaryDirectory() as root:
        folder = save_tiny(Path(root) / "model", source, vocab_size=1024, layers=options.layers, hidden=128)
        model = load_model(folder)
        show("parameters", model.num_parameters())
        show("weight_sync_seconds", round(asyncio.run(synchronised(folder, 5)), 3))
        numbers = random.Random(0)
        requests = [
            GenerateRequest(
                request_id=str(seed),
                prompt_ids=tuple(numbers.randrange(5, 1000) for _ in range(64)),
                sampling=Sampling(max_new_tokens=options.tokens),
                seed=seed,
            )
            for seed in range(options.requests)
        ]
        few = requests[:4]
        batched(model, few)  # warm
        whole = options.requests * options.tokens
        show("ours_tokens_per_second", round(whole / batched(model, requests)))
        show(
            "transformers_one_batch_tokens_per_second", round(whole / by_transformers(model, requests, options.tokens))
        )
        one_by_one = sum(by_transformers(model, [each], options.tokens) for each in few)
        show("transformers_one_by_one_tokens_per_second", round(len(few) * options.tokens / one_by_one))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
