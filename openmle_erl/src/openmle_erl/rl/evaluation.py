"""Evaluation beside training: Drafts of chosen tasks under the current weights, while generation goes on.

Its cards are in the run's store under the run id `<run>-eval`; no prompt, parent or bound is made of them. Weights may
be replaced while it generates, so what it reports says which versions it saw.
"""

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from openmle_gym.errors import ConfigError, InfrastructureError
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.jobs import Outcome
from openmle_gym.operators import Operator
from openmle_gym.store import CardStore

from openmle_erl.engines.protocols import Sampling
from openmle_erl.rl.conversation import TooLong
from openmle_erl.rl.groups import Group
from openmle_erl.rl.report import mean
from openmle_erl.rl.rollout import LearnTask, Road, policy_versions
from openmle_erl.rl.samples import Member

log = logging.getLogger(__name__)


@dataclass
class EvaluationConfig:
    """What is evaluated, and how often."""

    tasks: list[str] = field(default_factory=list)
    """Task packages, as `tasks`."""
    interval: int = 5
    """Steps between two evaluations; 0: none."""
    samples: int = 1
    """Drafts of each task."""
    parallel: int = 16
    """Samples under way at once, so that training's are not crowded out."""
    temperature: float = 0.7
    """Sampling temperature."""
    top_p: float = 0.95
    """Nucleus sampling."""
    max_new_tokens: int = 32_768
    """The longest reply."""
    try_seconds: float = 9000.0
    """How long one sample may take; one that takes longer is left out, and counted."""

    def __post_init__(self) -> None:
        for name, least in (("interval", 0), ("samples", 1), ("parallel", 1), ("max_new_tokens", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"evaluation.{name}: must be at least {least}, got {getattr(self, name)}")

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        return Sampling(max_new_tokens=self.max_new_tokens, temperature=self.temperature, top_p=self.top_p)


class Evaluation:
    """The evaluations of one run."""

    def __init__(self, road: Road, store: CardStore, tasks: Mapping[str, LearnTask], config: EvaluationConfig) -> None:
        self._road = road
        self._store = store
        self._tasks = tasks
        self._config = config
        self._run_id = f"{road.run_id}-eval"
        self._slots = asyncio.Semaphore(config.parallel)

    def due(self, step: int) -> bool:
        """Whether a step is followed by an evaluation."""
        return bool(self._tasks) and self._config.interval > 0 and step % self._config.interval == 0

    async def run(self, step: int) -> dict[str, float]:
        """Evaluates; what an earlier life of the run has judged for this step stands.

        Returns:
            By name: shares of outcomes, progress on fixed bounds, share of the leaderboard beaten, samples that machinery
            lost, the oldest and newest version of the weights that made a token, and the share of replies that more than
            one made.
        """
        count = self._config.samples
        numbered = [
            (name, (step * len(self._tasks) + place) * count + sample)
            for place, name in enumerate(sorted(self._tasks))
            for sample in range(count)
        ]
        done = {card.attempt: card for card in self._store.cards(run_id=self._run_id)}
        judged = await asyncio.gather(
            *(self._sample(name, attempt) for name, attempt in numbered if attempt not in done)
        )
        cards = [done[attempt] for _, attempt in numbered if attempt in done] + [card for card in judged if card]
        return self._metrics(step, cards, lost=len(numbered) - len(cards))

    async def _sample(self, name: str, attempt: int) -> ExperienceCard | None:
        task = self._tasks[name]
        prompt = self._road.write_prompt(task, Operator.DRAFT, ())
        if isinstance(prompt, TooLong):
            log.warning("evaluation of %s: its prompt takes %d of %d tokens", name, prompt.tokens, prompt.limit)
            return None
        member = Member(attempt=attempt)
        group = Group(
            number=attempt,
            task=name,
            operator=Operator.DRAFT,
            parents=(),
            selection=Selection(reason="evaluation"),
            prompt=prompt,
            version=0,
            members=[member],
        )
        async with self._slots:
            try:
                async with asyncio.timeout(self._config.try_seconds):
                    member.rolled = await self._road.generate(group, member, self._config.sampling, purpose="eval")
                    card, _, _ = await self._road.judge(task, group, member, run_id=self._run_id)
            except (InfrastructureError, TimeoutError) as error:
                log.warning("evaluation of %s, attempt %d: %s: %s", name, attempt, type(error).__name__, error)
                return None
        self._store.append(card)
        return card

    def _metrics(self, step: int, cards: list[ExperienceCard], *, lost: int) -> dict[str, float]:
        standings = [
            self._tasks[card.task].scoring.standing(card.validation.value if card.validation else None)
            for card in cards
        ]
        versions = [version for card in cards for version in policy_versions(card.model)]
        return {
            "eval/step": step,
            "eval/samples": len(cards),
            "eval/lost": lost,
            "eval/valid": mean([float(card.valid) for card in cards]),
            "eval/progress": mean([standing.progress for standing in standings]),
            "eval/percentile": mean([standing.percentile for standing in standings]),
            "eval/version/oldest": min(versions, default=math.nan),
            "eval/version/newest": max(versions, default=math.nan),
            "eval/version/mixed": mean([float(len(set(policy_versions(card.model))) > 1) for card in cards]),
            **{
                f"eval/outcome/{outcome}": mean([float(card.outcome is outcome) for card in cards])
                for outcome in Outcome
            },
        }
