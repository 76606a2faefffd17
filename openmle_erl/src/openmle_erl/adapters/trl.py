"""A `GRPOTrainer` for TRL whose advantages are ours; with it, GRPO and GSPO alike (`importance_sampling_level`).

TRL has no hook for advantages, so `OpenMLETrainer` overrides two private methods of TRL 1.16's trainer: pin TRL. The
group order is TRL's: `num_generations` completions of one prompt after the other, over all processes. TRL's options
that shape its own advantages, `scale_rewards` and the like, have no effect.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from accelerate.utils import gather_object  # pyright: ignore[reportMissingImports]
from trl import GRPOTrainer  # pyright: ignore[reportMissingImports]

from openmle_erl.rewards.advantages import AdvantageSettings, group_advantages
from openmle_erl.rewards.batches import AdaptiveRewards, Graded
from openmle_erl.rewards.diagnostics import advantage_report
from openmle_erl.rewards.presets import ROBUST

Grade = Callable[..., Awaitable[Sequence[Graded]]]
"""Called with `prompts`, `completions` and the data set's columns, as TRL calls a reward function. Gives one `Graded`
a completion; its `group` is set by the trainer."""


class GradedReward:
    """A reward function for `OpenMLETrainer`: executes and grades completions, and rewards them on adaptive bounds.

    The bounds are drawn by the trainer, from the whole batch over all processes; any other trainer would take the
    scores for rewards.
    """

    def __init__(self, grade: Grade, rewards: AdaptiveRewards, name: str = "program") -> None:
        self.rewards = rewards
        self.graded: Sequence[Graded] = ()
        """What this process graded last."""
        self.__name__ = name
        self._grade = grade

    async def __call__(self, **columns: Any) -> list[float | None]:
        self.graded = await self._grade(**columns)
        return [sample.score for sample in self.graded]


class OpenMLETrainer(GRPOTrainer):
    """TRL's trainer with our advantages, which it also logs, with `advantage_report`'s summary as `advantages/...`.

    A completion is masked when all reward functions give None, or a `GradedReward` finds that machinery failed: its
    advantage is 0, its group is as if it were not there, and none of its tokens is in the loss, nor in the token count
    that `dapo` and its like divide by.
    """

    def __init__(self, *args: Any, advantages: AdvantageSettings = ROBUST.advantages, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._openmle_settings = advantages
        self._openmle_rewards = torch.empty(0)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        by_function = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        groups = self._openmle_groups(len(by_function))
        lost = torch.zeros(len(by_function), dtype=torch.bool, device=by_function.device)
        for column, function in enumerate(self.reward_funcs):
            if isinstance(function, GradedReward):
                everywhere: list[Graded] = gather_object(list(function.graded))
                samples = [replace(sample, group=group) for sample, group in zip(everywhere, groups, strict=True)]
                by_function[:, column] = by_function.new_tensor(function.rewards(samples))
                lost |= by_function[:, column].isnan()
        lost |= by_function.isnan().all(dim=1)
        rewards = (by_function * self.reward_weights.to(by_function.device)).nansum(dim=1)
        self._openmle_rewards = rewards.masked_fill(lost, torch.nan)
        return by_function

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        rewards = self._openmle_rewards
        groups = self._openmle_groups(len(rewards))
        advantages = group_advantages(rewards, groups, self._openmle_settings)

        logged = self._logs["advantages"]
        for _ in range(min(len(advantages), len(logged))):
            logged.pop()
        logged.extend(advantages.tolist())
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, value in advantage_report(rewards, groups, self._openmle_settings).summary().items():
            if value is not None:
                metrics[f"advantages/{name}"].append(float(value))

        size = len(batch["advantages"])
        own = slice(self.accelerator.process_index * size, (self.accelerator.process_index + 1) * size)
        batch["advantages"] = advantages[own]
        in_loss = batch["completion_mask"] * batch.get("tool_mask", 1)
        lost = rewards[own].isnan()[:, None]
        batch["num_items_in_batch"] = (
            batch["num_items_in_batch"] - self.accelerator.gather((in_loss * lost).sum()).sum()
        )
        batch["completion_mask"] = batch["completion_mask"] * ~lost
        return batch

    def _openmle_groups(self, count: int) -> list[int]:
        size = self.num_generations if self.model.training else self.num_generations_eval
        return [place // size for place in range(count)]
