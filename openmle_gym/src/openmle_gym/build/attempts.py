"""Asking until the answer will do: the one loop behind every stage that a model has a part in.

A reply is read, what it holds is judged, and what is wrong goes back to the model, for as many attempts as there are.
Every attempt is on disk, so a build that was killed goes on with the next one; the best is kept, and is what the model
is shown to mend.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from openmle_gym.build.asking import Desk
from openmle_gym.build.state import write_whole
from openmle_gym.chat import Completion, Message
from openmle_gym.contracts import Contract, read_record
from openmle_gym.errors import ReplyError
from openmle_gym.program import parse_reply


class Judgement(Contract):
    """What became of an attempt."""

    accepted: bool
    rank: float
    """How far it came; the attempt with the highest rank is the best."""
    code: str = ""
    """What is wrong, in one word; empty where it was accepted."""
    feedback: str = ""
    """What is wrong, for the model to read."""
    notes: tuple[str, ...] = ()
    """Warnings that keep nothing from being accepted."""


class Attempt(Contract):
    """One reply and what became of it."""

    number: int
    """From 1."""
    answer: str
    """What the reply holds: a program or a JSON object; empty where it holds none."""
    judgement: Judgement


UNREADABLE = 0.0
"""The rank of a reply without an answer."""

Prompt = Callable[[Sequence[Attempt]], list[Message]]
"""The question, after the attempts so far."""
Judge = Callable[[str, int], Awaitable[Judgement]]
"""Judges an answer, the how-manieth it is too."""
Reader = Callable[[Completion], str]
"""Finds the answer in a reply.

Raises:
    ReplyError: There is none.
"""


def read_program(completion: Completion) -> str:
    """The Python program of a reply."""
    return parse_reply(completion.text, truncated=completion.finish_reason == "length").source


async def attempt_until_good(
    folder: Path, *, budget: int, desk: Desk, prompt: Prompt, read: Reader, judge: Judge
) -> list[Attempt]:
    """All attempts, at most `budget`, in order; the last one is the accepted one where one was accepted.

    Raises:
        ModelUnavailable: The model cannot be asked; what was attempted is kept, and no attempt is counted.
    """
    attempts = load_attempts(folder)
    while len(attempts) < budget and not (attempts and attempts[-1].judgement.accepted):
        number = len(attempts) + 1
        completion = await desk.ask(f"attempt_{number:02d}", prompt(attempts))
        try:
            answer = read(completion)
        except ReplyError as error:
            answer, judgement = "", Judgement(accepted=False, rank=UNREADABLE, code=error.code, feedback=str(error))
        else:
            judgement = await judge(answer, number)
        attempt = Attempt(number=number, answer=answer, judgement=judgement)
        write_whole(folder / f"attempt_{number:02d}.json", attempt.model_dump_json(indent=2).encode())
        attempts.append(attempt)
    return attempts


def load_attempts(folder: Path) -> list[Attempt]:
    """The attempts on disk, in order."""
    paths = sorted(path for path in folder.glob("attempt_*.json") if not path.name.endswith(".call.json"))
    return [read_record(path, Attempt) for path in paths]


def best_attempt(attempts: Sequence[Attempt]) -> Attempt | None:
    """The one that came furthest, the latest of equals; None without an answer in any."""
    answered = [attempt for attempt in attempts if attempt.answer]
    return max(answered, key=lambda attempt: (attempt.judgement.rank, attempt.number), default=None)
