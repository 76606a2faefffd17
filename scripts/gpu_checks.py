"""Speed and memory of one GSPO and one SFT step on a GPU, on both trainer engines: one table.

The model-FLOP utilisation counts 6 FLOPs for each token and each weight that a token uses, and attention's own, forward
and backward without recomputation, against what the same GPU does in a plain bfloat16 product of 8192 x 8192 matrices,
measured first. Weights are random. Megatron's rows are left out where it cannot be imported.

    python scripts/gpu_checks.py            # on one GPU; `--device cpu` runs the same in small, to check the script
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from openmle_erl.engines.packing import TokenRow
from openmle_erl.engines.processes import WorkerProcesses
from openmle_erl.engines.protocols import TrainingSample
from openmle_erl.engines.settings import OptimiserConfig, TorchEngineConfig, TorchTrainerConfig
from openmle_erl.engines.torch_trainer import TorchTrainerWorker
from openmle_erl.rl.objective import ObjectiveConfig
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

WARM_UP, MEASURED = 2, 3
LARGE = {
    "dense 0.6B": Qwen3Config(
        vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, max_position_embeddings=32_768,
    ),
    "MoE 16 x 8 layers": Qwen3MoeConfig(
        vocab_size=32_768, hidden_size=1024, intermediate_size=3072, moe_intermediate_size=768, num_hidden_layers=8,
        num_attention_heads=16, num_key_value_heads=4, head_dim=128, num_experts=16, num_experts_per_tok=4,
        norm_topk_prob=True, tie_word_embeddings=True, router_aux_loss_coef=0.0, max_position_embeddings=32_768,
    ),
}  # fmt: skip
SMALL = {
    "dense": Qwen3Config(
        vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, tie_word_embeddings=True,
    ),
    "MoE": Qwen3MoeConfig(
        vocab_size=300, hidden_size=64, intermediate_size=128, moe_intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, num_experts=4, num_experts_per_tok=2,
        norm_topk_prob=True, tie_word_embeddings=True, router_aux_loss_coef=0.0,
    ),
}  # fmt: skip


class Work(NamedTuple):
    """One batch: `replies` prompts of `prompt` tokens, each with a reply of `reply` tokens."""

    replies: int
    prompt: int
    reply: int

    @property
    def tokens(self) -> int:
        return self.replies * (self.prompt + self.reply)


class Measured(NamedTuple):
    seconds: float
    memory_bytes: int


class Clocked:
    """A worker whose steps are timed in its own process."""

    def __init__(self, factory: Any, config: Any, place: Any) -> None:
        self._worker = factory(config, place)

    def measure(self, method: str, *arguments: object) -> Measured:
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        best = float("inf")
        for number in range(WARM_UP + MEASURED):
            if cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            started = time.perf_counter()
            getattr(self._worker, method)(*arguments)
            if cuda:
                torch.cuda.synchronize()
            if number >= WARM_UP:
                best = min(best, time.perf_counter() - started)
        return Measured(best, torch.cuda.max_memory_allocated() if cuda else 0)

    def logprobs(self, samples: list[TrainingSample]) -> Any:
        return self._worker.logprobs(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    cuda = options.device == "cuda"
    peak = peak_flops(torch.device(options.device), 8192 if cuda else 512)
    work = Work(16, 512, 1536) if cuda else Work(4, 8, 24)
    name = torch.cuda.get_device_name() if cuda else "CPU, in small: figures mean nothing"
    print(f"{name}; bfloat16 product {peak / 1e12:.1f} TFLOP/s; {work.replies} x ({work.prompt} + {work.reply}) tokens")
    print(f"{'model':20} {'engine':9} {'step':5} {'s':>8} {'tokens/s':>10} {'MFU':>6} {'GiB':>6}")
    for label, shape in (LARGE if cuda else SMALL).items():
        with TemporaryDirectory() as folder:
            torch.manual_seed(0)
            AutoModelForCausalLM.from_config(shape, dtype=torch.float32).save_pretrained(folder)
            flops = step_flops(shape, work)
            for engine, factory, config in engines(Path(folder), options.device):
                group = WorkerProcesses(Clocked, (factory, config), 1)
                samples, rows = make(work, shape.vocab_size)
                found = group.call("logprobs", samples)[0]
                old = [found[place] for place in range(len(samples))]
                for step, call in (("GSPO", ("step", samples, old)), ("SFT", ("learn", rows))):
                    seconds, memory = group.call("measure", *call)[0]
                    share = flops / seconds / peak
                    speed = work.tokens / seconds
                    print(
                        f"{label:20} {engine:9} {step:5} {seconds:8.3f} {speed:10.0f} {share:6.1%} {memory / 2**30:6.1f}",
                        flush=True,
                    )
                group.close()


def engines(folder: Path, device: str) -> list[tuple[str, Any, Any]]:
    optimiser, objective = OptimiserConfig(), ObjectiveConfig()
    budget = 8192
    engine = TorchEngineConfig(
        model=str(folder),
        device=device,
        precision="bfloat16",
        max_tokens_per_micro_batch=budget,
        packing=False,
        gradient_checkpointing=True,
    )
    torch_config = TorchTrainerConfig(engine=engine, optimiser=optimiser, objective=objective)
    found: list[tuple[str, Any, Any]] = [("torch", TorchTrainerWorker, torch_config)]
    try:
        from openmle_erl.engines.megatron.config import MegatronConfig
        from openmle_erl.engines.megatron.worker import MegatronWorker
    except ImportError as error:
        print(f"megatron: left out: {error}")
        return found
    megatron = MegatronConfig(
        model=str(folder),
        optimiser=optimiser,
        objective=objective,
        device=device,
        precision="bfloat16" if device == "cuda" else "float32",
        max_tokens_per_micro_batch=budget,
        recompute=device == "cuda",
        dispatcher="alltoall" if device == "cuda" else "allgather",
    )
    return [*found, ("megatron", MegatronWorker, megatron)]


def make(work: Work, vocabulary: int) -> tuple[list[TrainingSample], list[TokenRow]]:
    generator = np.random.default_rng(0)
    samples, rows = [], []
    for number in range(work.replies):
        ids = generator.integers(3, vocabulary, size=work.prompt + work.reply)
        samples.append(
            TrainingSample(
                sample_id=str(number),
                prompt_ids=tuple(ids[: work.prompt].tolist()),
                reply_ids=tuple(ids[work.prompt :].tolist()),
                loss_mask_T=np.ones(work.reply, dtype=np.bool_),
                rollout_logprobs_T=np.full(work.reply, -np.log(vocabulary), dtype=np.float32),
                advantage=float(generator.normal()),
            )
        )
        rows.append(TokenRow(ids, np.arange(len(ids)) >= work.prompt))
    return samples, rows


def step_flops(shape: Any, work: Work) -> float:
    """Of a forward and a backward pass. The output layer is applied to the replies' tokens alone."""
    width = shape.num_attention_heads * shape.head_dim
    attention = 2 * shape.hidden_size * (width + shape.num_key_value_heads * shape.head_dim)
    experts = getattr(shape, "num_experts_per_tok", 0)
    block = 3 * shape.hidden_size * (experts * shape.moe_intermediate_size if experts else shape.intermediate_size)
    weights = shape.num_hidden_layers * (attention + block)
    length = work.prompt + work.reply
    scores = shape.num_hidden_layers * 6 * width * length  # two causal products: half of 12 * width * length
    head = 6 * shape.hidden_size * shape.vocab_size * work.replies * work.reply
    return work.tokens * (6 * weights + scores) + head


def peak_flops(device: torch.device, size: int) -> float:
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(10):
            left @ right
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - started) / 10)
    return 2 * size**3 / best


if __name__ == "__main__":
    main()
