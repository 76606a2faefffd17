"""What a program may use: each limit is reached on purpose, and a little more."""

from sandbox_service.conformance.check import Group, Severity, check, expect
from sandbox_service.conformance.programs import SUBMIT, TELL
from sandbox_service.conformance.service import Ran, Service

MIB = 1024 * 1024
MOST_FILES = 100_000
"""More than any sandbox should let a program make, and few enough to be cleared away."""


async def _still_works(service: Service) -> None:
    ran = await service.run(SUBMIT + "submit()")
    expect(ran.outcome == "success", f"the next program did not run well: {ran}")


def _ceiling(service: Service) -> int:
    return int(service.config.memory_mib * 1.5) + 256


@check(Group.LIMITS)
async def wall_clock_limit(service: Service) -> None:
    """A program that sleeps past its time limit ends as timeout, within the grace."""
    ran = await service.run("import time\ntime.sleep(600)", timeout=3)
    ran.expect_outcome("timeout")
    expect(ran.seconds() + 1 >= 3, f"it ended before its time: {ran.seconds()} s")
    expect(ran.seconds() <= 3 + service.config.grace_seconds, f"it took {ran.seconds()} s: {ran}")


@check(Group.LIMITS)
async def timeout_has_no_score(service: Service) -> None:
    """A program that wrote a good submission and then ran out of time has no score."""
    ran = await service.run(SUBMIT + "submit()\nimport time\ntime.sleep(600)", timeout=4)
    ran.expect_outcome("timeout")
    expect(ran.score is None, f"it was scored: {ran}")


@check(Group.LIMITS)
async def memory_of_one_process(service: Service) -> None:
    """A program that takes more memory than it may is stopped, as a failure of the program."""
    ran = await service.run(
        TELL
        + f"""
blocks = []
for held in range(0, {_ceiling(service)}, 16):
    blocks.append(bytearray(16 << 20))
tell(held=held)
"""
    )
    expect("held" not in ran.facts, f"it held {ran.facts.get('held')} MiB: {ran}")
    ran.expect_outcome("code_execution_error")


@check(Group.LIMITS)
async def memory_of_all_processes_together(service: Service) -> None:
    """Memory is limited for all processes of a program together, not for each."""
    each = max(16, int(service.config.memory_mib * 0.4))
    ran = await service.run(
        TELL
        + f"""
import time
children = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        block = bytearray({each} << 20)
        time.sleep(8)
        os._exit(0)
    children.append(child)
tell(ends=[os.waitpid(child, 0)[1] for child in children])
"""
    )
    expect(ran.facts.get("ends") != [0] * 5, f"five processes held {each} MiB each at once: {ran}")


@check(Group.LIMITS)
async def memory_in_a_child_only(service: Service) -> None:
    """A child that takes too much memory dies, and the job still ends with a result."""
    ran = await service.run(
        TELL
        + f"""
child = os.fork()
if child == 0:
    blocks = [bytearray(16 << 20) for _ in range({_ceiling(service)} // 16)]
    os._exit(42)
tell(end=os.waitpid(child, 0)[1])
"""
    )
    expect(ran.facts.get("end") != 42 << 8, f"the child held {_ceiling(service)} MiB: {ran}")


def _fill(path: str, mib: int) -> str:
    return (
        TELL
        + f"""
written = 0
try:
    with open({path!r}, "wb", buffering=0) as file:
        while written < {mib}:
            file.write(bytes(1 << 20))
            written += 1
except OSError as error:
    tell(error=error.errno)
tell(written=written)
"""
    )


def _expect_filled_less(ran: Ran, mib: int) -> None:
    written = ran.facts.get("written", 0)
    expect(written < mib, f"it wrote {written} MiB: {ran}")


@check(Group.LIMITS)
async def shared_memory_counts(service: Service) -> None:
    """Files in /dev/shm are limited, or count as memory."""
    _expect_filled_less(await service.run(_fill("/dev/shm/x", _ceiling(service))), _ceiling(service))


@check(Group.LIMITS)
async def temporary_folder_is_limited(service: Service) -> None:
    """Files in /tmp are limited in all."""
    most = int(service.config.disk_mib * 1.5) + 16
    ran = await service.run(
        TELL
        + f"""
written = number = 0
try:
    while written < {most}:
        with open(f"/tmp/{{number}}", "wb", buffering=0) as file:
            for _ in range(8):
                file.write(bytes(1 << 20))
                written += 1
        number += 1
except OSError as error:
    tell(error=error.errno)
tell(written=written)
"""
    )
    _expect_filled_less(ran, most)


@check(Group.LIMITS)
async def one_file_is_limited(service: Service) -> None:
    """A file in the working folder cannot grow past the limit."""
    most = int(service.config.disk_mib * 1.5) + 16
    _expect_filled_less(await service.run(_fill("big", most)), most)


@check(Group.LIMITS)
async def working_folder_is_limited(service: Service) -> None:
    """Many files in the working folder together cannot fill the machine's disk."""
    most = service.config.disk_mib * 3 + 16
    ran = await service.run(
        TELL
        + f"""
written = number = 0
try:
    while written < {most}:
        with open(f"part{{number}}", "wb", buffering=0) as file:
            for _ in range(8):
                file.write(bytes(1 << 20))
                written += 1
        number += 1
except OSError as error:
    tell(error=error.errno)
tell(written=written)
""",
        timeout=120,
    )
    _expect_filled_less(ran, most)


def _inodes(folder: str) -> str:
    return (
        TELL
        + f"""
made = 0
try:
    while made < {MOST_FILES}:
        os.close(os.open(f"{folder}/f{{made}}", os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as error:
    tell(error=error.errno)
tell(made=made)
"""
    )


@check(Group.LIMITS, Severity.SHOULD)
async def inodes_of_the_temporary_folder(service: Service) -> None:
    """The number of files in /tmp is limited."""
    ran = await service.run(_inodes("/tmp"), timeout=120)
    expect(ran.facts.get("made", 0) < MOST_FILES, f"it made {MOST_FILES} files: {ran}")


@check(Group.LIMITS)
async def inodes_of_the_working_folder(service: Service) -> None:
    """The number of files in the working folder is limited."""
    ran = await service.run(_inodes("."), timeout=120)
    expect(ran.facts.get("made", 0) < MOST_FILES, f"it made {MOST_FILES} files: {ran}")


@check(Group.LIMITS)
async def processes_are_limited(service: Service) -> None:
    """A program cannot have more processes than it may."""
    most = service.config.processes * 2
    ran = await service.run(
        TELL
        + f"""
import time
made = 0
try:
    while made < {most}:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        made += 1
except OSError as error:
    tell(error=error.errno)
tell(made=made)
"""
    )
    expect(ran.facts.get("made", 0) <= service.config.processes, f"{ran.facts} processes: {ran}")


@check(Group.LIMITS)
async def threads_are_limited(service: Service) -> None:
    """Threads count as processes."""
    most = service.config.processes * 2
    ran = await service.run(
        TELL
        + f"""
import threading
stop, made = threading.Event(), 0
threading.stack_size(65536)
try:
    while made < {most}:
        threading.Thread(target=stop.wait, daemon=True).start()
        made += 1
except RuntimeError as error:
    tell(error=str(error))
tell(made=made)
os._exit(0)
"""
    )
    expect(ran.facts.get("made", 0) <= service.config.processes, f"{ran.facts} threads: {ran}")


@check(Group.LIMITS)
async def fork_bomb(service: Service) -> None:
    """A fork bomb ends at its time limit, and the service runs the next program."""
    ran = await service.run(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass", timeout=3
    )
    ran.expect_outcome("timeout", "code_execution_error")
    expect(ran.seconds() <= 3 + service.config.grace_seconds, f"it took {ran.seconds()} s: {ran}")
    await _still_works(service)


@check(Group.LIMITS)
async def thread_bomb(service: Service) -> None:
    """Threads that start threads end at the time limit, and the service runs the next program."""
    source = """
import threading
threading.stack_size(65536)
def more():
    while True:
        try:
            threading.Thread(target=more).start()
        except RuntimeError:
            pass
more()
"""
    ran = await service.run(source, timeout=3)
    ran.expect_outcome("timeout", "code_execution_error")
    await _still_works(service)


@check(Group.LIMITS)
async def ordinary_parallel_programs_work(service: Service) -> None:
    """Pools of processes and threads, subprocesses and temporary files work."""
    ran = await service.run(
        TELL
        + """
import multiprocessing, subprocess, tempfile
from concurrent.futures import ThreadPoolExecutor
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        made = pool.map(abs, [-1, -2])
    made += ThreadPoolExecutor(2).map(abs, [-3])
    made += [subprocess.check_output(["echo", "4"]).decode()]
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
    tell(made=made)
"""
    )
    expect(ran.fact("made") == [1, 2, 3, "4\n"], ran)


@check(Group.LIMITS, Severity.SHOULD)
async def thread_count_variables(service: Service) -> None:
    """The variables that numeric libraries read say how many threads are worth having."""
    ran = await service.run(TELL + "tell(threads=[os.environ.get(n) for n in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS')])")
    expect(all(ran.fact("threads")), ran)


@check(Group.LIMITS)
async def a_crash_of_the_interpreter_is_the_programs(service: Service) -> None:
    """A program that dies by a signal has failed itself; no machinery has."""
    ran = await service.run("import ctypes\nctypes.string_at(0)")
    ran.expect_outcome("code_execution_error")


@check(Group.LIMITS, Severity.SHOULD)
async def memory_has_a_signature_of_its_own(service: Service) -> None:
    """Running out of memory, of time and of disk are told apart by error_signature."""
    memory = await service.run(f"blocks = [bytearray(16 << 20) for _ in range({_ceiling(service)} // 16)]")
    time = await service.run("while True: pass", timeout=2)
    disk = await service.run(
        f"with open('/tmp/x', 'wb') as file:\n    for _ in range({int(service.config.disk_mib * 1.5)}): file.write(bytes(1 << 20))"
    )
    signatures = [ran.result.get("error_signature") for ran in (memory, time, disk)]
    expect(None not in signatures and len(set(signatures)) == 3, f"the signatures are {signatures}")


@check(Group.LIMITS)
async def limits_cannot_be_raised(service: Service) -> None:
    """A program cannot raise its own hard limits, become less killable, or go before others."""
    ran = await service.run(
        TELL
        + """
import resource
worked = []
for name in ("RLIMIT_NPROC", "RLIMIT_FSIZE"):
    soft, hard = resource.getrlimit(getattr(resource, name))
    if hard != resource.RLIM_INFINITY and not attempt(
        lambda: resource.setrlimit(getattr(resource, name), (hard * 2, hard * 2))
    ).startswith(("ValueError", "PermissionError", "OSError")):
        worked.append(name)
if attempt(lambda: os.nice(-5)) == "-5":
    worked.append("nice")
before = int(open("/proc/self/oom_score_adj").read())
attempt(lambda: open("/proc/self/oom_score_adj", "w").write("-1000"))
if int(open("/proc/self/oom_score_adj").read()) < min(before, 0):
    worked.append("oom_score_adj")
tell(worked=worked)
"""
    )
    expect(ran.fact("worked") == [], ran)
