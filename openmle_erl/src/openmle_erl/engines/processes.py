"""A few processes of this machine that do the same work together, one object in each.

For tests, laptops and one machine; on a cluster the same objects are Ray's actors, or torchrun's processes.
"""

import multiprocessing
import socket
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from openmle_gym.errors import InfrastructureError, OpenMLEError

Factory = Callable[..., Any]


class Place(NamedTuple):
    """Which of a trainer's processes this is, and where they meet."""

    rank: int = 0
    processes: int = 1
    address: str = "127.0.0.1"
    port: int = 0
    """Of the meeting, at `address`, which is the first process's machine; not needed by a single process."""
    local_rank: int = 0
    """The GPU of this machine that is its own."""


class _Failure(NamedTuple):
    error: OpenMLEError | ValueError | None
    """The exception itself where the caller may want to tell it apart."""
    text: str


class WorkerProcesses:
    """Holds `factory(*arguments, place)` in each of some fresh processes, and calls their methods all at once."""

    def __init__(
        self, factory: Factory, arguments: Sequence[object], processes: int, *, address: str = "127.0.0.1"
    ) -> None:
        """Starts them, and returns when all objects are there.

        Args:
            factory: Importable by name.

        Raises:
            InfrastructureError: One died.
        """
        context = multiprocessing.get_context("spawn")
        port = free_port(address)
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(processes):
            ours: Any
            ours, theirs = context.Pipe()
            place = Place(rank=rank, processes=processes, address=address, port=port, local_rank=rank)
            process = context.Process(
                target=_serve, args=(theirs, factory, tuple(arguments), place), daemon=True, name=f"rank-{rank}"
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
        self._answers()

    def call(self, method: str, *arguments: object) -> list[Any]:
        """Calls a method of every object with the same arguments; the results, by rank.

        Raises:
            OpenMLEError, ValueError: What a method raised; the processes are ended, since the others may wait for it.
            InfrastructureError: A process died.
        """
        for connection in self._connections:
            try:
                connection.send((method, arguments))
            except OSError as error:
                self.kill()
                raise InfrastructureError(f"a process of the trainer is gone before {method}") from error
        return self._answers()

    def close(self) -> None:
        """Ends the processes once what they do is done."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(timeout=30)
        self.kill()

    def kill(self) -> None:
        """Ends the processes now."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()

    def _answers(self) -> list[Any]:
        found: dict[int, Any] = {}
        while len(found) < len(self._connections):
            waiting = {each: rank for rank, each in enumerate(self._connections) if rank not in found}
            for ready in wait(list(waiting)):
                assert isinstance(ready, Connection)
                rank = waiting[ready]
                try:
                    answer = ready.recv()
                except (EOFError, OSError) as error:
                    self._processes[rank].join(timeout=5)
                    code = self._processes[rank].exitcode
                    self.kill()
                    raise InfrastructureError(f"process {rank} of the trainer died, exit code {code}") from error
                if isinstance(answer, _Failure):
                    self.kill()
                    if answer.error is not None:
                        raise answer.error
                    raise InfrastructureError(f"process {rank} of the trainer failed:\n{answer.text}")
                found[rank] = answer
        return [found[rank] for rank in range(len(self._connections))]


def free_port(address: str) -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def _serve(connection: Connection, factory: Factory, arguments: tuple[object, ...], place: Place) -> None:
    try:
        held = factory(*arguments, place)
        connection.send(None)
        while True:
            method, given = connection.recv()
            connection.send(getattr(held, method)(*given))
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        return
    except Exception as error:  # the process's edge: whatever went wrong is the parent's to know
        known = error if isinstance(error, OpenMLEError | ValueError) else None
        connection.send(_Failure(known, traceback.format_exc()))
