"""The whole of it, real: a tiny model that can write four programs, a local server, a shipped task, GSPO; killed once."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from openmle_erl.rl.commands import load_profile
from openmle_erl.rl.conversation import Budget
from openmle_erl.rl.opening import learn_task
from openmle_erl.rl.rollout import TokenizerDialogue
from openmle_erl.rl.status import read_status
from openmle_gym.anchors import build_anchor
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.operators import Operator
from openmle_gym.prompts import Surroundings, build_prompt

pytest.importorskip("torch")
pytest.importorskip("transformers")

PROGRAM = """import os
import pandas as pd
from sklearn.{module} import {model}
folder = os.environ["DATA_DIR"]
train, test = pd.read_csv(folder + "/train.csv"), pd.read_csv(folder + "/test.csv")
inputs = [name for name in test.columns if name != "sample_id"]
fitted = {model}({settings}).fit(train[inputs], train["malignant"])
test["malignant"] = fitted.predict_proba(test[inputs])[:, 1]
test[["sample_id", "malignant"]].to_csv("submission.csv", index=False)"""
PROGRAMS = (
    PROGRAM.format(module="linear_model", model="LogisticRegression", settings="max_iter=200"),
    PROGRAM.format(module="tree", model="DecisionTreeClassifier", settings="max_depth=1"),
    PROGRAM.format(module="naive_bayes", model="GaussianNB", settings=""),
    PROGRAM.format(module="tree", model="DecisionTreeClassifier", settings="depth=1"),
)
REPLIES = tuple(f"```python\n{program}\n```" for program in PROGRAMS)


def teach(folder: Path, prompt_text: str, dialogue_of: object, messages: Sequence[object]) -> None:
    """Makes a model that answers the prompt with one of the replies, each as likely as the others."""
    import torch
    from openmle_erl.engines.tiny import save_tiny
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    save_tiny(folder, [prompt_text, *REPLIES * 4], vocab_size=768, layers=1, hidden=64)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    prompt = dialogue_of(folder).encode(messages).ids  # type: ignore[operator]
    rows = [[*prompt, *tokenizer(f"{reply}<|im_end|>", add_special_tokens=False)["input_ids"]] for reply in REPLIES]
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    labels = torch.tensor([[-100] * len(prompt) + row[len(prompt) :] + [-100] * (length - len(row)) for row in rows])
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(120):
        loss = model(input_ids=ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss.item() < 0.1:  # which of four programs it is cannot be known: 1.39 nats over 18 tokens
            break
    model.save_pretrained(folder)


def train(overrides: Sequence[str]) -> subprocess.Popen[bytes]:
    code = "import sys; from openmle_erl.cli import main; sys.exit(main())"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code, "train", "rl_smoke", *overrides], env=environment, stdout=subprocess.PIPE
    )


def cards(run: Path) -> int:
    try:
        with sqlite3.connect(f"file:{run / 'experience.sqlite'}?mode=ro", uri=True) as tables:
            return tables.execute("SELECT count(*) FROM cards").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


@pytest.mark.slow
def test_a_tiny_model_learns_on_a_shipped_task_through_a_kill(tmp_path: Path) -> None:
    root, model, run = tmp_path / "tasks", tmp_path / "model", tmp_path / "run"
    package = asyncio.run(
        build_anchor("breast-cancer", root / "breast-cancer", runner=ProcessRunner(allow_no_isolation=True))
    )
    overrides = [
        f"tasks=[{root}]",
        f"run_dir={run}",
        f"model={model}",
        "operators.improve=0",
        "operators.debug=0",
        "operators.crossover=0",
        "memory.kind=none",
        "sampling.max_new_tokens=400",
        "schedule.steps=3",
        "prompt.description=60",
        "prompt.data=60",
        "sandbox.runner=process",
        "sandbox.allow_process=true",
        "sandbox.timeout_seconds=60",
    ]
    config = load_profile("rl_smoke", overrides)
    task = learn_task(package, config)

    def prompt(measure: object = len) -> list:
        around = Surroundings(limits=task.limits)
        return build_prompt(Operator.DRAFT, task.public, (), around, config=config.prompt, measure=measure)  # type: ignore[arg-type]

    def dialogue_of(folder: Path) -> TokenizerDialogue:
        from openmle_erl.sft.tokens import load_tokenizer

        return TokenizerDialogue(load_tokenizer(folder), Budget(context_tokens=8192, reply_tokens=8192))

    teach(model, prompt()[-1].content, dialogue_of, prompt())

    first = train(overrides)
    deadline = time.monotonic() + 600
    while cards(run) < 3 and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    begun = cards(run)
    assert begun >= 3

    second = train(overrides)
    printed, _ = second.communicate(timeout=900)
    assert second.returncode == 0
    assert json.loads(printed) == {"run_dir": str(run), "steps": 3}
    status = read_status(run)
    assert status.steps == 3
    assert sum(status.fates.values()) == status.samples
    assert status.fates["open"] == 0
    assert status.fates["trained"] >= 3 * 2 * 2
    assert cards(run) == status.samples - status.fates["infrastructure"] - status.fates["late"]
    assert status.outcomes["outcome/success"] > 0.0  # real programs, run and graded
    assert status.duplicates["task"] > 0
    assert (run / "checkpoints" / "step-000003" / "state.json").exists()
    assert (run / "metrics.jsonl").exists()
    (weights,) = (run / "weights").iterdir()
    assert weights.name == "version-000003"
    assert (weights / "model.safetensors").exists()
