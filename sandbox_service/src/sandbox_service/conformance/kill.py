"""Whether programs that do not want to end do."""

import asyncio
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sandbox_service.conformance.check import Failed, Group, Severity, add_check, check, expect
from sandbox_service.conformance.programs import SUBMIT, TELL
from sandbox_service.conformance.service import Ran, Service

UNLESS_ON_THE_MACHINE = """
if len([name for name in os.listdir("/proc") if name.isdigit()]) > 10:
    tell(refrained="it sees the machine's own processes, and could harm them")
    sys.exit()
"""
"""A program that signals whatever it can must not do so where nothing holds it."""
MOST_LEFT_BEHIND = 60
"""Processes that a program tries to leave running: far more than come and go on a machine by themselves."""

NEVER_ENDING = {
    "a_busy_loop": ("A program that computes for ever", "while True: pass"),
    "a_program_that_ignores_signals": (
        "A program that ignores every signal it can",
        "import signal, time\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: time.sleep(1)",
    ),
    "a_program_that_stops_itself": (
        "A program that stops itself",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    ),
    "a_program_that_becomes_another": (
        "A program that replaces itself by another",
        "import os\nos.execvp('sleep', ['sleep', '600'])",
    ),
    "a_thread_that_outlives_the_main_one": (
        "A thread that goes on after the program's last line",
        "import threading, time\nthreading.Thread(target=lambda: time.sleep(600)).start()",
    ),
    "a_program_without_output_descriptors": (
        "A program that closed its output",
        "import os, time\nos.close(1)\nos.close(2)\nwhile True: time.sleep(1)",
    ),
    "a_program_that_holds_its_children": (
        "A program whose children ignore signals in sessions of their own",
        "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\nfor _ in range(5):\n"
        "    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n            time.sleep(600)\n"
        "        os._exit(0)\nwhile True: time.sleep(1)",
    ),
    "a_program_that_traps_the_exit": (
        "A program that catches everything and starts over",
        "import time\nwhile True:\n    try:\n        time.sleep(1)\n    except BaseException:\n        pass",
    ),
}


def _ends_as_timeout(source: str):
    async def ends(service: Service) -> None:
        ran = await service.run(source, timeout=2)
        ran.expect_outcome("timeout")
        expect(ran.seconds() <= 2 + service.config.grace_seconds, f"it took {ran.seconds()} s: {ran}")

    return ends


for _name, (_what, _source) in NEVER_ENDING.items():
    add_check(_name, f"{_what} ends as timeout, within the grace.", _ends_as_timeout("#\n" + _source), group=Group.KILL)

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Its inode (Linux, include/linux/proc_ns.h). Who is in it sees every process of the kernel."""


@dataclass(frozen=True)
class Orphans:
    """Processes that a program leaves in sessions of their own, without output, and whether they are gone.

    They bear a name of their own, so that on the same machine they are counted exactly. Of another machine we know only
    how many tasks it has, so other work there must be steady meanwhile.
    """

    service: Service
    number: int
    name: str
    here: bool
    """The service runs on this machine, and we see all its processes."""
    tasks: int
    """What the machine had before."""

    @classmethod
    async def before(cls, service: Service) -> "Orphans":
        """Looks at the machine before the program runs."""
        ran = await service.run(TELL + "tell(boot=open('/proc/sys/kernel/random/boot_id').read())")
        return cls(
            service=service,
            number=min(MOST_LEFT_BEHIND, service.config.processes - 6),
            name=f"left-{uuid.uuid4().hex[:8]}",
            here=_sees_all_of(ran.fact("boot")),
            tasks=await _tasks(service),
        )

    @property
    def program(self) -> str:
        """Leaves them behind; a caller may add to it."""
        return f"""{TELL}
import time
with open("/proc/self/comm", "w") as file:
    file.write({self.name!r})
tell(name=open("/proc/self/comm").read().strip())
for _ in range({self.number}):
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for descriptor in range(3):
            os.close(descriptor)
        time.sleep(900)
        os._exit(0)
    os.waitpid(child, 0)
"""

    async def expect_gone(self, ran: Ran) -> None:
        """Looks until they are.

        Raises:
            Failed: They stay, or the program that ran could not name them.
        """
        expect(ran.fact("name") == self.name, ran)
        unnoticed = 0 if self.here else self.number * 3 // 4
        left = 0
        for _ in range(20):
            left = self._named() if self.here else await _tasks(self.service) - self.tasks
            if left <= unnoticed:
                return
            await asyncio.sleep(1.0)
        what = "of them" if self.here else "more tasks than before"
        raise Failed(f"a program left {self.number} processes, and then the machine had {left} {what}")

    def _named(self) -> int:
        count = 0
        for path in Path("/proc").glob("[0-9]*/comm"):
            with suppress(OSError):  # it ended meanwhile
                count += path.read_text().strip() == self.name
        return count


def _sees_all_of(boot_id: str) -> bool:
    """Whether we run on the kernel of that boot, and see all its processes."""
    own = Path("/proc/sys/kernel/random/boot_id")
    return own.exists() and own.read_text() == boot_id and os.stat("/proc/self/ns/pid").st_ino == INITIAL_PID_NAMESPACE


async def _tasks(service: Service) -> int:
    program = TELL + "tell(tasks=int(open('/proc/loadavg').read().split()[3].split('/')[1]))"
    return (await service.run(program)).fact("tasks")


@check(Group.KILL, alone=True)
async def orphans_of_a_program_that_ended(service: Service) -> None:
    """Processes that a program leaves behind in sessions of their own die with it."""
    orphans = await Orphans.before(service)
    await orphans.expect_gone(await service.run(orphans.program))


@check(Group.KILL, alone=True)
async def orphans_of_a_program_that_was_killed(service: Service) -> None:
    """Processes in sessions of their own die with a program that ran out of time."""
    orphans = await Orphans.before(service)
    ran = await service.run(orphans.program + "time.sleep(600)", timeout=3)
    ran.expect_outcome("timeout")
    await orphans.expect_gone(ran)


@check(Group.KILL)
async def a_grandchild_that_holds_the_output(service: Service) -> None:
    """A job ends with its program, though a grandchild keeps the output open."""
    ran = await service.run(SUBMIT + "import subprocess\nsubmit()\nsubprocess.Popen(['setsid', 'sleep', '50'])")
    ran.expect_outcome("success")
    expect(ran.seconds() < 40, f"it took {ran.seconds()} s: {ran}")


@check(Group.KILL)
async def a_grandchild_that_writes_without_end(service: Service) -> None:
    """A job ends with its program, though a grandchild floods the output."""
    ran = await service.run(
        TELL + "import subprocess\nsubprocess.Popen(['setsid', 'sh', '-c', 'while true; do echo noise; done'])"
    )
    ran.expect_outcome("submission_missing")
    expect(ran.seconds() < 40, f"it took {ran.seconds()} s")


@check(Group.KILL)
async def a_submission_from_a_surviving_grandchild(service: Service) -> None:
    """What a grandchild would write after the program's end is not graded."""
    ran = await service.run(
        SUBMIT
        + "import time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1.5)\n    submit()\n    os._exit(0)\n"
    )
    ran.expect_outcome("submission_missing")


@check(Group.KILL)
async def a_submission_that_changes_while_it_is_read(service: Service) -> None:
    """A grandchild that keeps swapping the submission for a link to a host file gains nothing."""
    ran = await service.run(
        SUBMIT
        + """
submit()
if os.fork() == 0:
    os.setsid()
    os.symlink("/etc/passwd", "link")
    while True:
        try:
            os.replace("submission.csv", "kept")
            os.symlink("/etc/passwd", "submission.csv")
            os.replace("kept", "submission.csv")
        except OSError:
            pass
"""
    )
    expect("root:" not in str(ran.view), f"a host file came back: {ran}")
    ran.expect_outcome("success", "scoring_failed", "submission_missing")


@check(Group.KILL)
async def zombies_are_reaped(service: Service) -> None:
    """Orphans that end are waited for, and do not use up the limit on processes."""
    ran = await service.run(
        TELL
        + f"""
made = 0
try:
    for made in range({service.config.processes + 50}):
        child = os.fork()
        if child == 0:
            if os.fork():
                os._exit(0)
            os._exit(0)
        os.waitpid(child, 0)
except OSError as error:
    tell(error=str(error))
tell(made=made)
"""
    )
    expect("error" not in ran.facts, f"after {ran.facts} orphans no process could be made: {ran}")


@check(Group.KILL)
async def a_program_that_kills_all_it_can(service: Service) -> None:
    """A program that kills every process it sees harms only itself."""
    ran = await service.run(
        SUBMIT
        + UNLESS_ON_THE_MACHINE
        + """
import signal
print("before", flush=True)
for target in (-1, os.getppid(), 1, 0):
    attempt(lambda: os.kill(target, signal.SIGKILL))
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    expect("refrained" not in ran.facts, ran)
    ran.expect_outcome("code_execution_error")
    after = await service.run(SUBMIT + "submit()")
    after.expect_outcome("success")


@check(Group.KILL)
async def a_program_that_stops_its_keepers(service: Service) -> None:
    """A program that stops its parent and the first process still ends at its time limit."""
    ran = await service.run(
        TELL
        + UNLESS_ON_THE_MACHINE
        + """
import signal, time
for target in (os.getppid(), 1):
    attempt(lambda: os.kill(target, signal.SIGSTOP))
time.sleep(600)
""",
        timeout=3,
    )
    expect("refrained" not in ran.facts, ran)
    ran.expect_outcome("timeout", "code_execution_error")
    expect(ran.seconds() <= 3 + service.config.grace_seconds, f"it took {ran.seconds()} s: {ran}")


@check(Group.KILL, Severity.SHOULD)
async def the_log_survives_a_kill(service: Service) -> None:
    """What a program printed before it was killed at its time limit is in its log."""
    ran = await service.run("print('printed before', flush=True)\nwhile True: pass", timeout=2)
    expect("printed before" in ran.log, ran)
