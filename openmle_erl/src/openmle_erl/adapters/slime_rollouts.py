"""Our operators and rollouts inside slime: the functions that its published hooks call.

    --custom-generate-function-path my_run.generate
    --custom-rm-path my_run.reward
    --custom-reward-post-process-path my_run.post_process

with, in a module `my_run` of yours,

    rollouts = SlimeRollouts(road, tasks, shares, AdaptiveRewards(...))
    generate, reward, post_process = rollouts.generate, rollouts.reward, rollouts.post_process

slime brings prompts, groups and the trainer; a sample's `metadata["task"]` names its task, and its own prompt is not used.
The first member of a group chooses its operator and parents, for all of them and for as long as the group lives. slime
is not on PyPI: this is tested with objects that have the documented fields of its `Sample`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from openmle_gym.errors import ConfigError, InfrastructureError
from openmle_gym.experience import ExperienceCard
from openmle_gym.operators import Operator

from openmle_erl.adapters.slime import PostProcess, PostProcessed
from openmle_erl.engines.protocols import Finish, Sampling
from openmle_erl.rewards.batches import AdaptiveRewards
from openmle_erl.rewards.shaping import INFRASTRUCTURE
from openmle_erl.rl.groups import Group, outcome_label
from openmle_erl.rl.rollout import LearnTask, Road
from openmle_erl.rl.samples import Member

STATUS = {Finish.STOP: "completed", Finish.LENGTH: "truncated"}
"""By why a generation ended: the value of slime's status."""


class SlimeRollouts:
    """One for each rollout manager; all is called on its event loop."""

    def __init__(
        self,
        road: Road,
        tasks: Mapping[str, LearnTask],
        shares: Mapping[Operator, float],
        rewards: AdaptiveRewards,
    ) -> None:
        self._road = road
        self._tasks = tasks
        self._shares = shares
        self._groups: dict[int, Group] = {}
        self._cards: dict[int, tuple[ExperienceCard, int]] = {}  # of samples that have no reward yet, with their group
        self._post_process = PostProcess(rewards.settings.advantages, rewards)

    async def generate(self, args: Any, sample: Any, sampling_params: Mapping[str, Any]) -> Any:
        """`--custom-generate-function-path`: fills in tokens, response, log-probabilities, mask, status and reward.

        Where no reply could be generated the status is `aborted`, and slime asks anew; where the sandbox failed, the reward
        says so, and `post_process` takes the sample out of its group's statistics and of the loss.
        """
        group = self._group(sample)
        task = self._tasks[group.task]
        member = Member(attempt=sample.index)
        status = type(sample.status)
        sampling = Sampling(
            max_new_tokens=sampling_params["max_new_tokens"],
            temperature=sampling_params["temperature"],
            top_p=sampling_params["top_p"],
            top_k=sampling_params["top_k"],
        )
        try:
            rolled = member.rolled = await self._road.generate(group, member, sampling)
        except InfrastructureError as error:
            sample.status = status("aborted")
            sample.metadata = {**sample.metadata, "infrastructure": str(error)}
            return sample
        sample.tokens = [*group.prompt.ids, *rolled.reply_ids]
        sample.response_length = len(rolled.reply_ids)
        sample.rollout_log_probs = rolled.logprobs_T.tolist()
        sample.loss_mask = [1] * len(rolled.reply_ids)
        sample.status = status(STATUS[rolled.finish])
        sample.metadata = {**sample.metadata, "operator": str(group.operator)}
        try:
            card, duplicate, _ = await self._road.judge(task, group, member)
        except InfrastructureError as error:
            sample.reward = {"task": group.task, "score": None, "outcome": INFRASTRUCTURE}
            sample.metadata = {**sample.metadata, "infrastructure": str(error)}
            return sample
        self._road.experience.write(card)
        self._cards[sample.index] = (card, group.number)
        sample.response = card.source or card.plan
        sample.reward = self._graded(card, group)
        sample.metadata = {**sample.metadata, "duplicate": duplicate}
        return sample

    async def reward(self, args: Any, sample: Any) -> Any:
        """`--custom-rm-path`: what `generate` found, for `post_process` to draw the reward from."""
        return sample.reward

    def post_process(self, args: Any, samples: Sequence[Any]) -> PostProcessed:
        """`--custom-reward-post-process-path`: rewards on adaptive bounds, and advantages; the step's programs become
        parents for the groups to come."""
        processed = self._post_process(args, samples)
        flat = [each for part in samples for each in (part if isinstance(part, list) else [part])]
        for sample, reward in zip(flat, processed.raw, strict=True):
            found = self._cards.pop(sample.index, None)
            if found is not None and not np.isnan(reward):
                self._road.experience.enter(found[0], reward, group=found[1])
            self._groups.pop(sample.group_index, None)
        return processed

    def _group(self, sample: Any) -> Group:
        if (known := self._groups.get(sample.group_index)) is not None:
            return known
        name = sample.metadata["task"]
        if name not in self._tasks:
            raise ConfigError(f"sample {sample.index}: unknown task {name!r}")
        beginning = self._road.begin(self._tasks[name], self._shares, sample.group_index)
        group = self._groups[sample.group_index] = Group(
            number=sample.group_index, task=name, version=0, members=[], **beginning._asdict()
        )
        return group

    def _graded(self, card: ExperienceCard, group: Group) -> dict[str, object]:
        """The fields of `rewards.Graded`, but for the group."""
        parents = self._road.experience.parents(group.task, group.parents)
        best = max((each.validation for each in parents if each.validation), key=lambda s: s.utility, default=None)
        return {
            "task": group.task,
            "score": card.validation.value if card.validation else None,
            "outcome": outcome_label(card, parents),
            "program": card.program_id,
            "parent_score": best.value if best else None,
            "claimed": card.self_reported.value if card.self_reported else None,
        }
