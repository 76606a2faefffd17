"""Training steps of TRL's own trainer, on the CPU, with a tiny model made here."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openmle_erl.rewards import (
    PAPER,
    AdaptiveRewards,
    Graded,
    RewardTask,
    entropic_advantages,
    group_rewards,
)

pytest.importorskip("trl", reason="TRL is not installed")
import torch
from datasets import Dataset
from erl.tiny_qwen import tiny_model, tiny_tokenizer
from openmle_erl.adapters.trl import GradedReward, OpenMLETrainer
from trl import GRPOConfig

PROMPTS = ["a b", "c d"]
TASK = RewardTask(higher_is_better=True, static_best=1.0, static_worst=0.0)
GROUP = 4


class Grader:
    """Grades by a script, one row of scores for each prompt and step; a string is an outcome. Remembers its calls."""

    def __init__(self, script: list[dict[str, list[float | str]]]) -> None:
        self.script = script
        self.prompts: list[list[str]] = []
        self.lengths: list[list[int]] = []

    async def __call__(self, *, prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[Graded]:
        row = {prompt: iter(scores) for prompt, scores in self.script[len(self.prompts)].items()}
        self.prompts.append(prompts)
        self.lengths.append([len(ids) for ids in completion_ids])
        scores = [next(row[prompt]) for prompt in prompts]
        return [
            Graded(task="wine", score=None, outcome=score)
            if isinstance(score, str)
            else Graded(task="wine", score=score)
            for score in scores
        ]


def trainer(tmp_path: Path, reward_functions: Any, steps: int = 1, **options: Any) -> OpenMLETrainer:
    advantages = {"advantages": options.pop("advantages")} if "advantages" in options else {}
    config: dict[str, Any] = {
        "per_device_train_batch_size": len(PROMPTS) * GROUP,
        "num_generations": GROUP,
        "max_completion_length": 6,
        "max_steps": steps,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "beta": 0.0,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "shuffle_dataset": False,
        **options,
    }
    data = Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS])
    return OpenMLETrainer(
        model=tiny_model(),
        reward_funcs=reward_functions,
        args=GRPOConfig(output_dir=str(tmp_path), **config),
        train_dataset=data,
        eval_dataset=data,
        processing_class=tiny_tokenizer(),
        **advantages,
    )


def logged(trained: OpenMLETrainer) -> np.ndarray:
    return np.array(trained._logs["advantages"])


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_steps_logged_and_used_advantages_are_ours(level: str, tmp_path: Path) -> None:
    grader = Grader([{"a b": [0.1, 0.4, 0.4, 0.9], "c d": [0.0, 0.0, 0.0, 1.0]}])
    reward = GradedReward(grader, AdaptiveRewards({"wine": TASK}))
    ours = trainer(tmp_path, [reward], importance_sampling_level=level)
    before = [parameter.detach().clone() for parameter in ours.model.parameters()]
    ours.train()

    rewards = np.concatenate([group_rewards(scores, task=TASK).rewards for scores in grader.script[0].values()])
    assert grader.prompts[0] == [PROMPTS[0]] * GROUP + [PROMPTS[1]] * GROUP
    expected = entropic_advantages(rewards, grader.prompts[0], cap=20.0)
    np.testing.assert_allclose(logged(ours), expected, rtol=1e-5, atol=1e-6)
    # At the first step all ratios are 1, and the loss is minus the mean advantage over tokens.
    lengths = np.array(grader.lengths[0])
    step = ours.state.log_history[0]
    assert step["loss"] == pytest.approx(-(expected * lengths).sum() / lengths.sum(), abs=1e-3)
    assert step["advantages/groups_with_signal"] == 2
    assert step["advantages/mean_effective_kl"] == pytest.approx(math.log(2), abs=1e-6)
    assert any(not torch.equal(old, new) for old, new in zip(before, ours.model.parameters(), strict=True))


def test_bounds_follow_the_scores_of_earlier_steps(tmp_path: Path) -> None:
    script = [
        {"a b": [0.5, 0.5, 0.6, 0.7], "c d": [0.2, 0.3, 0.3, 0.4]},
        {"a b": [0.5, 0.1, 0.6, 0.65], "c d": [0.2, 0.9, 0.3, 0.4]},
    ]
    grader = Grader([*script])
    ours = trainer(tmp_path, [GradedReward(grader, AdaptiveRewards({"wine": TASK}, PAPER))], steps=2)
    ours.train()
    history = [score for prompt in grader.prompts[0][::GROUP] for score in script[0][prompt]]
    rewards = np.concatenate(
        [
            group_rewards(script[1][prompt], task=TASK, settings=PAPER, history=history).rewards
            for prompt in grader.prompts[1][::GROUP]
        ]
    )
    np.testing.assert_allclose(
        logged(ours), entropic_advantages(rewards, grader.prompts[1], cap=20.0), rtol=1e-5, atol=1e-6
    )


def test_a_member_that_machinery_failed_has_no_weight(tmp_path: Path) -> None:
    step = {"a b": [0.1, "infrastructure", 0.4, 0.9], "c d": ["infrastructure"] * 3 + ["timeout"]}
    grader = Grader([step, step])

    def style(prompts: list[str], **_: Any) -> list[float]:
        return [0.5] * len(prompts)

    ours = trainer(tmp_path, [GradedReward(grader, AdaptiveRewards({"wine": TASK})), style])
    ours.train()
    scores = np.array([0.1, 0.4, 0.9])
    expected = np.zeros(2 * GROUP)
    expected[[0, 2, 3]] = entropic_advantages(group_rewards(scores, task=TASK).rewards + 0.5, [0] * 3, cap=20.0)
    np.testing.assert_allclose(logged(ours), expected, rtol=1e-5, atol=1e-6)
    # Tokens of the four lost members are not in the mean; those of the timeout, whose advantage is 0, are.
    lengths = np.array(grader.lengths[0])
    counted = lengths[[0, 2, 3, 7]].sum()
    step = ours.state.log_history[0]
    assert step["loss"] == pytest.approx(-(expected * lengths).sum() / counted, abs=1e-3)
    assert step["advantages/masked_members"] == 4
    assert step["advantages/groups_one_member"] == 1
    batch = ours._generate_and_score_completions([{"prompt": prompt} for prompt in PROMPTS for _ in range(GROUP)])
    lost = (batch["completion_mask"] == 0).all(dim=1)
    assert lost.tolist() == [False, True, False, False, True, True, True, False]


def test_plain_reward_functions_and_other_advantages_work_too(tmp_path: Path) -> None:
    def fixed(prompts: list[str], **_: Any) -> list[float | None]:
        return [0.1, 0.4, None, 0.9, 0.0, 0.0, 1.0, 1.0]

    ours = trainer(tmp_path, [fixed], advantages=PAPER.advantages)
    ours.train()
    expected = entropic_advantages(fixed([]), np.repeat([0, 1], GROUP), published=True)
    assert expected[2] == 0.0
    np.testing.assert_allclose(logged(ours), expected, rtol=1e-4, atol=1e-6)


def test_evaluation_uses_its_own_group_size(tmp_path: Path) -> None:
    def fixed(prompts: list[str], **_: Any) -> list[float]:
        return [0.0, 1.0, 0.5, 0.2][: len(prompts)]

    ours = trainer(tmp_path, [fixed], num_generations_eval=2, per_device_eval_batch_size=4)
    ours.evaluate()
    np.testing.assert_allclose(
        logged(ours)[-4:], entropic_advantages(fixed([""] * 4), [0, 0, 1, 1], cap=20.0), rtol=1e-5, atol=1e-6
    )
