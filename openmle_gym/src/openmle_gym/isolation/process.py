"""Runs a command as an ordinary process, with limits. This contains accidents; it isolates nothing."""

import os
import sys

from openmle_gym.errors import ConfigError
from openmle_gym.isolation.local import local_rlimits, require_linux, run_local, tasks_of_user
from openmle_gym.isolation.runner import Isolation, RunResult, RunSpec
from openmle_gym.isolation.workspace import (
    SUPERVISOR,
    expanded,
    program_environment,
    prove,
    refuse_gpu,
    supervisor_arguments,
    workspace,
)

WARNING = "not isolated: the program ran as this user, with its files and its network"


class ProcessRunner:
    """The weakest runner, for machines that offer nothing better and programs that somebody trusts.

    What is covered: wall clock, memory (by a watchdog), processes, the size of a file and of the working directory
    (by `until_over`, which sees not all), the log, a scrubbed
    environment, inputs that are copies, and the death of everything that the program started, `setsid` or not.

    What is not: every file that this user can read or write, answers included, the temporary folder's size, the
    network, other processes of this user, and a program that kills its supervisor on purpose.
    """

    isolation = Isolation.PROCESS

    def __init__(self, *, allow_no_isolation: bool = False) -> None:
        """Takes an explicit consent.

        Raises:
            ConfigError: It was not given.
        """
        if not allow_no_isolation:
            raise ConfigError("allow_no_isolation: must be true to run programs without isolation; prefer Docker")

    async def check(self) -> None:
        """See `Runner`."""
        require_linux()
        await prove(self)

    async def run(self, spec: RunSpec) -> RunResult:
        """See `Runner`."""
        refuse_gpu(spec)
        async with workspace(spec, uid=None, on_host=True) as place:
            inputs, tmp = str(place.root / "inputs"), place.root / "tmp"
            tmp.mkdir()
            argv = tuple(expanded(word, python=sys.executable, inputs=inputs) for word in spec.argv)
            rlimits = local_rlimits(spec.limits, tasks=spec.limits.processes + 1 + tasks_of_user())
            command = [
                *(sys.executable, "-I", "-S", str(SUPERVISOR)),
                *supervisor_arguments(
                    argv,
                    spec.limits,
                    record=str(place.record),
                    rlimits=rlimits,
                    settings=("control=1", "subreaper=1"),
                ),
            ]
            environment = program_environment(
                spec, home=str(place.work), tmp=str(tmp), inputs=inputs, python=sys.executable
            )
            as_root = ("it ran as root",) if os.getuid() == 0 else ()
            return await run_local(
                command,
                spec,
                place,
                isolation=self.isolation,
                environment=environment,
                warnings=(WARNING, *as_root),
            )
