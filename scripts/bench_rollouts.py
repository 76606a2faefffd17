"""How fast the local rollout server's generator is, against transformers' own `generate`, and how long new weights take.

One tiny model, one machine, one run: python scripts/bench_rollouts.py
"""

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import torch
import transformers
from openmle_erl.engines.generator import Generator, load_model
from openmle_erl.engines.local_server import LocalServer
from openmle_erl.engines.protocols import GenerateRequest, PauseMode, Sampling
from openmle_erl.engines.router import synchronise_weights
from openmle_erl.engines.sglang import SGLangEngine
from openmle_erl.engines.tiny import save_tiny
from openmle_erl.sft.tokens import load_tokenizer
from openmle_gym.console import print_json
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
    """Mean seconds from the pause to going on, over HTTP without sockets."""
    local = LocalServer(folder, tokenizer=load_tokenizer(folder), api_key=KEY, admin_key=KEY)
    async with local.app.router.lifespan_context(local.app):
        transport = httpx.ASGITransport(local.app)
        async with SGLangEngine("http://local", api_key=KEY, admin_key=KEY, transport=transport) as engine:
            reports = [
                await synchronise_weights([engine], folder, version, PauseMode.ABORT) for version in range(1, times + 1)
            ]
    return sum(report.seconds for report in reports) / times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    source = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py")]
    with tempfile.TemporaryDirectory() as root:
        folder = save_tiny(Path(root) / "model", source, vocab_size=1024, layers=4, hidden=128)
        model = load_model(folder)
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
        print_json(
            {
                "parameters": model.num_parameters(),
                "ours_tokens_per_second": round(whole / batched(model, requests)),
                "transformers_one_by_one_tokens_per_second": round(
                    len(few) * options.tokens / sum(by_transformers(model, [each], options.tokens) for each in few)
                ),
                "transformers_one_batch_tokens_per_second": round(
                    whole / by_transformers(model, requests, options.tokens)
                ),
                "weight_sync_seconds": round(asyncio.run(synchronised(folder, 5)), 3),
            }
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
