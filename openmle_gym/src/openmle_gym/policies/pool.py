"""Several endpoints that stand in for each other."""

import logging
import time
from collections.abc import Callable, Sequence

from openmle_gym.chat import ChatModel, Completion, Message
from openmle_gym.errors import ModelUnavailable

log = logging.getLogger(__name__)


class PolicyPool:
    """Asks the first endpoint; where it is out of reach, the next. `Completion.model` tells which one answered.

    One that failed rests: until then it is asked only after all others.
    """

    def __init__(
        self, models: Sequence[ChatModel], *, rest_seconds: float = 300.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
        models: In order of preference; each with little patience of its own.
        rest_seconds: For how long an endpoint that failed is asked last.
        """
        if not models:
            raise ValueError("a pool needs at least one endpoint")
        self._models = list(models)
        self._rest_seconds = rest_seconds
        self._clock = clock
        self._rests_until = [float("-inf")] * len(models)

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        """See `ChatModel`.

        Raises:
            ModelUnavailable: Every endpoint is out of reach; quotes what each said.
        """
        troubles: list[str] = []
        for number in self._order():
            try:
                reply = await self._models[number].complete(messages, seed=seed)
            except ModelUnavailable as error:
                log.warning("endpoint %d of %d does not answer: %s", number + 1, len(self._models), error)
                self._rests_until[number] = self._clock() + self._rest_seconds
                troubles.append(str(error))
            else:
                self._rests_until[number] = float("-inf")
                return reply
        raise ModelUnavailable(f"none of {len(self._models)} endpoints answers: {'; '.join(troubles)}")

    def _order(self) -> list[int]:
        """The healthy ones as given, then those that rest, the longest rested first."""
        now = self._clock()
        return sorted(range(len(self._models)), key=lambda number: max(self._rests_until[number] - now, 0.0))
