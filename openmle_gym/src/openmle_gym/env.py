"""A task package as a Gymnasium environment; needs the extra `gymnasium`.

An action is the text of a program, bare or inside a model's reply. It runs isolated and is graded on the validation
half; the test half is out of reach. Gymnasium's spaces hold no None: without a score `scored` is 0 and `score` is 0.0.
Gymnasium is synchronous: inside a running event loop, step in a thread.
"""

import asyncio
import string
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from openmle_gym.bridges.episode import Episode, Step, program_reply
from openmle_gym.jobs import Executor, Limits, Outcome
from openmle_gym.operators import Operator
from openmle_gym.task import TaskPackage, load_package

PROMPT_CHARACTERS = 60_000
PROGRAM_CHARACTERS = 200_000
MESSAGE_CHARACTERS = 4_000
_SHOWN = frozenset(string.printable)
_OUTCOMES = ("", *Outcome)


class TaskEnv(gymnasium.Env[dict[str, Any], str]):
    """One episode is a number of attempts at one task.

    The observation holds the `prompt` for the next program, which `operator` it asks for, and how the last program
    ended: `outcome` (0 before the first), `message`, `scored`, `score`. The reward is `openmle_gym.bridges.episode.reward`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self, package: Path | str | TaskPackage, *, executor: Executor, attempts: int = 10, limits: Limits | None = None
    ) -> None:
        """See `openmle_gym.bridges.episode.Episode`."""
        self._package = package if isinstance(package, TaskPackage) else load_package(package)
        self._executor = executor
        self._attempts = attempts
        self._limits = limits
        self._episodes = 0
        self._runner: asyncio.Runner | None = None
        self._episode: Episode | None = None
        characters = "".join(sorted(_SHOWN))
        self.action_space = spaces.Text(max_length=PROGRAM_CHARACTERS, charset=characters)
        self.observation_space = spaces.Dict(
            {
                "prompt": spaces.Text(max_length=PROMPT_CHARACTERS, min_length=0, charset=characters),
                "operator": spaces.Discrete(len(Operator)),
                "outcome": spaces.Discrete(len(_OUTCOMES)),
                "message": spaces.Text(max_length=MESSAGE_CHARACTERS, min_length=0, charset=characters),
                "scored": spaces.Discrete(2),
                "score": spaces.Box(-np.inf, np.inf, shape=(), dtype=np.float64),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts over. Nothing is drawn, so the seed changes nothing."""
        super().reset(seed=seed)
        self._episodes += 1
        self._episode = Episode(
            self._package,
            executor=self._executor,
            attempts=self._attempts,
            limits=self._limits,
            run_id=f"env{id(self):x}-{self._episodes}",
        )
        return self._observation(self._episode, None), {}

    def step(self, action: str) -> tuple[dict[str, Any], SupportsFloat, bool, bool, dict[str, Any]]:
        """Runs a program. The episode is truncated when its attempts are spent; a task is never done.

        Raises:
            InfrastructureError: The machinery failed; the attempt does not count.
            ValueError: The episode is over, or was never started.
        """
        if self._episode is None:
            raise ValueError("reset the environment first")
        if self._runner is None:
            self._runner = asyncio.Runner()
        step = self._runner.run(self._episode.step(program_reply(action)))
        return (
            self._observation(self._episode, step),
            step.reward,
            False,
            step.done,
            {"program_id": step.card.program_id},
        )

    def close(self) -> None:
        """Ends the event loop."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _observation(self, episode: Episode, step: Step | None) -> dict[str, Any]:
        card = step.card if step else None
        score = card.validation.value if card and card.validation else None
        return {
            "prompt": _shown("\n\n".join(message.content for message in episode.prompt()), PROMPT_CHARACTERS),
            "operator": np.int64(list(Operator).index(episode.operator)),
            "outcome": np.int64(_OUTCOMES.index(card.outcome) if card else 0),
            "message": _shown(card.message if card else "", MESSAGE_CHARACTERS),
            "scored": np.int64(score is not None),
            "score": np.array(0.0 if score is None else score, dtype=np.float64),
        }


def _shown(text: str, limit: int) -> str:
    """Text in the characters of the spaces; others become `?`."""
    return "".join(character if character in _SHOWN else "?" for character in text[:limit])
