"""Tokens a second of one GSPO step: the trainer `torch` against TRL's GRPOTrainer in GSPO mode.

Same tiny model, same batch, same loss, same old log-probabilities, AdamW, one thread, float32, this machine, one run. Both
sides do the whole optimiser step: forward, backward, clip, update. TRL is given its replies by its own hook (generation
takes no time) and the fastest of some batch sizes. The sides take turns, each in a process of its own, and the fastest step
of each counts: other programs may be running. The losses of the first step must agree.

    python scripts/bench_train.py --trl-python .venv-adapters/bin/python
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = 4
"""Of each side in each round; the first warms up."""
CLIP = 3.5e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", default=sys.executable, help="an interpreter that has TRL")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--trl-batches", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--side", nargs=3, metavar=("NAME", "FOLDER", "BATCH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is None:
        compare(options)
    else:
        name, folder, batch = options.side
        measure = {"openmle": openmle_side, "trl": trl_side}[name]
        print(json.dumps(measure(Path(folder), json.loads((Path(folder) / "batch.json").read_text()), int(batch))))


def compare(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_batch(folder, options)
        tokens = sum(
            len(each["prompt"]) + len(each["reply"]) for each in json.loads((folder / "batch.json").read_text())
        )
        sides = [
            ("openmle", sys.executable, 4096),
            *(("trl", options.trl_python, size) for size in options.trl_batches),
        ]
        best: dict[str, float] = {}
        losses: dict[str, float] = {}
        for _ in range(options.rounds):
            for side, python, size in sides:
                found = run_side(side, python, folder, size)
                label = "openmle" if side == "openmle" else f"trl, batches of {size}"
                best[label] = min(best.get(label, float("inf")), found["seconds"])
                losses[label] = found["loss"]
    ours = best.pop("openmle")
    print(f"{options.samples} replies, {tokens} tokens, {options.layers} layers x {options.hidden}, one thread")
    print(f"{'side':24} {'CPU s/step':>10} {'tokens/s':>10} {'first loss':>12}")
    for label, seconds in {"openmle": ours, **best}.items():
        print(f"{label:24} {seconds:10.3f} {tokens / seconds:10.0f} {losses[label]:12.6f}")
    print(f"openmle / fastest TRL: {min(best.values()) / ours:.2f} x")
    spread = max(losses.values()) - min(losses.values())
    if spread > 1e-5:
        sys.exit(f"the losses differ by {spread}: the sides do not do the same")


def run_side(side: str, python: str, folder: Path, size: int) -> dict[str, float]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true"}
    command = [python, __file__, "--side", side, str(folder), str(size)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def make_batch(folder: Path, options: argparse.Namespace) -> None:
    """Prompts of 140 tokens and replies of 60 to 160, as the closed loop on small tasks has them."""
    import numpy as np
    from openmle_erl.engines.tiny import save_tiny

    texts = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))]
    save_tiny(folder / "model", texts, vocab_size=1024, layers=options.layers, hidden=options.hidden)
    generator = np.random.default_rng(0)
    batch = []
    for _ in range(options.samples):
        length = int(generator.integers(60, 161))
        batch.append(
            {
                "prompt": generator.integers(5, 1000, size=140).tolist(),
                "reply": generator.integers(5, 1000, size=length).tolist(),
                "old": generator.normal(-6.9, 0.01, size=length).tolist(),
                "advantage": float(generator.normal()),
            }
        )
    (folder / "batch.json").write_text(json.dumps(batch))


def openmle_side(folder: Path, batch: list[dict[str, Any]], budget: int) -> dict[str, float]:
    import numpy as np
    from openmle_erl.engines.protocols import TrainingSample
    from openmle_erl.engines.settings import OptimiserConfig, TorchEngineConfig, TorchTrainerConfig
    from openmle_erl.engines.torch_trainer import TorchTrainerWorker
    from openmle_erl.rl.objective import ObjectiveConfig

    engine = TorchEngineConfig(
        model=str(folder / "model"), device="cpu", max_tokens_per_micro_batch=budget, packing=False
    )
    worker = TorchTrainerWorker(
        TorchTrainerConfig(
            engine=engine,
            optimiser=OptimiserConfig(learning_rate=1e-5),
            objective=ObjectiveConfig(clip_low=CLIP, clip_high=CLIP, tis_cap=None),
        )
    )
    old = [np.array(each["old"], dtype=np.float32) for each in batch]
    samples = [
        TrainingSample(
            sample_id=str(number),
            prompt_ids=tuple(each["prompt"]),
            reply_ids=tuple(each["reply"]),
            loss_mask_T=np.ones(len(each["reply"]), dtype=np.bool_),
            rollout_logprobs_T=old[number],
            advantage=each["advantage"],
        )
        for number, each in enumerate(batch)
    ]
    seconds, losses = [], []
    for _ in range(STEPS):
        started = time.process_time()
        losses.append(worker.step(samples, old).loss)
        seconds.append(time.process_time() - started)
    return {"seconds": min(seconds[1:]), "loss": losses[0]}


def trl_side(folder: Path, batch: list[dict[str, Any]], size: int) -> dict[str, float]:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    seconds: list[float] = []
    losses: list[float] = []

    class Given(GRPOTrainer):
        """Its replies are there already."""

        def _generate_and_score_completions(self, inputs: object) -> dict[str, Any]:
            longest = max(len(each["reply"]) for each in batch)

            def padded(values: list[float], fill: float) -> list[float]:
                return values + [fill] * (longest - len(values))

            return {
                "prompt_ids": torch.tensor([each["prompt"] for each in batch]),
                "prompt_mask": torch.ones(len(batch), len(batch[0]["prompt"]), dtype=torch.long),
                "completion_ids": torch.tensor([padded(each["reply"], 0) for each in batch]),
                "completion_mask": torch.tensor([padded([1] * len(each["reply"]), 0) for each in batch]),
                "old_per_token_logps": torch.tensor([padded(each["old"], 0.0) for each in batch]),
                "advantages": torch.tensor([each["advantage"] for each in batch]),
                "num_items_in_batch": torch.tensor(sum(len(each["reply"]) for each in batch)),
            }

        def training_step(self, *arguments: Any, **named: Any) -> Any:
            loss = super().training_step(*arguments, **named)
            losses.append(float(loss))
            return loss

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            self.started = time.process_time()

        def on_step_end(self, *_: object, **__: object) -> None:
            seconds.append(time.process_time() - self.started)

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    accumulation = len(batch) // size
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
            num_generations=4,
            max_steps=STEPS,
            importance_sampling_level="sequence",
            loss_type="grpo",
            epsilon=CLIP,
            epsilon_high=CLIP,
            beta=0.0,
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            adam_beta2=0.98,
            weight_decay=0.1,
            max_grad_norm=1.0,
            optim="adamw_torch_fused",
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            logging_steps=1000,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Given(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["x"] * len(batch)}),
            processing_class=AutoTokenizer.from_pretrained(folder / "model"),
            callbacks=[Clock()],
        )
        # The generation that TRL shuffles by steps is one batch, always the same: order does not matter to its sum.
        trainer.train()
    return {"seconds": min(seconds[1:]), "loss": sum(losses[:accumulation])}


if __name__ == "__main__":
    main()
