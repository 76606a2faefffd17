"""A task package as an environment of OpenEnv (openenv-core 0.3); needs that library.

app = create_fastapi_app(lambda: MLEEnvironment(package, executor=executor), ProgramAction, TaskObservation)
"""

import asyncio
from pathlib import Path
from typing import Any

from openenv.core.env_server.interfaces import Environment  # pyright: ignore[reportMissingImports]
from openenv.core.env_server.types import Action, Observation, State  # pyright: ignore[reportMissingImports]

from openmle_gym.bridges.episode import Episode, Step, program_reply
from openmle_gym.jobs import Executor, Limits


class ProgramAction(Action):
    """The text of a program, bare or inside a model's reply."""

    program: str


class TaskObservation(Observation):
    """The prompt for the next program, and how the last one ended; `done` and `reward` are the base's."""

    prompt: str
    operator: str
    outcome: str | None = None
    """None before the first program."""
    message: str = ""
    score: float | None = None
    """On the validation half; None without one."""


class MLEEnvironment(Environment[ProgramAction, TaskObservation, State]):
    """One episode is a number of attempts at one task. `reset` and `step` are for threads, their async forms for loops."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self, package: Path | str, *, executor: Executor, attempts: int = 10, limits: Limits | None = None
    ) -> None:
        """See `openmle_gym.bridges.episode.Episode`."""
        super().__init__()
        self._settings: dict[str, Any] = {"executor": executor, "attempts": attempts, "limits": limits}
        self._package = package
        self._episode: Episode | None = None
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> TaskObservation:
        """Starts over. Nothing is drawn, so the seed changes nothing."""
        self._state = State(episode_id=episode_id, step_count=0)
        self._episode = Episode(self._package, run_id=f"openenv-{episode_id or id(self)}", **self._settings)
        return _observation(self._episode, None)

    def step(self, action: ProgramAction, timeout_s: float | None = None, **kwargs: Any) -> TaskObservation:
        """As `step_async`."""
        return asyncio.run(self.step_async(action, timeout_s))

    async def step_async(self, action: ProgramAction, timeout_s: float | None = None, **kwargs: Any) -> TaskObservation:
        """Runs a program.

        Raises:
            InfrastructureError: The machinery failed; the attempt does not count.
            ValueError: The episode is over, or was never started.
            TimeoutError: `timeout_s` went by.
        """
        if self._episode is None:
            raise ValueError("reset the environment first")
        step = await asyncio.wait_for(self._episode.step(program_reply(action.program)), timeout_s)
        self._state = State(episode_id=self._state.episode_id, step_count=self._state.step_count + 1)
        return _observation(self._episode, step)

    @property
    def state(self) -> State:
        """The episode's id and how many programs have run."""
        return self._state


def _observation(episode: Episode, step: Step | None) -> TaskObservation:
    card = step.card if step else None
    return TaskObservation(
        prompt="\n\n".join(message.content for message in episode.prompt()),
        operator=episode.operator,
        outcome=card.outcome if card else None,
        message=card.message if card else "",
        score=card.validation.value if card and card.validation else None,
        done=step.done if step else False,
        reward=step.reward if step else None,
    )
